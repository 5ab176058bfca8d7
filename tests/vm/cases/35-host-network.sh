# shellcheck shell=bash source=tests/vm/container.sh
# A container that shares the host's network gets all of its plan but a move, where the host allows that.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

undo() { rm -f /etc/rdmaprep/config.toml; }

# shared ID: a bundle without a network namespace.
shared() {
  # shellcheck disable=SC2016 # the container's shell expands it
  bundle "$1" sh -c 'echo "nodes $(ls /dev/infiniband | tr "\n" " ")"; echo "memlock $(ulimit -l)"
echo "env ${NCCL_IB_HCA:-none}"; echo "sees $(ls /sys/class/infiniband | tr "\n" " ")"
echo "links $(ls /sys/class/net | tr "\n" " ")"; echo ready; exec sleep infinity'
  edit "$1" 'del(.linux.namespaces[] | select(.type == "network"))'
}

case_runc_on_the_hosts_network() {
  local link links
  mkdir -p /etc/rdmaprep
  links=$(find /sys/class/net -mindepth 1 -maxdepth 1 -printf '%f\n' | sort | tr '\n' ' ')
  shared hostnet
  # Without the host's word it is refused, before anything is written.
  fails 3 prepare hostnet "v0 v1" --network-mode host
  says "host_network"
  echo 'host_network = true' > /etc/rdmaprep/config.toml
  prepare hostnet "v0 v1" --network-mode host
  start runc hostnet
  said=$(cat /tmp/ctr/hostnet.out)
  says "memlock unlimited"
  says "env =rxe0,rxe1"
  says "sees rxe0 rxe1 "
  says "uverbs0 uverbs1 "
  case $said in *uverbs2*) die "a node of another HCA: $said" ;; esac
  # Nothing has moved, and the host's network is as it was.
  for link in $links; do [ -e "/sys/class/net/$link" ] || die "$link has gone"; done
  # shellcheck disable=SC2154 # of node.sh
  same "$reference"
  said=$(jq -r '.notes[]' /run/rdmaprep/reports/hostnet*)
  says "no NIC has moved"
  stop runc hostnet "$runner"
}
