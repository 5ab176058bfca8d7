# shellcheck shell=bash source=tests/vm/container.sh
# SIGKILL at every fault point of an attach and of a restore, of a NIC that the kernel returns when its namespace dies and of
# one that it deletes then, or that stays in a namespace that another process holds.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

points=/tmp/ctr/points

# pass COMMAND...: undisturbed; how many points it passes is in $count.
pass() {
  rm -f "$points"
  RDMAPREP_FAULT_POINTS=$points "$@"
  count=$(wc -l < "$points")
  [ "$count" -gt 20 ] || die "only $count points: $(cat "$points")"
}

# strike N COMMAND...: with SIGKILL at its point N, which it must reach.
strike() {
  local number=$1 code=0
  shift
  rm -f "$points"
  RDMAPREP_FAULT=$number:kill RDMAPREP_FAULT_POINTS=$points "$@" || code=$?
  [ "$code" = 137 ] || die "point $number: exit status $code instead of SIGKILL: $(tail -n 1 "$points")"
}

# Where the first PCI NIC is on the host, by its address, is in $came.
returned() {
  came=$(basename "$(grep -l 52:54:00:00:00:01 /sys/class/net/*/address | xargs -r dirname)")
  [ -n "$came" ]
}

# die_out: kills the container, if it still runs, and all that keeps its namespace; the kernel returns the PCI NIC.
die_out() {
  kill -KILL "$init" 2> /dev/null || true
  wait "$init" || true
  umount "$pins"/* 2> /dev/null || true
  until_true 30 returned
}

home_again() {
  rdmaprep restore --all > /tmp/ctr/said || die "point $1, $(tail -n 1 "$points"): $(cat /tmp/ctr/said)"
  (clean) || die "point $1, $(tail -n 1 "$points"): the host is not what it was"
}

case_an_attach_and_its_namespace_dies() {
  plan cut "rdma0"
  sandbox cut
  pass hook createRuntime cut
  kill -KILL "$init"
  hook poststop cut
  local last=$count n
  for ((n = 1; n <= last; n++)); do
    sandbox cut
    strike "$n" hook createRuntime cut
    die_out
    home_again "$n"
  done
  echo "# $last points of an attach, SIGKILL at each, then the end of the namespace: the host was whole after each"
}

case_an_attach_and_its_container_lives() {
  plan cut "rdma0 v0"
  sandbox cut
  pass hook createRuntime cut
  kill -KILL "$init"
  hook poststop cut
  local last=$count n
  for ((n = 1; n <= last; n++)); do
    sandbox cut
    strike "$n" hook createRuntime cut
    home_again "$n"
    kill -KILL "$init"
  done
  echo "# $last points of an attach, SIGKILL at each, with a container that keeps running: the host was whole after each"
}

# away: rdma0 and v0 are in the namespace of a dead container, which another process still holds.
away() {
  sandbox cut
  hook createRuntime cut
  kill -KILL "$init"
  wait "$init" || true
}

case_a_restore() {
  plan cut "rdma0 v0"
  away
  pass rdmaprep restore --all
  local last=$count n
  for ((n = 1; n <= last; n++)); do
    away
    strike "$n" rdmaprep restore --all
    home_again "$n"
  done
  echo "# $last points of a restore, SIGKILL at each: the host was whole after the next"
}

case_a_restore_of_what_the_kernel_has_returned() {
  plan cut "rdma0"
  away
  die_out
  pass rdmaprep restore --all
  local last=$count n
  for ((n = 1; n <= last; n++)); do
    away
    die_out
    strike "$n" rdmaprep restore --all
    home_again "$n"
  done
  echo "# $last points of a restore of a returned NIC, SIGKILL at each: the host was whole after the next"
}
