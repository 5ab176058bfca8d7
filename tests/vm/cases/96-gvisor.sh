# shellcheck shell=bash source=tests/vm/roce-node.sh
# gVisor, with devices that call themselves mlx5's: a runsc that has an RDMA proxy is run with it, and its payload opens them and
# registers memory. Debian's has none: NICs and GIDs are in the namespace all the same, and the payload can open no device.
. "$(dirname "${BASH_SOURCE[0]}")/../roce-node.sh"

# All of its output first: runsc, cut short by grep, would fail, and with it the pipe.
proxy() { grep -q -- '-rdmaproxy' <<< "$(runsc flags 2>&1)"; }

# shellcheck disable=SC2016 # the container's shell expands it
tells='exec 2>&1; ls /dev/infiniband; echo "uverbs nodes: $(ls /dev/infiniband | grep -c uverbs)"; echo "sees $(ls /sys/class/infiniband | tr "\n" " ")"
echo "trees over /sys: $(grep -c " /sys 9p " /proc/mounts)"
ibv_devinfo -d roce0; /register roce0 4096; echo ready; exec sleep infinity'

# gvisor NETWORK ID: the command that calls runsc so is in $oci, its bundle is there, roce0 and roce1 are on the host.
gvisor() {
  local n
  roce driver=mlx5_core driver_id=1
  roce_up 0 1
  for n in 0 1; do roce_is ACTIVE "roce$n"; roce_has "$n" "roce$n"; done
  said=$(ibv_devinfo -d roce0)
  says "PORT_ACTIVE (4)"
  rdmaprep snapshot --normal > /run/cases/roce.before
  bundle "$2" sh -c "$tells"
  cp /repo/tests/vm/register "/tmp/ctr/$2/rootfs/register"
  oci=(runsc --network=host)
  if [ "$1" = sandbox ]; then
    ip netns add "$2"
    edit "$2" '(.linux.namespaces[] | select(.type == "network")).path = "/run/netns/'"$2"'"'
    oci=(/repo/scripts/vm/runsc "/run/netns/$2")
  fi
  ! proxy || oci+=(--rdmaproxy)
  prepare "$2" "${roce_nics[0]} ${roce_nics[1]}" --runtime "${oci[*]}"
}

# begun NETWORK ID: as an engine does it, or by `runsc run` where a mount namespace of ours has to stay (scripts/vm/runsc); until the
# payload has said all, which takes a minute under emulation.
begun() {
  : > "/tmp/ctr/$2.out"
  if [ "$1" = host ]; then
    "${oci[@]}" create --bundle "/tmp/ctr/$2" --pid-file "/tmp/ctr/$2.pid" "$2" < /dev/null > "/tmp/ctr/$2.out" 2>&1 ||
      die "runsc create: $(cat "/tmp/ctr/$2.out")"
    "${oci[@]}" start "$2"
  else
    "${oci[@]}" run --bundle "/tmp/ctr/$2" --pid-file "/tmp/ctr/$2.pid" "$2" < /dev/null > "/tmp/ctr/$2.out" 2>&1 &
    runner=$!
  fi
  until_true 240 grep -q ^ready "/tmp/ctr/$2.out"
  until_true 60 grep -q "hook poststart.*container=$2" /var/log/rdmaprep.log
}

inside() { if [ "$1" = host ]; then within "${@:2}"; else ip netns exec "${@:2}"; fi; }

# ended NETWORK ID: its NICs stay where they are until runsc calls poststop: in delete, which is a part of run.
ended() {
  local n
  if [ "$1" = host ]; then
    [ ! -e "/sys/class/net/${roce_nics[0]}" ] || die "it is back already"
    "${oci[@]}" delete "$2"
  else
    wait "$runner" || true
    ip netns delete "$2"
  fi
  same /run/cases/roce.before
  for n in 0 1; do roce_is ACTIVE "roce$n"; roce_has "$n" "roce$n"; done
}

