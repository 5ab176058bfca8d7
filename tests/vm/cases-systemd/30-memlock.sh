# shellcheck shell=bash source=tests/vm/container.sh
# What an engine hands on of RLIMIT_MEMLOCK to containers that get their rails as devices: the doctor tells of too little, and
# its fix holds, for what runs and after a restart.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

verdict=/run/cases/doctor.json
undo() {
  systemctl stop containerd 2> /dev/null || true
  rm -rf /etc/systemd/system/containerd.service.d /etc/cdi/rdmaprep.json /run/rdmaprep/plans/*
  systemctl daemon-reload
}

examine() {
  rdmaprep doctor --json --ifaces "v1 v2" > "$verdict" || [ $? = 11 ]
  said=$(jq -r '.findings[] | select(.check == "memlock") | .seen' "$verdict")
}

case_an_engine_that_hands_on_too_little() {
  systemctl start containerd
  examine
  equal "of containers that no device gives a rail" "" "$said"
  rdmaprep cdi generate --ifaces "v1 v2" > /dev/null
  examine
  says "RLIMIT_MEMLOCK of containerd (process $(systemctl show --value --property MainPID containerd)) is 8192 KiB"
  echo "# memlock: $said"
  jq -r '.findings[] | select(.check == "memlock") | .run[]' "$verdict" | sh -e
  examine
  equal "after the printed fix" "" "$said"
  systemctl restart containerd
  examine
  equal "after a restart" "" "$said"
}
