# test_advise.sh: `espresso advise` with traces of PyTorch (made by record.py), with one of a GPU that was written by
# hand as Kineto's format is documented, and with files that are no such traces.
. tests/cli/lib.sh
traces=$root/tests/cli/advise
advise() { # ARGS: the names of traces, and flags
    for word in "$@"; do
        shift
        [ ! -e "$traces/$word.json" ] || word=$traces/$word.json
        set -- "$@" "$word"
    done
    run advise "$@"
}
# ---- answers ---------------------------------------------------------------------------------------------------------
advise mlp0 mlp1 --out job --timeline step.html
advise conv0 conv1
# a trace that tells how fast a core copies
advise fast0 fast1 --out fast
grep pack_bytes fast/system.json
advise conv0 --gc topk:ratio=0.01 --optimizer sgd
advise mlp0 --system one-box --gc efsignsgd --gc topk:ratio=0.01
advise gpu --machines 2
# steps of different lengths
sed 's/\(Optimizer.step#SGD.step","ts":[0-9.]*,"dur":\)[0-9.]*/\1900000/4' "$traces/mlp0.json" >noisy.json
quiet advise noisy.json --timeline noisy.html --out noisy
sed -n 3,5p "$top/1"
has noisy/model.json '"noisy": true'
# espresso plan reads the files, and predicts the same
quiet plan --model job/model.json --system job/system.json --gc fp16 --gc int8 --gc int4 --json
key iteration_us <"$top/1" | head -n 1
cat job/model.json job/system.json
has step.html "<html"
# ---- what a trace may lack -------------------------------------------------------------------------------------------
changed() { # SED ARGS: advice from a changed trace of mlp
    sed "$1" "$traces/mlp0.json" >changed.json
    shift
    run advise changed.json "$@"
}
run advise
run advise none.json
run advise --out job
head -c 9000 "$traces/mlp0.json" >cut.json
run advise cut.json
gzip -c "$traces/mlp0.json" >packed.json.gz
run advise packed.json.gz
echo 'import torch' >script.json
run advise script.json
echo null >null.json
run advise null.json
echo '{"a": []}' >other.json
run advise other.json
echo '{"traceEvents": [{"ph": "M", "name": "process_name"}]}' >empty.json
run advise empty.json
# as a torch without Kineto writes it, such as Debian's 1.13
echo '[{"name": "torch::autograd::AccumulateGrad", "ph": "X", "ts": 1, "dur": 2, "tid": 1, "pid": "CPU functions", "args": {}}]' >old.json
run advise old.json
changed 's/"Input Dims"/"Inputs"/g'
changed 's/AccumulateGrad/Other/g'
changed 's/DistributedDataParallel/FullyShardedDataParallel/g'
changed 's/Optimizer.step#/Other.step#/g'
changed 's/"float"/"c10::BFloat16"/g'
changed 's/"world_size":2/"world_size":1/'
changed 's/"distributedInfo"/"other"/'
changed 's/gloo:all_reduce/other/g'
changed 's/"ts":/"at":/g'
advise mlp0 conv1
advise mlp0 mlp1 mlp0
advise mlp0 --gpu H100
advise mlp0 --machines 3
advise mlp0 --optimizer none-such
advise mlp0 --out "$traces/mlp0.json"
sed 's/NVIDIA H100 80GB HBM3/Other 9000/' "$traces/gpu.json" >gpu.json
run advise gpu.json
