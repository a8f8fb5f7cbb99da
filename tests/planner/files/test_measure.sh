# test_measure.sh: planner/models/measure.py measures tiny models on the CPU, and `espresso plan` reads the files: unique names,
# times that are never negative and add up to backward. It refuses wrong input, and says what it lacks.
command -v python3 >/dev/null || {
    echo "skipped: python3 is not there"
    exit 77
}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
fail() {
    echo "FAILED: $*"
    exit 1
}
ends() { # STATUS WORDS FLAGS...: ends with this status, says these words, and writes no model
    code=0 wanted=$1 words=$2
    shift 2
    python3 planner/models/measure.py "$@" >"$tmp/said" 2>&1 || code=$?
    [ "$code" -eq "$wanted" ] || fail "$*: exit status $code, not $wanted: $(cat "$tmp/said")"
    grep -qF -e "$words" "$tmp/said" || fail "$*: does not say '$words': $(cat "$tmp/said")"
    [ ! -e "$tmp/none" ] || fail "$*: wrote $(ls "$tmp/none")"
}

before=$(ls planner/models)
# none of these needs torch
ends 1 "no model 'nosuch'; there are: vgg16, " --out "$tmp/none" nosuch
ends 1 "--batch -1: expected at least 1" --out "$tmp/none" --batch -1
ends 1 "--steps 0: expected at least 1" --out "$tmp/none" --steps 0
ends 1 "--warm -1: expected at least 0" --out "$tmp/none" --warm -1
ends 1 "the estimates are there" --out planner/models
ends 1 "the estimates are there" --out planner/../planner/models/ --device cpu gpt2
ln -s "$PWD/planner/models" "$tmp/link"
ends 1 "the estimates are there" --out "$tmp/link"
ends 2 "--out" --device cpu
ends 2 "--device" --out "$tmp/none" --device tpu
mkdir "$tmp/without"
for package in torch torchvision transformers; do echo "raise ImportError('left out')" >"$tmp/without/$package.py"; done
PYTHONPATH=$tmp/without
export PYTHONPATH
ends 77 "skipped: the Python package torch cannot be imported: left out" --out "$tmp/none" --device cpu
unset PYTHONPATH

for package in torch torchvision transformers; do
    if ! python3 -c "import $package" 2>"$tmp/said"; then
        ends 77 "skipped: the Python package $package cannot be imported" --out "$tmp/none" --device cpu
        echo "skipped: python3 cannot import $package: only what needs no measurement was tried"
        exit 77
    fi
done
export CUDA_VISIBLE_DEVICES=
ends 77 "skipped: no CUDA device (--device cpu tries it without)" --out "$tmp/none"
: >"$tmp/file"
ends 1 "--out $tmp/file: " --out "$tmp/file" --device cpu vgg16
unset CUDA_VISIBLE_DEVICES

OMP_NUM_THREADS=1 python3 planner/models/measure.py --device cpu --small --steps 3 --warm 1 --out "$tmp/out" \
    vgg16 resnet101 vit-b-16 bert-base gpt2 >"$tmp/lines" || fail "exit status $?"
[ "$(wc -l <"$tmp/lines")" -eq 5 ] || fail "not a line for each of 5 models: $(cat "$tmp/lines")"
[ "$(find "$tmp/out" -type f | wc -l)" -eq 5 ] || fail "not 5 files: $(ls "$tmp/out")"
for model in vgg16 resnet101 vit-b-16 bert-base gpt2; do
    python3 - "$tmp/out/$model.json" "$(grep "^$model: " "$tmp/lines")" <<'END' || fail "$model"
import json, math, re, sys
model, line = json.load(open(sys.argv[1])), sys.argv[2]
said = re.fullmatch(r"(\S+): (\d+) tensors, (\d+) parameters, forward (\S+) ms, backward (\S+) ms, update (\S+) ms, "
                    r"spread (\S+)%; a tiny version", line)
assert said, line
tensors = model["tensors"]
assert len({t["name"] for t in tensors}) == len(tensors) == int(said[2]), line
for t in tensors:
    assert t["compute_us"] >= 0 and t["elements"] == math.prod(t["shape"]), t
assert model["parameters"] == sum(t["elements"] for t in tensors) == int(said[3]), line
for us, ms in (model["forward_us"], said[4]), (sum(t["compute_us"] for t in tensors), said[5]), (model["update_us"], said[6]):
    assert us > 0 and abs(us - 1e3 * float(ms)) < 2, (us, ms)
assert (model["steps"], model["batch"], model["dtype"]) == (3, 2, "f32"), model
assert "tiny" in model["source"] and model["device"].startswith("CPU"), model
END
    "$ESPRESSO_COMMAND" plan --model "$tmp/out/$model.json" --gc dgc:ratio=0.01 --system one-box >"$tmp/plan" 2>"$tmp/warned" ||
        fail "plan does not read $model.json: $(cat "$tmp/warned")"
    grep -q "^model  *$model: " "$tmp/plan" || fail "$model: the plan is of another model: $(head -n 3 "$tmp/plan")"
    [ ! -s "$tmp/warned" ] || fail "$model.json: $(cat "$tmp/warned")"
done
# the layer that is last in forward is first in backward; a weight that is used twice counts once
grep -m 1 '"name"' "$tmp/out/gpt2.json" | grep -q '"transformer.ln_f' || fail "gpt2 does not begin with its last layer"
tail -n 3 "$tmp/out/gpt2.json" | grep -q '"transformer.w[tp]e.weight"' || fail "gpt2 does not end with its embedding"
[ "$(grep -c 'wte\|lm_head' "$tmp/out/gpt2.json")" -eq 1 ] || fail "gpt2: the head and the embedding are not one tensor"
# a file that is there is replaced; gradients stay f32 where the network computes in bf16
OMP_NUM_THREADS=1 python3 planner/models/measure.py --device cpu --small --steps 1 --warm 0 --batch 1 --bf16 --out "$tmp/out" \
    vgg16 >"$tmp/lines" || fail "--bf16: exit status $?"
grep -q '"batch": 1,' "$tmp/out/vgg16.json" || fail "vgg16.json was not replaced"
grep -q '"device": "CPU.*bf16' "$tmp/out/vgg16.json" || fail "--bf16: vgg16.json does not say so"
grep -q '"dtype": "f32"' "$tmp/out/vgg16.json" || fail "--bf16: gradients are not f32"
[ "$before" = "$(ls planner/models)" ] || fail "planner/models has other files: $(ls planner/models)"
