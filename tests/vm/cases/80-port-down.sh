# shellcheck shell=bash source=tests/vm/container.sh
# A port that does not become ACTIVE while the container starts: NCCL would skip it without a word, so we refuse.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

case_the_deadline_undoes_everything() {
  bundle dark
  # Long enough for the hook to reach the wait on a slow machine.
  prepare dark "v0 v1" --hook-timeout 24
  ip link set p1 down
  rdmaprep snapshot --normal > /run/cases/before
  fails 1 runc run --bundle /tmp/ctr/dark dark
  says "exit status 7"
  says "rxe1 port 1 in the container is"
  same /run/cases/before
  # crun drops what hooks say: the log has it.
  fails 255 crun run --bundle /tmp/ctr/dark dark
  said=$(tail -n 1 /var/log/rdmaprep.log)
  says "exit=7"
  says "rxe1 port 1"
  same /run/cases/before
  ip link set p1 up
  # With light on the fibre the same bundle starts.
  start runc dark
  stop runc dark "$runner"
}

# A GID that never comes: the wait for it has an end of its own, well before the hook's.
case_a_gid_that_never_comes() {
  local stored=/run/rdmaprep/plans/never.json began waited
  mkdir -p /tmp/ctr
  rdmaprep prepare --plan never --ifaces "v0 v1" --gid-timeout 2 > /tmp/ctr/never.prepared
  jq '(.nics[] | select(.identity.name == "v1").gid.address) = "::ffff:198.51.100.99"' "$stored" > "$stored.new"
  mv "$stored.new" "$stored"
  rdmaprep snapshot --normal > /run/cases/before
  sandbox never
  began=$SECONDS
  fails 7 hook createRuntime never
  waited=$((SECONDS - began))
  says "rxe1 port 1 in the container has no RoCE v2 GID for 198.51.100.99 on v1; its GID table is ["
  says ": 198.51.100.2 RoCE v2 v1"
  says "everything is undone"
  [ "$waited" -lt 15 ] || die "that took $waited s"
  same /run/cases/before
}

# The container gets a GID index: if its GID has another index inside, NCCL would fail at its first connection.
case_a_gid_that_is_not_at_its_index() {
  local index stored=/run/rdmaprep/plans/gid.json
  plan gid v1
  index=$(jq -r .gid_index "$stored")
  equal "the variable of NCCL" "$index" "$(jq -r '.env[] | select(.name == "NCCL_IB_GID_INDEX").value' "$stored")"
  rdmaprep snapshot --normal > /run/cases/before
  sandbox gid
  hook createRuntime gid
  hook poststop gid
  jq '.gid_index += 7' "$stored" > "$stored.new"
  mv "$stored.new" "$stored"
  sandbox gid
  fails 3 hook createRuntime gid
  says "gets NCCL_IB_GID_INDEX=$((index + 7))"
  says "everything is undone"
  same /run/cases/before
}
