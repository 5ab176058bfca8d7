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

# unpack PACKAGE: that one of Debian 11, over what the image has.
unpack() { dpkg-deb --extract /repo/target/older-rdma-core/"$1"_*.deb "$root"; }

# abi FILE: the number in the name of the provider that a libibverbs loads.
abi() { grep -ao 'lib%s-rdmav[0-9]*' "$1" | head -n 1 | tr -dc 0-9; }

# Packages of two releases in one image: scripts/vm/older-rdma-core has fetched Debian 11's.
case_two_releases_of_rdma_core_do_not_fit() {
  local lib newer older
  [ -d /repo/target/older-rdma-core ] || die "scripts/vm/older-rdma-core target/older-rdma-core has not run"
  bundle image
  prepare image v0
  start runc image
  lib=$(echo "$root"/usr/lib/*/libibverbs)
  newer=$(abi "$lib.so.1")
  # The providers of the older beside libibverbs of the newer release.
  cp -a "$lib" "$root/newer"
  rm "$lib"/*
  unpack ibverbs-providers
  older=$(basename "$lib"/librxe-rdmav*.so)
  older=${older//[!0-9]/}
  [ "$older" -lt "$newer" ] || die "providers $older, libibverbs $newer"
  lacks "breaks: libibverbs of the image loads librxe-rdmav$newer.so for rxe0, and the image has librxe-rdmav$older.so"
  # And the other way round.
  rm -r "$lib" "$lib".so.1*
  mv "$root/newer" "$lib"
  unpack libibverbs1
  equal "number of the older libibverbs" "$older" "$(abi "$lib.so.1")"
  lacks "breaks: libibverbs of the image loads librxe-rdmav$older.so for rxe0, and the image has librxe-rdmav$newer.so"
  says "install libibverbs1 and ibverbs-providers of one release of rdma-core in the image"
  # Both of the older one fit.
  unpack ibverbs-providers
  equal "what a whole older image lacks" "" "$(lacking)"
  stop runc image "$runner"
}
