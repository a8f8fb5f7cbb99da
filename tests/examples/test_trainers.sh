# test_trainers.sh: the trainers of bench/trainers learn on four ranks of two machines, compressed and not; all ranks
# end with the same bits (they compare them themselves); bad input is refused with a message.
BUILD=${BUILD:-build}
trainer=$BUILD/bench/trainer
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

sh tests/examples/text.sh >"$tmp/text"
number() { sed 's/.*"'"$2"'": \([-0-9.e+]*\).*/\1/' "$1"; }
learns() { # MODEL LOSS STEPS FLAGS...: must reach that loss; the entropy of single characters is 2.8
    model=$1 loss=$2 steps=$3
    shift 3
    timeout -k 5 60 "$BUILD/bin/espresso" run -n 4 --machines 2 -- "$trainer" "$model" --text "$tmp/text" --hidden 64 --width 16 \
        --lr 4 --max-steps "$steps" --json "$tmp/json" --curve "$tmp/curve" "$@" >"$tmp/out" 2>&1 || fail "$model $*: $(cat "$tmp/out")"
    awk "BEGIN { exit !($(number "$tmp/json" loss) < $loss) }" || fail "$model $*: $(cat "$tmp/json")"
    [ "$(wc -l <"$tmp/curve")" -eq "$steps" ] || fail "--curve: $(wc -l <"$tmp/curve") lines for $steps steps"
}
learns lstm 1.2 150 --strategy fp32
learns lstm 1.5 150 --codec topk:ratio=0.05
learns lstm 1.5 150 --outer diloco:every=10
learns wide 1.0 40 --strategy fp32
learns wide 1.2 40 --codec topk:ratio=0.05

# strategies in turns (bench/trainers/turns.h): of three blocks of 40 steps, one compresses
printf fp32 >"$tmp/fp32"
printf layerwise >"$tmp/layerwise"
printf '%s\n' 40 "$tmp/fp32" "$tmp/layerwise" "$tmp/fp32" >"$tmp/turns"
turns() { # FILE: run the trainer with its blocks
    timeout -k 5 60 env TURNS="$1" TURNS_OUT="$tmp/times" ESPRESSO_STATS="$tmp/stats,every=10ms" ESPRESSO_CODEC=topk:ratio=0.05 \
        "$BUILD/bin/espresso" run -n 2 -- "$trainer" lstm --text "$tmp/text" --hidden 64 --width 16 --max-steps 121 >"$tmp/out" 2>&1
}
turns "$tmp/turns" || fail "turns: $(cat "$tmp/out")"
[ "$(grep -c '^[0-9.]*$' "$tmp/times")" -eq 3 ] || fail "turns: $(cat "$tmp/times")"
grep '"kind":"strategy","time":[0-9.]*,"step":41' "$tmp/stats" | grep -q '"codecs":\["topk:ratio=0.05"\]' || fail "turns: $(cat "$tmp/stats")"
turns_refuses() { # TEXT FILE
    if turns "$2"; then fail "accepted: $2"; fi
    grep -q -- "$1" "$tmp/out" || fail "$2: expected '$1', got: $(cat "$tmp/out")"
}
turns_refuses "turns: $tmp/nothing: No such file" "$tmp/nothing"
turns_refuses "fp32: the first line has no number of steps of at least 2" "$tmp/fp32"
printf '%s\n' 4 "$tmp/nothing" >"$tmp/turns"
turns_refuses "turns: $tmp/nothing: No such file" "$tmp/turns"

refuses() { # TEXT FLAGS...: must fail with TEXT
    text=$1
    shift
    if timeout -k 5 30 "$trainer" "$@" >"$tmp/out" 2>&1; then fail "accepted: $*"; fi
    grep -q -- "$text" "$tmp/out" || fail "$*: expected '$text', got: $(cat "$tmp/out")"
}
refuses "usage: trainer lstm|wide"
refuses "usage: trainer lstm|wide" nonsense
refuses "usage: trainer lstm|wide" lstm --nonsense 1
refuses "needs a number, 1 or more" lstm --max-steps 0
refuses "No such file" wide --text "$tmp/nothing"
refuses "too short for this --length" wide --text "$tmp/text" --length 900000
refuses "'nonsense' is no method" lstm --text "$tmp/text" --outer nonsense
refuses 'no codec "nonsense"' wide --text "$tmp/text" --codec nonsense
echo ok
