# test_run.sh: `espresso run`: the variables of ranks, their output, and wrong usage. Ranks are shell scripts, since the
# launcher must not need the library in them. test_run_ends.sh has the ends of jobs.
. tests/cli/lib.sh
order=sort
run run -n 4 --machines 2 --inter 1gbit,50us --env A=b=c --env ESPRESSO_TIMEOUT_MS=1234 -- sh -c \
    'echo $ESPRESSO_RANK $ESPRESSO_SIZE $ESPRESSO_MACHINE $ESPRESSO_LOCAL_RANK $ESPRESSO_LAUNCHER $ESPRESSO_INTER_LINK $A $ESPRESSO_TIMEOUT_MS'
run run --ranks-per-machine 3,1 sh -c 'echo $ESPRESSO_RANK $ESPRESSO_SIZE $ESPRESSO_MACHINE $ESPRESSO_LOCAL_RANK'
run run -n 8 --machines 4 --racks 2 --outer 100mbit,1ms -- sh -c 'echo $ESPRESSO_MACHINE $ESPRESSO_PLACE $ESPRESSO_OUTER_LINK'
export ESPRESSO_PLACE=elsewhere # of a job around this one
run run -n 1 -- sh -c 'echo "<$ESPRESSO_PLACE>"'
unset ESPRESSO_PLACE
run run -n 4 --machines 4 --racks 3 -- true
run run -n 4 --machines 4 --outer 1gbit -- true

# OpenMP teams of all ranks together have no more threads than cores, unless the user sets a number
policy=${OMP_WAIT_POLICY:-} && unset OMP_WAIT_POLICY
varies='s/^\[0\] [1-9][0-9]* passive/[0] CORES passive/'
run run -n 1 -- sh -c 'echo $OMP_NUM_THREADS $OMP_WAIT_POLICY'
holds "$(cut -d' ' -f2 "$top/1") <= $(nproc)"
run run -n 4 --env OMP_NUM_THREADS=7 --env OMP_WAIT_POLICY=active -- sh -c 'echo $OMP_NUM_THREADS $OMP_WAIT_POLICY'
[ -z "$policy" ] || export OMP_WAIT_POLICY="$policy"
quiet run -n 64 --machines 8 -- sh -c 'echo $OMP_NUM_THREADS'
[ "$(nproc)" -ge 128 ] || sed 's/.* //' "$top/1" | grep -vx 1
(
    export OMP_NUM_THREADS=3
    run run -n 4 -- sh -c 'echo $OMP_NUM_THREADS'
)

# each run has its own abstract socket and its own secret, equal on all ranks, whatever the environment has; the secret
# is on no command line
export ESPRESSO_SECRET=ffffffffffffffffffffffff
for n in 1 2; do
    quiet run -n 2 --no-prefix -- sh -c 'echo $ESPRESSO_ROOT $ESPRESSO_SECRET'
    uniq "$top/1" >told.$n
    sed 's/[0-9a-f]\{48\}$/SECRET/; s/\(espresso-\)[0-9a-f]\{10,\}/\1MEETING/' told.$n
done
[ "$(cat told.1 told.2 | tr ' ' '\n' | sort -u | wc -l)" = 4 ] || echo "two runs share something"
run run -n 1 --no-prefix -- sh -c 'tr "\0" " " </proc/$PPID/cmdline | grep -c -- "$ESPRESSO_SECRET"; true'
run run -n 1 --env ESPRESSO_SECRET=0123456789abcdef0123456789abcdef -- true
unset ESPRESSO_SECRET

# ---- output: lines are complete, in order, and none is lost. awk opens /dev/stderr itself, so the file may be missing 
lost() { # RANKS LINES FILE: prints lines that are missing or out of order
    awk -v ranks="$1" -v lines="$2" '{ r = substr($1, 2) + 0; if (NF != 6 || $2 != next_of[r]++ || $6 != "fox") bad++ }
        END { for (r = 0; r < ranks; r++) if (next_of[r] != lines) bad++; print NR " lines, " bad + 0 " wrong" }' "$3"
}
both="awk '{ s = \$0 \" the quick brown fox\"; print s; print s > \"/dev/stderr\" }'"
quiet run -n 8 -- sh -c "seq 0 9999 | $both"
lost 8 10000 "$top/1"
lost 8 10000 "$top/2"
"$ESPRESSO_COMMAND" run -n 4 -- sh -c "seq 0 2999 | $both" >one 2>&1 # where both streams are one file, too
awk '{ print NF, $3, $4, $5, $6 }' one | sort | uniq -c | sed 's/^ *//'
run run -n 2 -- printf 'a\nb' # a last line without newline
quiet run -n 2 -- sh -c 'head -c 300000 /dev/zero | tr "\0" x; echo; head -c 3000000 /dev/zero'
[ "$(wc -c <"$top/1")" -ge 6600002 ] || echo "long lines are cut"
echo hello | run run -n 2 -- sh -c 'cat; echo end' # rank 0 reads the input
echo '--- standard streams that are full, or closed: nothing else may land in their place'
"$ESPRESSO_COMMAND" run -n 2 echo hi 2>&1 >/dev/full
echo "[exit $?]"
three="cat; echo out; echo err >&2"
timeout 20 "$ESPRESSO_COMMAND" run -n 2 -- sh -c "$three" <&- >"$top/1" 2>"$top/2" && sort "$top/1" "$top/2"
timeout 20 "$ESPRESSO_COMMAND" run -n 2 -- sh -c "$three" >&- 2>"$top/2" && sort "$top/2"
timeout 20 "$ESPRESSO_COMMAND" run -n 2 -- sh -c "$three" 2>&- >"$top/1" && sort "$top/1"
timeout 20 "$ESPRESSO_COMMAND" run -n 2 -- sh -c "$three" <&- >&- 2>&- && echo "all closed: done"

# ---- wrong usage -----------------------------------------------------------------------------------------------------
order=cat varies='s/ PATH (.*)/ PATH (...)/'
echo text >text
for program in ./no/such/program no-such-program-anywhere ./text /; do run run -n 2 -- $program; done
run runn
run bake
run run
run run ls
run run -n
for n in 0 2x -1; do run run -n $n ls; done
run run -n 4
run run -n 4 --
run run -np 4 ls
run run --machine 4 ls
run run -n 4 --machines=3 ls
run run -n 5 --ranks-per-machine=3,1 ls
run run --ranks-per-machine=3,,1 ls
run run --ranks-per-machine=3,0 ls
for link in 1gb -1gbit 0gbit 1gbit,50 1gbit, 1gbit@3s '1gbit;100mbit' '1gbit,5us;100mbit,5us@3' 1gbit,5us,6us '1gbit;' file:; do run run -n2 --inter "$link" ls; done
run run -n2 --env A ls
run run -n2 --env ESPRESSO_RANK=1 ls
run help run
quiet run --help
cmp "$top/1" - <<END
$("$ESPRESSO_COMMAND" help run)
END
quiet --version
grep -cE '^espresso 0\.[0-9.]+' "$top/1"
