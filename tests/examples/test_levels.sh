# test_levels.sh: a job of three named levels, the example of docs/use/using.md: statistics, `espresso top`, the
# Prometheus file and the trace have a lane for each level, under its name, with the times and bytes of that level.
BUILD=${BUILD:-build}
gpt=$PWD/$BUILD/bin/gpt
espresso=$PWD/$BUILD/bin/espresso
docs=$PWD/docs/use/using.md
export ESPRESSO_MIN_COMPRESS_ELEMENTS=0 # compress the model's small tensors
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
fail() { echo "FAILED: $*"; exit 1; }
cd "$tmp" || exit 1
awk 'BEGIN { for (i = 0; i < 2000; i++) print "the cat number " i " sees " i % 7 " dogs and hears " i % 5 " birds." }' >text
train="$gpt --text $tmp/text --width 32 --context 32 --batch 1 --sample 0 --max-steps 8 --codec topk:ratio=0.05"

has() { grep -q "$2" "$1" || fail "$1 lacks $2: $(head -c 3000 "$1")"; }
lacks() { ! grep -q "$2" "$1" || fail "$1 has $2: $(grep "$2" "$1" | head -n 3)"; }

# the page's example
sed -n '/^## Levels/,/^## /s/^    //p' "$docs" >example
[ "$(wc -l <example)" -ge 3 ] || fail "docs/use/using.md has no example of levels"
sed "s|\./train|$train|; s|espresso |$espresso |" example >example.sh
timeout -k 5 120 sh -e example.sh >said 2>&1 || fail "$(cat said)"
has stats.jsonl '"levels":\["gpu","machine","rack"\]'
has stats.jsonl '"lane_us":{"compress":[^}]*,"decompress":[^}]*,"gpu":[1-9][^}]*,"machine":[1-9][^}]*,"rack":[1-9]'
has stats.jsonl '"step_bytes":{"gpu":[1-9][^}]*,"machine":[1-9][^}]*,"rack":[1-9]'
# over both levels a rank gets payloads from one machine of its rack, and from two of the other: twice as many bytes
tail -n 2 stats.jsonl | sed -n 's/.*"bytes":{"gpu":[0-9]*,"machine":\([0-9]*\),"rack":\([0-9]*\)}.*/\1 \2/p' >bytes
awk '{ exit !($1 > 0 && $2 > 1.9 * $1 && $2 < 2.1 * $1) }' bytes || fail "bytes of machine and rack: $(cat bytes)"
has said '^  gpu  .*%'
has said '^  machine  .*%'
has said '^  rack  .*%'
has said '^  rack  .* a step, '
has stats.prom '^espresso_bytes_total{rank="0",level="rack"} [1-9]'
has stats.prom '^espresso_lane_seconds_total{rank="0",lane="rack"} [0-9.]*[1-9]'
has trace.json '"thread_name","pid":8,"tid":84,"args":{"name":"rack"}'
has trace.json '"cat":"rack","pid":8,"tid":84,.*"name":"[a-z-]*rack\.'
has trace.json '"cat":"gpu","pid":8,"tid":82,.*"name":"gpu\.'
for f in stats.jsonl stats.prom trace.json said; do lacks $f '"\(intra\|inter\|outer\)"'; done

# auto measures all three levels and plans with them; all ranks end with the same bits, which the trainer compares
ESPRESSO_BACKEND='levels:gpu=(shm),machine=(shm),rack=(shm)' ESPRESSO_LOG=debug \
    timeout -k 5 120 "$espresso" run -n 8 --machines 4 --racks 2 --inter 10gbit,10us --outer 20mbit,1ms -- \
    ${train%--max-steps*} --max-steps 60 --strategy auto --codec "topk:ratio=0.01" >said 2>&1 || fail "auto: $(tail -n 20 said)"
has said 'espresso: autopilot: '
for level in gpu machine rack; do has said "autopilot: $level: latency [0-9.]* us, [1-9]"; done
