# test_output_lost.sh: a subcommand whose standard output cannot be written says so, and ends with status 1.
. tests/cli/lib.sh
printf 'espresso-strategy 1\ntensor w 3 none flat.allreduce\n' >s.strategy
for words in 'plan --model vgg16 --gc fp16 --system paper-pcie' 'plan --model vgg16 --gc fp16 --system paper-pcie --json' \
    'compare --model vgg16 --gc fp16 --system paper-pcie' 'strategy s.strategy' plugins tree help 'help plan' --version; do
    # shellcheck disable=SC2086
    "$ESPRESSO_COMMAND" $words >/dev/full 2>"$top/2"
    echo "status $?: espresso $words: $(cat "$top/2")"
done
