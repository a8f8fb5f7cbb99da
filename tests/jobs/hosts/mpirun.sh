#!/bin/sh
# mpirun.sh: a job of Open MPI on the hosts of a testbed: TCP between them, shared memory inside each.
#   TESTBED=$$ mpirun.sh HOSTS RANKS_PER_HOST PROGRAM ARG...
# MPIRUN_FLAGS: more flags for mpirun, such as "-x ESPRESSO_LOG=info" or "--mca coll_tuned_allreduce_algorithm 4".
set -eu
dir=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
TESTBED=${TESTBED:-$PPID}
export TESTBED
mpirun=$(command -v mpirun.openmpi || command -v mpirun) || {
    echo "skipped: mpirun is not there (Debian: openmpi-bin)"
    exit 77
}
[ $# -ge 3 ] || { echo "mpirun.sh: write mpirun.sh HOSTS RANKS_PER_HOST PROGRAM ARG..." >&2 && exit 2; }
hosts=$1 ranks=$2
shift 2
list=$(mktemp)
trap 'rm -f "$list"' EXIT
trap 'exit 143' HUP INT TERM
for i in $(seq "$hosts"); do echo "10.99.0.$i slots=$ranks"; done >"$list"
root=
[ "$(id -u)" -ne 0 ] || root=--allow-run-as-root
# all hosts share this machine's cores, so that waiting ranks must yield
share=$(($(nproc) / (hosts * ranks)))
[ "$share" -gt 0 ] || share=1
OMP_NUM_THREADS=${OMP_NUM_THREADS:-$share} OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
export OMP_NUM_THREADS OMP_WAIT_POLICY
# shellcheck disable=SC2086 # several words
sh "$dir/hosts.sh" enter 1 "$mpirun" $root --hostfile "$list" -np $((hosts * ranks)) \
    --map-by node:OVERSUBSCRIBE --rank-by slot --bind-to none --oversubscribe --mca mpi_yield_when_idle 1 \
    --mca plm rsh --mca plm_rsh_agent "$dir/hosts.sh shell" --mca plm_rsh_no_tree_spawn 1 \
    --mca pml ob1 --mca btl self,vader,tcp --mca btl_tcp_if_include 10.99.0.0/24 --mca oob_tcp_if_include 10.99.0.0/24 \
    -x OMP_NUM_THREADS -x OMP_WAIT_POLICY ${MPIRUN_FLAGS:-} "$@"
