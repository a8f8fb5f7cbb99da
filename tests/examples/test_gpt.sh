# test_gpt.sh: the small GPT learns on four ranks of two machines, compressed and not; all ranks end with the same bits
# (it compares them itself); OpenMP threads change no bit; a run that was stopped or killed and resumed ends with the
# same bits as one without a break; a head that is used in some steps learns only in these; bad input is refused with a
# message.
BUILD=${BUILD:-build}
gpt=$BUILD/bin/gpt
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

sh tests/examples/text.sh >"$tmp/text"
small="--text $tmp/text --width 32 --context 32 --batch 2 --sample 0"

ranks() { # N FLAGS...
    n=$1
    shift
    timeout -k 5 60 "$BUILD/bin/espresso" run -n "$n" --machines 2 -- "$gpt" $small "$@"
}
number() { sed 's/.*"'"$2"'": \([-0-9.e+]*\).*/\1/' "$1"; }

learns() { # NAME SHARE FLAGS...: the loss must be below that share of the entropy of single characters
    name=$1 share=$2
    shift 2
    ranks 4 --max-steps 60 --json "$tmp/$name" "$@" >"$tmp/out" 2>&1 || fail "$name: $(cat "$tmp/out")"
    awk "BEGIN { exit !($(number "$tmp/$name" bits_per_character) < $share * $(number "$tmp/$name" unigram_bits)) }" ||
        fail "$name: $(cat "$tmp/$name")"
}
learns fp32 0.6 --strategy fp32 --curve "$tmp/curve"
export ESPRESSO_MIN_COMPRESS_ELEMENTS=0 # compress the model's small tensors
learns topk 0.85 --codec topk:ratio=0.05
learns outer 0.6 --outer diloco:every=10
learns warmed 0.6 --strategy fp32 --outer diloco:every=10 --warmup 30 --curve "$tmp/warmed.curve"
for run in curve warmed.curve; do cut -d, -f1,3 "$tmp/$run" | head -n 30 >"$tmp/$run.first"; done
cmp "$tmp/curve.first" "$tmp/warmed.curve.first" || fail "--warmup: other losses in the warm-up than without --outer"
[ "$(number "$tmp/warmed" inter_bytes_per_step)" -lt $(($(number "$tmp/fp32" inter_bytes_per_step) * 2 / 3)) ] || fail "--warmup: bytes"
[ "$(wc -l <"$tmp/curve")" -eq 60 ] || fail "--curve: $(wc -l <"$tmp/curve") lines for 60 steps"
[ $(($(number "$tmp/topk" inter_bytes_per_step) * 4)) -lt "$(number "$tmp/fp32" inter_bytes_per_step)" ] || fail "topk: bytes"
[ "$(number "$tmp/topk" inter_bytes_per_step)" -gt 0 ] || fail "topk: nothing crossed between the machines"

# the number of OpenMP threads changes no bit of the losses
losses() { OMP_NUM_THREADS=$1 ranks 2 --width 64 --context 64 --max-steps 8 --strategy fp32 --curve "$tmp/losses$1" >"$tmp/out" 2>&1 || fail "losses: $(cat "$tmp/out")"
    cut -d, -f1,3 "$tmp/losses$1" >"$tmp/of$1"; }
losses 1
losses 3
[ "$(wc -l <"$tmp/of1")" -eq 8 ] && cmp "$tmp/of1" "$tmp/of3" || fail "other losses with three threads: $(cat "$tmp/of1" "$tmp/of3")"

