# shellcheck shell=bash source=tests/vm/roce-node.sh
# RDMA pins the memory that is registered, within RLIMIT_MEMLOCK: on the host, and in containers, whose limit our edit or our hook
# lifts.
. "$(dirname "${BASH_SOURCE[0]}")/../roce-node.sh"

register=/repo/tests/vm/register
full="registered 16384 kB, pinned 16384 kB, then 0 kB"

up() {
  roce "$@"
  roce_up 0
  roce_is ACTIVE roce0
}

# limited KIB COMMAND...: as containers are started, with that limit and without the capability to exceed it.
limited() { prlimit "--memlock=$(($1 << 10))" setpriv --inh-caps=-ipc_lock --bounding-set=-ipc_lock "${@:2}"; }

within_limit() {
  up "$@"
  equal "16 MiB" "$full" "$("$register" roce0 16384)"
  equal "16 MiB, by a process that may pin as much" "$full" "$(limited 16384 "$register" roce0 16384)"
  fails 1 limited 16380 "$register" roce0 16384
  says "ibv_reg_mr: Cannot allocate memory"
}
case_the_host_within_its_limit() { within_limit; }
# By the library's provider for mlx5, which gVisor's proxy speaks for.
case_the_host_as_mlx5() { within_limit driver=mlx5_core driver_id=1; }

# contained NAME FILTER: what a container prints whose config.json is changed so after it was prepared.
contained() {
  bundle "$1" /register roce0 16384
  cp "$register" "/tmp/ctr/$1/rootfs/register"
  prepare "$1" "${roce_nics[0]}"
  edit "$1" "$2"
  said=$(runc run --bundle "/tmp/ctr/$1" "$1" < /dev/null 2>&1) || true
}

case_a_container_beyond_its_engines_limit() {
  local limit='.process.rlimits = [{type: "RLIMIT_MEMLOCK", hard: 65536, soft: 65536}]' hook
  up
  contained edited .
  says "$full"
  roce_is ACTIVE roce0
  # Whatever runs after our hooks: runc sets config.json's limit then.
  contained small "$limit"
  says "ibv_reg_mr: Cannot allocate memory"
  roce_is ACTIVE roce0
  # Where config.json says nothing, our hook lifts what the engine handed on.
  hook=$(ulimit -l)
  ulimit -l 64
  contained lifted 'del(.process.rlimits)'
  ulimit -l "$hook"
  says "$full"
}
