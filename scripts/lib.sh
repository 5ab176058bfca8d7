# shellcheck shell=bash
# What scripts/demo and scripts/test share.
repo=$(readlink -f "$(dirname "${BASH_SOURCE[0]}")/..")
cd "$repo" || exit 1
# Where rustup puts cargo; and one place for what is built, since the guest sees only the repository.
export PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin CARGO_TARGET_DIR=$repo/target

step() { printf '\n==> %s\n' "$*"; }
fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# packages NAME...: installs those Debian packages that are missing, and removes none for them.
packages() {
  local missing=()
  for p in "$@"; do
    dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null | grep -qx installed || missing+=("$p")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  [ "$(id -u)" = 0 ] || fail "needs root to install ${missing[*]}"
  echo "installing ${missing[*]}"
  # A package source that cannot be reached is no reason to stop: apt-get reports it and reads the others.
  DEBIAN_FRONTEND=noninteractive apt-get -qq update || true
  DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-remove --no-install-recommends "${missing[@]}" > /dev/null
}

# sources_commit: the newest commit that changed what the programs are made of, with its date and a + where there are changes beside
# it; nothing where this is no clone.
sources_commit() {
  local paths=(src crates kubelet hooks Cargo.toml Cargo.lock) git=(git -c "safe.directory=$repo") said
  said=$("${git[@]}" log -1 --format='%h, %cs' --abbrev=8 -- "${paths[@]}" 2> /dev/null) || return 0
  [ -n "$said" ] || return 0
  [ -z "$("${git[@]}" status --porcelain -- "${paths[@]}")" ] || said=${said/, /+, }
  echo "$said"
}

# newer VERSION: whether cargo is of that version or of a later one.
newer() {
  local have
  have=$(cargo --version 2> /dev/null | cut -d' ' -f2)
  [ -n "$have" ] && printf '%s\n%s\n' "$1" "$have" | sort -VC
}

# toolchain VERSION: a C linker and a cargo of that version or later. Debian 12's own cargo is too old, and Debian's newer one,
# cargo-web, conflicts with it: there that is unpacked below target/, and nothing is removed.
toolchain() {
  local least=$1
  packages gcc libc6-dev
  command -v cargo > /dev/null || packages cargo-web rustfmt-web rust-web-clippy
  newer "$least" && return
  local own=$repo/target/tools/rust
  if [ ! -x "$own/usr/bin/cargo" ]; then
    echo "cargo $(cargo --version | cut -d' ' -f2) is too old, $least is needed: unpacking Debian's cargo-web in target/tools/rust"
    mkdir -p "$own.new"
    (
      cd "$own.new"
      apt-get -qq download cargo-web rustc-web libstd-rust-web-dev rustfmt-web rust-web-clippy > /dev/null
      for deb in ./*.deb; do dpkg-deb --extract "$deb" . && rm "$deb"; done
    ) || fail "Rust $least or later is needed, and Debian's cargo-web cannot be fetched: install rustup's"
    mv "$own.new" "$own"
  fi
  PATH=$own/usr/bin:$PATH
  newer "$least" || fail "$(cargo --version) is too old: Rust $least or later is needed, as rustup has it"
}

# cargo_tool NAME VERSION: a subcommand of cargo, built once below target/tools (an optimised build takes three times as long).
cargo_tool() {
  PATH=$repo/target/tools/bin:$PATH
  [ "$(cargo "${1#cargo-}" --version 2> /dev/null | awk '{print $NF}')" = "$2" ] && return
  echo "building $1 $2 (a minute, once)"
  CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --debug --locked --root target/tools --version "$2" "$1"
}
