# shellcheck shell=bash source=tests/vm/container.sh
# The units of hooks/systemd, as they are, in a real systemd.
. "$(dirname "${BASH_SOURCE[0]}")/../container.sh"

units=(rdmaprep-stale.timer rdmaprep-stale.service)

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
  for unit in rdmaprep-stale rdmaprep-plans rdmaprep-cdi rdmaprep-metrics; do
    said=$(systemd-analyze security --no-pager --offline=true --threshold=55 "/repo/hooks/systemd/$unit.service") || die "$said"
  done
}
