# shellcheck shell=bash source=tests/vm/container.sh
# What two of the capabilities that a hook keeps are for: an image whose files the root of a user namespace owns, as engines
# that remap users unpack it. tests/hostile/privilege.rs shows the others, where all files have one owner.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

undo() { kill -KILL "${init:-}" 2> /dev/null || true; }

# given CAPABILITY: what became of the settings for the container with that one missing.
given() {
  setpriv "--bounding-set=+all,-$1" rdmaprep hook createRuntime --plan own < /tmp/ctr/own.state
  report own .settings
  rdmaprep restore own > /dev/null
}

case_chown_and_dac_override() {
  local root=/tmp/ctr/own/rootfs
  mkdir -p "$root/etc" "$root/dev"
  cp -a /dev/infiniband "$root/dev/"
  chown -R 100000:100000 "$root/etc"
  echo '{"ociVersion":"1.2.0","root":{"path":"rootfs"},"process":{"env":[]}}' > /tmp/ctr/own/config.json
  rdmaprep prepare --plan own --ifaces v0 --sysfs off > /tmp/ctr/own.prepared
  # As sandbox does, with a mount namespace.
  unshare --net --mount sh -c "mount --bind $root $root; exec sleep infinity" &
  init=$!
  until grep -q " $root " "/proc/$init/mounts"; do sleep 0.01; done
  printf '{"ociVersion":"1.0.2","id":"own","status":"creating","pid":%s,"bundle":"/tmp/ctr/own"}' "$init" > /tmp/ctr/own.state
  said=$(given chown)
  says "giving it its owner: Operation not permitted"
  said=$(given dac_override)
  says "making an overlay over /etc: Permission denied"
  said=$(given kill)
  says "in an /etc/nccl.conf of ours"
  equal "owner of /etc" 100000:100000 "$(nsenter -t "$init" -m stat -c %u:%g "$root/etc")"
  nsenter -t "$init" -m grep -q '^NCCL_IB_HCA==rxe0' "$root/etc/nccl.conf" || die "it has no settings"
}
