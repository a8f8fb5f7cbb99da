#!/bin/sh
# mpi.sh: averaging over a real network: this library against MPI_Allreduce (Open MPI's own choice, and its ring) and
# gloo's ring, on four hosts with two ranks each (tests/jobs/hosts). Prints and writes RESULT
# (bench/results/peers/mpi.csv). Needs root, Open MPI, gloo.
# Usage: bench/peers/mpi.sh [RATE...]      default: 100mbit 1gbit
# Environment: ROUNDS=5, SIZES="65536 ...", CODEC=topk:ratio=0.01, HOSTS=4, RANKS=2 (a host).
set -eu
cd "$(dirname "$0")/../.."
RESULT=${RESULT:-bench/results/peers/mpi.csv}
BUILD=${BUILD:-build} ROUNDS=${ROUNDS:-5} HOSTS=${HOSTS:-4} RANKS=${RANKS:-2} CODEC=${CODEC:-topk:ratio=0.01}
SIZES=${SIZES:-65536 262144 1048576 4194304 16777216}
TESTBED=$$ ESPRESSO_PLUGIN_PATH=$PWD/$BUILD/lib/espresso
export BUILD TESTBED ESPRESSO_PLUGIN_PATH
[ -e "$ESPRESSO_PLUGIN_PATH/libespresso-mpi.so" ] || {
    echo "mpi.sh: $ESPRESSO_PLUGIN_PATH/libespresso-mpi.so is not there: make plugins" >&2
    exit 1
}
hosts="sh tests/jobs/hosts/hosts.sh"
dir=$(mktemp -d)
trap '$hosts down; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
mpicc -std=gnu11 -O2 -I. bench/peers/mpi_job.c -o "$dir/mpi_job" "$BUILD/lib/libespresso.a" ${OPENMP_FLAG:-} -pthread -ldl -lm
g++ -O2 bench/peers/gloo_ring.cc -o "$dir/gloo_ring" -lgloo -pthread || echo "left out: gloo (install libgloo-dev)"
# shellcheck disable=SC2016
printf '%s\n' 'p=$1 && shift && exec "$p" "$(ip -4 -o addr show eth0 | sed "s/.*inet \([0-9.]*\).*/\1/")" "$@"' >"$dir/gloo.sh"
run() { # FLAGS PROGRAM...
    MPIRUN_FLAGS="-x ESPRESSO_PLUGIN_PATH $1" && export MPIRUN_FLAGS
    shift
    timeout 600 sh tests/jobs/hosts/mpirun.sh "$HOSTS" "$RANKS" "$@" 2>>"$dir/errors" || { echo "mpi.sh: failed: $*" && tail -n 3 "$dir/errors"; } >&2
}
[ $# -gt 0 ] || set -- 100mbit 1gbit
for rate in "$@"; do
    $hosts up "$HOSTS" "$rate"
    for bytes in $SIZES; do
        # in one job each, in turn: MPI's algorithm is chosen when a job starts
        run "" "$dir/mpi_job" "$rate default" "$bytes" "$ROUNDS" "$CODEC" >>"$dir/all"
        run "--mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_allreduce_algorithm 4" \
            "$dir/mpi_job" "$rate ring" "$bytes" "$ROUNDS" "$CODEC" >>"$dir/all"
        [ ! -x "$dir/gloo_ring" ] || { mkdir "$dir/meet" &&
            run "" sh "$dir/gloo.sh" "$dir/gloo_ring" "$dir/meet" "$bytes" "$ROUNDS" | sed "s/^/$rate /" >>"$dir/all"; rm -rf "$dir/meet"; }
    done
    $hosts down
done
{
    echo "# bench/peers/mpi.sh: averaging over a network: $HOSTS hosts x $RANKS ranks, links shaped in each direction, Open MPI over" \
        "TCP; ms, median of $ROUNDS rounds (of both jobs' for ours)"
    sh bench/head.sh
    echo "# ratio: best of the three peers over ours; codec: $CODEC, buffers above 1 MiB are tensors of 1 MiB"
    echo "link,bytes,mpi_default_ms,mpi_ring_ms,gloo_ring_ms,fp32_ms,fp32_ratio,codec_ms,codec_ratio"
    awk '
        function median(key,   n, i, j, t, v) {
            n = split(all[key], v, " ")
            for (i = 2; i <= n; i++) for (j = i; j > 1 && v[j] + 0 < v[j - 1] + 0; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
            return n ? v[int((n + 1) / 2)] : 0
        }
        NF == 5 && $2 != "gloo" { what = $4 == "mpi" ? "mpi " $2 : $4; add($1, $3, what, $5) }
        NF == 5 && $2 == "gloo" { add($1, $3, "gloo", $5) }
        function add(rate, bytes, what, ms) {
            if (!((rate, bytes) in seen)) { seen[rate, bytes] = 1; order[++rows] = rate " " bytes }
            all[rate, bytes, what] = all[rate, bytes, what] " " ms
        }
        END {
            for (r = 1; r <= rows; r++) {
                split(order[r], o, " ")
                a = median(o[1] SUBSEP o[2] SUBSEP "mpi default"); b = median(o[1] SUBSEP o[2] SUBSEP "mpi ring")
                g = median(o[1] SUBSEP o[2] SUBSEP "gloo"); f = median(o[1] SUBSEP o[2] SUBSEP "fp32"); c = median(o[1] SUBSEP o[2] SUBSEP codec)
                best = a; if (b && b < best) best = b; if (g && g < best) best = g
                printf "%s,%d,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f,%.2f\n", o[1], o[2], a, b, g, f, f ? best / f : 0, c, c ? best / c : 0
            }
        }' codec="$CODEC" "$dir/all"
} | tee "$dir/table"
mkdir -p "$(dirname "$RESULT")" && cp "$dir/table" "$RESULT"
