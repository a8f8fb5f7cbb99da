# test_plan.sh: the planner from C: the example's text is a strategy for its three tensors, and shorter than fp32.
BUILD=${BUILD:-build}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAILED: $*"; cat "$tmp/said"; exit 1; }

"$BUILD/bin/plan" >"$tmp/said" || fail "exit status"
awk 'NR == 1 { exit !($5 + 0 < $9 + 0 && $14 + 0 <= $5 + 0.1) }' "$tmp/said" || fail "the first line's times"
grep -q '^tensor embed.weight 1000 none ' "$tmp/said" || fail "embed.weight is to stay as it is"
tail -n +2 "$tmp/said" >"$tmp/strategy"
"$BUILD/bin/espresso" strategy "$tmp/strategy" >"$tmp/said" 2>&1 || fail "espresso strategy"
echo "ok"
