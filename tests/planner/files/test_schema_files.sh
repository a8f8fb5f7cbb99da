# test_schema_files.sh: a validator that knows nothing of this project (python3's jsonschema) accepts the schemas, every
# model, codec and system file of the tree, and what the library writes itself; and refuses wrong ones.
if ! python3 -c 'import jsonschema' 2>/dev/null; then
    echo "skipped: python3 with the package jsonschema is not there (Debian: python3-jsonschema)"
    exit 77
fi
python3 - <<'END'
import copy, glob, json, os, sys
from jsonschema import Draft202012Validator as Validator

wrong = 0
def say(text):
    global wrong
    wrong += 1
    print(text)

build = os.environ.get("BUILD", "build")
files = {
    "model": ["tests/fuzz/corpus/model/*.json", "planner/models/*.json", "tests/planner/files/published/*.json"],
    "codec": ["tests/fuzz/corpus/gc/*.json"],
    "system": ["tests/fuzz/corpus/system/*.json", build + "/share/espresso/systems/*.json"],
}
seen = 0
for kind, patterns in files.items():
    schema = json.load(open(f"docs/plan/schema/{kind}.schema.json"))
    Validator.check_schema(schema)
    validator = Validator(schema)
    for pattern in patterns:
        if not pattern.startswith("..") and not glob.glob(pattern):
            say(f"{pattern}: no such file")
    for path in sorted(sum(map(glob.glob, patterns), [])):
        data = json.load(open(path))
        if "espresso" not in data:  # such as costs-v100.json
            continue
        seen += 1
        for e in validator.iter_errors(data):
            say(f"{path}: {e.json_path}: {e.message[:200]}")
        if not path.endswith("full.json"):
            continue
        for key in schema["required"]:
            less = copy.deepcopy(data)
            del less[key]
            if validator.is_valid(less):
                say(f"{path} without {key} is valid")
        for key, value in ("espresso", 2), ("tensors", []), ("machines", 0), ("devices", {}):
            other = copy.deepcopy(data)
            if key in other:
                other[key] = value
                if validator.is_valid(other):
                    say(f"{path} with {key}: {value} is valid")
def part(kind):
    return json.load(open(f"docs/plan/schema/{kind}.schema.json"))
def full(folder):
    return json.load(open(f"tests/fuzz/corpus/{folder}/full.json"))
schema = part("costs")
for key in "system", "model":
    schema["properties"][key] = part(key)
schema["properties"]["codecs"]["items"] = part("codec")
Validator.check_schema(schema)
validator = Validator(schema)
costs = {"espresso": 1, "costs": "host", "system": full("system"), "codecs": [full("gc")], "model": full("model")}
for e in validator.iter_errors(costs):
    say(f"costs: {e.json_path}: {e.message[:200]}")
for key in schema["required"]:
    if validator.is_valid({k: v for k, v in costs.items() if k != key}):
        say(f"costs without {key} is valid")
for key, value in ("system", full("model")), ("codecs", [full("system")]), ("model", full("gc")), ("codecs", {}):
    if validator.is_valid({**costs, key: value}):
        say(f"costs with another file as {key} is valid")
print(f"{seen} files")
sys.exit(wrong > 0 or seen < 9)
END
