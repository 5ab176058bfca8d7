# shellcheck shell=bash source=tests/vm/container.sh
# runsc's own network stack takes over the NICs when the payload starts: it removes their addresses, and with them the
# RoCE GIDs. Our poststart hook gives them back to the host's side of the namespace, where RDMA needs them.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

case_poststart_gives_the_addresses_back() {
  ip netns add box
  bundle box
  edit box '(.linux.namespaces[] | select(.type == "network")).path = "/run/netns/box"'
  prepare box "v0 rdma0"
  /repo/scripts/vm/runsc /run/netns/box run --bundle /tmp/ctr/box box < /dev/null > /tmp/ctr/box.out 2>&1 &
  runner=$!
  until_true 60 grep -q 'hook poststart.*container=box' /var/log/rdmaprep.log
  grep 'container=box' /var/log/rdmaprep.log
  equal "poststart" ok "$(report box .outcome)"
  equal "removed by runsc: steps of poststart" true "$(report box '.steps_done > 0')"
  said=$(ip -n box -brief address | sed 's/@[^ ]*//; s/  */ /g')
  says "v0 UP 198.51.100.1/24"
  says "rdma0 UP 192.0.2.1/24 2001:db8::1/64"
  said=$(ip netns exec box sh -c 'grep . /sys/class/infiniband/rxe[03]/ports/1/gids/*')
  for gid in ffff:c633:6401 ffff:c000:0201 2001:0db8:0000:0000:0000:0000:0000:0001; do says "$gid"; done
  stop runsc box "$runner"
}
