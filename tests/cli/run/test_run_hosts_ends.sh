# test_run_hosts_ends.sh: how jobs of `espresso run --hosts` end: by ranks that fail, by signals, by connections that
# break.
# runs: quiet slow
. tests/cli/run/hosts.sh
varies="$varies; /^2> \\[[0-9]\\] \\(Terminated\\|User defined\\|Killed\\)/d"

# other ranks may end by themselves
on a:1,b:2 -- sh -c '[ $ESPRESSO_RANK != 1 ] || exit 7; sleep 1; echo saved; exit 3'
varies="$varies; /failed after that/d; /^2> Killed/d"
on a:1,b:2 -- sh -c '[ $ESPRESSO_RANK != 1 ] || exit 7; exec sleep 60'
# rank 0 on another host exits at once when rank 1 is killed: the killed one is named
on a:1,b:1 -- sh -c 'if [ $ESPRESSO_RANK = 1 ]; then echo $$ >victim.new; mv victim.new victim; exec sleep 60; fi
    until [ -s victim ]; do sleep 0.01; done; kill -9 $(cat victim); exit 5' | sed '/rank 0 (pid PID) exited with status 5/d'
on a:1,b:1 -- sh -c '[ $ESPRESSO_RANK != 1 ] || exit 9; trap "" TERM; sleep 60; sleep 60' # others ignore SIGTERM
on a:1,b:1 -- sh -c 'sleep 60 >/dev/null 2>&1 & sleep 61 & echo done' # background children end

for signal in TERM USR1; do # signals are forwarded
    at a:1,b:2 -- sh -c "trap 'echo got; exit 0' $signal; echo ready; while :; do sleep 0.05; done"
    ready 0 1 2
    kill -$signal "$pid"
    finish
done
# Ctrl-Z stops the launcher and all ranks, until fg continues them
at a:1,b:1 -- sh -c 'echo ready; i=0; while [ $i -lt 40 ]; do sleep 0.05; i=$((i + 1)); done; echo end'
ready 0 1
kill -TSTP "$pid"
soon grep -q '^State:.*stopped' "/proc/$pid/status"
sleep 4 # longer than the ranks' loop
kill -CONT "$pid"
began=$(date +%s%N)
finish
[ $(($(date +%s%N) - began)) -gt 500000000 ] || echo "they went on while they were stopped"
at a:1,b:1 -- sh -c 'trap "" INT; echo ready; sleep 60; sleep 60' # a second Ctrl-C kills ranks that ignore the first
ready 0 1
kill -INT "$pid"
sleep 0.7
kill -INT "$pid"
wait "$pid" 2>"$top/shell"
echo "[exit $?]"
flock -w 5 "$top/lock" true || echo "processes that it started live on"

# ---- kill -9: of the launcher, of a remote shell, of the process that starts the ranks on a host ---------------------
busy='sleep 60 & echo ready; sleep 60; echo never'
at a:2,b:1 -- sh -c "$busy"
ready 0 1 2
kill -KILL "$pid"
finish
: >pids
at a:1,b:2 -- sh -c "$busy"
ready 0 1 2
kill -KILL "$(sed -n 's/ b$//p' pids)"
finish
at a:1,b:2 -- sh -c "echo \$PPID >part.\$ESPRESSO_RANK; $busy"
ready 0 1 2
kill -KILL "$(cat part.1)"
finish

echo '--- nobody reads the output: signals work all the same; who insists drops it'
mkfifo pipe
(flock 9 && exec "$ESPRESSO_COMMAND" run --rsh "$PWD/rsh" --root 127.0.0.1 --hosts a:1,b:1 -- yes >pipe 2>said) 9>"$top/lock" &
pid=$!
exec 7<pipe
head -n 1 <&7 | cut -c5-
sleep 1
kill -TERM $pid
sleep 0.7
kill -TERM $pid
wait $pid 2>"$top/shell"
code=$?
# 137: on a busy machine SIGKILL may come before a rank has handled SIGTERM
case $code in 143 | 137) ;; *) echo "exit status $code" ;; esac
exec 7<&-
flock -w 5 "$top/lock" true || echo "processes that it started live on"
echo '--- the output is closed'
{ "$ESPRESSO_COMMAND" run --rsh "$PWD/rsh" --root 127.0.0.1 --hosts a:1,b:1 -- yes 2>said; echo "[exit $?]" >status; } | head -n 1 >line
cat status
