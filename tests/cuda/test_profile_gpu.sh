# test_profile_gpu.sh: `espresso profile --device gpu`, with plugin cuda on the tests' runtime in place of a GPU (tests/cuda):
# payloads and errors are those of the CPU, espresso plan reads the file, and bad input is refused in words. Times are not looked at.
# runs: quiet
BUILD=${BUILD:-build}
plugins=$PWD/$BUILD/tests/cuda/plugins
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
[ -e "$plugins/libespresso-cuda.so" ] || { echo "skipped: $plugins/libespresso-cuda.so is not built (make test builds it)"; exit 77; }
fail() { echo "FAILED: $*"; exit 1; }
profile() { # NAME FLAGS...
    name=$1
    shift
    ESPRESSO_PLUGIN_PATH=${path:-$plugins} timeout -k 5 200 "$ESPRESSO_COMMAND" profile --only codecs --budget 60s "$@" >"$tmp/$name" 2>"$tmp/err" ||
        fail "$*: $(cat "$tmp/err")"
}
refused() { # TEXT FLAGS...
    text=$1
    shift
    if ESPRESSO_PLUGIN_PATH=${path:-$plugins} "$ESPRESSO_COMMAND" profile --only codecs -n 1 -o - "$@" >"$tmp/out" 2>"$tmp/err"; then fail "$*: no error"; fi
    grep -q -- "$text" "$tmp/err" || fail "$*: no '$text' in: $(cat "$tmp/err")"
}

for codec in fp16 bf16 efsignsgd twobit int8 int4 topk:ratio=0.1 chunktopk randomk dgc powersgd topk:feedback=none; do
    for device in cpu gpu; do
        profile $device.json -n 1 --device $device --codecs $codec --up-to 2048 -o -
        grep -E '"(payload|error|reducible|takes_list|state|rounds)"' "$tmp/$device.json" >"$tmp/$device.said"
    done
    cmp "$tmp/cpu.said" "$tmp/gpu.said" || fail "$codec: $(diff "$tmp/cpu.said" "$tmp/gpu.said")"
    grep -q '"gpu"' "$tmp/gpu.json" || fail "$codec: no times of a GPU in $(cat "$tmp/gpu.json")"
    if grep -q '"cpu"' "$tmp/gpu.json"; then fail "$codec: times of the CPU in a file of the GPU"; fi
done

# both, by two ranks of which each has a device
profile both.json -n 2 --device both --codecs efsignsgd --up-to 4096 -o -
grep -q '"device": ".*; the tests.* runtime, device 0"' "$tmp/both.json" || fail "no name of the device in $(cat "$tmp/both.json")"
for device in cpu gpu; do grep -q "\"$device\": {" "$tmp/both.json" || fail "no times of the $device"; done
"$ESPRESSO_COMMAND" plan --model bert-base --system paper-nvlink --machines 2 --costs "$tmp/both.json" --devices gpu >"$tmp/plan" 2>&1 ||
    fail "plan: $(cat "$tmp/plan")"
profile table -n 1 --device both --codecs fp16 --up-to 1024 -o "$tmp/fp16.json"
grep -q '^fp16, gpu ' "$tmp/table" || fail "no GPU in $(cat "$tmp/table")"
profile all -n 1 --device gpu --up-to 1024 -o "$tmp/all.json" # those that have a table for GPUs
profile links -n 2 --only links,codecs --device both --codecs fp16 --up-to 4096 -o -
for part in system codecs; do grep -q "\"$part\": [{[]" "$tmp/links" || fail "no $part in $(cat "$tmp/links")"; done

refused "write cpu, gpu or both" --device tpu
refused "has no table for GPUs: measure it with --device cpu" --device gpu --codecs 'fp16:of=(topk)'
path=/nonexistent CUDA_HOST_DEVICES=0 refused "no device of plugin .cuda. can be used here\|no plugin .cuda.; tried" --device gpu
CUDA_HOST_DEVICES=0 refused "no device of plugin 'cuda' can be used here" --device both
exit 0
