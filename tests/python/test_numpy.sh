# test_numpy.sh: the Python package with numpy arrays: means over two ranks, checks of arrays, codecs, states, several
# contexts in one process, a forked child, and an interpreter that ends without close().
. tests/python/common.sh
python_with "Debian: python3-numpy" numpy
for part in alone plan; do try env TMPDIR="$tmp" timeout 60 "$python" tests/python/check_numpy.py $part; done
for part in means state fork exit groups; do
    try timeout 60 "$espresso" run -n 2 -- "$python" tests/python/check_numpy.py $part
done
try timeout 60 "$espresso" run -n 4 -- "$python" tests/python/check_numpy.py groups
if timeout 60 "$espresso" run -n 2 -- "$python" tests/python/check_numpy.py dies >"$tmp/output" 2>&1; then
    echo "the death of rank 1 went unnoticed" && exit 1
fi
grep -q "PeerError.*rank 1 died" "$tmp/output" || { cat "$tmp/output" && exit 1; }
