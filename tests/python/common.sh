# common.sh: for the scripts of this folder: finds an interpreter, and runs programs with the package of this checkout.
. tests/compile/common.sh
export ESPRESSO_LIBRARY="$root/$build/lib/libespresso.so" PYTHONPATH="$root/python" PYTHONDONTWRITEBYTECODE=1
export OMP_NUM_THREADS=1
espresso=$root/$build/bin/espresso
# sets $python to an interpreter that has these modules, or skips the test; $PYTHON comes first
python_with() { # DEBIAN-PACKAGES MODULE...
    packages=$1
    shift
    for python in "${PYTHON:-python3}" python3 /usr/bin/python3; do
        "$python" -c "$(printf 'import %s\n' "$@")" 2>/dev/null && return
    done
    echo "skipped: python3 with $* is not there (Debian: $packages)"
    exit 77
}
