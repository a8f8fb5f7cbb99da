# test_ladder.sh: the commands in the README of each numbered example, with an installed library, print what the README
# says. "..." in it stands for any text. The programs have less than 120 lines, and no warnings.
# runs: slow
. tests/compile/common.sh
need pkg-config
staged
export PATH="$stage/bin:$PATH" LD_LIBRARY_PATH="$stage/lib" PKG_CONFIG_PATH="$stage/lib/pkgconfig"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cp -r examples "$tmp/examples"
mkdir "$tmp/bin" # compilers with warnings
for c in cc c++ mpicc; do
    have $c || continue
    printf '#!/bin/sh\nexec %s -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror "$@"\n' "$(command -v $c)" >"$tmp/bin/$c"
    chmod +x "$tmp/bin/$c"
done
PATH=$tmp/bin:$PATH

block() { awk -v start="^\`\`\`$1\$" '/^```/ { on = $0 ~ start; next } on' README.md; }
failed=0
run() { # FOLDER: its commands, in a copy of the folder
    cd "$1"
    block text >expected
    block sh >commands
    timeout 120 sh -eu commands >said 2>errors </dev/null || echo "exit status $?" >>said
    sed 's/[][().*^$+?{}|\\]/\\&/g; s/\\\.\\\.\\\./.*/g' expected >patterns
    awk 'NR == FNR { pattern[++n] = "^" $0 "$"; next } $0 !~ pattern[++m] { bad = 1 } END { exit bad || !n || n != m }' \
        patterns said && { cd - >/dev/null && return; }
    cd - >/dev/null
    echo "FAILED: the commands of $1/README.md; expected, and what was printed:"
    diff "$1/expected" "$1/said" || :
    cat "$1/errors"
    failed=1
}
count=0
for example in examples/[0-9]*; do
    for file in "$example"/*; do
        [ "$(wc -l <"$file")" -lt 120 ] || { echo "$file has 120 lines or more" && failed=1; }
    done
    case $example in
    */06_mpi) have mpicc && [ -e "$stage/lib/espresso/libespresso-mpi.so" ] || { leaves_out "06_mpi: mpicc is not there" && continue; } ;;
    */11_ddp)
        python=$(for p in "${PYTHON:-python3}" /usr/bin/python3; do "$p" -c 'import torch.distributed' 2>/dev/null && command -v "$p" && break; done || :)
        [ -n "$python" ] || { leaves_out "11_ddp: python3 with torch is not there" && continue; }
        # not a link: that would leave python's virtual environment
        printf '#!/bin/sh\nexec %s "$@"\n' "$python" >"$tmp/bin/python3"
        chmod +x "$tmp/bin/python3"
        export PYTHONPATH="$root/python" ESPRESSO_LIBRARY="$stage/lib/libespresso.so" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
        ;;
    */12_cuda) # on the emulator, with plugin cuda in the program
        emulated="$build/cuda-host/tests.a $build/test-library/tests.a"
        ls $emulated >/dev/null 2>&1 || { leaves_out "12_cuda: the emulator is not built" && continue; }
        have nvidia-smi && nvidia-smi -L >/dev/null 2>&1 && run "$tmp/$example"
        cat >"$tmp/open.cc" <<'EOF'
#include "espresso.h"
extern "C" const esp_plugin *espresso_plugin_v1_cuda(const esp_host *);
esp_status open_with_cuda(const esp_config *cfg, esp_ctx **out) {
    static const esp_plugin_fn cuda = espresso_plugin_v1_cuda;
    esp_config with = *cfg;
    with.builtin = &cuda, with.n_builtin = 1;
    return esp_open(&with, out);
}
EOF
        sed 's/esp_open/open_with_cuda/; s/#include "espresso.h"/&\nesp_status open_with_cuda(const esp_config *, esp_ctx **);/' "$example/cuda.cc" >"$tmp/cuda.cc"
        # shellcheck disable=SC2086 # several files
        try ${CXX:-g++} -std=c++20 -Itests/cuda/emulator -I. "$tmp/cuda.cc" "$tmp/open.cc" $emulated -o "$tmp/$example/cuda" -lcmocka -ljansson -fopenmp -pthread -ldl -lm
        sed -i '/^c++/d' "$tmp/$example/README.md"
        ;;
    esac
    run "$tmp/$example"
    count=$((count + 1))
done
rc=0
BUILD=$build sh examples/14_outer/two_hosts.sh 20 >"$tmp/two" 2>&1 || rc=$?
if [ $rc -eq 77 ]; then
    leaves_out "14_outer/two_hosts.sh: $(cat "$tmp/two")"
elif [ $rc -ne 0 ] || [ "$(grep -c ' 20 steps in .* s, loss of the last 20: [1-9]' "$tmp/two")" -ne 3 ]; then
    cat "$tmp/two"
    failed=1
fi
[ $count -ge 10 ] || { echo "only $count examples ran" && failed=1; }
[ $failed -eq 0 ] || exit 1
checked
