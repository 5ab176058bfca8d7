# shellcheck shell=bash source=tests/vm/container.sh
# Several containers in one network namespace, and one container several times.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

# In a container: the verbs ping-pong over the first HCA of NCCL_IB_HCA, by its RoCE v2 GID for IPv4.
# shellcheck disable=SC2016 # the container's shell expands it
pingpong='hca=${NCCL_IB_HCA#=}; hca=${hca%%,*}
index=$(cd /sys/class/infiniband/$hca/ports/1/gids && grep -l "^0000:.*:ffff:" *)
exec ibv_rc_pingpong -d $hca -g $index -n 50'

in_pod() { # ID: its network namespace is the pod's
  edit "$1" '(.linux.namespaces[] | select(.type == "network")).path = "/run/netns/pod"'
}

listening() { within two ss -ltn | grep -q :18515; }

case_the_second_keeps_the_nics_and_they_work() {
  local first second server
  ip netns add pod
  for id in one two; do
    bundle "$id"
    in_pod "$id"
    as=pod prepare "$id" v0
  done
  bundle peer sh -c "$pingpong 198.51.100.1"
  prepare peer v1
  start runc one
  first=$runner
  start runc two
  second=$runner
  equal "members" "one two" "$(jq -r '[.members[].id] | join(" ")' "$records"/*)"

  stop runc one "$first"
  [ ! -e /sys/class/net/v0 ] || die "the NIC was restored with the first container"
  said=$(rdmaprep status)
  says "held by     two"
  runc exec two sh -c "$pingpong" > /tmp/ctr/two.pingpong 2>&1 &
  server=$!
  serves "$server" /tmp/ctr/two.pingpong listening
  said=$(crun run --bundle /tmp/ctr/peer peer < /dev/null)
  says "50 iters in"
  wait "$server"
  grep '50 iters in' /tmp/ctr/two.pingpong || die "$(cat /tmp/ctr/two.pingpong)"
  echo "# RDMA between runc and crun: $(grep bytes /tmp/ctr/two.pingpong)"

  stop runc two "$second"
  # The namespace is still there, and empty.
  equal "the pod's NICs" lo "$(ip netns exec pod ls /sys/class/net)"
}

case_restarts_of_one_container() {
  local count
  count=$(rounds 2)
  bundle again ip -brief address
  # A PCI NIC that was just restored is still without its carrier, and so without the kernel's link-local address.
  prepare again "v0 rdma0"
  for ((round = 1; round <= count; round++)); do
    said=$(runc run --bundle /tmp/ctr/again again < /dev/null)
    says 198.51.100.1/24
    says 192.0.2.1/24
    clean
  done
  echo "# restarted $count times; ALL=1: 20"
}
