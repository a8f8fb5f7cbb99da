# test_replay.sh: `espresso replay`: runs ranks with costs from a file, with costs that it measures, and under `espresso
# run`; refuses wrong usage before it starts ranks; and leaves nothing behind if a rank dies. Times are not checked.
# runs: quiet
. tests/cli/lib.sh
cat >timed.json <<'END'
{"espresso": 1, "model": "timed", "forward_us": 500, "update_us": 100, "dtype": "f32", "tensors": [
  {"name": "head.weight", "elements": 40000, "compute_us": 500},
  {"name": "norm.bias", "elements": 10, "compute_us": 200},
  {"name": "norm.weight", "elements": 1000, "compute_us": 200},
  {"name": "body.weight", "elements": 25000, "compute_us": 700.5},
  {"name": "embed", "elements": 9000, "compute_us": 900}
]}
END
costs() { # MACHINES with two ranks each
    echo "{\"espresso\": 1, \"costs\": \"here\", \"system\": {\"espresso\": 1, \"system\": \"made up\", \"machines\": $1, \"ranks_per_machine\": 2, \"devices\": [\"cpu\"], \"intra\": {\"alpha_us\": 20, \"bytes_per_us\": 2000}, \"inter\": {\"alpha_us\": 50, \"bytes_per_us\": 100}},"
    echo '"codecs": [{"espresso": 1, "codec": "dgc:ratio=0.01", "error": 0.6, "payload": {"header_bytes": 70, "unit_bytes": 1, "units_per_element": 0.06}, "devices": {"cpu": {"interpolate": "linear", "compress": [[1000, 5], [1000000, 900]], "decompress": [[1000, 1], [1000000, 50]]}}}]}'
}
costs 2 >costs.json
costs 1 >one.json
replay() { # run|quiet FLAGS: by default with the model and the costs of four ranks
    how=$1 && shift
    case " $* " in *" --costs "*) ;; *) set -- --costs costs.json "$@" ;; esac
    case " $* " in *" --model "*) ;; *) set -- --model timed.json "$@" ;; esac
    "$how" replay "$@"
}
value() { key "$1" <"$top/1" | head -n 1; } # KEY

# the executor runs exactly the ops that the planner predicts, and computing takes the model's time, even if ranks share
# cores
replay quiet --strategy fp32,ddp,layerwise,hipress,mergecomp,espresso+ --steps 4 --json
for name in name steps ops_missing machines ranks_per_machine tensors; do echo "$name:" $(key $name <"$top/1"); done
holds "$(value compute_stretch) >= 1 && $(value compute_stretch) >= 4 / $(nproc) && $(value compute_stretch) <= 4"
awk -v least="$(value compute_stretch)" '{ gsub(/[",:]/, "") }
    $1 == "predicted_us" && !op && $2 < 3100.5 * least || $1 == "p10" && $2 <= 3100.5 { print "too short: " $0 }
    $1 == "median" { median = $2 }
    $1 == "p10" && $2 > median || $1 == "p90" && $2 < median { print "not the median: " median " " $0 }
    $1 == "name" { op = "" }
    $1 == "measured" { measured = 1 }
    $1 == "inter" && measured { if ($2 <= 0) print "no traffic: " $0; measured = 0 }
    $1 == "op" { op = $2 }
    $1 == "n" && op == "backward" && $2 == 5 { backward++ }
    op && ($1 == "predicted_us" || $1 == "measured_us") && $2 < 0 { print "negative: " $0 }
    END { print backward " times five gradients" }' "$top/1"

# costs that it measures
quiet replay --model timed.json -n 2 --elements-scale 0.1 --steps 1 --json
for name in name codec; do echo "$name:" $(key $name <"$top/1"); done

# the table, the page, and no other file
before=$(ls -A)
replay quiet --steps 1 --timeline t.html
cut -d' ' -f1 "$top/1" | grep -v '^cores' # only if ranks share cores
[ "$(ls -A | grep -vx t.html)" = "$before" ] || ls -A
for text in '"name":"predicted"' '"name":"measured"' --timeline; do has t.html "$text"; done

# a file is a strategy
quiet plan --model timed.json --costs costs.json -o h.strategy
replay quiet --strategy h.strategy --steps 1
grep -o '^h.strategy' "$top/1"
replay quiet --strategy costs.json --steps 1
grep '^espresso replay: costs' "$top/2" | sort -u

# under a launcher, its ranks are those of replay
in_job() { # RANKS FLAGS: shows equal lines of several ranks once
    n=$1 && shift
    quiet run -n "$n" -- "$ESPRESSO_COMMAND" replay --model timed.json "$@"
    grep -oh 'espresso+ \|espresso replay: --costs .*' "$top/1" "$top/2" | sort -u
}
in_job 2 --costs one.json --steps 1
in_job 4 --costs one.json
in_job 2

run replay
replay run -n 5 --machines 2
replay run -n 1
replay run --inter fast
replay run --costs one.json --inter 1gbit
replay run --elements-scale 0
replay run --strategy fp32,fp32
replay run --strategy ,
replay run --json --timeline -
replay run --system paper-pcie
replay run fp32
replay run --model nosuch
replay run --strategy hipres
replay run --gc fp16
replay run --costs timed.json
replay run --timeline /nonexistent/p.html
replay run -n 8
quiet replay --model llama-1b --costs costs.json --elements-scale 10
grep -o 'of memory' "$top/2"
run replay --model timed.json -n 2 --gc topk:ratoi=0.1

# a killed rank: no result, no file, no process left. The command's children are the watchdog and four ranks
before=$(ls -A)
start replay --model timed.json --costs costs.json --steps 10000 --timeline never.html
children() { # at least five
    set -- $(cat "/proc/$pid/task/$pid/children")
    [ $# -ge 5 ] && victim=$4
}
soon children
kill -KILL "$victim"
wait "$pid" 2>"$top/shell"
echo "[exit $?]"
grep -q 'died\|killed' "$top/2" || echo "nobody says that a rank died"
flock -w 5 "$top/lock" true || echo "processes that it started live on"
[ "$(ls -A)" = "$before" ] || ls -A
