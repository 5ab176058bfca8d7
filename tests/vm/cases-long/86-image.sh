# shellcheck shell=bash source=tests/vm/container.sh
# What an image lacks of rdma-core: the doctor, the create hook and prepare name the file and the package.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

root=/tmp/ctr/image/rootfs

lacking() {
  # It ends with 11 where something breaks a job.
  { rdmaprep doctor --container image --json 2> /dev/null || [ $? = 11 ]; } |
    jq -r '.findings[] | select(.check == "userspace") | "\(.severity): \(.seen): \(.fix)"'
}

# lacks TEXT: the doctor says it of the running container, and nothing else of the image.
lacks() {
  said=$(lacking)
  says "$1"
  equal "findings" 1 "$(wc -l <<< "$said")"
  echo "# $said"
}

# A hook waits 100 ms for its look, which may be too short on a slow machine.
noted() {
  start runc image
  said=$(cat /run/rdmaprep/reports/image*)
  stop runc image "$runner"
  grep -q "finds no libibverbs.so.1" <<< "$said"
}

case_what_it_lacks_of_rdma_core_is_named() {
  local verbs provider older abi
  bundle image
  said=$(prepare image v0 2>&1)
  equal "what prepare says of a whole image" "" "$said"
  start runc image
  equal "what a whole image lacks" "" "$(lacking)"
  verbs=$(echo "$root"/usr/lib/*/libibverbs.so.1)
  provider=$(echo "$root"/usr/lib/*/libibverbs/librxe-rdmav*.so)
  abi=${provider##*-rdmav} abi=${abi%.so}

  # As the package of an older release has it.
  older=${provider/rdmav$abi/rdmav$((abi - 1))}
  mv "$provider" "$older"
  lacks "breaks: libibverbs of the image loads librxe-rdmav$abi.so for rxe0, and the image has librxe-rdmav$((abi - 1)).so"
  rm "$older"
  lacks "breaks: the image has no librxe-rdmav$abi.so in "
  says "install ibverbs-providers of a release that has rxe"
  rm "$verbs"*
  lacks "breaks: the loader of the image finds no libibverbs.so.1: install libibverbs1 and ibverbs-providers in the image"
  stop runc image "$runner"

  said=$(prepare image v0 2>&1)
  says "warning: the loader of the image finds no libibverbs.so.1"
  until_true 120 noted
}
