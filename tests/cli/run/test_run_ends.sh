# test_run_ends.sh: how jobs of `espresso run` end: by themselves, by failed or killed ranks, by signals; no process is
# left.
# runs: quiet slow
. tests/cli/lib.sh
varies='s/(pid [0-9]*)/(pid PID)/; /^2> \[[0-9]\] \(Terminated\|User defined\)/d' order=sort # messages of shells
ready() { for rank in "$@"; do soon said "[$rank] ready"; done; }

run run -n 3 -- sh -c '[ $ESPRESSO_RANK != 1 ] || exit 7; exec sleep 60'
# other ranks get time to notice
run run -n 3 -- sh -c '[ $ESPRESSO_RANK != 1 ] || exit 7; sleep 0.5; echo saved; exit 3'
# a killed rank, and others that ignore SIGTERM
run run -n 2 -- sh -c '[ $ESPRESSO_RANK != 1 ] || kill -9 $$; trap "" TERM; sleep 60; sleep 60'
# background processes of ranks end with the job, whether or not they hold the output
run run -n 2 -- sh -c 'sleep 60 >/dev/null 2>&1 & sleep 61 & echo done'

for signal in TERM USR1; do # signals are forwarded; USR1 does not end the job
    start run -n 3 -- sh -c "trap 'echo got; exit 0' $signal; echo ready; while :; do sleep 0.05; done"
    ready 0 1 2
    kill -$signal "$pid"
    finish
done
start run -n 2 -- sh -c 'echo ready; exec sleep 60' # the exit status is that of the interrupt
ready 0 1
kill -INT "$pid"
finish
start run -n 2 -- sh -c 'trap "" INT; echo ready; sleep 60; sleep 60' # a second Ctrl-C kills ranks that ignore the first
ready 0 1
kill -INT "$pid"
sleep 0.7
kill -INT "$pid"
varies="$varies; s/rank [01] (pid/rank R (pid/"
finish
start run -n 3 -- sh -c 'sleep 60 & echo ready; sleep 60; echo never' # kill -9 of the launcher
ready 0 1 2
kill -KILL "$pid"
finish

echo '--- nobody reads the output: signals work all the same; who insists drops it'
mkfifo pipe
(flock 9 && exec "$ESPRESSO_COMMAND" run -n 2 -- yes >pipe 2>said) 9>"$top/lock" &
pid=$!
exec 7<pipe
sleep 0.3
kill -TERM $pid
sleep 0.7
kill -TERM $pid
wait $pid 2>"$top/shell"
echo "[exit $?]"
exec 7<&-
flock -w 5 "$top/lock" true || echo "processes that it started live on"
echo '--- the output is closed'
{ "$ESPRESSO_COMMAND" run -n 2 -- yes 2>said; echo "[exit $?]" >status; } | head -n 1 >line
cat said status
