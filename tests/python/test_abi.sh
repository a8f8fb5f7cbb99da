# test_abi.sh: the ctypes declarations of the Python package are those of espresso.h: sizes, offsets, constants, and the
# types of all functions.
. tests/python/common.sh
python_with "Debian: python3" ctypes
try "$python" tests/python/check_abi.py "${CC:-gcc}" "$tmp"
