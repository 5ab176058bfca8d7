#!/bin/sh
# install.sh [--root DIR] [--remove]: puts what is beside it into /usr/local, and takes it away again. For root; for hosts whose packages
# are neither .deb nor .rpm. --root: of another tree, as that of an image.
#
# A file that is there and is not this archive's stays, and ends it before anything is written. What was written is listed in
# /usr/local/share/rdmaprep/files; /usr/local/share/rdmaprep/install.sh --remove needs no archive.
#
# --remove undoes `rdmaprep install`, too, as a package's removal does; while containers hold NICs it ends with 9 and changes nothing.
set -eu
fail() {
  echo "install.sh: $*" >&2
  exit 1
}
root='' remove=''
while [ $# -gt 0 ]; do
  case $1 in
    --root)
      [ $# -ge 2 ] || fail "--root needs a folder"
      [ -d "$2" ] || fail "there is no folder $2"
      root=$(cd "$2" && pwd)
      [ "$root" != / ] || root=''
      shift
      ;;
    --remove) remove=1 ;;
    *) fail "usage: install.sh [--root DIR] [--remove]" ;;
  esac
  shift
done
own=usr/local/share/rdmaprep
list=$root/$own/files
here=$(dirname "$(readlink -f "$0")")
top=${here%/"$own"}
[ "$(id -u)" = 0 ] || [ -n "$root" ] || fail "needs root"

# gone PATH: a file of ours, and the folders above it that nothing else is in. Those of /usr/local itself are the host's.
gone() {
  rm -f "$root/$1"
  folder=${1%/*}
  while [ "$folder" != usr/local ] && grep -qxF "$folder/" "$list" && rmdir "$root/$folder" 2> /dev/null; do
    folder=${folder%/*}
  done
}

if [ -n "$remove" ]; then
  [ -e "$list" ] || fail "nothing is installed here: there is no $list"
  PATH=/usr/local/sbin:/usr/local/bin:$PATH
  if [ -n "$root" ]; then
    "$root/usr/local/bin/rdmaprep" uninstall --root "$root" --leave-changed
  else
    if command -v systemctl > /dev/null && [ -d /run/systemd/system ] &&
      grep -q systemd/system/rdmaprep-device-plugin.service "$list"; then
      systemctl disable --now rdmaprep-device-plugin.service || true
    fi
    "/$own/prerm" remove
    after=$(mktemp)
    cp "/$own/postrm" "$after"
  fi
  grep -v '/$' "$list" | while read -r file; do
    # The list goes last: after a kill in the middle this can be run again.
    [ "$file" = "$own/install.sh" ] || gone "$file"
  done
  made=$(grep '/$' "$list" | sort -r)
  rm -f "$root/$own/install.sh" "$list"
  for folder in $made; do
    rmdir "$root/$folder" 2> /dev/null || true
  done
  if [ -z "$root" ]; then
    sh "$after" purge
    rm -f "$after"
  fi
  exit
fi

if [ "$top" = "$here" ] || [ -z "$top" ]; then fail "run the install.sh of an unpacked archive"; fi
[ ! -e "$root/usr/bin/rdmaprep" ] || fail "a package of rdmaprep is installed ($root/usr/bin/rdmaprep): remove it first"
files=$(cd "$top" && find usr/local -type f | sort)
for file in $files; do
  { [ ! -e "$root/$file" ] && [ ! -L "$root/$file" ]; } || grep -qxF "$file" "$list" 2> /dev/null ||
    fail "$root/$file is there, and not from an archive of rdmaprep: nothing was changed"
done
folders=$(cd "$top" && find usr -type d | sort)
missing=$(for folder in $folders; do [ -d "$root/$folder" ] || echo "$folder/"; done)
undo() {
  for file in $files; do
    rm -f "$root/$file.new"
  done
  rm -f "$list.new" "$list.both"
  for folder in $(printf '%s\n' "$missing" | sort -r); do
    rmdir "$root/$folder" 2> /dev/null || true
  done
}
trap undo EXIT
# All is beside its place before the first file takes it: a disk that is full leaves what was there.
for folder in $missing; do
  mkdir -m 755 "$root/$folder"
done
for file in $files; do
  cp -p "$top/$file" "$root/$file.new"
  [ "$(id -u)" != 0 ] || chown 0:0 "$root/$file.new"
done
{
  echo "$files"
  [ -z "$missing" ] || echo "$missing"
  if [ -e "$list" ]; then grep '/$' "$list" || true; fi
} | sort -u > "$list.new"
was=$(if [ -e "$list" ]; then grep -v '/$' "$list"; fi)
if [ -e "$list" ]; then sort -u "$list" "$list.new" -o "$list.both"; else cp "$list.new" "$list.both"; fi
mv "$list.both" "$list"
trap - EXIT
for file in $files; do
  mv -f "$root/$file.new" "$root/$file"
done
# What an older archive had and this one has not.
for file in $was; do
  grep -qxF "$file" "$list.new" || gone "$file"
done
mv "$list.new" "$list"
if [ -z "$root" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload
fi
echo "installed in ${root:-}/usr/local; next: rdmaprep install --dry-run"
