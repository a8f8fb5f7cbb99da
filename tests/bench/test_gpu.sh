# test_gpu.sh: without a GPU, bench/gpu.sh stops at once and says why. With programs that stand for the GPU's, a canary
# that fails ends the call, a failed codec runs again, and what is not built counts as failed.
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
fail() {
    cat "$tmp/said"
    echo "$*"
    exit 1
}
mkdir -p "$tmp/bin" "$tmp/build/gpu"
gpu() { PATH="$tmp/bin:$PATH" BUILD=$tmp/build OUT=$tmp/out sh bench/gpu.sh "$@" >"$tmp/said" 2>&1; } # CALL
program() { printf '#!/bin/sh\n%s\n' "$2" >"$tmp/$1" && chmod +x "$tmp/$1"; }                           # NAME TEXT
said() { grep -q "$1" "$tmp/said" || fail "nothing said: $1"; }

program bin/nvidia-smi 'exit 9'
gpu A
[ $? -eq 77 ] || fail "without a GPU: not status 77"
said 'stopped by the canary: there is no GPU here'
[ ! -e "$tmp/out/gpu-A.tar.gz" ] || fail "something was run without a GPU"

program bin/compute-sanitizer 'exit 0'
program bin/nvidia-smi 'echo "a GPU, 9.0, 580, 80 GB"'
gpu A
[ $? -eq 1 ] || fail "without programs: not status 1"
said 'canary: FAILED: .*/gpu/test_canary is not built'
program build/gpu/test_canary 'echo "skipped: no CUDA device"; exit 77'
gpu A
said 'the GPU cannot be used: skipped: no CUDA device'

program build/gpu/test_canary 'echo fine'
program build/gpu/test_codecs '[ "$CODECS" != topk ] || [ -n "${CUDA_LAUNCH_BLOCKING:-}" ]'
program build/gpu/test_select 'exit 0'
program build/gpu/test_rounds 'echo "skipped: no library"'
gpu A
[ $? -eq 1 ] || fail "failures give status 0"
said '^codec-none: ok'
said '^codec-topk: FAILED with status 1'
said '^codec-topk-blocking: ok'
grep -n '^rounds\|^codec-topk-blocking' "$tmp/said" | head -n 1 | grep -q rounds ||
    fail "a second run before the first of others"
said '^graph: FAILED: .* is not built'
said '^rounds: skipped: no library'
said '2 failed, 1 skipped'
GPU_SECONDS=3 gpu A
said 'canary: FAILED: no time was left'
program build/gpu/test_codecs 'echo "all: ${TEST_ALL:-no}"'
GPU_SECONDS=100 gpu A # not all cases, where there is no time for them
said '^codec-none: ok, .*: all: no$'
GPU_SECONDS=9999 gpu A
said '^codec-none: ok, .*: all: 1$'
[ "$(ls "$tmp/out" | wc -l)" -le 8 ] || fail "more than 8 files"

# C: a row for each trainer, and what a part wrote that failed; `all` leaves one file
mkdir -p "$tmp/build/bin" "$tmp/build/bench" "$tmp/build/data"
: >"$tmp/build/data/train-images-idx3-ubyte"
program build/bench/cuda 'echo codec,us && echo copy,1 && exit 3'
program build/bin/espresso 'case "$*" in profile*\;*\;*\;*\;*\;*\;*\;*\;*) exit 2 ;; esac # it takes 8 codecs
[ "$1" = run ] || exit 0
while [ "$1" != -- ]; do shift; done
shift && exec "$@"'
program build/bin/train_cuda 'while [ "$1" != --json ]; do shift; done
echo "{\"loss\": 0.5, \"steps\": 3}" >"$2"'
gpu C
said '^bench: FAILED with status 3'
said '^profile: ok'
grep -q '^copy,1' "$tmp/out/cuda-codecs.csv" || fail "what the bench wrote is lost"
[ "$(grep -c '^[a-z0-9-]*,0.5,3$' "$tmp/out/cuda-train.csv")" -eq 5 ] ||
    fail "no row for each trainer: $(cat "$tmp/out/cuda-train.csv")"
grep -q '^run,loss,steps$' "$tmp/out/cuda-train.csv" || fail "no names of columns"
rm -r "$tmp/out"
gpu all
[ $? -eq 1 ] || fail "all: not status 1"
[ "$(ls "$tmp/out")" = gpu.tar.gz ] || fail "all: $(ls "$tmp/out")"
for file in gpu-A.txt gpu-B.tar.gz cuda-train.csv; do
    tar -tzf "$tmp/out/gpu.tar.gz" | grep -q "^gpu/$file" || fail "all: no $file"
done
# each test of the pack has its part
tar -xzOf "$tmp/out/gpu.tar.gz" gpu/gpu-A.txt gpu/gpu-B.txt >"$tmp/said"
for t in $(sed -n 's/^gpu_tests="\(.*\)"$/\1/p' bench/gpu.sh | sed 's/test_codecs/codec-none/; s/test_//g'); do said "^$t: "; done
