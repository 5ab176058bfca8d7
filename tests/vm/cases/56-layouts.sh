# shellcheck shell=bash source=tests/vm/roce-node.sh
# NICs that are more, or less, than one netdev on one function: VLANs, macvlans, ipvlans, bonds, two ports on one HCA.
. "$(dirname "${BASH_SOURCE[0]}")/../roce-node.sh"
roce_undo=$(declare -f undo | sed '1s/undo/roce_undo/')
eval "$roce_undo"

undo() {
  local link
  for link in w0 w1 m0 m1 bond0 v0.7 "${roce_nics[0]}.7"; do ip link delete "$link" 2>/dev/null || true; done
  ip address delete 198.18.11.2/24 dev v1 2>/dev/null || true
  roce_undo
}

home() { [ -e "/sys/class/net/$1" ]; }

# vlan DEV ID ADDRESS: a VLAN with something in each of its properties.
vlan() {
  ip link add link "$1" name "$1.$2" type vlan id "$2" loose_binding on egress-qos-map 0:3 1:4 ingress-qos-map 5:6
  ip link set "$1.$2" up alias "tenant $2"
  ip address add "$3/24" brd + dev "$1.$2"
}

# details DEV: what it is made of, as iproute2 tells it.
details() { ip -d -j link show dev "$1" | jq -cS '.[] | {ifname, link, address, mtu, ifalias, linkinfo}'; }

# gid_of ADDRESS HCA: netdevs of its RoCE v2 GIDs made from that IPv4 address.
gid_of() {
  local -a ip
  IFS=. read -ra ip <<< "$1"
  roce_gids "$2" | grep "RoCE v2 .*:ffff:$(printf %02x%02x:%02x%02x "${ip[@]}")" | cut -d " " -f 3
}

# A VLAN is moved with its parent, and both are restored; also when the namespace dies, which deletes the VLAN.
case_a_vlan_comes_along() {
  local nic=${roce_nics[0]} vlan=${roce_nics[0]}.7 before state
  roce
  roce_up 0
  vlan "$nic" 7 10.7.0.1
  ip route add 10.77.0.0/16 via 10.7.0.254 dev "$vlan" metric 7
  roce_is ACTIVE roce0
  until_true 10 test -n "$(gid_of 10.7.0.1 roce0)"
  before=$(rdmaprep snapshot --normal)
  state=$(details "$vlan")
  bundle c
  prepare c "$nic"
  said=$(cat /tmp/ctr/c.prepared)
  says "$vlan: comes along with $nic, which it sits on"
  equal "what peers need" "RDMA_PEER_IFACES=\"$nic\"" "$(tail -n 1 /tmp/ctr/c.prepared)"
  says "NCCL_IB_HCA==roce0 "
  start runc c
  home "$nic" && die "$nic is still here"
  home "$vlan" && die "$vlan is still here"
  said=$(within c ip -brief address show dev "$vlan")
  says "10.7.0.1/24"
  said=$(within c ip route)
  says "10.77.0.0/16 via 10.7.0.254 dev $vlan metric 7"
  equal "the VLAN inside" "$state" "$(within c ip -d -j link show dev "$vlan" | jq -cS '.[] | {ifname, link, address, mtu, ifalias, linkinfo}')"
  equal "netdev of the GID of the VLAN" "$vlan" "$(gid_of 10.7.0.1 roce0)"
  equal "netdev of the GID of the NIC" "$nic" "$(gid_of 10.1.0.1 roce0)"
  stop runc c "$runner"
  equal "the host's network" "$before" "$(rdmaprep snapshot --normal)"
  equal "the restored VLAN" "$state" "$(details "$vlan")"

  # A container that dies without a word, its namespace with it. (The card needs a moment to find its carrier again.)
  sandbox d
  roce_is ACTIVE roce0
  plan d "$nic"
  hook createRuntime d
  home "$vlan" && die "$vlan is still here"
  umount "$(pin d)"
  kill -KILL "$init"
  until_true 20 home "$nic"
  rdmaprep restore --all
  equal "the host's network" "$before" "$(rdmaprep snapshot --normal)"
  equal "the VLAN re-created" "$state" "$(details "$vlan")"

  # One that deletes it.
  sandbox e
  roce_is ACTIVE roce0
  plan e "$nic"
  hook createRuntime e
  nsenter "--net=$(pin e)" ip link delete "$vlan"
  kill -KILL "$init"
  said=$(rdmaprep restore --all)
  says "$vlan had been deleted"
  equal "the host's network" "$before" "$(rdmaprep snapshot --normal)"
  equal "the VLAN re-created" "$state" "$(details "$vlan")"

  # One that changes it.
  sandbox f
  roce_is ACTIVE roce0
  plan f "$nic"
  hook createRuntime f
  nsenter "--net=$(pin f)" ip link set "$vlan" type vlan loose_binding off egress-qos-map 0:5 ingress-qos-map 7:1
  kill -KILL "$init"
  rdmaprep restore --all
  equal "the VLAN as it was" "$state" "$(details "$vlan")"
}

