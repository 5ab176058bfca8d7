# shellcheck shell=bash
# What the guest's tests share: a node with four PCI NICs on one wire, soft-RoCE on each, and containers on it.
PATH=${RDMAPREP_BIN_DIR:-/repo/target/released}:$PATH
export PATH

say() { printf '\n== %s\n' "$*"; }
die() { echo "FAIL: $*" >&2; exit 1; }

# rails N: eth0..N-1 become rdma0.., two subnets over all of them, soft-RoCE on each.
rails() {
  # As systemd sets up its hosts: mounts of ours reach other mount namespaces.
  mount --make-rshared /
  modprobe -a rdma_rxe rdma_ucm
  for ((i = 0; i < $1; i++)); do
    ip link set "eth$i" down
    ip link set "eth$i" name "rdma$i" mtu 4200 up
    ip address add "192.0.2.$((i + 1))/24" brd + dev "rdma$i"
    rdma link add "rxe$i" type rxe netdev "rdma$i"
  done
  active "$@"
}

# active N: waits until the ports are; the emulated NICs take seconds to find their carrier.
active() {
  for ((t = 0; t < 200; t++)); do
    [ "$(grep -l ACTIVE /sys/class/infiniband/rxe*/ports/1/state 2>/dev/null | wc -l)" -ge "$1" ] && return
    sleep 0.1
  done
  rdma link
  die "the ports do not become ACTIVE"
}

# same BEFORE: the host's network state equals the one saved there.
same() {
  rdmaprep snapshot --normal > /tmp/now
  diff "$1" /tmp/now || die "the host's network is not what it was"
}
