# test_tree.sh: `espresso tree`: the counts that the paper gives, and what the flags select.
. tests/cli/lib.sh
run tree --count
run tree --count --devices cpu
run tree --count --devices=gpu
run tree --count --flat
run tree --count --hierarchical
run tree --narrow --count
run tree --narrow --devices cpu --flat
run tree --match gather*broadcast --match comp@cpu --devices cpu --flat
run tree --match comp@gpu --devices cpu

quiet tree # one option a line
echo "$(wc -l <"$top/1") lines, $(sort -u "$top/1" | wc -l) different"

run tree --devices tpu
run tree --hier
run tree flat
run tre
