# test_readme.sh: the program in README.md compiles with the commands there, and runs alone and as a job.
. tests/compile/common.sh
# the tree's own espresso.c, by README's flags; without them, the error says which are missing
try gcc $(sed -n 's/^    gcc \(.*\) -c espresso\.c .*/\1/p' README.md) -O0 -fsyntax-only espresso.c
if (cd / && gcc -fsyntax-only "$root/espresso.c") 2>"$tmp/said" || ! grep -q 'compile with -I' "$tmp/said"; then
    cat "$tmp/said"
    exit 1
fi
for f in espresso.h espresso.c espresso_impl planner codecs backends plugins; do ln -s "$root/$f" "$tmp/$f"; done
awk '/^```/ { on = /^```c/; next } on' README.md >"$tmp/train.c"
grep '^    gcc .*' README.md | sed 's/#.*//' >"$tmp/commands"
cd "$tmp"
[ "$(wc -l <commands)" -eq 2 ]
[ -n "${TEST_ALL:-}" ] || sed -i 's/ -O3 / -O0 /' commands # half a minute less
try sh -e commands
try ./train
try timeout 60 "$root/$build/bin/espresso" run -n 4 -- ./train
try timeout 60 env ESPRESSO_CODEC=topk:ratio=0.01 "$root/$build/bin/espresso" run -n 4 --machines 2 --inter 1gbit,50us -- ./train
