# test_profile_usage.sh: `espresso profile`: wrong usage, and programs that cannot be measured.
. tests/cli/lib.sh
bad() { run profile "$@" -o c.json; } # FLAGS
bad
run profile -n 2
bad -n 0
bad -n 1
bad -n 3 --machines 2
bad -n 2 --inter 1gbit
bad -n 2 --machines 2 --inter fast
bad -n 2 --codecs nonsense
bad -n 2 --codecs dgc:ratio=7
bad -n 2 --codecs 'fp16;fp16'
bad -n 2 --codecs ' ;'
bad -n 2 --device tpu
bad -n 2 --up-to 1000
bad -n 2 --up-to all
bad -n 2 --budget soon
bad -n 2 --only links,all
bad -n 2 --steps 4
run profile -n 2 --steps 0 -o c.json ls
run profile -n 2 --only links -o c.json ls
bad -n 2 --only model
run profile --only model --machines 2 -o c.json ls
run profile -n 2 -o /nowhere/c.json
run profile -n 2 -o /
run profile -n 2 -o c.json -- ./no/such
bad -n 2 --as-rank 3,4
(
    export ESPRESSO_BACKEND=nonsense
    quiet profile --only links -n 2 --budget 1s -o s.json
    grep '^espresso profile' "$top/2" | sort -u | plain
)
run help profile
quiet profile --help
ls -A
