# distinct.sh: of the programs $(BUILD)/ptx-sm_N/cuda/test_NAME, prints those that must run. From the second architecture
# on, a test runs only the codecs of files whose PTX, translated, differs from that of each architecture before. They
# go to PROGRAM.codecs, which the program reads (ptx.cc).
codecs_of() { # FILE: the codecs of a file of codecs/cuda
    sed -n 's/^CUDA_\(BLOCKS_\)\{0,1\}CODEC(\([a-z0-9]*\),.*/\2/p' "codecs/cuda/${1%.cc}.cu"
}
for program in "$@"; do
    test=${program##*/} dir=${program%/cuda/*} before='' names=
    rm -f "$program.codecs"
    for other in "$@"; do
        [ "$other" = "$program" ] && break
        [ "${other##*/}" != "$test" ] || before="$before ${other%/cuda/*}"
    done
    [ -n "$before" ] || { echo "$program" && continue; }
    for file in $(cd "$dir" && find . -name '*.cc' | sort); do
        for other in $before; do
            cmp -s "$dir/$file" "$other/$file" && continue 2
        done
        for name in $(codecs_of "$file"); do
            grep -q "\"${name}[\":]" "tests/cuda/$test.c" && names="$names $name"
        done
    done
    if [ -n "$names" ]; then
        echo "$names" >"$program.codecs"
        echo "$program: only$names, since the other codecs' PTX is that of an earlier architecture" >&2
        echo "$program"
    else
        echo "$program: not run, since its codecs' PTX is that of an earlier architecture" >&2
    fi
done
