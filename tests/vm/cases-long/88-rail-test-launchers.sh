# shellcheck shell=bash source=tests/vm/rail-test.sh
# The rail test without a flag, by what launchers set: torchrun, Slurm with pmi2, Hydra. Two nodes. The launchers are tests/vm/launcher;
# scripts/peers-interop has nodes meet under real ones.
. "$(dirname "${BASH_SOURCE[0]}")/../rail-test.sh"

launcher=/repo/tests/vm/launcher

# The program of a job: no flag, and no variable of rdmaprep that says where to meet.
job() {
  cat > $rt/job << EOF
#!/bin/sh
exec ip netns exec "n\$1" env NCCL_IB_HCA="=q\${1}0,q\${1}1" RDMAPREP_SECONDS=0 RDMAPREP_TIMEOUT=20 \\
  rdmaprep test-rails > "$rt/out\$1" 2> "$rt/err\$1" < /dev/null
EOF
  chmod +x $rt/job
}

# works CODE: the test has ended so, and both nodes have said what it found.
works() {
  [ "$1" = 0 ] || die "exit code $1: $(cat $rt/out[01] $rt/err[01])"
  grep -qxF "all rails work: 2 nodes, 2 rails, pattern ring, 2 pairs" $rt/out0 || die "$(cat $rt/out0)"
  grep -qE '^rail1 +1 +0 ' $rt/out0 || die "no row of rail1: $(cat $rt/out0)"
  grep -qF "all rails work" $rt/out1 || die "rank 1 says: $(cat $rt/out1)"
  sed 's/^/# /' $rt/out0
  nothing_open
}

listens() { ip netns exec n0 ss -ltn | grep -q '10.10.0.1:29400'; }

# worker K: with what torchrun gives it. Its store is an agent's, on the first node.
worker() {
  RANK=$1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=$1 GROUP_WORLD_SIZE=2 ROLE_RANK=$1 MASTER_ADDR=10.10.0.1 \
    MASTER_PORT=29400 TORCHELASTIC_RUN_ID=job TORCHELASTIC_RESTART_COUNT=${restarts:-0} TORCHELASTIC_MAX_RESTARTS=3 \
    TORCHELASTIC_USE_AGENT_STORE=${agent_store:-True} $rt/job "$1"
}

case_torchrun_needs_no_flag() {
  local server first code restarts
  rail_nodes 2 one
  job
  ip netns exec n0 $launcher store 10.10.0.1 29400 > $rt/keys 2>&1 < /dev/null &
  server=$!
  serves "$server" $rt/keys listens
  # Again after a failure, in the same store.
  for restarts in 0 1; do
    worker 0 &
    first=$!
    code=0
    worker 1 || code=$?
    wait "$first" || code=$?
    works "$code"
  done

  # Its workers would make the store, and do not run yet.
  agent_store=False fails 2 worker 0
  grep -qF "this torchrun shares no store" $rt/err0 || die "$(cat $rt/err0)"

  kill -TERM "$server"
  wait "$server"
  # Those of the agreement stay in a store that ends with the job.
  if grep -F /test/ $rt/keys; then die "keys of the test in the store: $(cat $rt/keys)"; fi
  grep -q '^/rdmaprep/v1/job.1.test/end/' $rt/keys || die "no word of the restart in: $(cat $rt/keys)"
}

case_slurm_and_hydra_need_no_flag() {
  local code=0
  rail_nodes 2 one
  job
  $launcher pmi 2 $rt/job || code=$?
  works "$code"
  code=0
  SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_NTASKS=2 $launcher pmi 2 $rt/job || code=$?
  works "$code"

  # srun without --mpi=pmi2 says where no node meets another.
  SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=2 fails 2 $rt/job 0
  grep -qF "no nodes to meet" $rt/err0 || die "$(cat $rt/err0)"
}