# The kernel takes each number of a VLAN once: one that was moved on is deleted before it is made again, whether its parent stayed on
# the host or was moved as well.
case_a_vlan_that_was_moved_on_is_made_again() {
  local nics before
  ip link add link v0 name v0.7 type vlan id 7
  ip link set v0.7 up
  ip address add 10.70.0.1/24 dev v0.7
  before=$(rdmaprep snapshot --normal)
  for nics in v0.7 v0; do
    sandbox f
    plan f "$nics"
    hook createRuntime f
    ip netns add other
    nsenter "--net=$(pin f)" ip link set v0.7 netns other
    kill -KILL "$init"
    rdmaprep restore --all
    equal "the host's network" "$before" "$(rdmaprep snapshot --normal)"
    said=$(ip -n other -brief link)
    ! grep v0.7 <<< "$said" || die "$nics: it stayed there: $said"
    ip netns delete other
  done
}

# Its parent is down while both are moved, and up before the VLAN is set up, which takes the VLAN up with it.
case_a_vlan_that_is_down_stays_down() {
  local before
  ip link add link v0 name v0.7 type vlan id 7
  before=$(rdmaprep snapshot --normal)
  bundle c
  prepare c v0
  start runc c
  said=$(within c ip -brief link show dev v0.7)
  says " DOWN "
  said=$(within c ip -brief link show dev v0)
  says " UP "
  stop runc c "$runner"
  equal "the host's network" "$before" "$(rdmaprep snapshot --normal)"
}

# What cannot come along is not left behind either.
case_a_macvlan_on_a_nic_keeps_it() {
  ip link add link v0 name m0 type macvlan mode bridge
  fails 4 rdmaprep prepare --plan x --ifaces v0
  says "m0 (macvlan) sits on v0, and would be left without it → delete the upper netdev first"
}

