# shellcheck shell=bash source=tests/vm/container.sh
# What hooks/systemd/rdmaprep-stale.timer does, in a guest without systemd: no stop hook is called, no other container
# starts, and within 15 s the host is whole.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

undo() { kill "$timer" 2> /dev/null || true; }

# The timer's interval and its unit's command.
timer_begins() {
  local every command
  every=$(sed -n 's/^OnUnitActiveSec=//p' /repo/hooks/systemd/rdmaprep-stale.timer)
  command=$(sed -n 's/^ExecStart=.*rdmaprep /rdmaprep /p' /repo/hooks/systemd/rdmaprep-stale.service)
  equal "its command" "rdmaprep restore --all --stale" "$command"
  (while sleep "$every"; do $command; done) > /tmp/ctr/timer 2>&1 &
  timer=$!
}

whole() { (clean) > /dev/null 2>&1; }

# whole_again RUNTIME WHAT: within 15 s, by the timer if by nothing else.
whole_again() {
  local began=$SECONDS
  until_true 15 whole
  echo "# $1, $2: the host was whole after $((SECONDS - began)) s"
  "$1" delete --force lost > /dev/null 2>&1 || true
  clean
  umount /tmp/ctr/lost/rootfs
}

# failing RUNTIME HOOK: a container whose next createRuntime hook is that, which cannot work.
failing() {
  bundle lost
  prepare lost "v0 rdma0"
  edit lost ".hooks.createRuntime += [{path: \"$2\"}]"
  if "$1" run --bundle /tmp/ctr/lost lost > /tmp/ctr/lost.out 2>&1 < /dev/null; then die "it started"; fi
  grep -q "container=lost.*outcome=ok" /var/log/rdmaprep.log || die "the NICs were never there: $(cat /tmp/ctr/lost.out)"
  rm -f /var/log/rdmaprep.log
}

case_the_host_is_whole_within_15_s() {
  mkdir -p /tmp/ctr
  timer_begins
  # crun calls no stop hook when a later hook fails; of runc, which does, ALL=1 shows as much.
  for runtime in crun ${ALL:+runc}; do
    failing "$runtime" /bin/false
    whole_again "$runtime" "a later hook fails"

    failing "$runtime" /nonexistent/hook
    whole_again "$runtime" "a later hook does not exist"

    bundle lost
    prepare lost "v0 rdma0"
    edit lost '.process.args = ["/nonexistent/program"]'
    if "$runtime" run --bundle /tmp/ctr/lost lost > /tmp/ctr/lost.out 2>&1 < /dev/null; then die "it started"; fi
    whole_again "$runtime" "the program does not exist"

    bundle lost
    prepare lost "v0 rdma0"
    "$runtime" run --bundle /tmp/ctr/lost lost > /tmp/ctr/lost.out 2>&1 < /dev/null &
    runner=$!
    until_true 20 record lost
    kill -KILL "$runner"
    wait "$runner" || true
    whole_again "$runtime" "killed with its hook at work"
  done
}
