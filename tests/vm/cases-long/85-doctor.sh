# shellcheck shell=bash source=tests/vm/roce-node.sh
# The doctor: says nothing of a healthy node, finds each fault that is planted here, and no longer after the fix that it prints.
#
# What the guest's hardware has not is planted in what the kernel shows of it, by files laid over those of /sys and /proc: ACS,
# a PCIe link that came up narrow, GIDs of addresses that are gone, NVIDIA's driver. An old kernel is this one with another
# name, and slurmd is a program of that name. PFC and ECN are never known: that is no fault that goes.
# Elsewhere: which manager manages NICs (cases-systemd/20-managers.sh), what an engine hands on of RLIMIT_MEMLOCK (30-memlock.sh there).
# By golden cases alone (tests/cases/doctor), since nothing here has it: InfiniBand, in a container as well; a NIC that is
# renamed, as all that can be renamed here have no hardware of their own or are of other cases; GPUs of no NUMA node; kernels of
# Red Hat, or without dma-buf; modules of real cards, and ib_uverbs; a process that a dead container has left; NICs that are
# asked for in vain; ACS and nodes that cannot be looked at; an MTU below any of RoCE's.
. "$(dirname "${BASH_SOURCE[0]}")/../roce-node.sh"

verdict=/run/cases/doctor.json
# Before each call of the doctor's, and after it.
before=() args=()

# doctor: its findings are in $verdict; whether it ends with 11 follows from them.
doctor() {
  local code=0
  "${before[@]}" rdmaprep doctor --json "${args[@]}" > "$verdict" 2> /run/cases/doctor.said || code=$?
  case $code in 0 | 11) ;; *) die "exit status $code: $(cat /run/cases/doctor.said)" ;; esac
  equal "exit status" "$(jq 'if .breaks > 0 then 11 else 0 end' "$verdict")" "$code"
}

about() { jq -r --arg check "$1" '.findings[] | select(.check == $check) | '"$2" "$verdict"; }

# healthy: no finding, or only what cannot be known from a host.
healthy() {
  doctor
  equal "what is wrong with a healthy node" "" "$(jq -r '.findings[] | select(.check != "flow_control") | .seen' "$verdict")"
}

healthy_is() { (healthy) 2> /dev/null; }

# finds CHECK SEVERITY TEXT
finds() {
  doctor
  said=$(about "$1" '"\(.severity): \(.seen)"')
  grep -F -- "$3" <<< "$said" | grep -q "^$2: " || die "no $2 with \"$3\" in: $said"
  echo "# $1: $(head -n 1 <<< "$said")"
}