# the last checkpoint is the same for a whole run, for one stopped and resumed, and for one killed and resumed
same() { # NAME: its final model equals that of "whole", and no older files are left
    cmp "$tmp/whole/step24.model" "$tmp/$1/step24.model" || fail "$1: other parameters than an uninterrupted run"
    for r in 0 1 2 3; do
        cmp "$tmp/whole/step24.espresso.r${r}of4" "$tmp/$1/step24.espresso.r${r}of4" || fail "$1: other feedback, rank $r"
    done
    [ "$(ls "$tmp/$1" | grep -c step)" -eq 5 ] || fail "$1: files left behind: $(ls "$tmp/$1")"
}
run="--codec dgc:ratio=0.05 --max-steps 24 --save-every 5"
ranks 4 $run --checkpoint "$tmp/whole" >"$tmp/out" 2>&1 || fail "whole: $(cat "$tmp/out")"
ranks 4 $run --checkpoint "$tmp/stopped" --stop-at 13 >"$tmp/out" 2>&1 || fail "stopped: $(cat "$tmp/out")"
[ "$(cat "$tmp/stopped/latest")" = 13 ] || fail "stopped: the checkpoint is of step $(cat "$tmp/stopped/latest")"
ranks 4 $run --checkpoint "$tmp/stopped" --resume >"$tmp/out" 2>&1 || fail "resumed: $(cat "$tmp/out")"
grep -q "resumed after step 13" "$tmp/out" || fail "resumed: $(cat "$tmp/out")"
same stopped
# kills one rank after the first checkpoint of a run that would take hours
"$BUILD/bin/espresso" run -n 4 --machines 2 -- "$gpt" $small $run --max-steps 100000 --checkpoint "$tmp/long" >"$tmp/out" 2>&1 &
job=$!
tries=0
while [ ! -s "$tmp/long/latest" ] && [ $tries -lt 500 ]; do sleep 0.05; tries=$((tries + 1)); done
victim=
for status in /proc/[0-9]*/status; do
    if grep -qs "^PPid:[[:space:]]*$job\$" "$status"; then victim=${status#/proc/} victim=${victim%/status}; fi
done
kill -9 "${victim:-$job}"
wait $job && fail "killed: the job ended well"
[ -s "$tmp/long/latest" ] || fail "killed: no checkpoint was made: $(cat "$tmp/out")"
step=$(cat "$tmp/long/latest")
[ -s "$tmp/long/step$step.model" ] && [ -s "$tmp/long/step$step.espresso.r3of4" ] || fail "killed: $(ls "$tmp/long")"
stop=$((step + 7))
ranks 4 $run --max-steps 100000 --checkpoint "$tmp/long" --resume --stop-at $stop >"$tmp/out" 2>&1 ||
    fail "resumed after the kill: $(cat "$tmp/out")"
ranks 4 $run --max-steps 100000 --checkpoint "$tmp/straight" --stop-at $stop >"$tmp/out" 2>&1 || fail "straight: $(cat "$tmp/out")"
cmp "$tmp/long/step$stop.model" "$tmp/straight/step$stop.model" || fail "killed: other parameters than an uninterrupted run"

# the second head learns only in its own steps: without such steps it keeps its initial values, whatever the number of
# steps
second() { # NAME FLAGS...: the first 1024 numbers of the head
    name=$1
    shift
    ranks 2 --decay 0 --strategy fp32 --checkpoint "$tmp/$name" "$@" >"$tmp/out" 2>&1 || fail "$name: $(cat "$tmp/out")"
    tail -n +2 "$tmp/$name"/step*.model | head -c 4096 | cksum
}
never=$(second never --max-steps 5 --second 0) || fail "$never"
longer=$(second longer --max-steps 3 --second 0) || fail "$longer"
some=$(second some --max-steps 5 --second 3) || fail "$some"
[ "$never" = "$longer" ] || fail "the second head moves in steps in which it takes no part"
[ "$never" != "$some" ] || fail "the second head does not learn"

# a sample, from one rank
"$gpt" $small --sample 40 --max-steps 3 >"$tmp/out" 2>&1 || fail "sample: $(cat "$tmp/out")"
[ "$(wc -c <"$tmp/out")" -gt 80 ] || fail "sample: $(cat "$tmp/out")"

refuses() { # TEXT FLAGS...: must fail with TEXT
    text=$1
    shift
    if timeout -k 5 30 "$gpt" $small --max-steps 3 "$@" >"$tmp/out" 2>&1; then fail "accepted: $*"; fi
    grep -q -- "$text" "$tmp/out" || fail "$*: expected '$text', got: $(cat "$tmp/out")"
}
refuses "usage: gpt" --nonsense 1
refuses "usage: gpt" --layers
refuses "needs a number, 1 or more" --batch 0
refuses "at most 12" --layers 13
refuses "must divide" --heads 5
refuses "No such file" --text "$tmp/nothing"
refuses "too short for this --context" --context 900000
head -c 1000 "$tmp/text" >"$tmp/short"
refuses "any plain text" --text "$tmp/short"
refuses "needs --checkpoint" --resume
refuses "excludes --checkpoint" --outer diloco --checkpoint "$tmp/never"
refuses "latest: No such file" --resume --checkpoint "$tmp/nothing"
refuses "is from another run" --resume --checkpoint "$tmp/whole"
refuses 'no codec "nonsense"' --codec nonsense
head -c 5000 "$tmp/never/step5.model" >"$tmp/cut" && mv "$tmp/cut" "$tmp/never/step5.model"
if ranks 2 --decay 0 --strategy fp32 --max-steps 5 --second 0 --checkpoint "$tmp/never" --resume >"$tmp/out" 2>&1; then fail "accepted a cut checkpoint"; fi
grep -q "wrong length" "$tmp/out" || fail "a cut checkpoint: $(cat "$tmp/out")"
echo ok
