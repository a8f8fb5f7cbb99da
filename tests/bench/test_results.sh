# test_results.sh: what `make results` makes of bench/results: every CSV has a text or a picture, pictures are whole, each
# case has a line, and the numbers of docs/plan/planner-results.md are those of the CSV.
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
out=$tmp/out
python3 -B bench/make_results.py bench/results "$out" || fail "make_results.py: exit status $?"

# results are CSV; bench/gpu.sh also leaves its log and inputs
others=$(find bench/results -type f ! -name '*.csv' ! -name 'gpu*' ! -path '*/gpu-models/*' ! -name cuda-timeline.json)
[ -z "$others" ] || fail "results that are not CSV: $others"

# Every CSV becomes a text of its name; these become pictures only, as they have a line for each step.
pictures_only=" accuracy converge "
for csv in bench/results/*/*.csv; do
    name=$(basename "$csv" .csv)
    case $pictures_only in *" $name "*) continue ;; esac
    [ -s "$out/$name.txt" ] || fail "$csv: make results writes no $name.txt"
    grep -q '^# ' "$csv" || fail "$csv does not begin with what was measured"
    # a value of the last row is in the text
    value=$(grep -v '^#' "$csv" | tail -n 1 | cut -d, -f1 | tr -d '"')
    grep -qF -- "$value" "$out/$name.txt" || fail "$name.txt lacks the row of $value"
done
for picture in plan-quality plan-growth converge-train converge-gpt accuracy; do
    [ "$(tail -n 1 "$out/$picture.svg")" = "</svg>" ] || fail "$picture.svg does not end"
done
rows() { grep -cE "$2" "$1"; }
[ "$(rows "$out/plan-cases.txt" ' (nvlink|pcie) +[0-9]')" = "$(rows bench/results/planner/plan-quality.csv ',(nvlink|pcie),')" ] ||
    fail "plan-cases.txt lacks cases"
# aligned texts have a line for each row
for name in codec coll step faults; do
    csv=$(echo bench/results/*/$name.csv)
    [ "$(grep -vc '^#' "$csv")" -eq "$(sed '1,/^$/d' "$out/$name.txt" | wc -l)" ] || fail "$name.txt lacks rows of $csv"
done

cp docs/plan/planner-results.md "$tmp/page.md"
python3 -B bench/planner/plan_doc.py bench/results/planner "$tmp/page.md" >"$tmp/log" || fail "plan_doc.py: exit status $?"
diff docs/plan/planner-results.md "$tmp/page.md" || fail "docs/plan/planner-results.md: bench/planner/plan.sh doc updates it"
echo ok
