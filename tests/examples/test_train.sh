# test_train.sh: the trainer learns on four ranks of two machines, compressed and not, all ranks end with the same bits
# (it compares them itself), compression sends far fewer bytes, auto makes and reports a decision, bad input is refused
# with a message.
# runs: slow
BUILD=${BUILD:-build}
train=$BUILD/bin/train
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
data=/usr/share/datasets/fashion-mnist
ls $data/*train-images* >/dev/null 2>&1 || { echo "skipped: dataset-fashion-mnist is not installed"; exit 77; }
fail() { echo "FAILED: $*"; exit 1; }

learns() { # NAME FLAGS...: accuracy over 60% after 40 steps
    name=$1
    shift
    "$BUILD/bin/espresso" run -n 4 --machines 2 -- "$train" --batch 32 --max-steps 40 --limit-train 5120 --eval 0 \
        --json "$tmp/$name" "$@" || fail "$name"
    awk -F'"accuracy": ' '{ exit !($2 + 0 > 0.6 && $2 + 0 <= 1) }' "$tmp/$name" || fail "$name: $(cat "$tmp/$name")"
}
bytes() { sed 's/.*"inter_bytes_per_step": \([0-9]*\).*/\1/' "$tmp/$1"; }

learns fp32 --strategy fp32
learns layerwise --codec efsignsgd
learns strategy --strategy examples/train/demo.strategy
for name in layerwise strategy; do
    [ "$(bytes $name)" -gt 0 ] || fail "$name: nothing crossed between the machines"
    [ $(($(bytes $name) * 10)) -lt "$(bytes fp32)" ] || fail "$name: $(bytes $name) bytes, fp32 $(bytes fp32)"
done

# sharded: the same losses in all digits, with a quarter of the optimizer's state; also with compressed gradients and
# parameters
state() { sed 's/.*"state_bytes": \([0-9]*\).*/\1/' "$tmp/$1"; }
learns whole --curve "$tmp/whole.curve"
learns shard --shard 1 --curve "$tmp/shard.curve"
learns halves --shard 1 --codec fp16 --gather bf16
cut -d, -f1,3 "$tmp/whole.curve" >"$tmp/whole.loss"
cut -d, -f1,3 "$tmp/shard.curve" >"$tmp/shard.loss"
[ "$(wc -l <"$tmp/shard.loss")" -eq 40 ] || fail "--curve: $(wc -l <"$tmp/shard.loss") lines for 40 steps"
cmp -s "$tmp/whole.loss" "$tmp/shard.loss" || fail "sharded: other losses: $(diff "$tmp/whole.loss" "$tmp/shard.loss" | head -n 4)"
[ $(($(state shard) * 4)) -lt $(($(state whole) + 64)) ] || fail "state: $(state shard) bytes sharded, $(state whole) whole"
[ $(($(bytes halves) * 10)) -lt $(($(bytes shard) * 6)) ] || fail "halves: $(bytes halves) bytes, exact $(bytes shard)"

# the choice of auto depends on other load here; it must make one, report it, and learn
"$BUILD/bin/espresso" run -n 4 --machines 2 --inter 400mbit,50us -- "$train" --batch 32 --max-steps 250 --limit-train 32000 --eval 0 \
    --strategy auto --codec "efsignsgd;topk:ratio=0.01" --json "$tmp/auto" --curve "$tmp/curve" >"$tmp/out" 2>&1 || fail "auto: $(cat "$tmp/out")"
grep -q "espresso: autopilot: " "$tmp/out" || fail "auto said nothing: $(cat "$tmp/out")"
awk -F'"accuracy": ' '{ exit !($2 + 0 > 0.6 && $2 + 0 <= 1) }' "$tmp/auto" || fail "auto: $(cat "$tmp/auto")"
[ "$(wc -l <"$tmp/curve")" -eq 250 ] || fail "--curve: $(wc -l <"$tmp/curve") lines for 250 steps"

refuses() { # TEXT FLAGS...: must fail with TEXT
    text=$1
    shift
    if "$train" "$@" >"$tmp/out" 2>&1; then fail "accepted: $*"; fi
    grep -q -- "$text" "$tmp/out" || fail "$*: expected '$text', got: $(cat "$tmp/out")"
}
refuses "usage: train" --nonsense 1
refuses "--batch" --batch 0
refuses "more than there are images" --limit-train 100
refuses "not found" --data "$tmp"
refuses 'no codec "nonsense"' --codec nonsense
refuses "gather is 'bf16', but the tensor is not sharded" --gather bf16
refuses "nonsense" --strategy auto --codec "efsignsgd;nonsense"
printf '\0\0\010\003\0\0\0\002\0\0\0\002\0\0\0\002ab' >"$tmp/train-images-idx3-ubyte"
refuses "ends too early" --data "$tmp"
printf 'hello, this is text' >"$tmp/train-images-idx3-ubyte"
refuses "not an IDX file" --data "$tmp"
sed 's/ 5120 / 5121 /' examples/train/demo.strategy >"$tmp/other.strategy"
refuses "another model" --strategy "$tmp/other.strategy"
