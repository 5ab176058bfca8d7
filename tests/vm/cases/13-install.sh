# shellcheck shell=bash source=tests/vm/container.sh
# `install` and `uninstall` on a Debian 13 of its own: what is shown, what is written, and that the tree is then as it was.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

undo() {
  rdmaprep uninstall > /dev/null 2>&1 || true
  rm -f /usr/local/bin/rdmaprep /opt/rdmaprep /etc/cdi/rdmaprep.json
  rm -rf "$task"
}

# What containerd's shim keeps of a container.
task=/run/containerd/io.containerd.runtime.v2.task/cases/called

# The tree, as far as anything of it could be changed, but for records.
tree() {
  # Not all of these are there; a folder's size tells what was once in it. NFS's daemons write to theirs.
  { find /etc /usr/local /usr/share/containers /var/lib -xdev \( -path /var/lib/rdmaprep -o -path /var/lib/nfs \) -prune -o \
    -printf '%p %y %m %u %s %l\n' 2> /dev/null || true; } | sed 's/^\(\S* d .* \)[0-9]* $/\1/' | sort
  find /etc /usr/local -xdev -type f -exec sha256sum {} + | sort
}

case_all_is_shown_written_and_taken_out() {
  local files=/run/cases
  tree > $files/before
  rdmaprep install --all --cdi --dry-run --ifaces 'rdma0 rdma1' > $files/dry
  cp $files/dry /out/install.txt
  for path in /usr/share/containers/oci/hooks.d/rdmaprep-createRuntime.json /etc/docker/daemon.json \
    /etc/containers/containers.conf.d/rdmaprep.conf /etc/containerd/config.toml /etc/systemd/system/rdmaprep-stale.timer \
    /etc/udev/rules.d/72-rdmaprep.rules /etc/systemd/networkd.conf.d/rdmaprep.conf /etc/systemd/system/rdmaprep-cdi.path; do
    grep -qx -- "+++ $path" $files/dry || die "no diff of $path"
  done
  fails 2 rdmaprep install --all
  says "install -m 755"
  tree | diff $files/before - || die "something was changed"

  install -m 755 "$(command -v rdmaprep)" /usr/local/bin/rdmaprep
  tree > $files/before
  # Any user can lock a folder that the user can read: the lock must not block an install.
  setpriv --reuid 65534 --clear-groups flock / sleep infinity &
  holder=$!
  rdmaprep install --all --cdi --ifaces 'rdma0 rdma1'
  kill "$holder"
  rdmaprep install --all --cdi --ifaces 'rdma0 rdma1' | grep -qx "nothing to change" || die "twice is not once"
  # udev's rules are read by what Debian has for that.
  if command -v udevadm > /dev/null && udevadm verify --help > /dev/null 2>&1; then
    udevadm verify /etc/udev/rules.d/72-rdmaprep.rules
  fi
  equal "the name as a runtime" "$(runc --version | head -n 1)" "$(/usr/local/bin/rdmaprep-runtime --version | head -n 1)"

  sandbox held
  plan held v0
  hook createRuntime held
  fails 9 rdmaprep uninstall
  says "held"
  rdmaprep restore --all > /dev/null
  kill "$init"

  mkdir -p "$task"
  printf /usr/local/bin/rdmaprep-runtime > "$task/runtime"
  fails 9 rdmaprep uninstall
  says "cases/called"
  # Another --program would take that path away, too.
  install -m 755 /usr/local/bin/rdmaprep /opt/rdmaprep
  fails 9 rdmaprep install --all --program /opt/rdmaprep
  says "cases/called"
  rm -rf "$task"
  rdmaprep install --all --program /opt/rdmaprep > /dev/null
  if [ -L /usr/local/bin/rdmaprep-runtime ] || [ ! -L /opt/rdmaprep-runtime ]; then die "the link has not moved"; fi
  # Where no NIC is named, managers stay off the same ones.
  grep -q rdma1 /etc/udev/rules.d/72-rdmaprep.rules || die "managers may have rdma1 again"
  rdmaprep install --all --program /opt/rdmaprep --ifaces rdma0 > /dev/null
  if grep -q rdma1 /etc/udev/rules.d/72-rdmaprep.rules; then die "what is not wanted any more is there"; fi
  # What the hooks of `cdi generate` would call goes with it.
  plan held rdma0
  rdmaprep cdi generate --plan held > /dev/null
  [ "$(jq -r '.devices[0].containerEdits.hooks[0].path' /etc/cdi/rdmaprep.json)" = /usr/local/bin/rdmaprep ] || die "another path"

  rdmaprep uninstall
  rm /opt/rdmaprep
  [ ! -e /opt/rdmaprep-runtime ] || die "the link is there"
  tree | diff $files/before - || die "the tree is not as it was"
  [ ! -e /var/lib/rdmaprep/installed.json ] || die "its ledger is still there"
}
