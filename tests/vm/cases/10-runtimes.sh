# shellcheck shell=bash source=tests/vm/container.sh
# Each runtime's container gets exactly its NICs, fully configured, and the host has them back after it.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

# All that the container must have, seen from its namespace: a line for each.
# shellcheck disable=SC2016 # the shell in the namespace expands it
look='
for dev in v0 rdma0; do
  echo "$dev arp $(cd /proc/sys/net/ipv4/conf/$dev && cat arp_announce arp_ignore arp_filter rp_filter | tr "\n" " ")"
done
ip -brief address | sed "s/@[^ ]*//; s/  */ /g"
ip route show 203.0.113.0/24; ip rule show priority 1000; ip route show table 100
for hca in rxe0 rxe3; do
  cd /sys/class/infiniband/$hca/ports/1
  echo "$hca $(cat state)"
  # One of soft-RoCE has room for 1024.
  for i in $(cd gids && grep -vl "^[0:]*$" *); do
    echo "$hca $(cat gid_attrs/types/$i) $(cat gid_attrs/ndevs/$i) $(cat gids/$i)"
  done
done'
expected='v0 arp 2 1 1 1 
rdma0 arp 2 1 1 1 
v0 UP 198.51.100.1/24
rdma0 UP 192.0.2.1/24 2001:db8::1/64
203.0.113.0/24 via 192.0.2.254 dev rdma0
from 198.51.100.1 lookup 100
198.18.0.0/15 dev v0
rxe0 4: ACTIVE
rxe3 4: ACTIVE
rxe0 RoCE v2 v0 0000:0000:0000:0000:0000:ffff:c633:6401
rxe3 RoCE v2 rdma0 0000:0000:0000:0000:0000:ffff:c000:0201
rxe3 RoCE v2 rdma0 2001:0db8:0000:0000:0000:0000:0000:0001'

inside() { # ID
  local line
  if [ -e /sys/class/net/v0 ] || [ -e /sys/class/net/rdma0 ]; then die "the host still has them"; fi
  said=$(within "$1" sh -c "$look")
  while read -r line; do says "$line"; done <<< "$expected"
}

# The payload tells what it has; the rest is looked at from the host.
# shellcheck disable=SC2016 # the container's shell expands it
tells='echo "nodes $(ls /dev/infiniband | tr "\n" " ")"; echo "memlock $(ulimit -l)"; echo "hca $NCCL_IB_HCA"
echo ready; exec sleep infinity'

whole() { # RUNTIME
  bundle "$1" sh -c "$tells"
  prepare "$1" "v0 rdma0"
  start "$1" "$1"
  said=$(cat "/tmp/ctr/$1.out")
  says "nodes rdma_cm uverbs0 uverbs3 "
  says "memlock unlimited"
  says "hca =rxe3,rxe0" # in rail order: PCI functions first
  inside "$1"
  said=$(rdmaprep status)
  says "held by     $1"
  stop "$1" "$1" "$runner"
}

case_runc() { whole runc; }
case_crun() { whole crun; }
case_runsc() { whole runsc; }

# loop RUNTIME ROUNDS: one container after another; each tells whether it had its NICs.
loop() {
  local began=$SECONDS id
  oci "$1"
  for ((round = 1; round <= $2; round++)); do
    id=$1-$round
    bundle "$id" ip -brief address
    prepare "$id" "v0 v1"
    said=$("${oci[@]}" run --bundle "/tmp/ctr/$id" "$id" < /dev/null)
    says 198.51.100.1/24
    says 198.51.100.2/24
    clean
    umount "/tmp/ctr/$id/rootfs"
  done
  echo "# $2 containers of $1, one after another, in $((SECONDS - began)) s; ALL=1 does 20"
}

case_loop_of_runc() { loop runc "$(rounds 2)"; }
case_loop_of_crun() { loop crun "$(rounds 2)"; }
case_loop_of_runsc() { loop runsc "$(rounds 2)"; }
