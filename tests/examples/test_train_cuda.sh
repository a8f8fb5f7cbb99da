# test_train_cuda.sh: the trainer on CUDA, with kernels and codecs on the emulator of tests/cuda instead of a GPU. It
# has the losses of the trainer on CPUs, apart from the order of sums; sharding changes no digit; it learns with bf16
# gradients and with compressed ones, and sends fewer bytes; all ranks end with the same bits (it compares them itself);
# bad input is refused with a message.
# runs: slow
BUILD=${BUILD:-build}
host=$BUILD/tests/bin/train_cuda
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
ls /usr/share/datasets/fashion-mnist/*train-images* >/dev/null 2>&1 || { echo "skipped: dataset-fashion-mnist is not installed"; exit 77; }
fail() { echo "FAILED: $*"; exit 1; }
export ESPRESSO_MIN_COMPRESS_ELEMENTS=0 # compress the model's biases, too
small="--batch 8 --max-steps 10 --limit-train 1280 --lr 0.05"

ranks() { # NAME PROGRAM FLAGS...: 4 ranks of 2 machines; leaves NAME.json and NAME.curve
    name=$1
    shift
    timeout -k 5 200 "$BUILD/bin/espresso" run -n 4 --machines 2 -- "$@" --json "$tmp/$name.json" --curve "$tmp/$name.curve" \
        >"$tmp/out" 2>&1 || fail "$name: $(cat "$tmp/out")"
    cut -d, -f1,3 "$tmp/$name.curve" >"$tmp/$name.loss"
    [ "$(wc -l <"$tmp/$name.loss")" -ge 3 ] || fail "$name: $(wc -l <"$tmp/$name.loss") losses"
}
cuda() { # NAME FLAGS...
    name=$1
    shift
    ranks "$name" "$host" $small --limit-test 128 "$@"
}
number() { sed 's/.*"'"$2"'": \([-0-9.e+]*\).*/\1/' "$tmp/$1.json"; }
close_to() { # NAME OTHER SHARE: every loss differs by that share at most
    paste -d, "$tmp/$1.loss" "$tmp/$2.loss" |
        awk -F, -v most="$3" '{ d = $2 - $4; if (d < 0) d = -d; if (!($2 > 0) || d > most * $4) { print; bad = 1 } } END { exit bad }' ||
        fail "$1: other losses than $2 (step, loss, step, loss)"
}

ranks cpu "$BUILD/bin/train" $small --strategy fp32
cuda fp32 --strategy fp32
close_to fp32 cpu 0.0001
cuda auto --strategy auto
grep -q '6 of 6 tensors are on a device, for which auto has no costs' "$tmp/out" || fail "auto says nothing of the device: $(cat "$tmp/out")"
close_to auto cpu 0.0001
cuda shard --strategy fp32 --shard 1
cmp -s "$tmp/fp32.loss" "$tmp/shard.loss" || fail "sharded: other losses: $(diff "$tmp/fp32.loss" "$tmp/shard.loss" | head -n 4)"
[ $(($(number shard state_bytes) * 4)) -lt $(($(number fp32 state_bytes) + 64)) ] || fail "state: $(number shard state_bytes) bytes"
cuda bf16 --strategy fp32 --bf16 1
close_to bf16 cpu 0.02
cuda both --strategy fp32 --bf16 1 --shard 1
cmp -s "$tmp/bf16.loss" "$tmp/both.loss" || fail "sharded, in bf16: other losses: $(diff "$tmp/bf16.loss" "$tmp/both.loss" | head -n 4)"
[ $(($(number bf16 inter_bytes_per_step) * 100)) -lt $(($(number fp32 inter_bytes_per_step) * 52)) ] || fail "bf16: bytes"
for codec in topk:ratio=0.05 efsignsgd; do
    cuda codec --codec "$codec"
    awk "BEGIN { exit !($(number codec accuracy) > 0.3) }" || fail "$codec: $(cat "$tmp/codec.json")"
    [ $(($(number codec inter_bytes_per_step) * 8)) -lt "$(number fp32 inter_bytes_per_step)" ] || fail "$codec: bytes"
    [ "$(number codec inter_bytes_per_step)" -gt 0 ] || fail "$codec: nothing crossed between the machines"
done
# with the address sanitizer, so that the host cannot access device memory
[ -z "${TEST_ALL:-}" ] || ranks asan "$BUILD/asan/bin/train_cuda" --batch 4 --max-steps 3 --limit-train 64 --limit-test 16 --codec twobit --shard 1

refuses() { # TEXT COMMAND...: must fail with TEXT
    text=$1
    shift
    if timeout -k 5 60 "$@" >"$tmp/out" 2>&1; then fail "accepted: $*"; fi
    grep -q -- "$text" "$tmp/out" || fail "$*: expected '$text', got: $(cat "$tmp/out")"
}
refuses "usage: train_cuda" "$host" --nonsense 1
refuses "needs a number, 1 or more" "$host" --batch 0
refuses "more than there are images" "$host" --limit-train 100
refuses "not found" "$host" --data "$tmp"
refuses 'no codec "nonsense"' "$host" --codec nonsense
refuses "no CUDA device: " env CUDA_HOST_DEVICES=0 "$host"
# the program for GPUs, on a machine without a GPU
if [ -x "$BUILD/bin/train_cuda" ] && ! nvidia-smi -L >/dev/null 2>&1; then refuses "no CUDA device: " "$BUILD/bin/train_cuda"; fi
