# shellcheck shell=bash source=tests/vm/cases/96-gvisor.sh
# What 96-gvisor.sh shows, the other way round.
. "$(dirname "${BASH_SOURCE[0]}")/../cases/96-gvisor.sh"

case_host_network() { whole host; }

case_a_killed_sentry_with_a_network_of_its_own() { killed sandbox; }
