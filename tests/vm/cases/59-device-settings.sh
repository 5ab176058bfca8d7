# shellcheck shell=bash source=tests/vm/container.sh
# What root in a container sets on a NIC's device stays there over a move: the host gets its own back, by the stop hook and
# from a namespace that died.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

# device_state: the state of rdma0 by ethtool and sysfs, without what the link partner decides.
device_state() {
  ethtool -k rdma0
  ethtool -g rdma0
  ethtool -c rdma0
  ethtool -a rdma0 | sed '/negotiated/,$d'
  ethtool --show-priv-flags rdma0 2>/dev/null || true
  ethtool rdma0 | sed -n '/Supported ports/d; /Advertised link modes/,/Advertised FEC/p; /Wake-on/p; /message level/p'
  (cd /sys/class/net/rdma0 && grep . gro_flush_timeout napi_defer_hard_irqs threaded queues/rx-*/rps_* \
    queues/tx-*/byte_queue_limits/limit_m??)
}

# spoil ID: sets everything that e1000e takes.
spoil() {
  within "$1" sh -ec '
    ip link set rdma0 up
    ethtool -G rdma0 rx 512 tx 1024
    ethtool -C rdma0 rx-usecs 500
    ethtool -A rdma0 autoneg off rx off tx off
    ethtool -K rdma0 tso off gro off rx off
    ethtool -s rdma0 wol d msglvl 0x3fff
    cd /sys/class/net/rdma0
    echo 3 > queues/rx-0/rps_cpus
    echo 64 > queues/rx-0/rps_flow_cnt
    echo 9000 > queues/tx-0/byte_queue_limits/limit_max
    echo 10 > queues/tx-0/byte_queue_limits/limit_min
    echo 20000 > gro_flush_timeout
    echo 5 > napi_defer_hard_irqs
    echo 1 > threaded'
}

# changed ID: what it spoilt is not what the host had.
changed() {
  local now
  now=$(within "$1" sh -c 'ethtool -g rdma0; ethtool -c rdma0; cat /sys/class/net/rdma0/queues/rx-0/rps_cpus /sys/class/net/rdma0/threaded')
  { grep -qx "rx-usecs:[[:space:]]*500" <<< "$now" && grep -q "^RX:[[:space:]]*512" <<< "$now"; } || die "not spoilt: $now"
}

undo() {
  ethtool -G rdma0 rx 256 tx 256 || true
  echo 0 > /sys/class/net/rdma0/queues/rx-0/rps_flow_cnt || true
}

case_settings_come_back_by_the_stop_hook() {
  # The host has some of its own.
  ethtool -G rdma0 rx 2048
  echo 32 > /sys/class/net/rdma0/queues/rx-0/rps_flow_cnt
  device_state > /tmp/state.before
  plan set rdma0
  for way in stop dead; do
    sandbox set
    hook createRuntime set
    said=$(within set ethtool -g rdma0)
    [[ $said =~ RX:[[:space:]]*2048 ]] || die "the host's did not come along: $said"
    spoil set
    changed set
    kill -KILL "$init"
    if [ "$way" = dead ]; then
      umount "$(pin set)"
      until_true 20 test -e /sys/class/net/rdma0
      rdmaprep restore set
    else
      hook poststop set
      said=$(report set .notes[])
      says "rdma0 had other device settings: "
    fi
    device_state > /tmp/state.now
    diff /tmp/state.before /tmp/state.now || die "not what it was, by $way"
  done
  wired rdma0
}
