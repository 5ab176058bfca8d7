# shellcheck shell=bash source=tests/vm/container.sh
# RDMA devices that behave as hardware's do (./roce), over the NICs of the PCI tree that soft-RoCE leaves alone:
#   roce_nics[0] roce_nics[1]  node 0, each below a slot of its own of the switch that two GPUs share
#   roce_nics[2] roce_nics[3]  node 1, functions 0 and 1 of one card, below the switch that the other two GPUs share
# (scripts/vm/run --tree). Their names are the kernel's: nothing in the guest renames them.
. "$(dirname "${BASH_SOURCE[0]}")/container.sh"

# In the order of their addresses, the first two (rdma0, rdma1 of ./node.sh) left out.
mapfile -t roce_nics < <(cd /sys/bus/pci/drivers/e1000e && printf '%s\n' 0000:*/net/* | sed '1,2d; s|.*/||')

# roce PARAMETER...: loads the module, over all four NICs unless netdevs= names others. It is unloaded, and the NICs are as
# they were, when the case ends.
roce() {
  [ "${#roce_nics[@]}" = 4 ] || die "the guest has no PCI tree: boot it with --tree"
  modprobe -a ib_uverbs rdma_ucm
  local IFS=,
  modprobe roce "netdevs=${roce_nics[*]}" "$@"
}

# roce_up N...: those NICs (numbers from 0) get addresses and go up, a subnet for each: 10.1.N.1/24, 2001:db8:1N::1/64.
roce_up() {
  local n
  for n; do roce_address "$n"; done
  for n; do until_true 20 carrier "${roce_nics[n]}"; done
}

roce_address() { # N [NETNS]
  local ip=(ip) dev=${roce_nics[$1]}
  [ $# = 1 ] || ip+=(-n "$2")
  "${ip[@]}" link set "$dev" up
  "${ip[@]}" address add "10.1.$1.1/24" brd + dev "$dev"
  "${ip[@]}" -6 address add "2001:db8:1$1::1/64" dev "$dev" nodad
}

carrier() { [ "$(cat "/sys/class/net/$1/carrier" 2>/dev/null)" = 1 ]; }

# roce_is STATE HCA [PORT]: now, or soon.
roce_is() { until_true 20 grep -qs ": $1\$" "/sys/class/infiniband/$2/ports/${3:-1}/state"; }

# roce_gids HCA [PORT]: its used GIDs with type and netdev, without the link-local ones that ib_core makes of the MAC alone.
roce_gids() {
  local dir=/sys/class/infiniband/$1/ports/${2:-1} gid index
  for gid in "$dir"/gids/*; do
    index=${gid##*/} gid=$(cat "$gid")
    case $gid in fe80:* | 0000:0000:0000:0000:0000:0000:0000:0000) continue ;; esac
    echo "$(cat "$dir/gid_attrs/types/$index") $(cat "$dir/gid_attrs/ndevs/$index") $gid"
  done
}

# roce_expected N: what roce_gids says of that NIC after roce_up.
roce_expected() {
  local type
  for type in "IB/RoCE v1" "RoCE v2"; do
    printf "$type ${roce_nics[$1]} 0000:0000:0000:0000:0000:ffff:0a01:%02x01\n" "$1"
    printf "$type ${roce_nics[$1]} 2001:0db8:001%x:0000:0000:0000:0000:0001\n" "$1"
  done
}

# roce_has N HCA [PORT]: it has them, and no others, now or soon.
roce_has() { until_true 10 roce_has_now "$@"; }
roce_has_now() { [ "$(roce_gids "$2" "${3:-1}" | sort)" = "$(roce_expected "$1" | sort)" ]; }
roce_has_none() { until_true 10 roce_has_none_now "$@"; }
roce_has_none_now() { [ -z "$(roce_gids "$@")" ]; }

# The NICs down and naked, as the node was made, and no device; whatever the case has left.
undo() {
  local dev
  rmmod roce 2>/dev/null || true
  for dev in "${roce_nics[@]}"; do ip link set "$dev" down && ip address flush dev "$dev"; done
}
