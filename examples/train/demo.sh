#!/bin/sh
# demo.sh: compares training without compression (fp32) to training with the autopilot (auto): four processes on two emulated
# machines train over three links (slow, fast, not emulated). It prints a table and takes about four minutes.
#   make demo      or      sh examples/train/demo.sh [--quick] [--mpi] [flags for train, such as --epochs 1 --seed 2]
# --quick runs 50 steps over the slow link only, to check that everything works, in less than a minute.
# --mpi runs one rank on each of four hosts, with Open MPI over TCP. The hosts are network namespaces on this machine
# (tests/jobs/hosts), which needs root. MPI_BACKEND names a backend for these runs.
# Other variables: BUILD (build), OUT (BUILD/demo), CODECS (from which auto chooses), LINK (one link instead of three, or "" for
# no emulation). DEMO=strategies instead compares fp32, layerwise and demo.strategy on one link, and writes a timeline.
set -eu
cd "$(dirname "$0")/../.."
quick= mpi=
while :; do
    case ${1:-} in
    --quick) quick="--max-steps 50 --eval 0" ;;
    --mpi) mpi=yes ;;
    *) break ;;
    esac
    shift
done
BUILD=${BUILD:-build}
OUT=${OUT:-$BUILD/demo}
CODECS=${CODECS:-efsignsgd;topk:ratio=0.01}
# these would override the strategies that the runs compare
unset ESPRESSO_STRATEGY ESPRESSO_CODEC ESPRESSO_BACKEND ESPRESSO_TRACE ESPRESSO_INTER_LINK

[ -x "$BUILD/bin/espresso" ] || {
    echo "demo: $BUILD/bin/espresso is not there: run ./bootstrap build, or make and see what it left out" >&2
    exit 1
}
mkdir -p "$OUT"
rm -f "$OUT"/*.json

start() { # LINK TRAIN...: starts the ranks
    link=$1
    shift
    if [ "$mpi" ]; then
        hosts "${link:-none}"
        MPIRUN_FLAGS="-x ESPRESSO_PLUGIN_PATH -x OMP_NUM_THREADS -x OMP_WAIT_POLICY ${MPI_BACKEND:+-x ESPRESSO_BACKEND}" \
            ESPRESSO_BACKEND=${MPI_BACKEND:-} sh tests/jobs/hosts/mpirun.sh 4 1 "$@"
    else
        "$BUILD/bin/espresso" run -n 4 --machines 2 ${link:+--inter "$link"} -- "$@"
    fi
}

run() { # LINK NAME FLAGS...
    link=$1 name=$2
    shift 2
    start "$link" "$BUILD/bin/train" --json "$OUT/$name.json" "$@" || {
        echo "demo: the run '$name' failed; its messages are above" >&2
        exit 1
    }
    [ -s "$OUT/$name.json" ] || { echo "demo: the run '$name' wrote no result to $OUT/$name.json" >&2; exit 1; }
}

field='function field(key, s) { # the number that follows "key":
    s = $0
    return sub(".*\"" key "\": *", "", s) ? s + 0 : 0
}'

# ---- --mpi: hosts on this machine. The network limits the link's rate; the link's latency is not emulated.
up=
hosts() { # RATE[,LATENCY] or none
    [ "$up" != "$1" ] || return 0
    sh tests/jobs/hosts/hosts.sh down
    up=
    why=$(sh tests/jobs/hosts/hosts.sh up 4 "${1%%,*}" 2>&1) || refuse "${why#skipped: }"
    up=$1
}
refuse() { # REASON
    echo "demo: --mpi cannot run here: $*" >&2
    exit 1
}
prepare_mpi() {
    command -v mpirun >/dev/null || refuse "mpirun is not there (Debian: openmpi-bin)"
    [ "${MPI_BACKEND:-}" ] || [ -e "$BUILD/lib/espresso/libespresso-mpi.so" ] ||
        refuse "backend mpi was not built (Debian: libopenmpi-dev, then make plugins)"
    TESTBED=$$ ESPRESSO_PLUGIN_PATH=$PWD/$BUILD/lib/espresso
    OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
    export TESTBED ESPRESSO_PLUGIN_PATH OMP_NUM_THREADS OMP_WAIT_POLICY BUILD
    trap 'sh tests/jobs/hosts/hosts.sh down' EXIT
    trap 'exit 143' HUP INT TERM
    hosts none # fails at once if namespaces are not allowed
}

strategies() { # FLAGS...
    link=${LINK-100mbit,50us}
    about "${link:-none}"
    echo; echo "1 of 3: fp32, nothing compressed"
    run "$link" fp32 --strategy fp32 $quick "$@"
    echo; echo "2 of 3: layerwise, every tensor compressed to one bit an element (efsignsgd)"
    run "$link" layerwise --strategy layerwise --codec efsignsgd $quick "$@"
    echo; echo "3 of 3: strategy, each tensor as examples/train/demo.strategy says"
    ESPRESSO_TRACE=$OUT/trace.json
    export ESPRESSO_TRACE
    run "$link" strategy --strategy examples/train/demo.strategy $quick "$@"
    [ -s "$OUT/trace.json" ] || { echo "demo: no timeline in $OUT/trace.json" >&2; exit 1; }
    echo
    awk "$field"'
    FNR == 1 {
        name = FILENAME; sub(".*/", "", name); sub("[.]json$", "", name)
        step = field("step_ms")
        if (NR == 1) { first = step; printf "%-10s %12s %14s %20s %10s %9s\n", "", "step", "of it waiting", "between machines", "test", "" }
        printf "%-10s %9.1f ms %11.1f ms %12.2f MB/step %8.2f %% %8.1fx\n", name, step, field("wait_ms"),
               field("inter_bytes_per_step") / 1e6, 100 * field("accuracy"), first / step
        speed = first / step
    }
    END { if (speed < 2) print "\nThe strategy is under twice as fast here: this machine was too busy computing for the link to matter." }
    ' "$OUT/fp32.json" "$OUT/layerwise.json" "$OUT/strategy.json"
    echo
    echo "timeline of the last run: $OUT/trace.json"
    echo "open it in https://ui.perfetto.dev or chrome://tracing: a process a rank, a track each for compute, cpu, intra, inter"
}

