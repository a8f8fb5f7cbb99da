# test_job.sh: the launcher and the library together: ranks connect, agree on machines and average; one dies.
# runs: quiet
. tests/cli/lib.sh
varies='s/(pid [0-9]*)/(pid PID)/'
order=sort
job() { run run "$@"; }
job -n 4 --machines 2 --inter 1gbit,50us --env ESPRESSO_TIMEOUT_MS=15000 -- "$programs/trainer" 2 --say weight:100003
job --ranks-per-machine 1,3 --env ESPRESSO_TIMEOUT_MS=15000 -- "$programs/trainer" 1 --say weight:100003

# the launcher and all other ranks name the failed rank, and ranks end by themselves before the launcher ends them
varies="$varies; s/; this rank is in step .*//; s/unix:espresso-[0-9a-f]*/ROOT/"
job -n 4 --machines 2 --env ESPRESSO_TIMEOUT_MS=15000 -- "$programs/trainer" 1000000 --die 5 weight:100003
varies="$varies; s/rank [02] (pid/rank 0|2 (pid/; s/rank [02] failed/rank 0|2 failed/"
job -n 3 --env ESPRESSO_TIMEOUT_MS=500 -- sh -c 'if [ $ESPRESSO_RANK = 1 ]; then exec sleep 60; else exec "$0" 1 weight:10; fi' "$programs/trainer"

# A killed rank with much memory takes long to end, so that others may end before it: rank 0 exits as soon as the kernel
# reports that rank 1 is exiting (PF_EXITING). The launcher must still name rank 1.
mkfifo pipe
cat >slow.sh <<'END'
if [ "$ESPRESSO_RANK" = 1 ]; then
    echo $$ >victim.new && mv victim.new victim
    exec dd if=/dev/zero bs=1G of=pipe # fills its memory before it writes
fi
exec 3<pipe
dd bs=1 count=1 <&3 >first 2>said
read -r pid <victim
kill -9 "$pid"
while read -r stat <"/proc/$pid/stat"; do
    set -- ${stat##*) }
    [ $(($7 & 4)) = 0 ] || exit 1
done
exit 4
END
job -n 2 -- sh slow.sh
