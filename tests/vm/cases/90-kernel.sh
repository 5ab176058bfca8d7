# shellcheck shell=bash source=tests/vm/container.sh
# What this kernel's RDMA netlink answers, read by our codec and by rdma(8).
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

case_rdma_netlink() {
  local test
  # tests/model/nldev.rs in the newest build; cargo puts a hash behind the name.
  test=$(find /repo/target/debug/deps -name 'model-*' ! -name '*.*' -printf '%T@ %p\n' | sort -n | tail -n 1)
  test=${test#* }
  [ -x "$test" ] || die "no test binary: run cargo test --no-run"
  "$test" nldev:: --include-ignored --nocapture --test-threads 1 > /run/cases/nldev
  grep -q 'test result: ok' /run/cases/nldev || die "$(cat /run/cases/nldev)"
  for hca in rxe0 rxe1 rxe2 rxe3 rxe4; do grep -q "\"$hca\"" /run/cases/nldev || die "no $hca in $(cat /run/cases/nldev)"; done
  # To make a fixture of them: the facts, and the bytes that they were read from.
  cp /run/cases/nldev /out/nldev.facts
  strace -f -xx -s 65536 -e trace=sendto,recvfrom,recvmsg -o /out/nldev.bytes rdmaprep snapshot > /run/cases/snapshot
}

case_netlink_and_sysfs_agree() {
  local facts
  rdmaprep snapshot --json > /run/cases/snapshot 2> /run/cases/warnings
  equal "warnings" "" "$(cat /run/cases/warnings)"
  equal "conflicts" "0 0" "$(jq -r '"\([.hcas[].conflicts // [] | .[]] | length) \(.warnings | length)"' /run/cases/snapshot)"
  facts=$(jq -r '.hcas[] | . as $h | .ports[] | "\($h.name)/\(.number) \(.netdev) \(.state)"' /run/cases/snapshot | sort)
  equal "ports" "$(rdma -j link | jq -r '.[] | "\(.ifname)/\(.port) \(.netdev) \(.state)"' | sort)" "$facts"
  equal "device numbers" "$(cd /sys/class/infiniband_verbs && for u in uverbs*; do echo "$(cat "$u/ibdev") $u $(cat "$u/dev")"; done | sort)" \
    "$(jq -r '.hcas[] | "\(.name) \(.uverbs.name) \(.uverbs.major):\(.uverbs.minor)"' /run/cases/snapshot | sort)"
}
