#!/bin/sh
# gpu.sh: everything that needs a GPU, in three calls of at most eight minutes each. Every call begins with a canary of
# 40 seconds at most, and ends if that fails. What is not built, or for which no time is left, counts as failed.
#   sh bench/gpu.sh --pack     on a machine with nvcc: builds for CUDA_ARCH (sm_90), and writes gpu-pack.tar.gz with all
#                              that the calls need; prints what to run
#   sh bench/gpu.sh A          each codec in a process of its own; those that fail run again at the end, with
#                              CUDA_LAUNCH_BLOCKING=1 and under compute-sanitizer
#   sh bench/gpu.sh B          executor, sanitizers, jobs of two and four ranks over NCCL, NCCL's tests
#   sh bench/gpu.sh C          measures codecs, trainers, and PyTorch's compositions; plans
#   sh bench/gpu.sh all        A, B and C in nine minutes; what they write is in $OUT/gpu.tar.gz
# Writes into $OUT (bench/results/cuda): gpu-A.txt with each part's outcome, gpu-A.tar.gz with the logs; C also
# cuda-codecs.csv, cuda-train.csv, cuda-torch.csv, gpu-codecs.json, gpu-plans.txt and cuda-timeline.json.
#   BUILD=build                programs are here; nothing is built, except by --pack
#   GPU_SECONDS=470            how long the call may take; 540 for all
set -u
out=${OUT:-bench/results/cuda}
build=${BUILD:-build}
arch=${CUDA_ARCH:-sm_90}
call=${1:-}
bad=0 skipped=0 began=$(date +%s)

# ---- data ----------------------------------------------------------------------------------------------------------
# A data set of small images of ten classes, in the format of Fashion-MNIST
make_data() { # FOLDER
    mkdir -p "$1" && python3 -B - "$1" <<'END'
import random, struct, sys
random.seed(1)
shapes = [[random.randrange(200) for _ in range(784)] for _ in range(10)]
for part, n in (("train", 6000), ("t10k", 1000)):
    labels = [random.randrange(10) for _ in range(n)]
    with open("%s/%s-images-idx3-ubyte" % (sys.argv[1], part), "wb") as f:
        f.write(struct.pack(">4I", 0x803, n, 28, 28))
        for label in labels:
            noise = random.randbytes(784)
            f.write(bytes(s + (x >> 3) for s, x in zip(shapes[label], noise)))
    with open("%s/%s-labels-idx1-ubyte" % (sys.argv[1], part), "wb") as f:
        f.write(struct.pack(">2I", 0x801, n) + bytes(labels))
END
}

