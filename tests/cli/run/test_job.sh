# test_job.sh: the launcher and the library together: ranks that meet, agree on machines and average, and one that dies.
# runs: quiet
. tests/cli/lib.sh
varies='s/(pid [0-9]*)/(pid PID)/'
order=sort
job() { run run "$@"; }
job -n 4 --machines 2 --inter 1gbit,50us --env ESPRESSO_TIMEOUT_MS=15000 -- "$programs/trainer" 2 --say weight:100003
job --ranks-per-machine 1,3 --env ESPRESSO_TIMEOUT_MS=15000 -- "$programs/trainer" 1 --say weight:100003

# the launcher says who died and how; the others say it too, and end by themselves before they are made to
varies="$varies; s/; this rank is in step .*//; s/unix:espresso-[0-9a-f]*/ROOT/"
job -n 4 --machines 2 --env ESPRESSO_TIMEOUT_MS=15000 -- "$programs/trainer" 1000000 --die 5 weight:100003
varies="$varies; s/rank [02] (pid/rank 0|2 (pid/; s/rank [02] failed/rank 0|2 failed/"
job -n 3 --env ESPRESSO_TIMEOUT_MS=500 -- sh -c 'if [ $ESPRESSO_RANK = 1 ]; then exec sleep 60; else exec "$0" 1 weight:10; fi' "$programs/trainer"

# A killed rank takes long to end, as its memory has to be given back, so that the others can be seen to have ended before the one that
# was the reason: rank 0 exits as soon as the kernel says that rank 1 is ending (PF_EXITING).
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
