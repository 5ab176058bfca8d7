# shellcheck shell=bash source=tests/vm/container.sh
# What sits on a NIC, of kinds that only this kernel has: it keeps the NIC on the host, in `prepare` and in the create hook, and is
# whole afterwards. Links of other namespaces count, too.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

undo() {
  local word
  ip -all netns delete
  for word in up0 t0 master0 v2.7; do ip link delete "$word" 2>/dev/null || true; done
  ip link set v2 nomaster up 2>/dev/null || true
  # What comes with a tunnel's module, and with the first VRF, stays without it.
  for word in ip_vti ip6_gre ip_gre ip6_tunnel sit ipip; do rmmod "$word" 2>/dev/null || true; done
  for word in -4 -6; do ip "$word" rule delete l3mdev priority 1000 2>/dev/null || true; done
}

# on NIC KIND: up0 of that kind on it.
on() {
  local far=198.51.100.9 near=198.51.100.3
  case $2 in
    vxlan) set -- "$1" vxlan id 7 remote $far dstport 4789 dev "$1" ;;
    hsr) set -- "$1" hsr slave1 "$1" slave2 v1 ;;
    gre | gretap | ipip | sit) set -- "$1" "$2" local $near remote $far dev "$1" ;;
    ip6tnl | ip6gre) set -- "$1" "$2" local 2001:db8::3 remote 2001:db8::9 dev "$1" ;;
    vti) set -- "$1" vti local $near remote $far key 7 dev "$1" ;;
    xfrm) set -- "$1" xfrm if_id 7 dev "$1" ;;
    *)
      ip link add link "$1" name up0 type "$2"
      return
      ;;
  esac
  ip link add up0 type "${@:2}"
}
kinds="vxlan hsr macsec macvlan ipvlan gre gretap ipip sit ip6tnl ip6gre vti xfrm"

shown() { ip -d -o link show up0 | sed -E 's/ (promiscuity|sequence) [0-9]+//g'; ip -o address show dev up0 scope global; }

# refused TEXT: by the hook whose plan is older, and by `prepare`.
refused() {
  fails 3 hook createRuntime s
  says "$1 sits on v2 now"
  fails 4 rdmaprep prepare --plan x --ifaces v2
  # The ports of HSR are its members, too, and that is said first.
  case $1 in *hsr*) says "v2 is a member of up0" ;; *) says "$1 sits on v2" ;; esac
}

case_what_sits_on_a_nic_keeps_it_whole() {
  local kind before
  plan s v2
  sandbox s
  # The other kinds tell what is below as one of these does.
  for kind in vxlan hsr macsec ipvlan gretap ip6tnl xfrm; do
    on v2 "$kind"
    ip address add 10.99.0.1/24 dev up0
    ip link set up0 up
    before=$(shown)
    refused "up0 ($kind)"
    equal "the $kind" "$before" "$(shown)"
    ip link delete up0
  done
  # On a VLAN that would come along.
  ip link add link v2 name v2.7 type vlan id 7
  ip address add 10.98.0.1/24 dev v2.7
  on v2.7 vxlan
  fails 4 rdmaprep prepare --plan x --ifaces v2
  says "v2.7 (vlan) sits on v2, and would be left without it: up0 sits on it"
  ip link delete up0
  ip link delete v2.7
  # Nothing of that is left in the way.
  hook createRuntime s
  kill -KILL "$init"
  rdmaprep restore --all
}

# The kernel's own word on what becomes of it: what a refusal says is so.
case_what_the_kernel_does_to_it_is_what_we_say() {
  local kind deleted
  ip netns add pod
  plan s v2
  for kind in $kinds; do
    ip link add t0 type veth peer name t1 netns pod
    on t0 "$kind"
    ip link set t0 netns pod
    deleted=no
    ip link show up0 > /dev/null 2>&1 || deleted=yes
    echo "# $kind: deleted with the move: $deleted"
    case $kind in
      vxlan | macsec) equal "$kind" yes "$deleted" ;;
      *) equal "$kind" no "$deleted" ;;
    esac
    ip link delete up0 2>/dev/null || true
    ip -n pod link delete t0
  done
}

case_a_member_stays_with_its_master() {
  local kind
  plan s v2
  sandbox s
  for kind in vrf bridge bond team; do
    case $kind in
      vrf) ip link add master0 type vrf table 77 ;;
      bond) ip link add master0 type bond mode active-backup miimon 100 ;;
      *) ip link add master0 type "$kind" ;;
    esac
    case $kind in bond | team) ip link set v2 down ;; esac
    ip link set v2 master master0
    ip link set master0 up
    ip link set v2 up
    fails 3 hook createRuntime s
    says "v2 belongs to master0 now"
    fails 4 rdmaprep prepare --plan x --ifaces v2
    says "v2 is a member of master0"
    ip link set v2 nomaster
    ip link delete master0
    ip link set v2 up
  done
}

# A pod's link on the NIC, as CNI plugins make it.
case_a_link_of_a_pod_keeps_the_nic() {
  local kind
  ip netns add pod
  plan s v2
  sandbox s
  for kind in ipvlan vlan vxlan; do
    if [ "$kind" = vlan ]; then ip link add link v2 name up0 type vlan id 7; else on v2 "$kind"; fi
    ip link set up0 netns pod name net1
    fails 3 hook createRuntime s
    says "net1 ($kind) of another network namespace"
    says "ip netns pod) sits on v2 now: two would share the card"
    fails 4 rdmaprep prepare --plan x --ifaces v2
    says "ip netns pod) sits on v2: two would share the card"
    ip -n pod link delete net1
  done
}

# What a container made on its NIC and put elsewhere does not outlive its stop.
case_a_link_that_a_container_put_elsewhere_is_deleted() {
  local kind
  ip netns add pod
  plan s v2
  for kind in ipvlan vlan; do
    sandbox s
    hook createRuntime s
    case $kind in vlan) set -- vlan id 9 ;; *) set -- "$kind" ;; esac
    nsenter -t "$init" -n ip link add link v2 name spy type "$@"
    nsenter -t "$init" -n ip link set spy netns pod
    ip -n pod link set spy up
    kill -KILL "$init"
    hook poststop s
    equal "links of the pod" "" "$(ip -n pod -o link show type "$kind")"
    said=$(report s '.notes[]')
    says "spy ($kind) of another network namespace"
    says "had been put on v2 and is deleted"
    clean
  done
}
