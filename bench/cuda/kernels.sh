#!/bin/sh
# kernels.sh: registers, shared memory and spills of each kernel of plugin cuda, for each architecture, from the compiler's own report.
#   sh bench/cuda/kernels.sh [BUILD]      a line a kernel and architecture; ends with 1 if a kernel spills more than SPILL bytes (32)
build=${1:-build}
set -- "$build"/cuda/*.ptxas
if [ ! -e "$1" ]; then
    echo "kernels.sh: $build/cuda has no reports: build the plugin with nvcc first (make plugins)" >&2
    exit 1
fi
demangle='cat'
command -v c++filt >/dev/null 2>&1 && demangle="c++filt -p"
printf '%-60s %-8s %9s %7s %7s\n' kernel arch registers shared spills
cat "$@" | awk '
    /Compiling entry function/ {
        split($0, q, "\047"); kernel = q[2]; arch = q[4]
    }
    /bytes spill stores/ { spill = $5 }
    /Used [0-9]+ registers/ {
        for (i = 1; i <= NF; i++) if ($i == "Used") registers = $(i + 1)
        shared = 0
        if (match($0, /[0-9]+ bytes smem/)) shared = substr($0, RSTART, RLENGTH) + 0
        print kernel, arch, registers, shared, spill
    }' | $demangle | sed 's/, /,/g' | sort | awk -v limit="${SPILL:-32}" '
    { printf "%-60s %-8s %9d %7d %7d\n", $1, $2, $3, $4, $5; spills += $5 > 0; if ($5 > most) most = $5 }
    END { printf "%d kernels and architectures, %d of them spill\n", NR, spills; exit most > limit }'
