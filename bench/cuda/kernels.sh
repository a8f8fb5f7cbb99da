#!/bin/sh
# kernels.sh: registers, shared memory and spills of each kernel of plugin cuda, over all architectures, from the
# compiler's own report.
#   sh bench/cuda/kernels.sh [BUILD] >bench/results/cuda/cuda-kernels.csv
# Exits with 1 if a kernel uses more than SPILL bytes (32) of local memory a thread.
build=${1:-build}
set -- "$build"/cuda/*.ptxas "$build"/cuda/*/*.ptxas
if [ ! -e "$1" ]; then
    echo "kernels.sh: $build/cuda has no reports: build the plugin with nvcc first (make plugins)" >&2
    exit 1
fi
demangle='cat'
command -v c++filt >/dev/null 2>&1 && demangle="c++filt -p"
echo "# bench/cuda/kernels.sh: plugin cuda's kernels, as nvcc compiled them: registers a thread (least and most over the" \
    "architectures), bytes of shared memory, most bytes of local memory a thread (of spilled registers, or of arrays with" \
    "an index of run time), bytes of spilled registers with their architectures"
echo "kernel,registers_least,registers_most,shared_bytes,local_bytes,spills"
cat "$@" | awk '
    /Compiling entry function/ {
        split($0, q, "\047"); kernel = q[2]; arch = q[4]
    }
    /bytes spill stores/ { local = $1; spill = $5 }
    /Used [0-9]+ registers/ {
        for (i = 1; i <= NF; i++) if ($i == "Used") registers = $(i + 1)
        shared = 0
        if (match($0, /[0-9]+ bytes smem/)) shared = substr($0, RSTART, RLENGTH) + 0
        print kernel, arch, registers, shared, spill, local
    }' | $demangle | sed 's/, /,/g; :again; s/> >/>>/; t again; s/signed char/int8_t/g' | sort | awk -v limit="${SPILL:-32}" '
    {
        if (!($1 in least)) { order[++kernels] = $1; least[$1] = $3 }
        if ($3 < least[$1]) least[$1] = $3
        if ($3 > most[$1]) most[$1] = $3
        shared[$1] = $4
        archs[$2] = 1
        if ($5 > worst) worst = $5
        if ($6 > memory[$1]) memory[$1] = $6
        if ($6 > most_memory) most_memory = $6
        if ($5 > 0 && index(spills[$1], $2 ":") == 0) spills[$1] = spills[$1] " " $2 ":" $5
    }
    END {
        for (i = 1; i <= kernels; i++) {
            k = order[i]
            spilling += spills[k] != ""
            printf "\"%s\",%d,%d,%d,%d,%s\n", k, least[k], most[k], shared[k], memory[k], spills[k] == "" ? 0 : substr(spills[k], 2)
        }
        for (a in archs) n++
        printf "# %d kernels, %s, %d kernels spill on some of them, %d bytes at most\n",
               kernels, n == 1 ? a : n " architectures", spilling, worst
        exit most_memory > limit
    }'