about() { # [LINK]
    if [ "$mpi" ]; then
        echo "4 hosts x 1 rank: network namespaces on this machine, Open MPI over TCP between them"
    else
        echo "2 machines x 2 ranks on this machine, with an emulated link between the machines${1:+: $1}"
    fi
}

pair() { # LINK ROUND FLAGS...: runs fp32 and then auto, in round 2 auto first
    link=$1 pair=${1:-unshaped}.$2
    shift 2
    case $pair in *.2) order="auto fp32" ;; *) order="fp32 auto" ;; esac
    for kind in $order; do
        if [ $kind = fp32 ]; then
            echo; echo "link ${link:-not emulated}: fp32, nothing compressed"
            run "$link" "$pair.fp32" --strategy fp32 "$@"
        else
            echo; echo "link ${link:-not emulated}: auto, which may use $CODECS"
            run "$link" "$pair.auto" --strategy auto --codec "$CODECS" "$@"
        fi
    done
}

fly() { # FLAGS...
    about
    if [ "${LINK+set}" ] || [ "$quick" ]; then
        pair "${LINK-100mbit,50us}" 1 $quick "$@"
    else
        pair 100mbit,50us 1 "$@"
        # On these links the two differ little, so each runs first once.
        for round in 1 2; do pair 1gbit,50us $round --max-steps 300 --eval 0 "$@"; done
        for round in 1 2; do pair "" $round --max-steps 300 --eval 0 "$@"; done
    fi
    echo
    (cd "$OUT" && awk "$field"'
    FNR == 1 {
        name = FILENAME; sub(".*/", "", name); sub("[.][0-9]+[.](fp32|auto)[.]json$", "", name)
        kind = FILENAME ~ /auto[.]json$/ ? "auto" : "fp32"
        if (!(name in steps)) order[++n] = name
        steps[name] = field("steps"); step = field("settled_step_ms")
        if (!((name, kind) in best) || step < best[name, kind]) best[name, kind] = step
        right[name, kind] = field("accuracy"); bytes[name, kind] = field("inter_bytes_per_step")
    }
    END {
        printf "%-14s %11s %11s %9s %11s %11s %12s %22s\n", "link", "fp32 step", "auto step", "", "fp32 test", "auto test", "after", "between machines"
        for (i = 1; i <= n; i++) {
            k = order[i]
            printf "%-14s %8.1f ms %8.1f ms %8.2fx %9.2f %% %9.2f %% %6d steps %6.2f and %.2f MB/step\n", k, best[k, "fp32"], best[k, "auto"],
                   best[k, "fp32"] / best[k, "auto"], 100 * right[k, "fp32"], 100 * right[k, "auto"], steps[k],
                   bytes[k, "fp32"] / 1e6, bytes[k, "auto"] / 1e6
        }
    }' $(ls -tr ./*.json))
    echo
    echo "step: median of the second half of the steps (in the first, auto measures and switches); the better of two runs where there are two"
}

if [ "$mpi" ]; then prepare_mpi; fi
case ${DEMO:-auto} in
auto) fly "$@" ;;
strategies) strategies "$@" ;;
*) echo "demo: DEMO is '$DEMO': expected auto or strategies" >&2; exit 2 ;;
esac
