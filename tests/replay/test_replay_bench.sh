# test_replay_bench.sh: bench/replay.sh, its table and its plot, with `espresso replay` played by a small script: what is refused is
# dropped, slowed down or counted, what was run is not run again, and no case is lost.
. tests/compile/common.sh
need python3
mkdir -p "$tmp/build/bin" "$tmp/results"
cat >"$tmp/build/bin/espresso" <<'EOF'
#!/bin/sh
echo "$*" >>"$PLAYED"
say() { echo "espresso replay: $*" >&2; exit 1; }
while [ $# -gt 0 ]; do
    case $1 in
    --model) model=$2 ;; -n) n=$2 ;; --machines) machines=$2 ;; --ratio) ratio=$2 ;;
    --strategy) list=$2 ;; --time-scale) scale=$2 ;;
    esac
    shift
done
[ "$model" != gpt2 ] || say "no model 'gpt2'"
case $model,${scale:-none} in bert-base,none) say "half of all backward gaps are under 51 us: use --time-scale 2; --force runs it all the same, and marks it" ;; esac
case $model,$list in lstm,*hipress*) say "hipress: computing and codecs take 93% of 2 cores x step; --force runs it all the same, and marks it" ;; esac
case $model in ugatit) say "half of all gaps are too short; --force runs it all the same, and marks it" ;; esac
cat <<JSON
{"model": "$model", "codec": "dgc", "n": $n, "machines": $machines, "inter": null, "mode": "real", "elements_scale": 0.01,
 "time_scale": ${scale:-1}, "ratio": $ratio, "cores": 2, "stolen_percent": 1, "load_percent": 20, "warning": null, "strategies": [
JSON
first=1
for s in $(echo "$list" | tr , ' '); do
    predicted=100000 median=102000 noisy=false
    case $s in
    espresso+) predicted=50000 median=50500 ;;
    hipress) predicted=80000 median=100000 ;;
    esac
    error=$(awk "BEGIN { print 100 * ($predicted / $median - 1) }")
    [ "$s" != fp16 ] || { noisy=true median=null error=null; }
    [ "$first" = 1 ] || echo ,
    first=0
    cat <<JSON
{"name": "$s", "predicted_us": $predicted, "measured_us": {"median": $median, "p10": 45000, "p90": 110000}, "error_percent": $error,
 "noisy": $noisy, "steps": 9, "bytes": {"intra": 1000, "inter": 2000}, "exposed_communication_us": 10, "exposed_compression_us": 5,
 "lanes_us": {}, "ops": [{"lane": "inter", "op": "inter.allreduce", "n": 7, "predicted_us": 20000, "measured_us": 30000}]}
JSON
done
echo '], "fastest": "espresso+", "chosen": "espresso+", "chosen_within_spread": true}'
EOF
chmod +x "$tmp/build/bin/espresso"
export PLAYED="$tmp/played" BUILD="$tmp/build" RESULTS="$tmp/results" STRATEGIES=fp32,fp16,hipress,espresso+
: >"$PLAYED"
says() { # FILE PATTERN
    grep -q -- "$2" "$1" && return
    echo "expected \"$2\" in $1:"
    cat "$1"
    exit 1
}

try sh bench/replay.sh 4 1
[ "$(wc -l <"$PLAYED")" -eq 8 ] || { cat "$PLAYED"; exit 1; } # 6 cases; bert-base and lstm twice
says "$PLAYED" "--model bert-base .*--time-scale 2"
says "$PLAYED" "--model lstm .*--strategy fp32,fp16,espresso+ "
says "$PLAYED" "-n 4 --machines 2 --inter 100mbit,50us"
table=$tmp/results/replay.txt
says "$table" "^machine: "
cases=$tmp/build/results/replay-cases.txt
says "$cases" "^vgg16, 4 ranks, ratio 1: elements x 0.01"
says "$cases" "^hipress .* 80.00 .*100.00 .*-20.0%"
says "$cases" "^refused: hipress"
says "$table" "^4 ranks  *6  *4 " # cases, run
says "$table" "^4 ranks .* 4 of 4 *100%.*missed"
says "$table" "^4 ranks *inter *inter.allreduce *77 ops *-33.3%" # of 11 strategies with a number
says "$table" "^noisy: vgg16, 4 ranks, ratio 1: fp16"
says "$table" "^refused: lstm, 4 ranks, ratio 1: hipress: computing"
says "$table" "^refused: ugatit, 4 ranks, ratio 1: case: half of all"
says "$table" "^failed: gpt2, 4 ranks, ratio 1: .*no model"
csv=$tmp/results/replay.csv
[ "$(grep -c ,ok, "$csv")" -eq 11 ] || { cat "$csv"; exit 1; }
[ "$(grep -c ,noisy, "$csv")" -eq 4 ]
[ "$(grep -c ,refused, "$csv")" -eq 2 ]
[ "$(grep -c ,failed, "$csv")" -eq 1 ]
[ "$(awk -F, '{ print NF }' "$csv" | sort -u | wc -l)" -eq 1 ]
try python3 -c "import sys, xml.dom.minidom as x; x.parse(sys.argv[1])" "$tmp/build/results/replay.svg"
says "$tmp/build/results/replay.svg" "fp32, 4 ranks"

# again: only what failed, unless it is asked for
: >"$PLAYED"
try sh bench/replay.sh 4 1
[ "$(wc -l <"$PLAYED")" -eq 1 ] || { cat "$PLAYED"; exit 1; }
FRESH=1 try sh bench/replay.sh vgg16 4 1
[ "$(wc -l <"$PLAYED")" -eq 2 ]
PLAN=1 try sh bench/replay.sh 8
[ "$(wc -l <"$PLAYED")" -eq 2 ]
says "$tmp/output" "^18 of 18 cases"
says "$tmp/output" "^lstm 8 3$"
echo ok
