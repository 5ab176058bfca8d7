# shellcheck shell=bash source=tests/vm/container.sh
# A container that did not ask for NICs: hooks may be configured for all containers of a host.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

# Everything that rdmaprep may write, with its size and time.
written() { find /run/rdmaprep /var/lib/rdmaprep /var/log/rdmaprep.log -printf '%p %s %T@\n' 2>&1 || true; }

case_it_gets_none() {
  local before
  bundle plain ls /sys/class/net
  prepare plain v0
  edit plain 'del(.annotations["rdmaprep.io/plan"]) | .hooks |= map_values(map(.args = .args[:3]))'
  equal "hooks that remain" 4 "$(jq '[.hooks[][] | select(.args == ["rdmaprep", "hook", .args[2]])] | length' \
    /tmp/ctr/plain/config.json)"
  before=$(written)
  for runtime in runc crun; do
    equal "its NICs under $runtime" lo "$($runtime run --bundle /tmp/ctr/plain plain < /dev/null)"
    equal "files" "$before" "$(written)"
  done
}

case_its_hook_does_nothing() {
  local before began
  sandbox plain
  before=$(written)
  strace -f -o /tmp/ctr/trace rdmaprep hook createRuntime < /tmp/ctr/plain.state
  grep -q execve /tmp/ctr/trace || die "no trace"
  ! grep -E 'O_CREAT|mkdir|socket\(|mount\(|setns|rename|unlink|write\(' /tmp/ctr/trace || die "it did something"
  began=$(date +%s%N)
  for _ in {1..50}; do rdmaprep hook createRuntime < /tmp/ctr/plain.state; done
  echo "# a hook that has nothing to do: $((($(date +%s%N) - began) / 50000)) us under emulation"
  equal "files" "$before" "$(written)"
}