# cured CHECK [COMMAND...]: after the commands that it printed, or where it has words alone, after that one.
cured() {
  local check=$1
  shift
  if [ $# -gt 0 ]; then "$@"; else about "$check" '.run[]' | sh -e; fi
  until_true 20 gone_is "$check"
}

# pasted CHECK: the commands below its rows on the terminal, as they stand there.
pasted() {
  { rdmaprep doctor "${args[@]}" 2> /dev/null || true; } |
    awk -v check="$1" '/^(breaks|warning|unknown) / {its = $2 == check; next} /^$/ {its = 0} its && /^[^ ]/'
}

gone_is() {
  doctor
  [ -z "$(about "$1" .seen)" ]
}

# A node with nothing wrong: v1 and v2, as rails are to be.
rails_are_well() {
  local i
  # Plans of other cases, whose NICs have gone since, are faults of their own.
  rm -f /run/rdmaprep/plans/*.json
  for i in 1 2; do
    ip link set "p$i" mtu 4200
    ip link set "v$i" mtu 4200
    echo 2 > "/proc/sys/net/ipv4/conf/v$i/arp_announce"
    echo 1 > "/proc/sys/net/ipv4/conf/v$i/arp_ignore"
  done
  args=(--ifaces "v1 v2")
  until_true 20 grep -q ACTIVE /sys/class/infiniband/rxe2/ports/1/state
}

# lay FILE TEXT: over a file of sysfs, which says that from now on; it is in $laid.
laid=""
lay() {
  laid=$1
  printf '%s\n' "$2" > /run/cases/laid
  mount --bind /run/cases/laid "$1"
}

undo() {
  local i dev
  rmmod roce 2>/dev/null || true
  for dev in "${roce_nics[@]}"; do ip link set "$dev" down && ip link set "$dev" mtu 1500 && ip address flush dev "$dev"; done
  umount /dev/infiniband 2>/dev/null || true
  while grep -q ' /proc/driver ' /proc/mounts; do umount /proc/driver; done
  while grep -q ' /sys/kernel/mm ' /proc/mounts; do umount /sys/kernel/mm; done
  if [ -n "$laid" ]; then umount "$laid" 2>/dev/null || true; fi
  rm -f /run/modprobe.d/doctor.conf
  ip link set gone2 name v2 2>/dev/null || true
  ip route delete default 2>/dev/null || true
  for i in 1 2; do
    ip link set "v$i" mtu 1400 up
    ip link set "p$i" mtu 1500
    for leaf in arp_announce arp_ignore arp_filter rp_filter; do echo 0 > "/proc/sys/net/ipv4/conf/v$i/$leaf"; done
  done
  ip address flush dev v2 scope global
  ip address add 198.51.100.3/24 brd + dev v2
  rm -f /run/rdmaprep/plans/*.json
  while ip rule delete priority 29010 2>/dev/null; do :; done
  ip route flush table 29010 2>/dev/null || true
}

case_rails() {
  rails_are_well
  healthy
  equal "what it says" "[]" "$(jq -c .findings "$verdict")"
  rdmaprep prepare --plan doctor --ifaces "v1 v2" > /dev/null

  ip link set v2 down
  finds port_down breaks "rxe2:1 of v2 is DOWN, not ACTIVE"
  cured port_down

  ip address delete 198.51.100.3/24 dev v2
  finds gids breaks "only link-local RoCE v2 GIDs, as v2 has no IPv4 address"
  cured gids

  # A plan says that it is meant: an address need not.
  ip address delete 198.51.100.3/24 dev v2
  ip link set v2 down
  args=()
  finds port_down breaks "rxe2:1 of v2 is DOWN, not ACTIVE"
  cured port_down
  args=(--ifaces "v1 v2")
  finds gids breaks "as v2 has no IPv4 address"
  cured gids
  until_true 20 healthy_is

  rdma link delete rxe2
  finds plans breaks "plan doctor has v2 with rxe2, and there is no rxe2 now"
  cured plans
  args=()
  ip link set v2 name gone2
  finds plans breaks "plan doctor has v2: not on this host, and no container has it"
  cured plans ip link set gone2 name v2
  args=(--ifaces "v1 v2")
  ip address add 198.51.100.33/24 dev v2
  finds plans breaks "is out of date: v2 has 198.51.100.33/24 now"
  cured plans rdmaprep prepare --plan doctor --ifaces "v1 v2"
  ip address delete 198.51.100.33/24 dev v2
  cured plans rdmaprep prepare --plan doctor --ifaces "v1 v2"
  until_true 20 healthy_is

  # A link that goes down loses its IPv6 addresses; the printed commands add those of the plan again.
  ip address add 2001:db8:77::3/64 dev v2 nodad
  rdmaprep prepare --plan doctor --ifaces "v1 v2" > /dev/null
  until_true 20 healthy_is
  ip link set v2 down
  finds port_down breaks "rxe2:1 of v2 is DOWN, not ACTIVE"
  cured port_down
  until_true 20 healthy_is
  ip address delete 2001:db8:77::3/64 dev v2
  rdmaprep prepare --plan doctor --ifaces "v1 v2" > /dev/null
  until_true 20 healthy_is

  # What is asked for and not taken, and what is guarded and not here, ends nothing.
  ip link add bridge0 type bridge
  ip link set v2 master bridge0
  finds left_out breaks "v2 is in --ifaces, and left out: v2 is a member of bridge0"
  ip link set v2 nomaster
  ip link delete bridge0
  args+=(--bootstrap-address 192.0.2.250)
  finds uplink breaks "no interface here owns the bootstrap address 192.0.2.250"
  args=(--ifaces "v1 v2")
  until_true 20 healthy_is

  ip link set v2 mtu 1400
  finds mtu warning "v2 has MTU 1400: RoCE packets carry 1024 bytes"
  says "the rails' MTUs differ"
  pasted mtu > /run/cases/pasted
  cured mtu sh -e /run/cases/pasted

  echo 0 > /proc/sys/net/ipv4/conf/v2/arp_announce
  finds arp warning "of v2: 0/1/0/0"
  cured arp
  echo 1 > /proc/sys/net/ipv4/conf/v2/rp_filter
  finds arp breaks "of v2: 2/1/0/1"
  cured arp

  # By rdma0: what is between v1 and v2 ties each to the other, so that both would be guarded.
  wired rdma0
  rdmaprep prepare --plan doctor --ifaces "v1 rdma0" > /dev/null
  ip route add default via 192.0.2.254 dev rdma0
  # What a plan was made with is not lost by a command that does not know of it.
  cp /run/rdmaprep/plans/doctor.json /run/cases/doctor.plan
  rdmaprep prepare --plan doctor --ifaces "v1 rdma0" --allow-bootstrap-iface --arp-profile loose --gid-timeout 60 > /dev/null
  jq -c '.allow_bootstrap = false' /run/rdmaprep/plans/doctor.json > /run/cases/loose.plan
  cp /run/cases/loose.plan /run/rdmaprep/plans/doctor.json
  finds uplink breaks "plan doctor has rdma0, which carries the default route"
  equal "the fix of a plan with flags" "" "$(about uplink '.run[]?')"
  cp /run/cases/doctor.plan /run/rdmaprep/plans/doctor.json
  finds uplink breaks "plan doctor has rdma0, which carries the default route"
  cured uplink
  args=(--ifaces "v1 rdma0" --allow-bootstrap-iface)
  finds uplink breaks "rdma0 is in the set, and carries the default route"
  args=(--ifaces "v1 v2")
  cured uplink true
  ip route delete default

  args=(--ifaces "v1 rdma0")
  finds asymmetric_rails warning "the rails' rates differ"
  # What is printed stores a plan, which is then what counts.
  about asymmetric_rails '.run[]' | sh -e > /dev/null
  args=()
  cured asymmetric_rails true
  rm /run/rdmaprep/plans/default.json
  args=(--ifaces "v1 v2")
  healthy
}

case_what_the_host_allows() {
  local path=/dev/infiniband/uverbs2 pid
  rails_are_well
  rm "$path"
  finds verbs_nodes breaks "$path is missing"
  equal "what is pasted" "mkdir -p /dev/infiniband && mknod -m 666 $path c 231 194" "$(pasted verbs_nodes)"
  cured verbs_nodes sh -ec "$(pasted verbs_nodes)"
  rm "$path"
  mknod "$path" c 1 3
  finds verbs_nodes breaks "$path is the device 1:3, not 231:194"
  cured verbs_nodes
  mount --bind /dev/infiniband /dev/infiniband
  mount -o remount,bind,nodev /dev/infiniband
  finds verbs_nodes breaks "$path cannot be opened: Permission denied"
  cured verbs_nodes umount /dev/infiniband
  chmod 600 "$path"
  finds verbs_nodes warning "$path is for root alone: mode 600 of user 0 and group 0"
  cured verbs_nodes
  # The node that the kernel makes, again.
  rdma link delete rxe2
  rm -f "$path"
  rdma link add rxe2 type rxe netdev v2

  before=(prlimit --memlock=65536 setpriv --bounding-set=-ipc_lock --)
  finds memlock breaks "RLIMIT_MEMLOCK of this shell is 64 KiB"
  before+=(sh -c "$(about memlock '.run[]') && exec \"\$@\"" sh)
  cured memlock true
  # A user who cannot raise the limit gets no command that would fail.
  before=(prlimit --memlock=65536:65536 setpriv "--bounding-set=-ipc_lock,-sys_resource" --)
  finds memlock breaks "RLIMIT_MEMLOCK of this shell is 64 KiB"
  equal "commands" "" "$(about memlock '.run[]?')"
  before=()
  cp "$(command -v sleep)" /run/cases/slurmd
  prlimit --memlock=65536:65536 /run/cases/slurmd 600 &
  pid=$!
  until_true 10 named slurmd
  finds memlock warning "RLIMIT_MEMLOCK of slurmd (process $pid) is 64 KiB"
  cured memlock
  kill -KILL "$pid"
  wait "$pid" || true

  before=(setarch --uname-2.6)
  finds kernel breaks "is older than 5.8"
  says "soft-RoCE inside network namespaces"
  before=()
  cured kernel true

  # Opening the node would load the module: the doctor only looks, and changes nothing.
  modprobe -r rdma_ucm
  finds rdma_modules warning "rdma_ucm is not loaded"
  [ ! -e /sys/module/rdma_ucm ] || die "the doctor has loaded rdma_ucm"
  cured rdma_modules
  # NVIDIA's driver, by what it shows; the module is one of modprobe's own words.
  mkdir -p /run/cases/driver/nvidia /run/cases/mm/memory_peers/nv_mem /run/modprobe.d
  echo "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15" > /run/cases/driver/nvidia/version
  echo 1 > /run/cases/mm/memory_peers/nv_mem/version
  echo "install nvidia_peermem mount --bind /run/cases/mm /sys/kernel/mm" > /run/modprobe.d/doctor.conf
  mount --bind /run/cases/driver /proc/driver
  finds peer_memory warning "nvidia_peermem is not loaded, and the driver is not the open one"
  cured peer_memory
  umount /sys/kernel/mm /proc/driver

  local i
  for i in 0 1 2 3 4; do rdma link delete "rxe$i"; done
  finds rdma_modules breaks "there is no RDMA device here"
  for i in 0 1 2; do rdma link add "rxe$i" type rxe netdev "v$i"; done
  for i in 0 1; do rdma link add "rxe$((i + 3))" type rxe netdev "rdma$i"; done
  cured rdma_modules true
  healthy
}

named() { [ "$(cat "/proc/$pid/comm")" = "$1" ]; }
# shellcheck disable=SC2154 # of node.sh
attaching() { grep -q '"phase":"attaching"' "$records"/*.json; }

case_what_is_left() {
  local plans=/run/rdmaprep/plans
  rails_are_well
  plan doctor "v1 v2"
  # A table that is empty while its NIC is away, as that has its routes.
  ip route add 198.18.77.0/24 dev v2 table 29010
  ip rule add from 198.51.100.0/24 table 29010 priority 29010
  sandbox doctor
  hook createRuntime doctor
  doctor
  equal "of a running container" "" "$(about stale_records .seen)"
  equal "what is orphaned" "" "$(about orphaned_rules .seen)"
  ip rule add from 198.51.100.99 table 29003 priority 29003
  ip -6 rule add from 2001:db8:77::1 table 29004 priority 29004
  # Of one without an address of ours nothing is known.
  ip -6 rule add to 2001:db8:78::/64 table 29005 priority 29005
  finds orphaned_rules warning "priority 29003 from 198.51.100.99/32 table 29003 leads nowhere: table 29003 is empty"
  says "priority 29004 from 2001:db8:77::1/128 table 29004"
  equal "rules that are reported" 2 "$(wc -l <<< "$said")"
  cured orphaned_rules
  ip -6 rule delete priority 29005

  kill -KILL "$init"
  wait "$init" || true
  finds stale_records warning "container doctor has died, and v1 v2 are still away"
  cured stale_records
  doctor
  equal "what is orphaned once all is restored" "" "$(about orphaned_rules .seen)"
  ip rule delete priority 29010
  ip route flush table 29010
  echo '{' > "$records/77.json"
  finds stale_records breaks "$records/77.json cannot be used"
  cured stale_records sh -c "$(about stale_records .fix | grep -o 'rdmaprep restore 77 --forget')"

  echo '{' > "$plans/torn.json"
  finds plans breaks "$plans/torn.json"
  cured plans rm "$plans/torn.json"

  # A hook that is at work for seconds, and is then killed.
  plan slow rdma0
  sandbox slow
  rdmaprep hook createRuntime --plan slow < /tmp/ctr/slow.state > /run/cases/hook 2>&1 &
  hook=$!
  until_true 10 attaching
  finds stale_records unknown "rdma0 are on their way to container slow or back: rdmaprep is at work"
  equal "commands" "" "$(about stale_records '.run[]?')"
  kill -KILL "$hook" || die "it has ended: $(cat /run/cases/hook)"
  wait "$hook" || true
  finds stale_records warning "rdma0 are on their way to container slow or back, and no hook is at work"
  cured stale_records
  kill -KILL "$init"
  wait "$init" || true
  wired rdma0
  rm -f "$plans/slow.json"

  before=(env "NCCL_IB_HCA=rxe1,rxe3")
  finds nccl breaks "NCCL takes rxe1:1, rxe3:1; rxe3:1 is none of the NICs that are meant; it leaves out rxe2:1"
  before=(env "$(about nccl .fix)")
  cured nccl true
  before=(env NCCL_IB_HCA==mlx5_9)
  finds nccl breaks "leaves no HCA"
  before=(env NCCL_SOCKET_IFNAME==lo)
  finds nccl warning "the bootstrap uses lo"
  before=()
  cured nccl true
  healthy
}

# The driver's, as its fix has it.
reload() {
  rmmod roce
  roce
  roce_is ACTIVE roce0
  roce_is ACTIVE roce2
}

# What soft-RoCE has not: functions on PCI below switches that GPUs share.
case_hardware() {
  local dev port config first at ports last
  rm -f /run/rdmaprep/plans/*.json
  for dev in "${roce_nics[0]}" "${roce_nics[2]}"; do ip link set "$dev" mtu 4200; done
  roce
  roce_up 0 2
  roce_is ACTIVE roce0
  roce_is ACTIVE roce2
  args=(--ifaces "${roce_nics[0]} ${roce_nics[2]}")
  until_true 10 healthy_is
  finds flow_control unknown "PFC and ECN of ${roce_nics[0]}, ${roce_nics[2]} are not known"

  args=(--ifaces "${roce_nics[0]}")
  finds numa warning "is ${roce_nics[0]} (NUMA 0)"
  says "the rail nearest to GPU"
  equal "the fix" "take roce2 as well, which is PIX: see \`rdmaprep topo\`" "$(about numa .fix | sort -u)"
  args=(--ifaces "${roce_nics[0]} ${roce_nics[2]}")
  cured numa true

  # The emulated ports have no ACS: what can be read of one, with an ACS capability behind the first.
  port=$(basename "$(readlink -f "/sys/class/net/${roce_nics[0]}/device/..")")
  config=/sys/bus/pci/devices/$port/config
  cat "$config" > /run/cases/config
  truncate -s 4096 /run/cases/config
  laid=$(readlink -f "$config")
  mount --bind /run/cases/config "$laid"
  first=$((0x$(setpci -s "$port" 100.l)))
  if [ "$first" = 0 ]; then at=100; else at=800; fi
  [ "$first" = 0 ] || setpci -s "$port" "100.l=$(printf %x $((first & 0xfffff | 0x800 << 20)))"
  setpci -s "$port" "$at.l=$(printf %x $((first & 0xfff00000 | 0x1000d)))"
  setpci -s "$port" ECAP_ACS+4.w=1d ECAP_ACS+6.w=11
  until_true 10 healthy_is
  setpci -s "$port" ECAP_ACS+6.w=1d
  finds acs warning "ACS sends peer-to-peer traffic upwards at $port"
  cured acs
  equal "ACS Control" 0011 "$(setpci -s "$port" ECAP_ACS+6.w)"
  umount "$laid"

  # A link that came up wider than the other's.
  lay "$(readlink -f "/sys/class/net/${roce_nics[2]}/device/current_link_width")" 8
  finds asymmetric_rails warning "the rails' PCIe links differ"
  says "${roce_nics[2]} 2.5 GT/s x8"
  cured asymmetric_rails umount "$laid"

  # An entry of an address that its NIC no longer has, at the end of the table. The fix makes the table again, without what lies
  # over the old one.
  ports=$(readlink -f /sys/class/infiniband/roce0/ports/1)
  last=$(find "$ports/gids" -mindepth 1 -printf '%f\n' | sort -n | tail -n 1)
  mkdir -p /run/cases/gid
  echo "0000:0000:0000:0000:0000:ffff:cb00:7163" > /run/cases/gid/gids
  echo "RoCE v2" > /run/cases/gid/types
  echo "${roce_nics[0]}" > /run/cases/gid/ndevs
  mount --bind /run/cases/gid/gids "$ports/gids/$last"
  mount --bind /run/cases/gid/types "$ports/gid_attrs/types/$last"
  mount --bind /run/cases/gid/ndevs "$ports/gid_attrs/ndevs/$last"
  finds gids breaks "roce0:1 has RoCE v2 GIDs of no address of ${roce_nics[0]}: 203.0.113.99 at index $last"
  cured gids reload

  # A table without room for the address's entries.
  rmmod roce
  roce gids=2
  roce_is ACTIVE roce0
  finds gids breaks "roce0:1 has no RoCE v2 GID made from an IPv4 address of ${roce_nics[0]}"
  cured gids reload
}

case_a_container() {
  local mount_silent
  rails_are_well
  bundle sick
  prepare sick "v1 v2"
  edit sick '.linux.resources.devices |= map(select(.major != 231))
    | .process.rlimits |= map(if .type == "RLIMIT_MEMLOCK" then .soft = 65536 | .hard = 65536 else . end)
    | .process.env |= map(if startswith("NCCL_IB_HCA=") then "NCCL_IB_HCA==rxe1" else . end)'
  start runc sick
  args=(--container sick)
  finds verbs_nodes breaks "/dev/infiniband/uverbs1 cannot be opened: Operation not permitted"
  finds memlock breaks "RLIMIT_MEMLOCK of the container's init is 64 KiB"
  finds nccl warning "NCCL takes rxe1:1; it leaves out rxe2:1"
  stop runc sick "$runner"
  # As the fixes have it; what was set by hand stays, and so goes by hand.
  edit sick '.process.env |= map(select(startswith("NCCL_IB_HCA=") | not))'
  prepare sick "v1 v2"
  start runc sick
  healthy
  # The same by its pid, of which nothing is recorded.
  args=(--container "$(jq '.members[0].pid' "$(record sick)")")
  healthy
  stop runc sick "$runner"

  # A user that is not root, with nodes that are for root alone, and then for its group.
  edit sick '.process.user = {uid: 1000, gid: 1000}
    | .linux.devices |= map(if .path | test("uverbs") then .fileMode = 384 | .uid = 0 | .gid = 0 else . end)'
  start runc sick
  args=(--container sick)
  finds verbs_nodes breaks "cannot be opened: mode 600 of user 0 and group 0, and its init is user 1000 of group 1000"
  stop runc sick "$runner"
  edit sick '.linux.devices |= map(if .path | test("uverbs") then .fileMode = 432 | .gid = 1000 else . end)'
  start runc sick
  healthy

  # One whose files are those of a file system that never answers; nor does it to programs, which look for libraries there.
  modprobe fuse
  mount_silent="exec 3<>/dev/fuse && mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 none /etc"
  unshare --net --mount sh -c "$mount_silent && : > /run/cases/silent && exec sleep 600" &
  init=$!
  until_true 20 test -e /run/cases/silent
  args=(--container "$init")
  finds nccl unknown "NCCL's settings there are unknown: its files or its memory do not answer"
  kill -KILL "$init"
  wait "$init" || true
  rm /run/cases/silent
  args=()
  # One that is gone, and one that shares the host's network.
  stop runc sick "$runner"
  fails 2 rdmaprep doctor --container sick
  says "no running container of podman, CRI-O, Docker or containerd, and none that holds a NIC"
  fails 3 rdmaprep doctor --container $$
  says "shares the host's network and mounts"
}
