# shellcheck shell=bash source=tests/vm/container.sh
# The links that the host uses stay on the host, in layouts that only this kernel has: each is shown by the kernel's own
# `ip route get` before and after `prepare` and the create hook have refused the NIC.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

undo() {
  local word
  umount -f -l /mnt 2>/dev/null || true
  ip netns pids far 2>/dev/null | xargs -r kill -KILL || true
  ip -all netns delete
  for word in t0 q0 master0; do ip link delete "$word" 2>/dev/null || true; done
  ip address delete 10.97.0.1/24 dev v2 2>/dev/null || true
  ip link set v2 nomaster up 2>/dev/null || true
  # What comes with a tunnel's module, and with the first VRF, stays without it.
  for word in ipip tunnel4; do rmmod "$word" 2>/dev/null || true; done
  for word in -4 -6; do ip "$word" rule delete l3mdev priority 1000 2>/dev/null || true; done
}

# far: a machine on the fabric, 10.97.0.9, that the host can reach by v2. The plan s for v2, and its sandbox, are made here, before
# the host uses it.
far() {
  ip address add 10.97.0.1/24 dev v2
  plan s v2
  sandbox s
  ip netns add far
  ip link add q0 type veth peer name e0 netns far
  ip link set q0 master fabric up
  ip -n far link set lo up
  ip -n far link set e0 up
  ip -n far address add 10.97.0.9/24 dev e0
}

# keeps DEV QUESTION TEXT: the kernel answers the question with DEV; `prepare` and the hook refuse v2 for that reason; then the kernel
# answers the same.
keeps() {
  local way question
  read -ra question <<< "$2"
  way=$(ip route get "${question[@]}" | head -n 1)
  echo "# $way"
  grep -qF "dev $1 " <<< "$way" || die "the layout is another one: $way"
  fails 4 rdmaprep prepare --plan x --ifaces v2
  says "$3"
  fails 3 hook createRuntime s
  says "$3"
  equal "ip route get $2" "$way" "$(ip route get "${question[@]}" | head -n 1)"
}

case_default_over_a_tunnel_keeps_its_underlay() {
  local kind key
  far
  for kind in geneve vxlan ipip wireguard; do
    case $kind in
      geneve) ip link add t0 type geneve id 7 remote 10.97.0.9 ;;
      vxlan) ip link add t0 type vxlan id 7 remote 10.97.0.9 dstport 4789 ;;
      ipip) ip link add t0 type ipip local 10.97.0.1 remote 10.97.0.9 ;;
      wireguard)
        ip link add t0 type wireguard
        key=$(wg genkey)
        wg set t0 private-key <(echo "$key") peer "$(wg genkey | wg pubkey)" endpoint 10.97.0.9:51820 allowed-ips 0.0.0.0/0
        ;;
    esac
    ip address add 10.96.0.1/24 dev t0
    ip link set t0 up
    ip route add default via 10.96.0.9 dev t0
    keeps t0 9.9.9.9 "v2 is tied to t0, which carries the default route 0.0.0.0/0"
    ip link delete t0
  done
}

case_default_over_a_master_keeps_its_members() {
  local kind question dev why
  far
  for kind in vrf bond; do
    case $kind in
      vrf) ip link add master0 type vrf table 77 ;;
      bond) ip link add master0 type bond mode active-backup miimon 100 && ip link set v2 down ;;
    esac
    ip link set v2 master master0
    ip link set master0 up
    ip link set v2 up
    case $kind in
      vrf)
        ip route add default via 10.97.0.9 dev v2 vrf master0
        question="9.9.9.9 vrf master0" dev=v2 why="v2 leads out to the internet (9.9.9.9 in a VRF: via 10.97.0.9 dev v2, table 77)"
        ;;
      bond)
        ip address add 10.96.0.1/24 dev master0
        until_true 20 grep -q '^MII Status: up' /proc/net/bonding/master0
        ip route add default via 10.96.0.9 dev master0
        question=9.9.9.9 dev=master0 why="v2 is tied to master0, which carries the default route 0.0.0.0/0"
        ;;
    esac
    keeps "$dev" "$question" "$why"
    ip link set v2 nomaster
    ip link delete master0
    ip link set v2 up
    [ "$kind" != vrf ] || ip address replace 10.97.0.1/24 dev v2
  done
}

# An NFS file system is mounted by v2, over the subnet itself: no default route, no host route.
case_a_mount_keeps_the_nic() {
  far
  modprobe -a nfsd nfsv4
  # shellcheck disable=SC2016 # the inner shell expands it
  ip netns exec far sh -ec 'mkdir -p /run/export
    mount -t tmpfs export /run/export
    echo "over NFS" > /run/export/file
    mount -t nfsd nfsd /proc/fs/nfsd
    mount -t tmpfs state /var/lib/nfs
    mkdir /var/lib/nfs/v4recovery /var/lib/nfs/sm
    touch /var/lib/nfs/etab /var/lib/nfs/rmtab
    exportfs -o rw,fsid=0,no_root_squash,no_subtree_check "10.97.0.1:/run/export"
    rpc.mountd --no-nfs-version 3 --foreground > /run/mountd 2>&1 &
    exec rpc.nfsd --no-nfs-version 3 --nfs-version 4.2 1'
  mount -t nfs4 -o soft,timeo=50,retrans=2 10.97.0.9:/ /mnt
  keeps v2 10.97.0.9 "NFS to 10.97.0.9 goes out by v2"
  equal "the mount" file "$(ls /mnt)"
  ip neighbour flush dev v2
  stat --file-system /mnt > /dev/null || die "the mount is stuck"
  umount /mnt
  ip netns exec far sh -c 'mount -t nfsd nfsd /proc/fs/nfsd && rpc.nfsd 0'
  # With nothing mounted v2 is free, once the connection has ended.
  until_true 70 hook createRuntime s 2> /tmp/ctr/hook
  kill -KILL "$init"
  hook poststop s
}
