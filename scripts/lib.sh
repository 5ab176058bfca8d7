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

# Debian 12's cargo is too old for Cargo.lock: cargo-web is its newer one.
toolchain() {
  packages gcc libc6-dev
  command -v cargo > /dev/null || packages cargo-web rustfmt-web rust-web-clippy
  local have
  have=$(cargo --version | cut -d' ' -f2)
  printf '1.85\n%s\n' "$have" | sort -VC || fail "cargo $have is too old, 1.85 is needed: install rustup's, or Debian 12's cargo-web"
}
