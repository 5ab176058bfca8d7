# shellcheck shell=bash source=tests/vm/roce-node.sh
# Devices that behave as hardware's do, where each belongs to one network namespace: they go into the container with their
# NICs, and are restored with them.
. "$(dirname "${BASH_SOURCE[0]}")/../roce-node.sh"

here() { [ -e "/sys/class/infiniband/$1" ]; }

# Devices of the host with their verbs nodes. (The class of those is every namespace's.)
devices() { (cd /sys/class/infiniband_verbs && for n in uverbs*; do echo "$(cat "$n/ibdev") $n $(cat "$n/dev")"; done | grep ^roce); }

# nics N...: the module over all four, and these up; what the host's network is like then.
nics() {
  local n
  roce
  roce_up "$@"
  for n; do
    roce_is ACTIVE "roce$n"
    roce_has "$n" "roce$n"
  done
  devices > /run/cases/devices.before
  rdmaprep snapshot --normal > /run/cases/roce.before
}

# away ID N...: the host lacks those, the container has them, with their GIDs, ACTIVE.
# shellcheck disable=SC2016 # the shell in the namespace expands it
away() {
  local id=$1 n
  shift
  equal "devices of the container" "$(printf 'roce%s\n' "$@")" "$(within "$id" ls /sys/class/infiniband)"
  for n; do
    here "roce$n" && die "roce$n is still here"
    [[ $(rdma dev) != *": roce$n:"* ]] || die "the host's rdma still shows roce$n"
    said=$(within "$id" rdma link show "roce$n/1")
    says "state ACTIVE"
    says "netdev ${roce_nics[n]}"
    equal "GIDs of roce$n" "$(roce_expected "$n" | sort)" \
      "$(within "$id" bash -c '. /repo/tests/vm/roce-node.sh; roce_gids "$0"' "roce$n" | sort)"
  done
  equal "verbs nodes" "$(cat /run/cases/devices.before)" "$(devices)"
}

# home_again N...: all as before, and the ports work.
home_again() {
  local n
  same /run/cases/roce.before
  equal "verbs nodes" "$(cat /run/cases/devices.before)" "$(devices)"
  for n; do
    roce_is ACTIVE "roce$n"
    roce_has "$n" "roce$n"
  done
}

# shellcheck disable=SC2016 # the container's shell expands it
tells='echo "nodes $(ls /dev/infiniband | tr "\n" " ")"; echo "hca $NCCL_IB_HCA"; echo "class $(ls /sys/class/infiniband | tr "\n" " ")"
echo "verbs $(ls /sys/class/infiniband_verbs | tr "\n" " ")"
ibv_devinfo -d roce0; ibv_devinfo -d roce2; echo ready; exec sleep infinity'

# roce2 is function 0 of a card whose function 1 stays on the host, roce1 a card that does.
whole() { # RUNTIME
  nics 0 1 2 3
  equal "mode" exclusive "$(rdmaprep snapshot --json | jq -r .rdma_mode)"
  bundle c sh -c "$tells"
  prepare c "${roce_nics[0]} ${roce_nics[2]}"
  said=$(cat /tmp/ctr/c.prepared)
  says "RDMA namespace mode exclusive: roce0, roce2 move, too"
  start "$1" c
  said=$(cat /tmp/ctr/c.out)
  says "hca =roce0,roce2"
  says "nodes rdma_cm $(for n in 0 2; do awk -v hca="roce$n" '$1 == hca {print $2}' /run/cases/devices.before; done | tr '\n' ' ')"
  says "class roce0 roce2 "
  equal "ports that the container sees ACTIVE" 2 "$(grep -c PORT_ACTIVE /tmp/ctr/c.out)"
  # Of these every namespace would have all.
  says "verbs abi_version $(for n in 0 2; do awk -v hca="roce$n" '$1 == hca {print $2}' /run/cases/devices.before; done | tr '\n' ' ')"
  away c 0 2
  stop "$1" c "$runner"
  home_again 0 1 2 3
}

case_a_container_of_runc_gets_two() { whole runc; }
case_a_container_of_crun_gets_two() { whole crun; }

# No stop hook is called, and the pin is gone: the kernel returns netdev and device, without configuration.
case_a_namespace_that_dies() {
  nics 0 1
  bundle dead
  prepare dead "${roce_nics[0]} ${roce_nics[1]}"
  start runc dead
  away dead 0 1
  kill -KILL "$runner"
  local pin
  pin=$(pin dead)
  kill -KILL "$(jq '.members[0].pid' "$(record dead)")"
  umount "$pin"
  until_true 20 test -e "/sys/class/net/${roce_nics[1]}"
  until_true 20 here roce1
  rdmaprep restore dead
  home_again 0 1
}

# The same with the pin: both are still in there, one under another name.
case_a_dead_container_whose_namespace_lives_on() {
  nics 0 1
  sandbox dead
  plan dead "${roce_nics[0]} ${roce_nics[1]}"
  hook createRuntime dead
  away dead 0 1
  kill -KILL "$init"
  sleep 0.5
  here roce0 && die "roce0 was returned by the kernel"
  nsenter "--net=$(pin dead)" rdma dev set roce1 name evil
  rdmaprep restore --all
  home_again 0 1
}

