# test_style.sh: ruff and mypy find nothing in the Python package, which has at most 1,620 lines.
. tests/python/common.sh
lines=$(cat python/espresso/*.py | wc -l)
[ "$lines" -le 1620 ] || { echo "python/espresso has $lines lines: at most 1,620" && exit 1; }
for tool in ruff mypy; do need $tool; done
try ruff check --no-cache --config python/pyproject.toml python tests/python
try ruff format --no-cache --check --config python/pyproject.toml python tests/python
cd python && try mypy --cache-dir "$tmp/mypy" espresso
