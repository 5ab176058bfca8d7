# shellcheck shell=bash source=tests/vm/cases/45-sysfs.sh
# Minutes under emulation.
. "$(dirname "${BASH_SOURCE[0]}")/../cases/45-sysfs.sh"

# The whole tree as files, in place of /sys: what differs from the live one is what is said here.
case_a_tree_of_files() {
  local own
  own='.mounts += [{destination: "/rdmaprep", type: "bind", source: "'$(dirname "$(command -v rdmaprep)")'",
    options: ["bind", "ro"]}]'
  nics
  by_config live
  edit live "$own"
  start runc live
  runc exec live /rdmaprep/rdmaprep sysfs export > /tmp/live.json
  ended runc live
  by_config files --sysfs snapshot
  edit files "$own"
  start runc files
  equal "the cgroup is there" cgroup.controllers "$(runc exec files ls /sys/fs/cgroup | grep -x cgroup.controllers)"
  diff <(part live rdma | grep -v infiniband_mad) <(part files rdma | grep -v infiniband_mad) || die "other HCAs"
  diff <(part live verbs) <(part files verbs) || die "other verbs"
  diff <(part live lspci) <(part files lspci) || die "another lspci"
  runc exec files /rdmaprep/rdmaprep sysfs diff --from - < /tmp/live.json > /tmp/differences
  ended runc files
  sed 's/^/# /' /tmp/differences
  # What is of the moment, or of the namespace.
  if grep -vE '^(no difference$|.*/net/[^/]*/(ifindex|iflink|carrier|flags|operstate|uevent|speed|duplex): )' /tmp/differences
  then
    die "they differ in that"
  fi
}

# Nothing can be put into a sandbox any more when hooks run: it has to be said.
case_gvisor_without_a_prepared_bundle() {
  local look=$brief
  nics
  by_hook g
  oci runsc
  start runsc g
  said=$(logged g sysfs)
  says "off: the sandbox has a /sys of its own"
  said=$(logged g settings)
  says "source it"
  equal "the profile" "export NCCL_IB_HCA='=roce0,roce3'
export NCCL_SOCKET_IFNAME='=${roce_nics[0]}'
export GLOO_SOCKET_IFNAME='${roce_nics[0]}'" "$(cat /run/rdmaprep/profiles/*.sh)"
  stop runsc g "$runner"
  same /run/cases/roce.before
  equal "profiles" 0 "$(find /run/rdmaprep/profiles -type f | wc -l)"
}
