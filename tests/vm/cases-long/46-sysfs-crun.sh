# shellcheck shell=bash source=tests/vm/cases/45-sysfs.sh
# What 45-sysfs.sh shows under runc, under crun.
. "$(dirname "${BASH_SOURCE[0]}")/../cases/45-sysfs.sh"

case_a_view() { both crun; }
case_a_user_namespace_can_unmount_it() { userns crun; }
case_an_edited_config_with_a_user_namespace() { edited_userns crun; }
