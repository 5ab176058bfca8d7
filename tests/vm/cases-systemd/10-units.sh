# shellcheck shell=bash source=tests/vm/container.sh
# The units of hooks/systemd, as they are, in a real systemd.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

units=(rdmaprep-stale.timer rdmaprep-stale.service rdmaprep-boot.service)

installed() {
  mkdir -p /tmp/ctr
  cp "${units[@]/#//repo/hooks/systemd/}" /etc/systemd/system/
  program=$(sed -n 's/^ExecStart=\([^ ]*\) .*/\1/p' /etc/systemd/system/rdmaprep-stale.service)
  ln -sf "$(command -v rdmaprep)" "$program"
  systemctl daemon-reload
}

undo() {
  systemctl disable --quiet --now rdmaprep-stale.timer 2> /dev/null || true
  (cd /etc/systemd/system && rm -f "${units[@]}" "${program:-}")
  [ -z "${own_config:-}" ] || rm -f /etc/rdmaprep/config.toml
  systemctl daemon-reload
}

whole() { (clean) > /dev/null 2>&1; }

case_the_timer_restores_what_a_killed_runtime_left() {
  local began
  installed
  mkdir -p /etc/rdmaprep
  # With it the service runs also where nothing is away.
  [ -e /etc/rdmaprep/config.toml ] || { : > /etc/rdmaprep/config.toml && own_config=1; }
  began=$(date '+%F %T')
  systemctl enable --quiet --now rdmaprep-stale.timer
  sleep 25
  [ "$(systemctl show --value --property ExecMainStartTimestampMonotonic rdmaprep-stale.service)" != 0 ] || die "it has not run"
  equal "an idle node's journal" "" "$(journalctl --quiet --output cat --unit rdmaprep-stale.service --since "$began")"
  bundle lost
  prepare lost "v0 rdma0"
  start runc lost
  # The unit does not change a running container.
  systemctl start rdmaprep-stale.service
  record lost > /dev/null || die "it was taken from a running container"
  # The runtime first, so that no stop hook is called.
  kill -KILL "$runner"
  kill -KILL "$(jq '.members[0].pid' "$(record lost)")"
  began=$SECONDS
  # An emulated processor takes its time, beside the ten seconds.
  until_true 30 whole
  echo "# whole after $((SECONDS - began)) s, by $(systemctl --version | head -n 1)"
  said=$(journalctl --output cat --unit rdmaprep-stale.service)
  says "rdma0"
  equal "the service" success "$(systemctl show --value --property Result rdmaprep-stale.service)"
}

case_units_may_do_little_more_than_their_work() {
  local unit
  for unit in rdmaprep-stale rdmaprep-boot rdmaprep-cdi; do
    said=$(systemd-analyze security --no-pager --offline=true --threshold=55 "/repo/hooks/systemd/$unit.service") || die "$said"
  done
}

case_the_boot_unit_adds_what_is_not_configured() {
  local kept=/run/cases/record
  installed
  bundle before
  prepare before rdma0
  start runc before
  jq -c '.boot_id = "00000000-1111-2222-3333-444444444444"' "$(record before)" > "$kept"
  stop runc before "$runner"
  until_true 20 whole
  # As a boot leaves it where no network manager configures the network; the record is what was on the disk.
  ip route delete 203.0.113.0/24
  ip address delete 192.0.2.1/24 dev rdma0
  install -D -m 600 "$kept" "$records/$(jq .netns "$kept").json"
  systemctl start rdmaprep-boot.service || { journalctl --output cat --unit rdmaprep-boot.service; die "it failed"; }
  said=$(journalctl --output cat --unit rdmaprep-boot.service)
  says "of an earlier boot"
  says "192.0.2.1/24"
  says "203.0.113.0/24"
  # Which of equal routes is first, each boot decides by itself: here the other NIC's come after it again.
  ip address delete 192.0.2.2/24 dev rdma1
  ip address add 192.0.2.2/24 brd + dev rdma1
}
