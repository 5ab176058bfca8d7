# shellcheck shell=bash source=tests/vm/container.sh
# Hooks and runtimes that are killed, and stop hooks that are never called.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

# Evenly over the time that an undisturbed hook takes.
case_the_hook_at_any_moment() {
  local whole=0 left=0 at pid code
  plan cut "v0 v1"
  sandbox cut
  hook createRuntime cut
  whole=$(report cut .micros)
  hook poststop cut
  # Later ones are for a machine that has become slower meanwhile.
  for eighth in 2 3 4 5 6 7 8 10 12 14 16 20; do
    [ "$eighth" -le 8 ] || [ "$left" -le 1 ] || break
    sandbox cut
    at=$(printf '%d.%06d' $((whole * eighth / 8000000)) $((whole * eighth / 8 % 1000000)))
    rdmaprep hook createRuntime --plan cut < /tmp/ctr/cut.state &
    pid=$!
    sleep "$at"
    kill -KILL "$pid" || true
    code=0
    wait "$pid" || code=$?
    if [ "$code" = 137 ] && [ -n "$(record cut)" ]; then
      left=$((left + 1))
      jq -r '"# killed: the record says \(.phase)"' "$(record cut)"
    fi
    kill -KILL "$init"
    rdmaprep restore --all
    clean
  done
  [ "$left" -gt 1 ] || die "no kill hit the hook at work"
}

case_the_runtime_while_its_hook_works() {
  bundle orphan
  prepare orphan "v0 rdma0"
  runc run --bundle /tmp/ctr/orphan orphan > /tmp/ctr/orphan.out 2>&1 < /dev/null &
  runner=$!
  until_true 20 record orphan
  pgrep -x rdmaprep || die "the hook had ended"
  kill -KILL "$runner"
  until_true 30 sh -c '! pgrep -x rdmaprep'
  tail -n 2 /var/log/rdmaprep.log
  rdmaprep restore --all
}

later_hook_fails() { # RUNTIME STATUS
  bundle refused
  prepare refused "v0 rdma0"
  edit refused '.hooks.createRuntime += [{path: "/bin/false"}]'
  fails "$2" "$1" run --bundle /tmp/ctr/refused refused
  tail -n 3 /var/log/rdmaprep.log
  grep -q "container=refused.*outcome=ok.*nics=v0,rdma0\|container=refused.*outcome=ok.*nics=rdma0,v0" /var/log/rdmaprep.log ||
    die "the NICs were never there"
  if record refused; then
    echo "# $1 calls no poststop when a later hook fails"
    # Any other container's hook restores them.
    sandbox other
    plan other v1
    hook createRuntime other
    said=$(report other .notes[])
    says "restored v0 rdma0: their container has died"
    hook poststop other
  else
    echo "# $1 calls poststop when a later hook fails"
  fi
}

case_a_later_hook_fails_under_runc() { later_hook_fails runc 1; }
case_a_later_hook_fails_under_crun() { later_hook_fails crun 255; }
