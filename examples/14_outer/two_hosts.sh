#!/bin/sh
# two_hosts.sh: trains a small GPT (examples/gpt) with two ranks. Each has a network namespace of its own, as if it were a
# host, and the link between them carries 10 Mbit/s. First it averages gradients in every step, then parameters after
# every 20 steps. Needs root, iproute2, and what `make` builds. Takes two minutes.
# Usage: examples/14_outer/two_hosts.sh [STEPS]
set -eu
cd "$(dirname "$0")/../.."
steps=${1:-200} build=$(cd "${BUILD:-build}" && pwd) net=outer$$ rate=10mbit
[ -x "$build/bin/gpt" ] || { echo "two_hosts.sh: $build/bin/gpt is not there: run make" >&2 && exit 1; }
[ -e "$build/lib/espresso/libespresso-gloo.so" ] || {
    echo "skipped: plugin gloo is not there (Debian: libgloo-dev)"
    exit 77
}
command -v tc >/dev/null && ip netns add "$net-0" 2>/dev/null || {
    echo "skipped: network namespaces need root and iproute2"
    exit 77
}
out=$(mktemp -d)
down() {
    for host in "$net-0" "$net-1"; do
        ip netns pids "$host" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
        ip netns del "$host" 2>/dev/null || true
    done
    rm -rf "$out"
}
trap down EXIT
trap 'exit 1' INT TERM
why=$(ip netns exec "$net-0" true 2>&1) || { # in a chroot, for one
    echo "skipped: programs cannot enter a network namespace here: $why"
    exit 77
}
ip netns add "$net-1"
ip -n "$net-0" link add eth0 type veth peer name eth0 netns "$net-1"
for rank in 0 1; do
    ip -n "$net-$rank" addr add "10.98.0.1$rank/24" dev eth0
    ip -n "$net-$rank" link set lo up
    ip -n "$net-$rank" link set eth0 up
    ip netns exec "$net-$rank" tc qdisc add dev eth0 root tbf rate $rate burst 8kb latency 400ms || {
        echo "skipped: this kernel cannot limit a link (tbf)"
        exit 77
    }
done

train() { # FLAG...
    for rank in 0 1; do
        ip netns exec "$net-$rank" env ESPRESSO_RANK=$rank ESPRESSO_SIZE=2 ESPRESSO_MACHINE=host$rank \
            ESPRESSO_ROOT=10.98.0.10:29500 ESPRESSO_SECRET=example-14-of-the-ladder ESPRESSO_BACKEND=gloo \
            OMP_NUM_THREADS=1 "$build/bin/gpt" --max-steps "$steps" --sample 0 "$@" \
            --curve "$out/curve$rank" >"$out/rank$rank" 2>&1 &
        eval "pid$rank=$!"
    done
    wait "$pid0" && wait "$pid1" || { cat "$out"/rank* && exit 1; }
    # a line a step: step,seconds,loss
    awk -F, -v how="${*:-every step}" '{ seconds = $2; loss[NR] = $3 }
        END { n = NR < 20 ? NR : 20
              for (i = NR - n + 1; i <= NR; i++) sum += loss[i]
              printf "%-46s %d steps in %5.1f s, loss of the last %d: %.2f\n", how, NR, seconds, n, sum / n }' "$out/curve0"
}
echo "two hosts, $rate between them:"
train
train --outer average:every=20
train --outer sparseloco:every=20 --codec chunktopk
