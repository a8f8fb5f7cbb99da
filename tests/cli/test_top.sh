# test_top.sh: `espresso top`: shows a statistics file, once and on a terminal, while the file grows, is truncated or
# replaced; and restores the terminal.
# runs: quiet
. tests/cli/lib.sh
varies='s/no news for .*/no news for TIME/; s/ended .* ago/ended TIME ago/'
header() {
    cat <<'END'
{"kind":"header","time":100.5,"version":1,"program":"trainer","host":"box","pid":77,"rank":0,"ranks":4,"machines":2,"cores":2,"backend":"shm","link":"1gbit","asked_strategy":"auto","every_s":1,"strategy":"00000000000000aa","codecs":[],"tensors":[{"name":"fc1.weight","elements":1000000,"dtype":"f32"},{"name":"fc2.weight","elements":2000,"dtype":"f32"}]}
{"kind":"strategy","time":101,"step":0,"strategy":"00000000000000aa","units":2,"compressed_units":1,"codecs":["dgc:ratio=0.01"],"text":"espresso-strategy 1\n"}
END
}
samples() { # STEP MEDIAN [STEPS]: one, or many with ten steps each
    awk -v step="$1" -v us="$2" -v n="${3:-1}" 'BEGIN { for (i = 1; i <= n; i++) {
        at = n > 1 ? i * 10 : step; if (i == n && n > 1) us = 3000
        printf "{\"kind\":\"sample\",\"time\":%d.0,\"step\":%d,\"steps\":10,\"step_us\":{\"median\":%.1f,\"p90\":%.1f,\"last\":2500},", 100 + at, at, us, us * 1.25
        printf "\"backward_us\":1000,\"exposed_communication_us\":500,\"exposed_compression_us\":40,\"lane_us\":{\"compress\":200,\"decompress\":20,\"intra\":300,\"inter\":1500},"
        printf "\"step_bytes\":{\"intra\":1000,\"inter\":2500000},\"bytes\":{\"intra\":90000,\"inter\":225000000},\"nonfinite\":0,\"memory_bytes\":5000000,"
        printf "\"strategy\":\"00000000000000aa\",\"phase\":\"watching\",\"loss\":2.53125,\"predicted_us\":14377,"
        printf "\"tensors\":[{\"name\":\"fc2.weight\",\"error\":0.125,\"feedback\":1.5,\"samples\":3}]}\n" } }'
}

# ---- once ------------------------------------------------------------------------------------------------------------
{ header && samples 10 2000 && samples 20 4000; } >s.jsonl
run top --once s.jsonl
cp "$top/1" once && quiet top s.jsonl # a pipe needs no --once
diff once "$top/1"
# the last complete record
{ cat s.jsonl && printf '{"kind":"sample","step":30,"cut o'; } >cut.jsonl
quiet top --once cut.jsonl
diff once "$top/1"

# a lane and a row of bytes for each level in the header, up to the first invalid name; without a step, bars are empty
{
    echo '{"kind":"header","levels":["gpu","machine","rack_of_machines"],"tensors":[]}'
    echo '{"kind":"sample","time":1,"step":2,"steps":2,"step_us":{"mean":4000,"median":4000},"lane_us":{"gpu":1000,"machine":2000,"rack_of_machines":3000},"step_bytes":{"rack_of_machines":8},"bytes":{"rack_of_machines":16}}'
} >levels.jsonl
run top --once levels.jsonl
{
    echo '{"kind":"header","levels":["gpu",7,"rack"],"tensors":[]}'
    echo '{"kind":"sample","time":1,"step":2,"steps":0,"bytes":{"gpu":5}}'
} >odd.jsonl
run top --once odd.jsonl

# a job that ended, and the next one in the same file
{ header && samples 10 2000 && echo '{"kind":"end","time":112,"step":10,"error":"rank 2 died"}'; } >end.jsonl
run top --once end.jsonl
header >>end.jsonl
run top --once end.jsonl

