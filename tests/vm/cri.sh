# shellcheck shell=bash source=tests/vm/inside.sh
# Pods of containerd's CRI plugin: the calls of a kubelet, by tests/vm/kubelet.
. "$(dirname "${BASH_SOURCE[0]}")/inside.sh"

kubelet=$(dirname "${BASH_SOURCE[0]}")/kubelet
export CRI=/run/containerd-test/sock CONTAINERD_ADDRESS=/run/containerd-test/sock

undo() { pods_end; }

pods_end() {
  local pod
  for pod in $("$kubelet" pods 2> /dev/null); do "$kubelet" remove-pod "$pod" > /dev/null 2>&1 || true; done
  [ -z "${daemon:-}" ] || { kill "$daemon" && wait "$daemon"; } || true
  pkill -KILL -f containerd-shim-runc-v2 || true
  # Of a case that failed: while containers hold NICs, nothing is uninstalled.
  rdmaprep restore --all > /dev/null 2>&1 || true
  rdmaprep uninstall --leave-changed > /dev/null || true
  rm -rf /etc/containerd /etc/cni/net.d /etc/cdi /usr/local/bin/rdmaprep /usr/lib/cni/rdmaprep /run/cases/logs /run/cdi
  for netns in /run/netns/cni-*; do ip netns delete "${netns##*/}" 2> /dev/null || true; done
  rm -rf /var/lib/cni
}

containerd_starts() {
  containerd > /run/cases/containerd 2>&1 &
  daemon=$!
  until ctr version > /dev/null 2>&1; do
    kill -0 "$daemon" || die "containerd: $(tail -n 5 /run/cases/containerd)"
    sleep 0.5
  done
}

# node_is_ready [PLUGIN]: containerd with its pod network, which that plugin is the second of, and an image; `install` has added the
# handler.
node_is_ready() {
  local dir=/run/containerd-test
  mkdir -p /tmp/ctr "$dir" /etc/containerd /etc/cni/net.d
  cat > /etc/containerd/config.toml <<CONFIG
version = 3
root = "$dir/root"
state = "/run/containerd"
[grpc]
  address = "$CRI"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "localhost/case:1"
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
CONFIG
  cat > /etc/cni/net.d/10-pods.conflist <<CONFIG
{"cniVersion": "1.1.0", "name": "pods", "plugins": [
  {"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.88.0.0/24"}}${1:+, $1}]}
CONFIG
  ln -sf "$(command -v rdmaprep)" /usr/lib/cni/rdmaprep
  ln -sf "$(command -v rdmaprep)" /usr/local/bin/rdmaprep
  rdmaprep install --containerd > /tmp/ctr/installed
  containerd_starts
  "$kubelet" image /tmp/ctr/image.tar
  ctr -n k8s.io images import /tmp/ctr/image.tar > /tmp/ctr/imported
}

# ready POD NAME: what that container has printed, once it is ready, in /tmp/ctr/NAME.out.
ready() {
  local tries=0
  until grep -qs ' ready$' "/run/cases/logs/$1/$2"; do
    [ $((tries += 1)) -lt 600 ] || die "$2 of $1: $(cat "/run/cases/logs/$1/$2" /var/log/rdmaprep.log)"
    sleep 0.2
  done
  cut -d " " -f 4- "/run/cases/logs/$1/$2" > "/tmp/ctr/$2.out"
}

# settles: the host is as it was before the case, within a minute.
settles() {
  local tries
  for ((tries = 0; tries < 120; tries++)); do
    # The pod network has set it, on each link.
    echo 1 > /proc/sys/net/ipv4/ip_forward
    echo 0 > /proc/sys/net/ipv4/ip_forward
    (clean) > /dev/null 2>&1 && return
    sleep 0.5
  done
  clean
}
