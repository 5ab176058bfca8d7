# shellcheck shell=bash source=tests/vm/roce-node.sh
# What a container sees of /sys: its NICs, the GPUs and all bridges, and no other NIC. The container has roce0, and roce3:
# function 1 of a card whose function 0 belongs to a NIC that stays on the host.
. "$(dirname "${BASH_SOURCE[0]}")/../roce-node.sh"

# What the container sees, printed by itself: a missing file is an empty line.
# shellcheck disable=SC2016 # the container's shell expands it
look='
exec 2> /dev/null
cd /sys
echo "== rdma"; find class/infiniband class/infiniband_verbs class/infiniband_mad | sort
echo "== pci"; find bus/pci/devices bus/pci/drivers/e1000e class/pci_bus class/ptp | sort
echo "== places"; for hca in class/infiniband/*; do realpath $hca/device; done
echo "== lspci"; lspci -n | cut -d" " -f1-3
echo "== verbs"; ibv_devices | tail -n +3 | tr -d "\t "; ibv_devinfo | grep -E "hca_id|state:" | tr -d "\t "
echo "== nodes"; ls /dev/infiniband
echo "== settings"; { env | grep ^NCCL_; cat /etc/nccl.conf; } 2>/dev/null | sort
echo "== leads"; find class bus dev -type l ! -path "class/net/*" ! -path "bus/pci/drivers/*/module" -exec readlink -f {} + | sort -u
card=$(realpath bus/pci/devices/0000:83:00.0)
echo "== card"; find $card/infiniband $card/infiniband_verbs $card/infiniband_mad $card/net $card/ptp -mindepth 1 2>/dev/null
echo "== alive"; cat class/infiniband/roce0/ports/1/state class/infiniband/roce3/ports/1/gid_attrs/ndevs/0
echo "== written"; touch class/infiniband/x 2>&1; rm class/infiniband/roce0 2>&1
echo ready; exec sleep infinity'

nics() {
  modprobe ib_umad
  roce gids=16
  roce_up 0 1 2 3
  for n in 0 1 2 3; do roce_is ACTIVE "roce$n"; done
  rdmaprep snapshot --normal > /run/cases/roce.before
  find /sys/class /sys/bus/pci ! -path '/sys/class/net/*' | sort > /run/cases/sys.before
}

part() { sed -n "/^== $2\$/,/^== /p" "/tmp/ctr/$1.out" | grep -v ^==; }

# The kernel assigns a new minor whenever a device is created.
listing() { { part "$1" rdma; part "$1" pci; } | sed 's/uverbs[0-9]*$/uverbsN/'; }

# The emulated NICs take seconds to find their carrier again when they are back.
up() { for n in 0 3; do roce_is ACTIVE "roce$n"; done; }

# What every container with a live view has to say, however it got it.
judge() { # ID
  local place hidden
  listing "$1" > /tmp/listing
  diff "/repo/tests/cases/guest/sysfs-live.txt" /tmp/listing || die "another listing"
  equal "places" 2 "$(part "$1" places | grep -c '^/sys/devices/pci')"
  equal "verbs" "hca_id:roce0 hca_id:roce3 roce0 roce3 state:PORT_ACTIVE(4) state:PORT_ACTIVE(4)" \
    "$(part "$1" verbs | sed 's/^\(roce.\).*/\1/' | sort | tr '\n' ' ' | sed 's/ $//')"
  equal "lspci" "$(lspci -n | cut -d' ' -f1-3 | grep -vE "^($hidden_slots) ")" "$(part "$1" lspci)"
  # Nothing leads to the places of dropped NICs, nor to what is theirs on the card that is shared.
  hidden="${hidden_slots//|/|0000:}" hidden="/0000:(${hidden//0000:/})(/|\$)"
  if part "$1" leads | grep -E "$hidden|/roce[12](/|\$)|/rxe"; then die "that leads to a dropped NIC"; fi
  equal "of the card's function 0" "" "$(part "$1" card)"
  place=$(part "$1" alive)
  equal "alive" "4: ACTIVE ${roce_nics[3]}" "${place//$'\n'/ }"
  equal "attempts to write that failed" 2 "$(part "$1" written | grep -c 'Read-only file system')"
}

# PCI NICs that the container does not have: rdma0, rdma1, and roce1's.
hidden_slots='00:1d.0|00:1e.0|44:00.0'

# by_config ID [OPTION...]: config.json is edited.
by_config() {
  local id=$1
  shift
  up
  bundle "$id" sh -c "$look"
  prepare "$id" "${roce_nics[0]} ${roce_nics[3]}" "$@"
}

