# shellcheck shell=bash source=tests/vm/cases/12-shim.sh
# What 12-shim.sh shows under runc and crun.
. "$(dirname "${BASH_SOURCE[0]}")/../cases/12-shim.sh"

case_runsc() { whole runsc; }
