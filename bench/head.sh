#!/bin/sh
# head.sh: prints the comment line that describes the machine in a result's CSV.
cpu=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -n 1)
echo "# machine: ${cpu:-unknown CPU}, $(nproc) cores, $(uname -sr), $(${CC:-gcc} --version | head -n 1), load before:" \
    "${LOAD:-$(cut -d' ' -f1-3 /proc/loadavg)}; $(date +%F)"