# by_hook ID [OPTION...]: config.json has the annotation, our hooks, and the nodes that an engine's --device gives.
by_hook() {
  up
  bundle "$1" sh -c "$look"
  rdmaprep prepare --plan view --ifaces "${roce_nics[0]} ${roce_nics[3]}" "${@:2}" > /tmp/ctr/view.prepared
  nodes=$(for n in $(for h in roce0 roce3; do ls "/sys/class/infiniband/$h/device/infiniband_verbs"; done); do
    echo "$n:$(cat "/sys/class/infiniband_verbs/$n/dev")"; done; echo "rdma_cm:$(cat /sys/class/misc/rdma_cm/dev)")
  edit "$1" '.annotations["rdmaprep.io/plan"] = "view"
    | .hooks = ({prestart: "prestart", createRuntime: "createRuntime", poststop: "poststop"}
      | map_values([{path: "'"$(command -v rdmaprep)"'", args: ["rdmaprep", "hook", ., "--deadline", "50"]}]))
    | .process.rlimits = [{type: "RLIMIT_MEMLOCK", hard: 1073741824, soft: 1073741824}]
    | .linux.devices = ["'"${nodes//$'\n'/\",\"}"'" | split(":") | {path: "/dev/infiniband/\(.[0])", type: "c",
        major: (.[1] | tonumber), minor: (.[2] | tonumber), fileMode: 438}]
    | .linux.resources.devices += [.linux.devices[] | {allow: true, type, major, minor, access: "rwm"}]'
}

runtime_mounts() { "$1" exec "$2" cat /proc/self/mounts; }

# logged ID KEY: what the create hook wrote into the log.
logged() { grep -F "container=$1 " /var/log/rdmaprep.log | grep -o "$2=\"[^\"]*\"" | tail -n 1 | cut -d'"' -f2; }

ended() { # RUNTIME ID
  stop "$1" "$2" "$runner"
  same /run/cases/roce.before
  find /sys/class /sys/bus/pci ! -path '/sys/class/net/*' | sort | diff /run/cases/sys.before - || die "the host's /sys changed"
}

both() { # RUNTIME
  nics
  by_config a
  start "$1" a
  judge a
  equal "the hook" "mounted by config.json" "$(logged a sysfs)"
  ended "$1" a
  by_hook b
  start "$1" b
  judge b
  said=$(logged b sysfs)
  says "directories covered by the hook"
  equal "layers over class/infiniband" 1 "$(runtime_mounts "$1" b | grep -c ' /sys/class/infiniband ')"
  diff /tmp/ctr/a.out /tmp/ctr/b.out || die "the two containers differ"
  equal "the image's own /etc/nccl.conf" "" "$(find /tmp/ctr/b/up -type f)"
  ended "$1" b
}

case_runc() { both runc; }

# into_userns ID: the container has a user namespace, whose root may mount, and a read-only root.
into_userns() {
  edit "$1" '.linux.namespaces += [{type: "user"}] | .root.readonly = true
    | .linux.uidMappings = [{containerID: 0, hostID: 100000, size: 65536}] | .linux.gidMappings = .linux.uidMappings
    | .process.capabilities |= map_values(. + ["CAP_SYS_ADMIN"])'
  # As udev makes them; the runtime binds the host's own.
  chmod 666 /dev/infiniband/uverbs* /dev/infiniband/rdma_cm
  chmod 711 /tmp/ctr "/tmp/ctr/$1"
}

# What its root can unmount is what its runtime mounted: the nodes and the cgroup are the wall.
userns() { # RUNTIME
  nics
  by_hook u
  into_userns u
  start "$1" u
  judge u
  "$1" exec u umount /sys/class/infiniband /sys/class/infiniband_verbs
  equal "what it sees after umount" "$(ls /sys/class/infiniband)" "$("$1" exec u ls /sys/class/infiniband)"
  equal "what it can open after umount" "roce0 roce3" "$("$1" exec u ibv_devinfo -l | grep -o 'roce.' | tr '\n' ' ' | sed 's/ $//')"
  ended "$1" u
}
case_a_user_namespace_can_unmount_it_under_runc() { userns runc; }

# The runtime itself mounts it there, from our directories, which others cannot enter.
edited_userns() { # RUNTIME
  nics
  by_config e
  into_userns e
  start "$1" e
  judge e
  equal "the hook" "mounted by config.json" "$(logged e sysfs)"
  ended "$1" e
}
case_an_edited_config_with_a_user_namespace_under_runc() { edited_userns runc; }