# ---- pack -----------------------------------------------------------------------------------------------------------
gpu_tests="test_canary test_codecs test_select test_graph test_rounds test_cuda_tree test_cuda_steps test_cuda_between test_cuda_outer"
programs="$(for t in $gpu_tests; do echo "gpu/$t"; done)
bench/cuda tests/nccl/test_nccl_gpu bin/train_cuda bin/espresso"
libraries="lib/espresso/libespresso-cuda.so lib/espresso/libespresso-nccl.so"
pack() {
    make -s -j"$(nproc)" BUILD="$build" CUDA_ARCH="$arch" plugins gpu-tests \
        "$build/bench/cuda" "$build/tests/nccl/test_nccl_gpu" "$build/bin/train_cuda" "$build/bin/espresso" || return 1
    root=$(mktemp -d) || return 1
    for f in $programs $libraries; do
        mkdir -p "$root/build/$(dirname "$f")"
        strip -o "$root/build/$f" "$build/$f" || return 1
    done
    # libraries of tests and of the command that another machine may lack
    for name in libcmocka.so.0 libjansson.so.4 libgomp.so.1; do
        found=$(ldconfig -p | sed -n "s,.*$name .* => ,,p" | head -n 1)
        [ -z "$found" ] || cp -L "$found" "$root/build/lib/$name"
    done
    mkdir -p "$root/bench/cuda" "$root/codecs/cuda"
    cp bench/gpu.sh bench/head.sh "$root/bench"
    cp bench/cuda/torch_ops.py "$root/bench/cuda"
    cp codecs/cuda/codecs.inc "$root/codecs/cuda"
    git rev-parse --short HEAD >"$root/build/commit" 2>/dev/null
    make_data "$root/build/data" || return 1 # the other machine may have no python3
    sh bench/cuda/kernels.sh "$build" >"$root/build/cuda-kernels.csv" 2>/dev/null
    tar -C "$root" -czf gpu-pack.tar.gz . || return 1
    bytes=$(wc -c <gpu-pack.tar.gz)
    # each program must start here; without a GPU it says so
    ( # in the folder as it will be there
        cd "$root" || exit 1
        export LD_LIBRARY_PATH=build/lib
        for f in $programs; do
            case $f in bin/*) timeout 20 "build/$f" --help ;; *) timeout 60 "build/$f" ;; esac >"$root/log" 2>&1
            code=$?
            case $f$code in *77 | *[!0-9]0 | bin/*2) continue ;; esac # 2: train_cuda's list of flags
            echo "gpu.sh: $f does not start: status $code: $(tail -n 1 "$root/log")"
            exit 1
        done
    ) || return 1
    rm -rf "$root"
    [ "$bytes" -lt 60000000 ] || {
        echo "gpu.sh: the pack has $bytes bytes; 60,000,000 may be carried"
        return 1
    }
    echo "gpu-pack.tar.gz: $bytes bytes, for $arch. On the machine with a GPU, in an empty folder:"
    echo "    tar xzf gpu-pack.tar.gz && OUT=out sh bench/gpu.sh all    # or A, then B, then C"
}
case $call in
--pack) pack; exit ;;
A | B | C) ;;
all)
    seconds=${GPU_SECONDS:-540} n=3
    for call in A B C; do # each may use an equal part of the time that is left
        GPU_SECONDS=$(((seconds - $(date +%s) + began) / n)) OUT=$out/gpu sh "$0" $call || bad=$?
        n=$((n - 1))
        tar -C "$out" -czf "$out/gpu.tar.gz" gpu
    done
    rm -r "$out/gpu"
    exit "$bad" ;;
*) sed -n '/^#   sh/,/^#   BUILD/s/^# *//p' "$0"; exit 2 ;;
esac

# ---- parts ----------------------------------------------------------------------------------------------------------
mkdir -p "$out" || exit 1
logs=$(mktemp -d) || exit 1
trap 'rm -rf "$logs"' EXIT
summary=$out/gpu-$call.txt
: >"$summary"
export ESPRESSO_PLUGIN_PATH="$build/lib/espresso" OMP_WAIT_POLICY=passive
own_libraries=${LD_LIBRARY_PATH:-}
LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
note() { echo "$*" | tee -a "$summary"; }
left() { echo $((${GPU_SECONDS:-470} - $(date +%s) + began)); }
failed() { # TEXT
    bad=$((bad + 1))
    note "$1"
}
data=$build/data
have_data() {
    [ -e "$data/train-images-idx3-ubyte" ] || {
        data=$logs/data
        make_data "$data" || failed "data: FAILED: python3 is needed for a data set"
    }
}
# One part: its output goes to a log, of which the summary has the last lines if it failed. Status 124: it did not run,
# or not to its end.
part() { # NAME SECONDS PROGRAM ARGUMENTS ...
    name=$1 limit=$2 log=$logs/$1.log && shift 2
    [ "$(left)" -gt 5 ] || { failed "$name: FAILED: no time was left" && return 124; }
    [ "$limit" -lt "$(left)" ] || limit=$(left)
    case $1 in
    "$build"/*) [ -x "$1" ] || { failed "$name: FAILED: $1 is not built" && return 124; } ;;
    esac
    start=$(date +%s)
    timeout -k 5 "$limit" "$@" >"$log" 2>&1 </dev/null
    code=$?
    took=$(($(date +%s) - start))
    [ "$code" -ne 0 ] || ! grep -q '^skipped: ' "$log" || code=77 # a test of cmocka's, which ends with 0
    case $code in
    0) note "$name: ok, $took s: $(grep -v '^ *$' "$log" | tail -n 1)" ;;
    77) skipped=$((skipped + 1)) && note "$name: $(grep 'skipped: ' "$log" | head -n 1)" ;;
    124) failed "$name: FAILED: ran longer than $limit s" ;;
    *) failed "$name: FAILED with status $code after $took s" ;;
    esac
    case $code in 0 | 77) ;; *) tail -n 15 "$log" | sed 's/^/    /' | tee -a "$summary" ;; esac
    return $code
}
finish() {
    tar -C "$logs" -czf "$out/gpu-$call.tar.gz" .
    note "gpu.sh $call: $(($(date +%s) - began)) s, $bad failed, $skipped skipped"
    [ "$bad" -eq 0 ]
    exit
}

# ---- canary ---------------------------------------------------------------------------------------------------------
# NCCL may be in PyTorch's wheel only
in_wheel='import glob, nvidia.nccl; print(glob.glob(list(nvidia.nccl.__path__)[0] + "/lib/libnccl.so*")[0])'
stop() { # STATUS TEXT
    note "gpu.sh $call: stopped by the canary: $2. Nothing else was run."
    exit "$1"
}
nvidia-smi -L >/dev/null 2>&1 || stop 77 "there is no GPU here (nvidia-smi -L fails)"
gpu=$(nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total --format=csv,noheader | head -n 1)
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
: "${ESPRESSO_NCCL:=$(python3 -c "$in_wheel" 2>/dev/null)}"
if [ -n "$ESPRESSO_NCCL" ]; then export ESPRESSO_NCCL; else unset ESPRESSO_NCCL; fi
note "GPU: $gpu; nvcc: $(${nvcc:-true} --version | sed -n 's/.*release \([^,]*\).*/\1/p')"
commit=$(cat "$build/commit" 2>/dev/null || git rev-parse --short HEAD 2>/dev/null)
note "NCCL: ${ESPRESSO_NCCL:-where the loader finds it}; commit: $commit"
part canary 40 "$build/gpu/test_canary"
case $? in
0) ;;
77) stop 1 "the GPU cannot be used: $(grep skipped "$logs/canary.log" | head -n 1)" ;;
*) stop 1 "one element of none, or 70,000 of topk, went wrong; see above" ;;
esac

