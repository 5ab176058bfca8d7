# shellcheck shell=bash source=tests/vm/container.sh
# UCX, of other authors, says which HCAs it finds and which ones the list lets it use.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

# devices: the RDMA devices that $said names, in ucx_info's two forms, each once.
devices() { grep -oE 'rxe[0-9]+:[0-9]+' <<< "$said" | sort -u | tr '\n' ' '; }

case_ucx_uses_exactly_the_listed_hcas() {
  bundle ucx
  prepare ucx "v1 v2" --libraries nccl,gloo,ucx
  start runc ucx
  equal "the list" "rxe1:1,rxe2:1" "$(runc exec ucx printenv UCX_NET_DEVICES)"
  # What it finds at all: device nodes and /sys are those of these HCAs.
  said=$(runc exec ucx ucx_info -d 2>&1)
  equal "devices that UCX finds" "rxe1:1 rxe2:1 " "$(devices)"
  says "Transport: rc_verbs"
  # What it opens by the list: both, and by one with a part of it that one.
  said=$(runc exec ucx ucx_info -p -u t -D net 2>&1)
  equal "devices that UCX uses" "rxe1:1 rxe2:1 " "$(devices)"
  said=$(runc exec --env UCX_NET_DEVICES=rxe2:1 ucx ucx_info -p -u t -D net 2>&1)
  equal "devices by a shorter list" "rxe2:1 " "$(devices)"
  stop runc ucx "$runner"
}
