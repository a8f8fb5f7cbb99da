#!/bin/sh
# coll.sh: the shared-memory backend side by side with Open MPI (shared memory) and gloo: interleaved, best of three
# rounds.
# Usage: bench/peers/coll.sh [RANKS...] (default 2 4). Prints and writes RESULT (bench/results/peers/coll.csv).
# Environment: ROUNDS=3, OPS="allreduce ...", RUN="chrt -r 10" puts a command in front of every program (for a machine
# with other load), PAUSE=0 seconds between measurements (gives that load its turn), CC, CXX, MPICC, MPIRUN.
set -u
cd "$(dirname "$0")/../.." || exit 1
RESULT=${RESULT:-bench/results/peers/coll.csv}
ROUNDS=${ROUNDS:-3}
OPS=${OPS:-allreduce reduce_scatter allgather alltoall broadcast reduce gather}
RUN=${RUN:-}
CC=${CC:-gcc} CXX=${CXX:-g++}
first() { for c in "$@"; do command -v "$c" 2>/dev/null && return; done; }
MPICC=${MPICC:-$(first mpicc.openmpi mpicc)} MPIRUN=${MPIRUN:-$(first mpirun.openmpi mpirun)}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM

make -s BUILD="${BUILD:-build}" "${BUILD:-build}/bench/coll" && cp "${BUILD:-build}/bench/coll" "$dir/coll" || exit 1
mpi=yes gloo=yes
if [ -z "$MPICC" ] || [ -z "$MPIRUN" ]; then
    mpi= && echo "left out: Open MPI (install libopenmpi-dev and openmpi-bin)"
elif ! "$MPICC" -O3 bench/peers/mpi_coll.c -o "$dir/mpi_coll" 2>"$dir/log"; then
    mpi= && echo "left out: Open MPI (does not compile: $(head -n 1 "$dir/log"))"
elif ! "$MPIRUN" --version 2>/dev/null | grep -qE 'Open MPI|OpenRTE|open-mpi'; then
    mpi= && echo "left out: Open MPI ($MPIRUN is another MPI)"
fi
if ! "$CXX" -O3 bench/peers/gloo_coll.cc -o "$dir/gloo_coll" -lgloo -pthread 2>"$dir/log"; then
    gloo= && echo "left out: gloo (install libgloo-dev)"
fi

note() { printf '\r%-60s' "$*" >&2; }
[ -t 2 ] || note() { :; }
measure() { # RANKS OP
    $RUN timeout 300 "$dir/coll" "$1" "" "$2"
    if [ -n "$mpi" ]; then
        idle= && [ "$1" -gt "$(nproc)" ] || [ "$1" -gt 2 ] && idle="--mca mpi_yield_when_idle 1"
        as_root= && [ "$(id -u)" = 0 ] && as_root=--allow-run-as-root
        # shellcheck disable=SC2086
        $RUN timeout 300 "$MPIRUN" $as_root --oversubscribe --mca btl self,vader $idle -n "$1" "$dir/mpi_coll" "$2" 2>>"$dir/log" ||
            echo "Open MPI failed for $2 on $1 ranks" >&2
    fi
    [ -z "$gloo" ] || $RUN timeout 300 "$dir/gloo_coll" "$1" "$2" 2>>"$dir/log" || echo "gloo failed for $2 on $1 ranks" >&2
}
for ranks in "${@:-2 4}"; do
    for n in $ranks; do
        for round in $(seq "$ROUNDS"); do
            for op in $OPS; do
                note "ranks $n, round $round of $ROUNDS: $op"
                measure "$n" "$op" >>"$dir/all"
                sleep "${PAUSE:-0}"
            done
        done
    done
done
note ""

report() {
    echo "# bench/peers/coll.sh: collectives in shared memory: us, best of $ROUNDS interleaved rounds;" \
        "ratio: the peer's time over ours; bytes: the whole buffer"
    sh bench/head.sh
    [ -z "$mpi" ] || echo "# peer: $("$MPIRUN" --version | head -n 1), btl self,vader"
    [ -z "$gloo" ] || echo "# peer: gloo over TCP on loopback $(dpkg-query -W -f '${Version}' libgloo-dev 2>/dev/null)"
    [ -z "$RUN" ] || echo "# run: $RUN"
    awk '
    { key = $2 " " $3 " " $4; if (!(key in seen)) { seen[key] = 1; order[++n] = key }
      if (!(($1, key) in best) || $5 < best[$1, key]) best[$1, key] = $5 }
    function ratio(key, peer) {
        return (peer, key) in best ? sprintf("%.1f,%.2f", best[peer, key], best[peer, key] / best["espresso", key]) : ","
    }
    END {
        for (i = 1; i <= n; i++)
            for (p = 1; p <= 2; p++) {
                peer = p == 1 ? "openmpi" : "gloo"
                if (!((peer, order[i]) in best)) continue
                split(order[i], k, " ")
                r = best[peer, order[i]] / best["espresso", order[i]]; g = k[1] " " peer
                if (!(g in count)) group[++groups] = g
                sum[g] += log(r); count[g]++
                if (!(g in least) || r < least[g]) least[g] = r
            }
        for (i = 1; i <= groups; i++) {
            split(group[i], k, " ")
            printf "# %d ranks against %s: geometric mean %.2f, least %.2f\n", k[1], k[2],
                   exp(sum[group[i]] / count[group[i]]), least[group[i]]
        }
        print "ranks,collective,bytes,espresso_us,openmpi_us,openmpi_ratio,gloo_us,gloo_ratio"
        for (i = 1; i <= n; i++) {
            split(order[i], k, " ")
            printf "%d,%s,%d,%.1f,%s,%s\n", k[1], k[2], k[3], best["espresso", order[i]],
                   ratio(order[i], "openmpi"), ratio(order[i], "gloo")
        }
    }' "$dir/all"
}
report | tee "$dir/report"
mkdir -p "$(dirname "$RESULT")" && cp "$dir/report" "$RESULT"
