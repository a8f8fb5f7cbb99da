# test_profile_ends.sh: `espresso profile` if the trainer or a rank fails: it writes no file, and no process is left.
# runs: quiet slow
. tests/cli/lib.sh
varies='/noisy/d; s/profile-[0-9]*/profile-PID/; s/(pid [0-9]*)/(pid PID)/; s/[0-9][0-9.]* [mun]*s\b/TIME/g'
trainer="$programs/trainer"
model() { quiet profile --only model "$@" && sed 's/^/2> /' "$top/2" | plain; } # FLAGS

# a trainer that ignores SIGTERM gets SIGKILL. Its output does not mix with ours
model --steps 3 -o t.json -- sh -c "echo hello; '$trainer' 20 last:100 first:100; trap '' TERM; sleep 60; sleep 60"
has "$top/1" hello | sed 's/.* lacks/stdout lacks/'

model -o t.json -- "$trainer" 4 last:100 first:100
model -o t.json -- "$trainer" 9 last:100 first:100

# an older file stays, and if the trainer fails, links and codecs are not measured
echo old >t.json
for script in 'exit 0' 'exit 9' 'kill -SEGV $$'; do
    model -o t.json -- sh -c "$script"
done
run profile -n 2 --only model,links,codecs -o t.json -- sh -c 'exit 0'
run profile -n 1 --only model -o t.json -- sh -c 'exit 9'
model -o t.json -- "$trainer" 0 last:100
start profile -n 2 -o t.json -- sh -c 'echo ready; sleep 60'
soon said '[0] ready'
soon said '[1] ready'
kill -INT "$pid"
order=sort
finish
cat t.json

# a rank that measures is killed: a child of the command with ESPRESSO_RANK=1
rank_1() {
    for victim in $(cat "/proc/$pid/task/$pid/children"); do
        tr '\0' '\n' <"/proc/$victim/environ" | grep -qx ESPRESSO_RANK=1 && return 0
    done
    return 1
}
for part in links codecs; do
    start profile -n 2 --only $part -o killed.json
    soon rank_1
    kill -KILL "$victim"
    wait "$pid" 2>"$top/shell"
    echo "[exit $?]"
    grep -o 'rank 1 (pid [0-9]*)' "$top/2" | plain
    flock -w 5 "$top/lock" true || echo "processes that it started live on"
done
ls -A
