# test_truth_runs.sh: bench/validate/truth from end to end, as a user's own check, on a tiny trainer of two ranks; what was measured is used
# again; bad input is refused in words.
# runs: quiet slow
BUILD=${BUILD:-build}
command -v python3 >/dev/null || {
    echo "skipped: python3 is not there"
    exit 77
}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
fail() {
    echo "FAILED: $*"
    exit 1
}
says() { grep -q -- "$2" "$1" || fail "expected \"$2\" in: $(cat "$1")"; }
yes "a small text to learn from, over and over." 2>/dev/null | head -n 400 >"$tmp/text"
trainer="$BUILD/bench/trainer lstm --text $tmp/text --hidden 64 --width 8"
truth() { timeout -k 5 100 bench/validate/truth --build "$BUILD" --costs "$tmp/costs" --rounds 1 --seconds 0.1 -n 2 "$@" >"$tmp/out" 2>"$tmp/err"; }

truth --trainer "$trainer --max-steps {steps}" --inter 1gbit,50us --results "$tmp/results/validate" || fail "$(cat "$tmp/err")"
says "$tmp/err" "case 1 of 1: trainer, 2 ranks, link 1gbit,50us: random 2, round 1 of 1"
says "$tmp/out" "^machine: "
says "$tmp/out" "^step  *8 "
says "$tmp/out" "^  flat.allgather  *[1-7] "
says "$tmp/out" "^  plan  *[0-9.]*  *[0-9.]* "
csv=$tmp/results/validate/truth.csv
python3 -B bench/make_results.py "$tmp/results" "$tmp/texts" || fail "make_results.py"
cmp "$tmp/out" "$tmp/texts/truth.txt" || fail "the text of the CSV is not what was printed"
[ "$(grep -c ^trainer,2, "$csv")" -eq 8 ] || fail "$(cat "$csv")"
ls -l "$tmp"/costs/*.json >"$tmp/before"
[ "$(wc -l <"$tmp/before")" -eq 4 ] || fail "$(cat "$tmp/before")" # a model, the codecs, the link, another one

# what was measured is there: nothing is measured again. Without {steps} a run is ended when it has made enough
truth --trainer "$trainer --max-steps 10000" --inter 1gbit,50us --only efsignsgd || fail "$(cat "$tmp/err")"
ls -l "$tmp"/costs/*.json | cmp - "$tmp/before" || fail "costs were measured again"
says "$tmp/out" "^step  *2 "
says "$tmp/out" "^  flat.allgather"
if grep -q "when gradients are ready" "$tmp/err"; then fail "$(cat "$tmp/err")"; fi

refuses() { # TEXT FLAGS...
    text=$1
    shift
    if truth "$@"; then fail "accepted: $*"; fi
    says "$tmp/err" "$text"
    if grep -q Traceback "$tmp/err"; then fail "$(cat "$tmp/err")"; fi
}
refuses "never called esp_start" --trainer true
refuses "exited with status 1" --trainer false
refuses "cannot start 'no-such-program'\|no-such-program" --trainer no-such-program
refuses "5 steps; 7 or more are needed" --trainer "$trainer --max-steps 5" --inter 1gbit,50us --only plan
refuses "a link needs two machines" --trainer "$trainer" --machines 1 --inter 1gbit
refuses "divide evenly" --trainer "$trainer" --machines 3
refuses "is no trainer, number of ranks or link" nonsense
refuses "quote the command" train --trainer train
refuses "run make first" --build "$tmp"
echo ok
