# common.sh: for the scripts of this folder: finds an interpreter, and runs programs with the package of this checkout.
# $PYTHON comes first; $TORCH_PYTHON names another one, with another release of torch.
. tests/compile/common.sh
export ESPRESSO_LIBRARY="$root/$build/lib/libespresso.so" PYTHONPATH="$root/python" PYTHONDONTWRITEBYTECODE=1
export OMP_NUM_THREADS=1
espresso=$root/$build/bin/espresso
# sets $python to an interpreter that has these modules, or skips the test
python_with() { # WHAT-TO-INSTALL MODULE...
    packages=$1
    shift
    for python in "${PYTHON:-python3}" python3 /usr/bin/python3 ${TORCH_PYTHON:-}; do
        "$python" -c "$(printf 'import %s\n' "$@")" 2>/dev/null && return
    done
    echo "skipped: no python3 has this ($packages)"
    exit 77
}
# runs a program with all ranks of a job, at which torch's ranks meet at a new file
job() { # SECONDS OPTIONS PROGRAM ARGUMENT...
    seconds=$1 options=$2 program=$3
    shift 3
    rm -f "$tmp/store"
    # shellcheck disable=SC2086 # options are several
    timeout "$seconds" "$espresso" run $options -- "$python" "$program" "$tmp/store" "$@"
}
