# test_profile_gpu.sh: `espresso profile codecs --device gpu`, with plugin cuda on the tests' runtime in place of a GPU (tests/cuda_host):
# payloads and errors are those of the CPU, codec files are read by espresso plan, and bad input is refused in words. Times are not looked at.
BUILD=${BUILD:-build}
plugins=$PWD/$BUILD/tests/cuda_host/plugins
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
[ -e "$plugins/libespresso-cuda.so" ] || { echo "skipped: $plugins/libespresso-cuda.so is not built (make test builds it)"; exit 77; }
fail() { echo "FAILED: $*"; exit 1; }
profile() { # NAME FLAGS...
    name=$1
    shift
    ESPRESSO_PLUGIN_PATH=${path:-$plugins} timeout -k 5 200 "$ESPRESSO_COMMAND" profile codecs --budget 60s "$@" >"$tmp/$name" 2>"$tmp/err" ||
        fail "$*: $(cat "$tmp/err")"
}
refused() { # TEXT FLAGS...
    text=$1
    shift
    if ESPRESSO_PLUGIN_PATH=${path:-$plugins} "$ESPRESSO_COMMAND" profile codecs "$@" >"$tmp/out" 2>"$tmp/err"; then fail "$*: no error"; fi
    grep -q -- "$text" "$tmp/err" || fail "$*: no '$text' in: $(cat "$tmp/err")"
}

for codec in fp16 bf16 efsignsgd twobit int8 int4 topk:ratio=0.1 chunktopk randomk dgc powersgd topk:feedback=none; do
    for device in cpu gpu; do
        profile $device.json --device $device --codec $codec --sizes 2^10..2^11 -o -
        grep -E '"(payload|error|reducible|takes_list|state|rounds)"' "$tmp/$device.json" >"$tmp/$device.said"
    done
    cmp "$tmp/cpu.said" "$tmp/gpu.said" || fail "$codec: $(diff "$tmp/cpu.said" "$tmp/gpu.said")"
    grep -q '"gpu"' "$tmp/gpu.json" || fail "$codec: no times of a GPU in $(cat "$tmp/gpu.json")"
    if grep -q '"cpu"' "$tmp/gpu.json"; then fail "$codec: times of the CPU in a file of the GPU"; fi
done

# both, by two ranks of which each has a device, and as a table, JSON and file
profile both.json -n 2 --device both --codec efsignsgd --sizes 2^10..2^12 -o -
grep -q '"device": ".*; the tests.* runtime, device 0"' "$tmp/both.json" || fail "no name of the device in $(cat "$tmp/both.json")"
for device in cpu gpu; do grep -q "\"$device\": {" "$tmp/both.json" || fail "no times of the $device"; done
"$ESPRESSO_COMMAND" plan --model bert-base --system paper-nvlink --machines 2 --gc "$tmp/both.json" --devices gpu >"$tmp/plan" 2>&1 ||
    fail "plan: $(cat "$tmp/plan")"
profile table --device both --codec fp16 --sizes 2^10
grep -q '^fp16, on a GPU: ' "$tmp/table" || fail "no GPU in $(cat "$tmp/table")"
profile json --device both --codec fp16 --sizes 2^10 --json
[ "$(awk '$1 == "\"us\":" && $2 + 0 > 0' "$tmp/json" | wc -l)" -eq 6 ] || # any time: a fast host takes less than 1 us
    fail "JSON: $(cat "$tmp/json")"
profile all --device gpu --sizes 2^10 # those that have a table for GPUs

refused "write cpu, gpu or both" --device tpu
refused "has no table for GPUs: measure it with --device cpu" --device gpu --codec 'fp16:of=(topk)'
path=/nonexistent refused "no plugin \"cuda\"; tried /nonexistent/libespresso-cuda.so" --device gpu
CUDA_HOST_DEVICES=0 refused "no device of plugin 'cuda' can be used here" --device both
exit 0