# The host's side of its namespace, and what the payload said.
judge() { # NETWORK ID
  local n
  for n in 0 1; do
    [ ! -e "/sys/class/net/${roce_nics[n]}" ] || die "${roce_nics[n]} is still here"
    roce_has "$n" "roce$n"
    said=$(inside "$1" "$2" ip -brief address show dev "${roce_nics[n]}")
    says "10.1.$n.1/24"
    says "2001:db8:1$n::1/64"
  done
  said=$(cat "/tmp/ctr/$2.out")
  for n in 0 1; do says "$(basename /sys/class/infiniband/roce"$n"/device/infiniband_verbs/*)"; done
  says "sees roce0 roce1 "
  says "uverbs nodes: 2"
  if proxy; then
    says "PORT_ACTIVE (4)"
    says "registered 4096 kB"
    says "trees over /sys: 0"
    ! grep -q rdma_cm <<< "$said" || die "it has rdma_cm"
  else
    # Its /sys shows the HCAs, but libibverbs asks a kernel that knows no RDMA which driver they have.
    says "IB device 'roce0' wasn't found"
    says "no device roce0 among 0"
  fi
}

whole() { # NETWORK
  gvisor "$1" g
  begun "$1" g
  judge "$1" g
  runsc kill g KILL
  [ "$1" != host ] || until_true 20 stopped g
  ended "$1" g
  echo "# $(runsc --version | head -n 1), --network=$1$(! proxy || echo ", with its proxy"): NICs and GIDs in, and back after delete"
}
stopped() { [ "$(runsc state "$1" | jq -r .status)" = stopped ]; }
case_a_sandbox_network() { whole sandbox; }

killed() { # NETWORK
  gvisor "$1" k
  begun "$1" k
  kill -KILL "$(cat /tmp/ctr/k.pid)"
  [ "$1" != host ] || until_true 20 sh -c 'rdmaprep status | grep -q dead'
  ended "$1" k
}
case_a_killed_sentry() { killed host; }
# by_device ID: what an engine makes of its bundle for the device `all` of a file that `cdi generate` has written.
by_device() {
  # shellcheck disable=SC2016 # jq's own
  jq --slurpfile cdi /run/cases/cdi.json '$cdi[0] as $file
    | reduce ($file.containerEdits, ($file.devices[] | select(.name == "all").containerEdits)) as $edits (.;
      .process.env += ($edits.env // [])
      | .linux.devices += [($edits.deviceNodes // [])[] | {path, type, major, minor, fileMode, uid, gid}]
      | reduce ($edits.hooks // [])[] as $hook (.; .hooks[$hook.hookName] += [$hook | {path, args, timeout}]))' \
    "/tmp/ctr/$1/config.json" > "/tmp/ctr/$1/config.new"
  mv "/tmp/ctr/$1/config.new" "/tmp/ctr/$1/config.json"
  # After ours, which must not keep it from being called.
  edit "$1" '.hooks.createContainer += [{"path": "/bin/sh", "args": ["sh", "-c", "cat >> /run/cases/called"]}]'
}

# Hooks alone. The one for createContainer is there because the guest has a runsc: that of 2026 calls it, Debian's of 2024 does not,
# and with runc it does nothing.
case_hooks_of_a_device() {
  local calls=0 settings="source it"
  ! proxy || { calls=1 settings="in the /etc/nccl.conf that the createContainer hook mounted"; }
  plan d "v0 rdma0"
  rdmaprep cdi generate --plan d --output - > /run/cases/cdi.json
  : > /run/cases/called
  bundle sandboxed sh -c 'cat /etc/nccl.conf; echo ready; exec sleep infinity'
  by_device sandboxed
  start runsc sandboxed
  said=$(grep "hook createRuntime.*container=sandboxed" /var/log/rdmaprep.log)
  says "$settings"
  equal "calls by runsc" "$calls" "$(grep -c '"pid":-1' /run/cases/called)"
  said=$(cat /tmp/ctr/sandboxed.out)
  [ "$calls" = 0 ] || says "NCCL_IB_HCA==rxe"
  stop runsc sandboxed "$runner"

  : > /run/cases/called
  bundle plain sh -c 'cat /etc/nccl.conf; echo ready; exec sleep infinity'
  by_device plain
  start runc plain
  said=$(grep "hook createRuntime.*container=plain" /var/log/rdmaprep.log)
  says "in an /etc/nccl.conf of ours"
  equal "calls by runc" 1 "$(grep -c '"pid":1,' /run/cases/called)"
  said=$(cat /tmp/ctr/plain.out)
  says "NCCL_IB_HCA==rxe"
  [ ! -e /run/rdmaprep/conf ] || equal "files for sandboxes" "" "$(ls /run/rdmaprep/conf)"
  stop runc plain "$runner"
  echo "# $(runsc --version | head -n 1) calls $calls createContainer hooks, $(runc --version | head -n 1) 1"
}
