# shellcheck shell=bash source=tests/vm/container.sh
# The .deb of scripts/package, as dpkg installs and removes it.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

package=rdmaprep
undo() {
  dpkg --purge $package > /dev/null 2>&1 || true
  # The shell remembers a program that has gone.
  hash -r
}

# Files that a package, or what it calls, can leave; dpkg's own notes are none of them.
files() { find /etc /usr /var/lib -xdev -path /var/lib/dpkg -prune -o \( -type f -o -type l \) -print | sort; }

case_a_package_stays_while_nics_are_away() {
  local deb=(/repo/target/package/rdmaprep_*.deb)
  [ -e "${deb[0]}" ] || die "there is no package: scripts/package makes it"
  files > /run/cases/before
  dpkg --install "${deb[0]}"
  # Hooks name what is in the package.
  local PATH=/usr/sbin:/usr/bin:/sbin:/bin
  equal "the program" /usr/bin/rdmaprep "$(command -v rdmaprep)"
  rdmaprep install --podman --systemd
  grep -q '"/usr/bin/rdmaprep"' /usr/share/containers/oci/hooks.d/rdmaprep-createRuntime.json || die "hooks name another program"
  sandbox held
  plan held v0
  hook createRuntime held
  fails 1 dpkg --remove $package
  says "containers hold NICs: held:"
  [ -x /usr/bin/rdmaprep ] || die "it was removed, and v0 cannot be restored"
  # Another version may be installed: running containers keep the path of their hooks.
  dpkg --install "${deb[0]}"
  hook poststop held
  dpkg --remove $package
  files | diff /run/cases/before - || die "files are left"
  dpkg --purge $package
  if [ -e /var/lib/rdmaprep ] || [ -e /var/log/rdmaprep.log ]; then die "purged, and something is left"; fi
  echo "# $(basename "${deb[0]}") by $(dpkg --version | head -n 1)"
}
