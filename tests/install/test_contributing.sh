# test_contributing.sh: the commands in CONTRIBUTING.md for one file and one test work, and its table has the words that
# tests use in their line "runs:".
# runs: slow
. tests/compile/common.sh
awk '/^```/ { on = /^```sh/; next } on' CONTRIBUTING.md | sed 's/#.*//' >"$tmp/commands"
[ "$(wc -l <"$tmp/commands")" -eq 3 ]
while read -r line; do
    try sh -c "MAKEFLAGS= $line"
done <"$tmp/commands"
grep -q '"file": "espresso_impl/executor/dispatch.c"' compile_commands.json
grep -q 'executor/test_lanes: ok .* 0 failed' "$tmp/output"
if MAKEFLAGS='' make -s check T=no_such_test >"$tmp/output" 2>&1; then exit 1; fi
grep -q "no test has 'no_such_test' in its path" "$tmp/output"
# the words in tests and in the table are the same
grep -hE '^(/\*|#) runs:' tests/*/test_*.c tests/*/test_*.sh .ci/*.sh | sed 's/no-tsan: .*/no-tsan:/; s,^[/#][* ]* *runs: ,,; s,\*/,,' |
    tr ' ' '\n' | grep . | sort -u >"$tmp/used"
sed -n '/^| word/,/^$/p' CONTRIBUTING.md | cut -d'|' -f2 | grep -o '`[^`]*`' | tr -d '`' | sed 's/ REASON//' | sort -u >"$tmp/explained"
cmp "$tmp/used" "$tmp/explained"
echo ok