# The same by the hook: the tree lies over all of /sys, and what the runtime mounted below stays on top.
case_a_tree_of_files_by_the_hook() {
  nics
  by_hook f --sysfs snapshot
  start runc f
  equal "the cgroup is there" cgroup.controllers "$(runc exec f ls /sys/fs/cgroup | grep -x cgroup.controllers)"
  equal "HCAs" "roce0 roce3 " "$(runc exec f ls /sys/class/infiniband | tr '\n' ' ')"
  equal "places" 2 "$(part f places | grep -c '^/sys/devices/pci')"
  ended runc f
}

# An emulated processor takes minutes for all of it in a sandbox.
brief="${look%%echo \"== lspci\"*}echo ready; exec sleep infinity"

# A topology file of this host, where the container finds it. The HCAs are known by name.
case_a_topology_file() {
  # shellcheck disable=SC2016 # the container's shell expands it
  local look='cat "$NCCL_TOPO_FILE"; echo ready; exec sleep infinity' runtime
  nics
  rdmaprep topo --hca "roce0 roce3" --nccl-xml --strict > /tmp/topology
  for runtime in runc crun; do
    by_config t --topo
    start "$runtime" t
    grep -v '^ready$' /tmp/ctr/t.out | diff /tmp/topology - || die "another topology file"
    equal "read-only" 1 "$("$runtime" exec t cat /proc/self/mounts | grep -cE ' /dev/rdmaprep/nccl_topo.xml [^ ]+ ro,')"
    equal "in its image" "" "$(find /tmp/ctr/t/up -name '*topo*')"
    ended "$runtime" t
  done
}

case_gvisor_gets_files() {
  # shellcheck disable=SC2016 # the container's shell expands it
  local look="${brief%echo ready*}"'echo "== topology"; grep -c "<net name" "$NCCL_TOPO_FILE"; '"echo ready; exec sleep infinity"
  nics
  by_config g --sysfs snapshot --topo
  oci runsc
  start runsc g
  equal "NICs in the topology file" 2 "$(part g topology | grep -x '[0-9]*')"
  diff "/repo/tests/cases/guest/sysfs-live.txt" <(listing g) > /tmp/differences || true
  # No management datagrams, no drivers' own attributes, no clocks in a tree of files.
  if grep '^[<>]' /tmp/differences | grep -vE "^< (class/infiniband_mad|class/ptp|bus/pci/drivers)"; then die "it sees that"; fi
  equal "places" 2 "$(part g places | grep -c '^/sys/devices/pci')"
  stop runsc g "$runner"
  same /run/cases/roce.before
}

case_device_nodes_that_the_engine_did_not_give() {
  local code=0
  nics
  by_hook n
  edit n '.linux.devices |= .[1:]'
  said=$(runc run --bundle /tmp/ctr/n n 2>&1 < /dev/null) || code=$?
  equal "exit status" 1 "$code"
  says "the container lacks device nodes: add --device /dev/infiniband/uverbs"
  says "everything is undone"
  same /run/cases/roce.before
}

# A file that NCCL reads in the image, and a pipe, to which nothing can be added.
case_settings_in_the_image() {
  nics
  by_hook own
  printf '# the image'"'"'s\nNCCL_IB_HCA=mine\nNCCL_DEBUG=WARN' > /tmp/ctr/own/rootfs/etc/nccl.conf
  start runc own
  equal "merged" "# the image's NCCL_DEBUG=WARN NCCL_IB_HCA=mine NCCL_SOCKET_IFNAME==${roce_nics[0]}" "$(part own settings | tr '\n' ' ' | sed 's/ $//')"
  said=$(logged own notes)
  says "NCCL_IB_HCA=mine of the image's /etc/nccl.conf stays"
  ended runc own
  by_hook pipe
  mkfifo /tmp/ctr/pipe/rootfs/etc/nccl.conf
  edit pipe '.process.args = ["sh", "-c", "echo ready; exec sleep infinity"]'
  start runc pipe
  said=$(logged pipe settings)
  says "source it"
  ended runc pipe
}

# The second container of a pod has a mount namespace of its own.
case_a_second_container_sees_the_same() {
  nics
  by_hook one
  by_hook two
  start runc one
  first=$runner
  edit two '(.linux.namespaces[] | select(.type == "network")).path = "'"$(pin one)"'"'
  start runc two
  judge two
  stop runc two "$runner"
  runner=$first
  ended runc one
}