# pingpong SERVER RUNTIME CLIENT RUNTIME HCA HCA ADDRESS: RDMA between two containers, by GIDs made from IPv4 addresses on
# that netdev.
pingpong() {
  # shellcheck disable=SC2016 # the container's shell expands it
  local verbs='cd /sys/class/infiniband/$0/ports/1 && for i in $(grep -l "^0000:.*:ffff:" gids/*); do
      i=${i#gids/}; grep -q v2 gid_attrs/types/$i && [ "$(cat gid_attrs/ndevs/$i)" = "$1" ] && index=$i; done
    exec ibv_rc_pingpong -d $0 -g $index -p 18530 -n 50 $2'
  runc exec a sh -c "$verbs" "$1" "$2" > /tmp/ctr/server 2>&1 &
  server=$!
  serves "$server" /tmp/ctr/server listening
  crun exec b sh -c "$verbs" "$3" "$4" "$5" > /tmp/ctr/client 2>&1 || die "$(cat /tmp/ctr/client /tmp/ctr/server)"
  wait "$server" || die "$(cat /tmp/ctr/server)"
  echo "# RDMA over $2 and $4: $(grep bytes /tmp/ctr/client)"
}
listening() { within a ss -ltn | grep -q ":18530 "; }

# both NETDEV NETDEV: containers a (runc) and b (crun) have them.
both() {
  bundle a
  prepare a "$1"
  bundle b
  prepare b "$2"
  start runc a
  first=$runner
  start crun b
  second=$runner
}
neither() {
  stop runc a "$first"
  stop crun b "$second"
  equal "the host's network" "$before" "$(rdmaprep snapshot --normal)"
}

# Two veth NICs of our own with a VLAN each, on the bridge.
case_rdma_over_a_vlan() {
  local i
  for i in 0 1; do
    ip link add "w$i" type veth peer name "x$i"
    ip link set "x$i" master fabric up
    ip link set "w$i" mtu 1400 up
    ip address add "198.18.8.$((i + 1))/24" dev "w$i"
    vlan "w$i" 9 "198.18.9.$((i + 1))"
    rdma link add "rxew$i" type rxe netdev "w$i"
  done
  active 7
  before=$(rdmaprep snapshot --normal)
  both w0 w1
  pingpong rxew0 w0 rxew1 w1 198.18.8.1
  pingpong rxew0 w0.9 rxew1 w1.9 198.18.9.1
  neither
}

# Soft-RoCE on a macvlan or ipvlan: its own HCA, re-created with it when the namespace deletes it.
stacked() { # KIND MODE
  local i state
  for i in 0 1; do
    ip link add link "v$i" name "m$i" type "$1" mode "$2"
    ip link set "m$i" up alias "on v$i"
    ip address add "198.18.10.$((i + 1))/24" dev "m$i"
    rdma link add "rxem$i" type rxe netdev "m$i"
  done
  active 7
  before=$(rdmaprep snapshot --normal)
  state=$(details m0)
  both m0 m1
  pingpong rxem0 m0 rxem1 m1 198.18.10.1
  neither
  sandbox d
  plan d m0
  hook createRuntime d
  umount "$(pin d)"
  kill -KILL "$init"
  # An ipvlan's address is taken until the kernel has taken its dead namespace apart; on a busy machine that may be longer than
  # one restore waits.
  until_true 30 rdmaprep restore --all
  equal "the host's network" "$before" "$(rdmaprep snapshot --normal)"
  equal "m0 re-created" "$state" "$(details m0)"
}
case_a_macvlan_is_a_nic() { stacked macvlan bridge; }
case_an_ipvlan_is_a_nic() { stacked ipvlan l2; }

# bond OPTION...: bond0 of two veth NICs on the bridge, with soft-RoCE on it and something in its properties.
bond() {
  local i
  ip link add bond0 type bond "$@" updelay 200 xmit_hash_policy layer3+4 min_links 1 resend_igmp 3
  for i in 0 1; do
    ip link add "w$i" type veth peer name "x$i"
    ip link set "x$i" master fabric up
    ip link set "w$i" mtu 1400 alias "leg $i"
    ip link set "w$i" master bond0
  done
  ip link set bond0 up mtu 1400 alias "both legs"
  ip address add 198.18.11.1/24 brd + dev bond0
  ip route add 198.18.12.0/24 via 198.18.11.254 dev bond0
  until_true 20 carrier bond0
  rdma link add rxeb type rxe netdev bond0
}
# Which member carries the traffic is no setting.
bonded() { ip -d -j link show dev "$1" | jq -cS '.[] | {ifname, master, address, mtu, ifalias, linkinfo} |
  del(.linkinfo.info_data.active_slave, .linkinfo.info_data.ad_info, .linkinfo.info_slave_data)'; }
legs() { for i in bond0 w0 w1; do bonded "$i"; done; }

# Refused unless it is asked for by name; then deleted here and re-created inside, with its members.
case_a_bond_moves_whole() {
  local state
  bond mode active-backup miimon 100
  active 6
  ip address add 198.18.11.2/24 dev v1
  before=$(rdmaprep snapshot --normal)
  state=$(legs)
  said=$(rdmaprep prepare --plan x)
  says "bond0 is a bond, which cannot change namespace"
  says "name it in --ifaces: rdmaprep"
  both bond0 v1
  said=$(cat /tmp/ctr/a.prepared)
  says "w0: comes along with bond0, of which it is a member"
  equal "what peers need" 'RDMA_PEER_IFACES="bond0"' "$(tail -n 1 /tmp/ctr/a.prepared)"
  for i in bond0 w0 w1; do
    if home "$i"; then die "$i is still here"; fi
  done
  equal "the bond inside" "$state" "$(within a bash -c "$(declare -f bonded legs); legs")"
  pingpong rxeb bond0 rxe1 v1 198.18.11.1
  neither
  equal "the restored bond" "$state" "$(legs)"
}

# A container that deletes its bond, whose members lie about in its namespace.
case_a_bond_that_is_deleted() {
  local state
  bond mode 802.3ad miimon 100 lacp_rate fast ad_select bandwidth
  active 6
  before=$(rdmaprep snapshot --normal)
  state=$(legs)
  sandbox d
  plan d bond0
  hook createRuntime d
  if home bond0; then die "bond0 is still here"; fi
  nsenter "--net=$(pin d)" ip link delete bond0
  kill -KILL "$init"
  rdmaprep restore --all
  equal "the host's network" "$before" "$(rdmaprep snapshot --normal)"
  equal "the bond re-created" "$state" "$(legs)"
}

# The namespace of a dead container takes the bond with it; its members are hardware, which the kernel returns.
case_a_bond_of_returned_members() {
  local state i
  ip link add bond0 type bond mode active-backup miimon 100
  for i in 1 2; do ip link set "${roce_nics[i]}" down master bond0; done
  ip link set bond0 up
  ip address add 198.18.11.1/24 brd + dev bond0
  until_true 30 carrier bond0
  rdma link add rxeb type rxe netdev bond0
  active 6
  before=$(rdmaprep snapshot --normal)
  state=$(for i in bond0 "${roce_nics[1]}" "${roce_nics[2]}"; do bonded "$i"; done)
  sandbox d
  plan d bond0
  hook createRuntime d --deadline 60
  if home bond0; then die "bond0 is still here"; fi
  umount "$(pin d)"
  kill -KILL "$init"
  for i in 1 2; do until_true 20 home "${roce_nics[i]}"; done
  rdmaprep restore --all
  equal "the host's network" "$before" "$(rdmaprep snapshot --normal)"
  equal "the bond re-created" "$state" "$(for i in bond0 "${roce_nics[1]}" "${roce_nics[2]}"; do bonded "$i"; done)"
  # Each has its own address again when the bond lets go of it.
  ip link delete bond0
  for i in 1 2; do
    equal "address of ${roce_nics[i]}" "$(ip -j link show "${roce_nics[i]}" | jq -r '.[].permaddr // .[].address')" \
      "$(cat "/sys/class/net/${roce_nics[i]}/address")"
  done
}

# A macvlan on hardware: the HCA stays where it is, and shows the GID in the macvlan's namespace.
case_a_macvlan_borrows_its_hca() {
  local nic=${roce_nics[0]}
  roce
  roce_up 0
  roce_is ACTIVE roce0
  ip link add link "$nic" name m0 type macvlan mode bridge
  ip link set m0 up
  ip address add 10.1.0.9/24 dev m0
  until_true 10 test -n "$(gid_of 10.1.0.9 roce0)"
  before=$(rdmaprep snapshot --normal)
  bundle c
  prepare c m0
  said=$(cat /tmp/ctr/c.prepared)
  says "m0: sits on $nic"
  start runc c
  home m0 && die "m0 is still here"
  home "$nic" || die "$nic has gone"
  equal "netdev of its GID" m0 "$(within c sh -c "$(declare -f roce_gids); roce_gids roce0" | grep 'RoCE v2.*:0a01:0009' | cut -d ' ' -f 3)"
  stop runc c "$runner"
  equal "the host's network" "$before" "$(rdmaprep snapshot --normal)"
}

# One port of two: the other stays, and so does the HCA, which both name.
case_one_port_of_two() {
  roce "netdevs=${roce_nics[2]}+${roce_nics[3]}" names=two%d
  roce_up 2 3
  roce_is ACTIVE two0 1
  roce_is ACTIVE two0 2
  before=$(rdmaprep snapshot --normal)
  bundle c
  prepare c "${roce_nics[3]}"
  said=$(cat /tmp/ctr/c.prepared)
  says "NCCL_IB_HCA==two0:2 "
  start crun c
  home "${roce_nics[2]}" || die "the other port's netdev has gone"
  roce_has 2 two0 1
  roce_is ACTIVE two0 1
  stop crun c "$runner"
  equal "the host's network" "$before" "$(rdmaprep snapshot --normal)"
  roce_is ACTIVE two0 1
  roce_is ACTIVE two0 2
  bundle d
  prepare d "${roce_nics[2]} ${roce_nics[3]}"
  said=$(cat /tmp/ctr/d.prepared)
  says "NCCL_IB_HCA==two0:1,two0:2 "
  start runc d
  stop runc d "$runner"
  equal "the host's network" "$before" "$(rdmaprep snapshot --normal)"
}

# An HCA of shared mode whose netdev is somewhere else.
case_the_netdev_is_elsewhere() {
  roce
  roce_up 0 1
  ip netns add n
  ip link set "${roce_nics[0]}" netns n
  said=$(rdmaprep prepare --plan x --ifaces "${roce_nics[1]}" 2>&1)
  says "the netdev of roce0:1 is in another network namespace → stop what uses it there"
  ip netns delete n
  until_true 20 home "${roce_nics[0]}"
}
