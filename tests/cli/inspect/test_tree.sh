# test_tree.sh: `espresso tree`: the paper's numbers of options, and the flags that select some.
. tests/cli/lib.sh
run tree --count
run tree --count --forbid @gpu
run tree --count --forbid=@cpu
run tree --count --match flat
run tree --count --forbid flat
run tree --narrow --count
run tree --narrow --forbid @gpu --match flat
run tree --match gather*broadcast --match comp@cpu --forbid @gpu --match flat
run tree --match comp@gpu --forbid @gpu

quiet tree # one option a line
echo "$(wc -l <"$top/1") lines, $(sort -u "$top/1" | wc -l) different"

run tree --forbids flat
run tree flat
run tre
