# test_state.sh: `espresso state`: shows a saved state, and detects damage.
. tests/cli/lib.sh
export ESPRESSO_CODEC=topk:ratio=0.1
"$programs/trainer" 3 --save s fc.weight:1000 fc.bias:10:raw
file=s.r0of1 && run state $file
echo "$(wc -c <$file) bytes" | grep -qx "$(sed -n 's/.*, bytes: //p' "$top/1") bytes" || echo "it has another size"

# Comps of chunks and groups are shown with their elements
cat >units <<END
espresso-strategy 1
tensor fc.weight 1000 split 2
chunk 600 topk:ratio=0.1 comp@cpu > flat.allgather > decomp@cpu
chunk 400 topk:ratio=0.1 comp@cpu > flat.allgather > decomp@cpu
tensor fc.bias 10 group
tensor fc.scale 10 group
group 20 topk:ratio=0.1 comp@cpu > flat.allgather > decomp@cpu
END
ESPRESSO_STRATEGY=units "$programs/trainer" 1 --save u fc.weight:1000 fc.bias:10 fc.scale:10
run state u.r0of1

# a changed bit and an early end, at many places
size=$(wc -c <$file) at=0
while [ $at -lt "$size" ]; do
    byte=$(od -An -tu1 -j $at -N 1 $file)
    cp $file flipped && printf "\\$(printf %o $((byte ^ 4)))" | dd of=flipped bs=1 seek=$at conv=notrunc 2>"$top/dd"
    "$ESPRESSO_COMMAND" state flipped >"$top/1" 2>"$top/2"
    [ $? = 1 ] && grep -q flipped "$top/2" || echo "byte $at changed: not refused, or the file not named"
    head -c $at $file >cut
    "$ESPRESSO_COMMAND" state cut >"$top/1" 2>"$top/2"
    [ $? = 1 ] || echo "cut to $at bytes: not refused"
    at=$((at + size / 60 + 1))
done
{ cat $file && printf '\0'; } >longer
run state longer

run state s
run state /no/such/file
run state