# ---- A: codecs ------------------------------------------------------------------------------------------------------
tool=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
call_a() {
    again=
    codecs=$(sed -n 's/^CUDA_CODECS(\(.*\))$/\1/p' codecs/cuda/codecs.inc)
    n=$(echo "$codecs" | wc -l)
    for codec in $codecs; do
        export CODECS="$codec"
        # all cases, unless those behind it would then lack the time for some
        if [ "$(left)" -gt $((30 + 6 * n)) ]; then export TEST_ALL=1; else unset TEST_ALL; fi
        n=$((n - 1))
        part "codec-$codec" 60 "$build/gpu/test_codecs"
        case $? in 0 | 77 | 124) ;; *) again="$again $codec" ;; esac
    done
    unset TEST_ALL
    unset CODECS
    for t in select rounds graph; do TEST_ALL=1 part $t 60 "$build/gpu/test_$t"; done
    for codec in $again; do
        export CODECS="$codec"
        [ "$(left)" -gt 20 ] || break
        CUDA_LAUNCH_BLOCKING=1 part "codec-$codec-blocking" 40 "$build/gpu/test_codecs"
        [ -z "$tool" ] || part "codec-$codec-memcheck" 90 "$tool" --error-exitcode 1 "$build/gpu/test_codecs"
    done
}

