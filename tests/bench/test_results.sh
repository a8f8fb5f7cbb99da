# test_results.sh: what `make results` makes of the CSV of bench/results: pictures that are whole, and one line for every case.
command -v python3 >/dev/null || {
    echo "skipped: python3 is not there"
    exit 77
}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
fail() {
    echo "$*"
    exit 1
}
for script in plan_plot converge_plot accuracy_plot case_tables; do
    python3 -B bench/$script.py bench/results "$tmp" || fail "$script.py: exit status $?"
done
for picture in plan-quality plan-growth converge-train converge-gpt accuracy; do
    [ "$(tail -n 1 "$tmp/$picture.svg")" = "</svg>" ] || fail "$picture.svg does not end"
done
rows() { grep -cE "$2" "$1"; }
[ "$(rows "$tmp/plan-cases.txt" ' (nvlink|pcie) +[0-9]')" = "$(rows bench/results/planner/plan-quality.csv ',(nvlink|pcie),')" ] ||
    fail "plan-cases.txt lacks cases"
