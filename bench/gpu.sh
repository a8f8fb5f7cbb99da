#!/bin/sh
# gpu.sh: everything that needs a GPU, in one run of less than 30 minutes: builds for the GPU that is there, tests codecs, executor and NCCL
# on it, runs compute-sanitizer where it is installed, and measures. Each part has a time limit, and a part that fails does not stop the
# others; the last line says how many did.
#   sh bench/gpu.sh [DIR]      results go to DIR (bench/results): gpu.txt, the machine and what each part said in short; cuda-codecs.csv,
#                              cuda-torch.csv (python3 with torch), cuda-kernels.txt (registers, shared memory, spills), cuda-train.txt, cuda-timeline.json;
#                              gpu-codecs.json, gpu-models/: costs and model files for espresso plan, as measured here (models: python3 with
#                              torch, torchvision and transformers), and gpu-plans.txt, what it plans from them
#   GPU_PARTS="tests bench"    of: build tests sanitize bench torch train plans
#   BUILD=build                programs that are there already are not built again, so a machine without a compiler can run them
set -u
out=${1:-bench/results}
build=${BUILD:-build}
parts=${GPU_PARTS:-build tests sanitize bench torch train plans}
mkdir -p "$out" "$build/log" || exit 1
export ESPRESSO_PLUGIN_PATH="$build/lib/espresso"
bad=0 began=$(date +%s)
if ! nvidia-smi -L >/dev/null 2>&1; then
    echo "gpu.sh: there is no GPU here (nvidia-smi -L fails)" >&2
    exit 77
fi
cap=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader | head -n 1 | tr -d '.')
say() { echo "$*" | tee -a "$out/gpu.txt"; }
wanted() { case " $parts " in *" $1 "*) return 0 ;; esac; return 1; }
# One part: its output goes to a log, of which gpu.txt keeps the last lines if it failed.
part() { # NAME SECONDS COMMAND ...
    name=$1 limit=$2 && shift 2
    start=$(date +%s) log=$build/log/gpu-$name.log
    timeout -k 5 "$limit" "$@" >"$log" 2>&1
    code=$?
    took=$(($(date +%s) - start))
    case $code in
    0) say "$name: ok, $took s: $(grep -v '^ *$' "$log" | tail -n 1)" ;;
    77) say "$name: skipped: $(grep 'skipped' "$log" | head -n 1)" ;;
    *)
        bad=$((bad + 1))
        say "$name: FAILED with status $code after $took s"
        tail -n 20 "$log" | sed 's/^/    /' | tee -a "$out/gpu.txt"
        ;;
    esac
    return $code
}
have() { [ -x "$build/$1" ] || { say "$1: skipped: not built"; return 1; }; }

: >"$out/gpu.txt"
say "$(nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,clocks.max.memory --format=csv,noheader | head -n 1), sm_$cap"
if wanted build; then
    part build 600 make -j"$(nproc)" BUILD="$build" CUDA_ARCH="sm_$cap" plugins gpu-tests "$build/bench/cuda" \
        "$build/tests/nccl/test_nccl_gpu" "$build/bin/train_cuda" "$build/bin/espresso"
    sh bench/cuda/kernels.sh "$build" >"$out/cuda-kernels.txt" 2>/dev/null
fi
if wanted tests; then
    export TEST_ALL=1 # all sizes and inputs
    have gpu/test_codecs && part codecs 240 "$build/gpu/test_codecs"
    have gpu/test_select && part select 120 "$build/gpu/test_select"
    have gpu/test_graph && part graph 120 "$build/gpu/test_graph"
    have gpu/test_rounds && part rounds 120 "$build/gpu/test_rounds"
    have gpu/test_cuda_tree && part tree 240 "$build/gpu/test_cuda_tree"
    have gpu/test_cuda_steps && part steps 120 "$build/gpu/test_cuda_steps"
    have gpu/test_cuda_between && part between 120 "$build/gpu/test_cuda_between"
    have tests/nccl/test_nccl_gpu && part nccl 120 "$build/tests/nccl/test_nccl_gpu"
    unset TEST_ALL
fi
if wanted sanitize; then
    tool=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
    if [ -z "$tool" ]; then
        say "sanitize: skipped: compute-sanitizer is not installed"
    elif have gpu/test_codecs; then
        for t in memcheck racecheck synccheck initcheck; do
            part "sanitize-$t" 120 "$tool" --tool "$t" --error-exitcode 1 "$build/gpu/test_codecs"
        done
    fi
fi
if wanted bench && have bench/cuda; then
    part bench 300 sh -c '"$1" >"$2"' sh "$build/bench/cuda" "$out/cuda-codecs.csv"
fi
if wanted torch; then
    if python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
        part torch 200 sh -c 'python3 -B bench/cuda/torch_ops.py >"$1"' sh "$out/cuda-torch.csv"
    else
        say "torch: skipped: python3 has no torch with CUDA"
    fi
fi
if wanted train && have bin/train_cuda; then
    # a line of JSON for each: one rank, and ranks that share the GPU over shm, of which one run leaves its timeline too
    : >"$out/cuda-train.txt"
    while read -r run_name ranks flags; do
        # shellcheck disable=SC2086
        ESPRESSO_TRACE=$build/log/train-$run_name.json part "train-$run_name" 60 "$build/bin/espresso" run -n "$ranks" -- \
            "$build/bin/train_cuda" --epochs 1 --json "$build/log/train-$run_name.result" $flags </dev/null &&
            { echo "$run_name: $(cat "$build/log/train-$run_name.result")" >>"$out/cuda-train.txt"; }
    done <<END
one 1 --strategy fp32
nccl 1 --strategy fp32 --backend nccl
four-fp32 4 --strategy fp32
four-topk 4 --codec topk:ratio=0.01
four-sign 4 --codec efsignsgd --bf16 1
END
    cp "$build/log/train-four-topk.json" "$out/cuda-timeline.json" 2>/dev/null
fi
if wanted plans && have bin/espresso; then
    mkdir -p "$out/gpu-models"
    part profile 120 "$build/bin/espresso" profile -n 1 --only codecs --device both --budget 90s -o "$out/gpu-codecs.json" \
        --codecs 'fp16;efsignsgd;int8;int4;twobit;topk:ratio=0.01;chunktopk;dgc:ratio=0.01'
    part models 240 python3 -B planner/models/measure.py --out "$out/gpu-models"
    : >"$out/gpu-plans.txt"
    for model in vgg16 resnet101 bert-base gpt2; do
        [ -e "$out/gpu-models/$model.json" ] || continue
        for system in paper-nvlink paper-pcie; do # links as published, since one GPU has none
            part "plan-$model-$system" 60 "$build/bin/espresso" plan --model "$out/gpu-models/$model.json" --system $system \
                --costs "$out/gpu-codecs.json" --devices cpu,gpu --gc efsignsgd --gc topk:ratio=0.01 --gc dgc:ratio=0.01 &&
                cat "$build/log/gpu-plan-$model-$system.log" >>"$out/gpu-plans.txt"
        done
    done
fi
say "gpu.sh: $(($(date +%s) - began)) s, $bad failed"
[ "$bad" -eq 0 ]