# invalid lines are counted: no JSON, a later version, missing or wrong members
{
    header
    cat <<'END'
not json
{"kind":7}
[1,2]
{"kind":"sample","step_us":7,"lane_us":[],"tensors":{"a":1}}
{"kind":"sample","time":"x","step":null,"steps":5,"step_us":{"median":-1},"tensors":[7,{}]}
{"kind":"strategy","codecs":[1,null],"units":""}
{"kind":"of the future"}
END
} >garbage.jsonl
run top --once garbage.jsonl
{ echo '{"kind":"header"}' && samples 10 2000; } >bare.jsonl
run top --once bare.jsonl
printf '%s\n' '{"kind":"header","program":"a\u001b[31mb\u009bc\n","ranks":1}' >steers.jsonl # control characters in names have no effect
run top --once steers.jsonl
{ header && samples 0 2000 12000; } >long.jsonl
quiet top --once long.jsonl
plain <"$top/1" | grep -E '^trainer|^step|medians'

run top
run top a b
run top --one a
run top a --once
run top /no/such/file
run top /
echo '# no statistics' >text.md
run top text.md

# ---- a terminal ------------------------------------------------------------------------------------------------------
# Runs `espresso top t.jsonl` on a terminal, which writes its output to "screen", types what comes from fd 8, and at the
# end writes the command's status to "status" and the terminal's modes to "modes".
terminal() { # ROWS COLUMNS
    echo "--- a terminal of $1 rows, $2 columns"
    rm -f keys screen pid && mkfifo keys && from=1
    cat >session.sh <<END
stty rows $1 cols $2
tty >tty
trap : INT
sh -c 'echo \$\$ >pid; exec "$ESPRESSO_COMMAND" top t.jsonl'
echo "[exit \$?]" >status
stty -a >modes
END
    TERM=xterm env --default-signal=INT,QUIT script -qfec "sh session.sh" screen <keys >"$top/script" 2>&1 &
    terminal=$!
    exec 8>keys
}
there() { # TEXT: was it shown after the text of the last call?
    off=$(tail -c "+$from" screen | grep -obaF -- "$1" | head -n 1 | cut -d: -f1)
    [ "$off" ] && from=$((from + off + ${#1}))
}
shows() { soon there "$1" && printf '%s\n' "$1" | tr '\033' '^'; } # TEXT
closes() { # restores screen and cursor
    shows "${esc}[?25h${esc}[?1049l"
    exec 8>&-
    wait "$terminal" 2>"$top/shell"
    cat status
    grep -owE -e '-?(echo|icanon)' modes | tr '\n' ' ' && echo
}
esc=$(printf '\033')

# a screen that follows the file
terminal 30 80
shows "${esc}[?1049h${esc}[?25l"
shows 'waiting for t.jsonl'
header >t.jsonl
shows 'no sample yet'
samples 10 2000 >>t.jsonl
shows 'step time    2.000 ms'
shows 'q: quit'
samples 20 3000 | tr -d '\n' | cut -c1-40 | tr -d '\n' >>t.jsonl # an incomplete line is ignored
samples 20 3000 | cut -c41- >>t.jsonl
shows 'step time    3.000 ms'
header >t.jsonl # truncated and written again
shows 'no sample yet'
samples 30 5000 >>t.jsonl
shows 'step time    5.000 ms'
mv t.jsonl old.jsonl # replaced
{ header && samples 40 6000; } >t.jsonl
shows 'step time    6.000 ms'
echo '{"kind":"end","time":112,"step":41}' >>t.jsonl
shows 'ago after step 41'
printf xq >&8
closes

# long lines are cut, and none is below the screen's end
{ header && samples 10 2000; } >t.jsonl
terminal 6 24
shows "trainer: 4 rank(s) on 2$esc"
shows 'q: quit'
sed -n "/${esc}\[H/,\$p" screen | tr '\r' '\n' | sed "s/.*${esc}\[H//; s/$esc.*//" | awk 'length > 24 { print "longer than 24: " $0 }'
stty -F "$(cat tty)" rows 40 cols 100
shows fc2.weight
stty -F "$(cat tty)" rows 1 cols 1
shows "${esc}[H"
kill -TERM "$(cat pid)"
closes

# Ctrl-C
header >t.jsonl
terminal 24 80
shows 'no sample yet'
stty -F "$(cat tty)" -a | grep -owE -e '-?(echo|icanon)' | tr '\n' ' ' && echo
printf '\003' >&8
closes
