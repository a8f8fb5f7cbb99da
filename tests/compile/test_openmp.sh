# test_openmp.sh: the one-file header under -fopenmp, by gcc and clang: no warnings, one pool of threads, and the same
# bits as without OpenMP, with its loops vectorised or not. A build without OpenMP refuses ESPRESSO_WORKERS=openmp with
# a message.
# time limit: 600 s
# runs: long
. tests/compile/common.sh
try make -s dist
cp dist/espresso.h tests/compile/use_openmp.c "$tmp/"
cd "$tmp"
unset OMP_NUM_THREADS ESPRESSO_WORKERS
LIBS="-pthread -ldl -lm"
try gcc -O1 -Wall -Wextra -Werror -ffp-contract=off use_openmp.c -o without $LIBS
try ./without
mv output expected
[ "$(wc -l <expected)" -eq 8 ] || { cat expected && exit 1; }
same() { # BUILD WORKERS THREADS
    ESPRESSO_WORKERS=$2 OMP_NUM_THREADS=$3 timeout 120 "./$1" >found 2>&1 && cmp -s expected found && return
    echo "$1, ESPRESSO_WORKERS=$2, OMP_NUM_THREADS=$3: expected"
    cat expected
    echo "found"
    cat found
    exit 1
}
same without 3 1
if ESPRESSO_WORKERS=openmp ./without >found 2>&1 || ! grep -q "compiled without OpenMP.*-fopenmp.*ESPRESSO_WORKERS=N" found; then
    echo "asked for openmp, a build without it must say how to get it:"
    cat found
    exit 1
fi
for cc in gcc clang; do
    have $cc || { leaves_out "$cc is not there" && continue; }
    printf '#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n' >probe.c
    $cc -fopenmp probe.c -o probe 2>/dev/null || { leaves_out "$cc has no OpenMP (Debian: libomp-dev)" && continue; }
    try $cc -O1 -fopenmp -Wall -Wextra -Werror -ffp-contract=off use_openmp.c -o $cc-openmp $LIBS
    for workers in "" 2 openmp openmp:2; do
        same $cc-openmp "$workers" 3
    done
    same $cc-openmp openmp 1
done
try gcc -O1 -fopenmp-simd -DESP_OPENMP_SIMD -ffp-contract=off use_openmp.c -o simd $LIBS
same simd 2 1
# the library by make
cd "$root"
make -n -s OPENMP=1 BUILD="$tmp/build" lib >"$tmp/found"
grep -c -e "-fopenmp.* -c espresso.c" "$tmp/found" >/dev/null || { cat "$tmp/found" && exit 1; }
make -n -s BUILD="$tmp/build" lib | grep -e -fopenmp && { echo "the library must not need OpenMP by default" && exit 1; }
checked
