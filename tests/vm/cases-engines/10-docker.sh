# shellcheck shell=bash source=tests/vm/inside.sh
# Docker Engine, to which only a runtime's path can be configured: ours, in daemon.json by `rdmaprep install`.
. "$(dirname "${BASH_SOURCE[0]}")/../inside.sh"

asking=(--runtime rdmaprep --annotation rdmaprep.io/plan=docker)
# The guest's programs in an image that has none.
tools=(--volume /ctr/usr:/usr:ro tiny)

undo() {
  docker ps --all --quiet | xargs -r docker rm --force > /dev/null 2>&1 || true
  [ -z "${daemon:-}" ] || { kill "$daemon" "$below" && wait "$daemon"; } || true
  rdmaprep uninstall > /dev/null || true
  rm -rf /etc/docker/daemon.json /usr/local/bin/rdmaprep /run/tiny
}

# containerd; its pid is in $below. Of its own one dockerd expects that it starts within 15 s.
containerd_runs() {
  local dir=/run/containerd-docker
  mkdir -p "$dir"
  printf 'version = 2\nroot = "%s/root"\nstate = "%s/state"\n[grpc]\n  address = "%s/sock"\n' "$dir" "$dir" "$dir" \
    > /tmp/ctr/containerd.toml
  containerd --config /tmp/ctr/containerd.toml > /tmp/ctr/containerd 2>&1 &
  below=$!
  until_true 100 ctr --address "$dir/sock" version > /dev/null 2>&1
}

# The daemon; its pid is in $daemon.
daemon() {
  dockerd --containerd /run/containerd-docker/sock >> /tmp/ctr/dockerd 2>&1 &
  daemon=$!
  until docker version > /dev/null 2>&1; do
    kill -0 "$daemon" || die "dockerd: $(tail -n 5 /tmp/ctr/dockerd)"
    sleep 0.5
  done
}

# A Docker with an image, and without a network of its own, which is iptables' and the host's.
docker_runs() {
  local dir
  mkdir -p /tmp/ctr /etc/docker /run/tiny/usr /run/tiny/etc
  # What is said there already stays.
  cat > /etc/docker/daemon.json << 'JSON'
{"data-root": "/run/docker-data", "bridge": "none", "iptables": false, "ip6tables": false, "ip-forward": false}
JSON
  ln -sf "$(command -v rdmaprep)" /usr/local/bin/rdmaprep
  rdmaprep install --docker > /tmp/ctr/installed
  containerd_runs
  daemon
  for dir in bin lib lib64 sbin; do ln -s "usr/$dir" "/run/tiny/$dir"; done
  tar -C /run/tiny -c . | docker import - tiny > /dev/null
}

case_docker() {
  local id code=0
  docker_runs
  plan docker "v0 rdma0"
  docker run --cidfile /tmp/ctr/id "${asking[@]}" --network none --env SANDBOX= "${tools[@]}" sh -c "$tells" \
    < /dev/null > /tmp/ctr/out 2>&1 &
  runner=$!
  until_ready $runner /tmp/ctr/out "docker run"
  id=$(cat /tmp/ctr/id)
  check_payload /tmp/ctr/out env
  inside "$id"
  docker kill "$id" > /dev/null
  wait $runner || code=$?
  equal "exit status of docker run" 137 "$code"
  until_true 60 whole
  # The same container once more.
  wired rdma0
  docker start "$id" > /dev/null
  until_true 60 record "$id"
  inside "$id"
  docker stop --time 0 "$id" > /dev/null
  until_true 60 whole
  cell Docker "$(docker version --format '{{.Server.Version}}') (runc $(version_of runc))" "\`rdmaprep-runtime\`" env
}
whole() { (clean) > /dev/null 2>&1; }

# What README shows, as it stands there; here no systemd starts the daemon, which reads daemon.json at its start.
case_docker_by_readme() {
  # shellcheck disable=SC2317 # README calls it
  systemctl() { :; }
  docker_runs
  plan default "rdma0 rdma1"
  follow docker "${tools[*]}"
  until_true 60 whole
}

# docker prints our error. A container that does not opt in is not changed.
case_docker_refuses_the_hosts_network() {
  docker_runs
  plan docker v0
  fails 125 docker run --rm "${asking[@]}" --network host "${tools[@]}" true
  says "the container shares the host's network"
  equal "NICs of one that does not ask" lo \
    "$(docker run --rm --runtime rdmaprep --network none "${tools[@]}" ls /sys/class/net < /dev/null)"
}

# Its stop hook is called also where the daemon that started it has died.
case_docker_is_restarted_meanwhile() {
  docker_runs
  plan docker v0
  id=$(docker run --detach "${asking[@]}" --network none "${tools[@]}" sleep infinity)
  kill -KILL "$daemon"
  wait "$daemon" || true
  daemon
  docker rm --force "$id" > /dev/null
  until_true 60 whole
}
