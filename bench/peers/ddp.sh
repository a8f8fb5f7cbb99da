#!/bin/sh
# ddp.sh: PyTorch's DistributedDataParallel over a real network: plain, with torch's hooks, and with espresso's, on two
# hosts with two ranks each (tests/jobs/hosts); or FSDP2 (torch 2.15), in the same ways. Every way trains for the same
# time. Writes RESULT
# (bench/results/peers/ddp.csv), and beside it the test losses by time, which ddp_plot.py draws (docs/use/ddp.svg). Needs
# root, python3 with torch, backend gloo.
# Usage: bench/peers/ddp.sh [RATE...]      default: 100mbit 1gbit
# Environment: SECONDS_EACH=30, PYTHON=python3, WAYS="torch ..."
#   FSDP2: RESULT=bench/results/peers/fsdp.csv WAYS="fsdp fsdp-espresso fsdp-espresso+int8 fsdp-espresso+int4"
set -eu
cd "$(dirname "$0")/../.."
RESULT=${RESULT:-bench/results/peers/ddp.csv}
BUILD=${BUILD:-build} SECONDS_EACH=${SECONDS_EACH:-30} PYTHON=${PYTHON:-python3}
WAYS=${WAYS:-torch torch-fp16 torch-powersgd espresso espresso+int4 espresso+powersgd espresso+topk:ratio=0.01 auto+int4+topk:ratio=0.01+powersgd}
TESTBED=$$
export BUILD TESTBED
export PYTHONPATH="$PWD/python" ESPRESSO_LIBRARY="$PWD/$BUILD/lib/libespresso.so" PYTHONDONTWRITEBYTECODE=1
export MASTER_ADDR=10.99.0.1 MASTER_PORT=29500 WORLD_SIZE=4 GLOO_SOCKET_IFNAME=eth0 OMP_NUM_THREADS=1
hosts="sh tests/jobs/hosts/hosts.sh"
dir=$(mktemp -d)
trap '$hosts down; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
[ $# -gt 0 ] || set -- 100mbit 1gbit
LOAD=$(cut -d' ' -f1-3 /proc/loadavg)
export LOAD
for rate in "$@"; do
    $hosts up 2 "$rate"
    for way in $WAYS; do
        MASTER_PORT=$((MASTER_PORT + 2)) # the library does not use it: ranks meet through torch
        for rank in 3 2 1 0; do
            RANK=$rank timeout 300 $hosts enter $((rank / 2 + 1)) "$PYTHON" bench/peers/ddp.py "$way" "$SECONDS_EACH" \
                >"$dir/$rank" 2>"$dir/errors$rank" &
        done
        wait
        sed "s/^/$rate $way /" "$dir/0" >>"$dir/all"
        grep -h '^strategy' "$dir/errors0" || true
        tail -n 1 "$dir/all"
        grep -q '^end' "$dir/0" || { echo "ddp.sh: $way failed" >&2 && tail -n 5 "$dir"/errors* >&2; }
    done
    $hosts down
done
{
    echo "# bench/peers/ddp.sh: DistributedDataParallel on two hosts x two ranks (or FSDP2), links shaped in each direction," \
        "$SECONDS_EACH s of training each; a network 784-512-512-10 on Fashion-MNIST, SGD with momentum"
    env -u OMP_NUM_THREADS sh bench/head.sh # nproc heeds it
    echo "# mb_a_step: sent by a host; s_to_loss: time to the test loss that the first way has at its end"
    echo "link,way,steps,step_ms,mb_a_step,test_loss,accuracy,s_to_loss"
    awk '
        $3 == "end" { row[++n] = $1 " " $2; end[$1, $2] = $4 "," $5 "," $6 "," $7 "," $8; if (!($1 in goal)) goal[$1] = $7; next }
        { k = $1 " " $2; at[k, ++points[k]] = $3; loss[k, points[k]] = $5 }
        END {
            for (i = 1; i <= n; i++) {
                split(row[i], key, " ")
                reached = ""
                for (p = 1; p <= points[row[i]] && reached == ""; p++)
                    if (loss[row[i], p] <= goal[key[1]]) reached = at[row[i], p]
                gsub(/\+/, " ", key[2])
                split(row[i], whole, " ")
                print key[1] "," key[2] "," end[whole[1], whole[2]] "," reached
            }
        }' "$dir/all"
} >"$RESULT"
{
    echo "# bench/peers/ddp.sh: the test losses behind ddp.csv; seconds are those of training"
    env -u OMP_NUM_THREADS sh bench/head.sh
    echo "link,way,seconds,step,test_loss"
    awk '$3 != "end" { gsub(/\+/, " ", $2); print $1 "," $2 "," $3 "," $4 "," $5 }' "$dir/all"
} >"${RESULT%.csv}-curve.csv"
cat "$RESULT"