# ---- B: executor, sanitizers, NCCL ----------------------------------------------------------------------------------
# A job of ranks that share this GPU over NCCL, which wants ranks of one machine to have a GPU each
train() { # NAME RANKS MACHINES ARGUMENTS ...
    name=$1 ranks=$2 machines=$3 && shift 3
    # shellcheck disable=SC2016
    NCCL_SOCKET_IFNAME=lo part "$name" 60 "$build/bin/espresso" run -n "$ranks" --machines "$machines" -- sh -c \
        'NCCL_HOSTID=rank-$ESPRESSO_RANK exec "$0" "$@"' "$build/bin/train_cuda" --data "$data" "$@"
}
# What nothing else runs comes first, since a slow part takes the time of those behind it.
sanitize() { # TOOL ...
    for t in "$@"; do
        if [ -n "$tool" ]; then
            CODECS=topk part "$t" 70 "$tool" --tool "$t" --error-exitcode 1 "$build/gpu/test_codecs"
        else
            failed "$t: FAILED: compute-sanitizer is not installed"
        fi
    done
}
call_b() {
    for t in cuda_steps cuda_between cuda_outer; do TEST_ALL=1 part $t 60 "$build/gpu/test_$t"; done
    have_data
    train two-fp32 2 1 --backend nccl --strategy fp32
    train two-topk 2 1 --backend nccl --codec topk:ratio=0.01
    train four-topk 4 2 --backend nccl --codec topk:ratio=0.01
    train four-auto 4 2 --backend nccl --strategy auto --codec 'efsignsgd;topk:ratio=0.01' --epochs 60 &&
        note "four-auto: changed its strategy $(grep -c 'chose ' "$logs/four-auto.log") times"
    sanitize memcheck
    part nccl 120 "$build/tests/nccl/test_nccl_gpu"
    TEST_ALL=1 part cuda_tree 60 "$build/gpu/test_cuda_tree"
    CUDA_MODULE_LOADING=EAGER train eager 2 1 --backend nccl --codec topk:ratio=0.01
    CUDA_MODULE_LOADING=LAZY train lazy 2 1 --backend nccl --codec topk:ratio=0.01
    sanitize synccheck initcheck
}

# ---- C: measurements ------------------------------------------------------------------------------------------------
save() { # PART FILE: also what a part wrote that failed or ran out of time
    { echo "$head" && cat "$logs/$1.log"; } >"$out/$2"
}
call_c() {
    head="$(sh bench/head.sh; echo "# GPU: $gpu")"
    part bench 200 "$build/bench/cuda"
    save bench cuda-codecs.csv
    # without the pack's libraries, as PyTorch has its own
    part torch 60 env LD_LIBRARY_PATH="$own_libraries" python3 -B bench/cuda/torch_ops.py
    save torch cuda-torch.csv
    have_data
    echo "$head; build/bin/train_cuda --epochs 3, synthetic images" >"$out/cuda-train.csv"
    columns=
    while read -r run ranks flags; do
        # shellcheck disable=SC2086
        ESPRESSO_TRACE=$logs/trace-$run.json part "train-$run" 40 "$build/bin/espresso" run -n "$ranks" -- \
            "$build/bin/train_cuda" --data "$data" --epochs 3 --json "$logs/$run.result" $flags || continue
        result=$(tr -d '{} "\n' <"$logs/$run.result")
        [ -n "$columns" ] || {
            columns=$(echo "$result" | sed 's/:[^,]*//g')
            echo "run,$columns" >>"$out/cuda-train.csv"
        }
        echo "$run,$(echo "$result" | sed 's/[^,]*://g')" >>"$out/cuda-train.csv"
    done <<END
one 1 --strategy fp32
nccl 1 --strategy fp32 --backend nccl
four-fp32 4 --strategy fp32
four-topk 4 --codec topk:ratio=0.01
four-sign 4 --codec efsignsgd --bf16 1
END
    cp "$logs/trace-four-topk.json" "$out/cuda-timeline.json" 2>/dev/null
    budget=$(($(left) < 120 ? $(left) * 2 / 3 : 80))
    part profile 100 \
        "$build/bin/espresso" profile -n 1 --only codecs --device both --budget ${budget}s -o "$out/gpu-codecs.json" \
        --codecs 'fp16;efsignsgd;int8;int4;maxmin;topk:ratio=0.01;chunktopk;dgc:ratio=0.01' || return
    : >"$out/gpu-plans.txt"
    for model in vgg16 bert-base; do
        for system in paper-nvlink paper-pcie; do # links as published, since one GPU has none
            part "plan-$model-$system" 20 "$build/bin/espresso" plan --model $model --system $system \
                --costs "$out/gpu-codecs.json" --devices cpu,gpu --gc efsignsgd --gc topk:ratio=0.01 --gc dgc:ratio=0.01
            cat "$logs/plan-$model-$system.log" >>"$out/gpu-plans.txt" 2>/dev/null
        done
    done
}
case $call in A) call_a ;; B) call_b ;; C) call_c ;; esac
rm -rf "$logs/data"
finish