# As soon as the host lacks one, then the other netdev, then the devices. On a busy machine a hook may end before it is killed: then
# another one is tried.
case_the_hook_killed_in_the_middle() {
  local gone tries
  nics 0 1
  plan cut "${roce_nics[0]} ${roce_nics[1]}"
  for gone in "net/${roce_nics[0]}" "net/${roce_nics[1]}" infiniband/roce0 infiniband/roce1; do
    for tries in 1 2 3 4 5 none; do
      [ "$tries" != none ] || die "no hook was killed when $gone was gone"
      sandbox cut
      killed_without "$gone" && break
      kill -KILL "$init"
      rdmaprep restore --all
    done
    echo "# killed without $gone: $(within cut ls /sys/class/net | grep -c eth) netdevs and $(within cut ls /sys/class/infiniband | wc -l) devices were inside"
    kill -KILL "$init"
    rdmaprep restore --all
    home_again 0 1
  done
}

# killed_without GONE: a create hook is killed as soon as the host lacks that; fails if it ends before.
killed_without() {
  local pid code=0
  rdmaprep hook createRuntime --plan cut < /tmp/ctr/cut.state &
  pid=$!
  while [ -e "/sys/class/$1" ] && kill -0 "$pid"; do :; done
  kill -KILL "$pid" || true
  wait "$pid" || code=$?
  [ "$code" = 137 ] || [ "$code" = 0 ] || die "the hook ended with $code"
  [ "$code" = 137 ]
}

# A GID that never comes.
case_a_failure_undoes_it() {
  nics 0 1
  plan dark "${roce_nics[0]} ${roce_nics[1]}"
  jq '.nics[1].gid.address = "::ffff:10.1.1.99"' /run/rdmaprep/plans/dark.json > /tmp/dark.json
  mv /tmp/dark.json /run/rdmaprep/plans/dark.json
  sandbox dark
  fails 7 hook createRuntime dark
  says "roce1 port 1 in the container has no RoCE v2 GID for 10.1.1.99 on ${roce_nics[1]}"
  says ": 10.1.1.1 RoCE v2 ${roce_nics[1]}"
  says "everything is undone"
  home_again 0 1
}

# A device whose other port stays on the host is refused with advice; with both ports it is moved.
case_several_ports() {
  roce "netdevs=${roce_nics[0]},${roce_nics[2]}+${roce_nics[3]}"
  roce_up 2 3
  for port in 1 2; do
    roce_is ACTIVE roce1 "$port"
    roce_has "$((port + 1))" roce1 "$port"
  done
  rdmaprep snapshot --normal > /run/cases/roce.before
  fails 3 rdmaprep prepare --ifaces "${roce_nics[2]}"
  says "roce1 moves with all its ports"
  says "${roce_nics[3]} of its port 2 is not taken"
  says "rdma system set netns shared"
  plan both "${roce_nics[2]} ${roce_nics[3]}"
  sandbox both
  hook createRuntime both
  here roce1 && die "roce1 is still here"
  equal "active ports" 2 "$(within both rdma link | grep -c 'roce1/. state ACTIVE')"
  hook poststop both
  same /run/cases/roce.before
  for port in 1 2; do roce_has "$((port + 1))" roce1 "$port"; done
}

# InfiniBand has no netdev: its device alone moves.
case_an_infiniband_device() {
  roce "netdevs=${roce_nics[0]},${roce_nics[1]}" link_layers=ethernet,infiniband
  # The test device's netdev, which a real one does not have.
  ip netns add n
  ip link set "${roce_nics[1]}" netns n
  roce_address 1 n
  roce_up 0
  roce_is ACTIVE roce0
  roce_is ACTIVE roce1
  rdmaprep snapshot --normal > /run/cases/roce.before
  mkdir -p /tmp/ctr
  rdmaprep prepare --plan ib --ifaces "${roce_nics[0]}" --ib --hca all > /tmp/ctr/ib.prepared
  said=$(cat /tmp/ctr/ib.prepared)
  says "roce0, roce1 move, too"
  sandbox ib
  hook createRuntime ib
  here roce1 && die "roce1 is still here"
  equal "devices inside" "roce0 roce1 " "$(within ib ls /sys/class/infiniband | tr '\n' ' ')"
  # A device that is not restored keeps its record: no NIC shows that it is missing.
  nsenter "--net=$(pin ib)" rdma dev set roce1 name evil
  fails 8 hook poststop ib
  says "roce1 hca: nothing instead of present"
  nsenter "--net=$(pin ib)" rdma dev set evil name roce1
  rdmaprep restore ib
  here roce1 || die "roce1 is not home"
  same /run/cases/roce.before
  ip netns delete n
  until_true 20 test -e "/sys/class/net/${roce_nics[1]}"
}

# A gap below: the kernel gives the moved device its number, and a third device of another container keeps its own.
case_verbs_nodes_are_foretold() {
  local node
  nics 0 1 2
  plan one "${roce_nics[0]}"
  sandbox one
  hook createRuntime one
  first=$init
  # Now uverbs0, of rxe0, is free.
  rdma link delete rxe0
  plan two "${roce_nics[2]}"
  node=$(jq -r '.devices[0].name' /run/rdmaprep/plans/two.json)
  equal "node that the plan foretells" uverbs0 "$node"
  sandbox two
  hook createRuntime two
  equal "node of roce2" "roce2 uverbs0" "$(devices | awk '$1 == "roce2" {print $1, $2}')"
  equal "node of roce0" "$(grep ^roce0 /run/cases/devices.before)" "$(devices | grep ^roce0)"
  hook poststop two
  kill "$first"
  hook poststop one
  for hca in roce0 roce2; do here "$hca" || die "$hca is not home"; done
  # So that it gets its old node.
  undo
  rdma link add rxe0 type rxe netdev v0
}
