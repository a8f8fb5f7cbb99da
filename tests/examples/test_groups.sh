# test_groups.sh: two groups of ranks in one job (examples/13_groups) under espresso run, as torchrun and srun start ranks,
# by hand, and under mpirun, with backends shm, gloo and mpi.
# runs: slow
set -u
BUILD=${BUILD:-build}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
ESPRESSO_PLUGIN_PATH=$PWD/$BUILD/lib/espresso ESPRESSO_TIMEOUT_MS=30000
export ESPRESSO_PLUGIN_PATH ESPRESSO_TIMEOUT_MS
printf 'part %d, rank %d of 2: the mean is %d\n' 0 0 1 0 1 1 1 0 2 1 1 2 >"$tmp/right"
said() { # NAME: the output of the four ranks is in $tmp/said
    grep '^part' "$tmp/said" | sort | cmp -s - "$tmp/right" && echo "$1: ok" && return
    echo "FAILED: $1" && cat "$tmp/said" && exit 1
}
each() { # VARIABLES: starts four ranks with these variables, in which R stands for the rank
    for r in 0 1 2 3; do
        env $(echo "$1" | sed "s/RANK=R/RANK=$r/; s/PROCID=R/PROCID=$r/") "$BUILD/bin/groups" >"$tmp/said.$r" 2>&1 &
    done
    wait
    cat "$tmp"/said.? >"$tmp/said"
}
port=$((20000 + $$ % 12000))
skipped=
for backend in shm gloo mpi; do
    [ $backend = shm ] || [ -e "$BUILD/lib/espresso/libespresso-$backend.so" ] || { skipped="backend $backend is not there" && continue; }
    export ESPRESSO_BACKEND=$backend
    mpirun=$(command -v mpirun.openmpi || command -v mpirun) || skipped="mpirun is not there (Debian: openmpi-bin)"
    if [ -n "$mpirun" ] && "$mpirun" --version | grep -qE 'Open MPI|OpenRTE'; then
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout 100 "$mpirun" --oversubscribe -n 4 \
            "$BUILD/bin/groups" >"$tmp/said" 2>&1
        said "mpirun, $backend"
    fi
    [ $backend != mpi ] || continue
    "$BUILD/bin/espresso" run -n 4 --no-prefix -- "$BUILD/bin/groups" >"$tmp/said" 2>&1
    said "espresso run, $backend"
    each "RANK=R WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port TORCHELASTIC_RUN_ID=x"
    said "torchrun, $backend"
    each "SLURM_PROCID=R SLURM_STEP_NUM_TASKS=4 SLURM_STEP_ID=0 SLURM_JOB_ID=$$ SLURM_STEP_NUM_NODES=1"
    said "srun, $backend"
    each "ESPRESSO_RANK=R ESPRESSO_SIZE=4 ESPRESSO_ROOT=unix:groups-$$"
    said "by hand, $backend"
done
[ -z "$skipped" ] || { echo "skipped: $skipped" && exit 77; }
