#!/bin/sh
# test_golden_script.sh: golden.inc, golden_bodies.inc and golden_feedback.inc are what golden.py prints.
set -u
for python in python3 /usr/bin/python3; do # Debian's packages are for the second one
    "$python" -c 'import numpy' 2>/dev/null || continue
    "$python" tests/codecs/golden/golden.py | cmp - tests/codecs/golden/golden.inc || exit 1
    "$python" tests/codecs/golden/golden.py bodies | cmp - tests/codecs/golden/golden_bodies.inc || exit 1
    "$python" tests/codecs/golden/golden.py feedback | cmp - tests/codecs/golden/golden_feedback.inc || exit 1
    echo "golden.inc, golden_bodies.inc and golden_feedback.inc are up to date"
    exit 0
done
echo "skipped: python3 has no numpy (Debian: python3-numpy)"
exit 77
