# test_ddp_hosts.sh: DistributedDataParallel on two hosts (network namespaces) with two ranks each: the ranks find each
# other through torch, and the network by torch's variables, also if a host's name has an address in another network.
# runs: quiet slow
. tests/python/common.sh
python_with "Debian: python3-torch" torch.distributed
[ -e "$build/lib/espresso/libespresso-gloo.so" ] || { echo "skipped: backend gloo was not built" && exit 77; }
TESTBED=$$
export TESTBED
hosts="sh tests/jobs/hosts/hosts.sh"
trap '$hosts down; rm -rf "$tmp"' EXIT
$hosts up 2 none
export MASTER_ADDR=10.99.0.1 ESPRESSO_SIZE=4 GLOO_SOCKET_IFNAME=eth0 ESPRESSO_TIMEOUT_MS=30000
trains() { # NAME
    jobs=
    for rank in 0 1 2 3; do
        ESPRESSO_RANK=$rank timeout 120 $hosts enter $((rank / 2 + 1)) "$python" tests/python/check_ddp.py "$tmp/store$1" hosts \
            >"$tmp/rank$rank" 2>&1 &
        jobs="$jobs $!"
    done
    for job in $jobs; do wait "$job" || failed=$1; done
    [ -z "${failed:-}" ] || { echo "$failed failed" && cat "$tmp"/rank? && exit 1; }
}
trains interface
for i in 1 2; do
    ip -n "esp$TESTBED-$i" link add other type bridge
    ip -n "esp$TESTBED-$i" addr add "192.168.7.$i/24" dev other
    ip -n "esp$TESTBED-$i" link set other up
    printf '127.0.0.1 localhost\n192.168.7.1 host1\n192.168.7.2 host2\n' >"/etc/netns/esp$TESTBED-$i/hosts"
done
export ESPRESSO_BACKEND='levels:intra=(shm),inter=(gloo)'
trains address
