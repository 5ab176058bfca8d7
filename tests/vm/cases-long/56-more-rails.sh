# shellcheck shell=bash source=tests/vm/cases/55-rails.sh
# What 55-rails.sh shows with rules, without them.
. "$(dirname "${BASH_SOURCE[0]}")/../cases/55-rails.sh"

# The known recipe alone.
case_without_rules_one_rail_of_a_subnet_reaches_its_peer() {
  local i count=0
  fabric one
  up 2/1/1/1 --sysfs off
  for i in 0 1 2 3; do
    if reaches a "198.18.7.1$i" "198.18.7.2$i"; then count=$((count + 1)); fi
  done
  equal "rails that reach their peers" 1 "$count"
  down
}
