# shellcheck shell=bash source=tests/vm/cases/10-runtimes.sh
# One container after another, and a runtime that Debian has not.
. "$(dirname "${BASH_SOURCE[0]}")/../cases/10-runtimes.sh"

# Debian has none: scripts/vm/youki makes it.
case_youki() {
  PATH=$PATH:$(echo /repo/target/tools/youki-*/bin)
  command -v youki > /dev/null || die "there is no youki: scripts/vm/youki makes it"
  whole youki
}

# loop RUNTIME ROUNDS: one container after another; each tells whether it had its NICs.
loop() {
  local began=$SECONDS id
  oci "$1"
  for ((round = 1; round <= $2; round++)); do
    id=$1-$round
    bundle "$id" ip -brief address
    prepare "$id" "v0 v1"
    said=$("${oci[@]}" run --bundle "/tmp/ctr/$id" "$id" < /dev/null)
    says 198.51.100.1/24
    says 198.51.100.2/24
    clean
    umount "/tmp/ctr/$id/rootfs"
  done
  echo "# $2 containers of $1, one after another, in $((SECONDS - began)) s"
}

case_loop_of_runc() { loop runc 20; }
case_loop_of_crun() { loop crun 20; }
case_loop_of_runsc() { loop runsc 20; }
