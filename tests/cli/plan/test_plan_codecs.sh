# test_plan_codecs.sh: `espresso plan` with codecs from plugins: it uses their model() or a costs file.
. tests/cli/plan/plan.sh
on_10g() { run plan --model "$1" --gc "$2" --system commodity-10g -o -; } # MODEL GC
chosen() { # MODEL GC: the strategy alone
    quiet plan --model "$1" --gc "$2" --system commodity-10g -o -
    cat "$top/1"
}
export ESPRESSO_PLUGIN_PATH="$ESPRESSO_BUILD/tests/abi"
chosen m.json everysecond
unset ESPRESSO_PLUGIN_PATH
on_10g m.json everysecond
chosen m.json 'fp16:of=(topk:ratio=0.01)' # a wrapper, by the models of both codecs

# codecs of several rounds: for matrices in the model, and with measured costs from a file
for matrix in '' ', "rows": 1024, "cols": 1024'; do
    echo "{\"espresso\": 1, \"model\": \"m\", \"forward_us\": 100, \"tensors\": [{\"name\": \"w\", \"elements\": 1048576, \"compute_us\": 100$matrix}]}" >rounds.json
    chosen rounds.json powersgd:rank=4
done
for codec in nosuch int8:shared=1; do
    echo "{\"espresso\": 1, \"codec\": \"$codec\", \"rounds\": 2, \"reducible\": true, \"payload\": {\"unit_bytes\": 1, \"units_per_element\": 0.1}, \"devices\": {\"cpu\": {\"compress\": [[1000, 1]], \"decompress\": [[1000, 1]]}}}" >gc.json
    on_10g rounds.json gc.json
done
