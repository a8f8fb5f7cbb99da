#!/bin/sh
# hosts.sh: several hosts on this machine, with a real network between them: network namespaces on a bridge. Root and
# iproute2 only.
#   hosts.sh up N RATE [DELAY]   host1 to hostN, at 10.99.0.1 to 10.99.0.N. Each sends and each receives at RATE (100mbit, 1gbit, none:
#                                not limited); a packet from host to host takes DELAY longer (100us). Exit status 77 and "skipped:
#                                REASON" where this machine does not allow it
#   hosts.sh enter I CMD...      runs a command on host I
#   hosts.sh shell HOST TEXT...  a remote shell, for espresso run --rsh and mpirun: HOST is host1, node1 or 10.99.0.1
#   hosts.sh cut I | mend I      disconnects host I from the network, connects it again
#   hosts.sh halt I              kill -9 to every process on host I
#   hosts.sh down                kills what still runs on the hosts and removes them
# MTU: the size of packets, 1500 to 9000. With a delay, large packets need less CPU time here. TESTBED is the number of
# this testbed, by default the pid of the caller, since several may exist. The next `up` removes testbeds whose process
# has ended, such as those of killed tests. Delay: by relay.c, a process that holds each packet; kernels without netem
# are common in containers.
set -eu
dir=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
TESTBED=${TESTBED:-$PPID}
export TESTBED
name=esp$TESTBED

die() {
    echo "hosts.sh: $*" >&2
    exit 1
}
skip() {
    echo "skipped: $*"
    exit 77
}
has() { [ -e "/run/netns/$name-$1" ]; }
need() { has "$1" || die "testbed $TESTBED has no host $1: start it with hosts.sh up, and set TESTBED"; }
in_host() { # I CMD...
    i=$1
    shift
    ip netns exec "$name-$i" "$@"
}

remove() { # NAME: of a whole testbed
    for ns in /run/netns/"$1"-*; do
        [ -e "$ns" ] || continue
        ns=${ns##*/}
        ip netns pids "$ns" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
        ip netns del "$ns" || true
        rm -rf "/etc/netns/$ns"
    done
    rmdir /etc/netns 2>/dev/null || true
}
remove_old() {
    for hub in /run/netns/esp*-hub; do
        [ -e "$hub" ] || continue
        old=${hub##*/esp}
        old=${old%-hub}
        kill -0 "$old" 2>/dev/null || remove "esp$old"
    done
}

limit() { # I DEVICE RATE: limits what the device sends. With large bursts, short messages would not be limited
    [ "$3" != none ] || return 0
    burst=64kb
    case $3 in
    *kbit | [1-9]mbit | [1-9][0-9]mbit | [12][0-9][0-9]mbit)
        burst=4kb # exact from 64 KiB up; at higher rates it would cost a tenth
        in_host "$1" ethtool -K "$2" tso off gso off >/dev/null 2>&1 || true
        ;;
    esac
    in_host "$1" tc qdisc add dev "$2" root handle 1: htb default 1 r2q 10
    in_host "$1" tc class add dev "$2" parent 1: classid 1:1 htb rate "$3" ceil "$3" burst $burst cburst $burst quantum 65536
}

microseconds() { # DELAY
    case $1 in
    *us) echo "${1%us}" ;;
    *ms) echo "${1%ms} 1000" | awk '{ print $1 * $2 }' ;;
    *) die "$1 is no delay: write a number and us or ms, as in 100us" ;;
    esac
}

connect() { # I DELAY_US: eth0 of host I and port I of the bridge, joined
    host=$name-$1 port=p$1
    if [ "$2" -eq 0 ]; then
        ip -n "$host" link add eth0 type veth peer name "$port" netns "$name-hub"
    else
        ip netns exec "$name-hub" "$relay" "$port" "out$1" "$2" >/dev/null 2>&1 &
        for try in 1 2 3 4 5 6 7 8 9 10; do
            ip -n "$name-hub" link show "out$1" >/dev/null 2>&1 && break
            [ "$try" -lt 10 ] || die "the relay for host $1 did not start"
            sleep 0.1
        done
        ip -n "$name-hub" link set "out$1" netns "$host" name eth0
    fi
    ip -n "$name-hub" link set "$port" mtu "${MTU:-1500}" master bridge up
    ip -n "$host" link set eth0 mtu "${MTU:-1500}"
    ip -n "$host" addr add "10.99.0.$1/24" dev eth0
    ip -n "$host" link set eth0 up
    ip -n "$host" link set lo up
}

up() { # N RATE DELAY
    command -v ip >/dev/null && command -v tc >/dev/null || skip "ip or tc is not there (Debian: iproute2)"
    [ "$(id -u)" -eq 0 ] || skip "network namespaces need root"
    delay=0 relay=
    [ "$3" = none ] || delay=$(microseconds "$3")
    remove_old
    ! has hub || die "testbed $TESTBED is up already"
    why=$(ip netns add "$name-hub" 2>&1) || skip "no network namespaces here: $why"
    trap 'remove $name' EXIT
    trap 'exit 143' HUP INT TERM
    why=$(ip -n "$name-hub" link add bridge type bridge 2>&1) || skip "no bridge here: $why"
    ip -n "$name-hub" link set bridge up
    if [ "$delay" -gt 0 ]; then
        relay=${BUILD:-$dir/../../build}/testbed/relay
        mkdir -p "${relay%/*}"
        if [ ! "$relay" -nt "$dir/relay.c" ]; then ${CC:-cc} -std=gnu11 -O2 "$dir/relay.c" -o "$relay" || die "relay.c does not compile"; fi
        [ -c /dev/net/tun ] || skip "no delay here: /dev/net/tun is not there"
    fi
    for i in $(seq "$1"); do
        ip netns add "$name-$i"
        mkdir -p "/etc/netns/$name-$i" # ip netns exec puts these files over those of /etc
        { echo "127.0.0.1 localhost" && for k in $(seq "$1"); do echo "10.99.0.$k host$k node$k"; done; } >"/etc/netns/$name-$i/hosts"
        connect "$i" "$delay"
        why=$( (limit "$i" eth0 "$2" && limit hub "p$i" "$2") 2>&1) || skip "no limit of $2 here: $why"
    done
    trap - EXIT HUP INT TERM
}

what=${1:-}
[ $# -eq 0 ] || shift
case $what in
up)
    [ $# -ge 2 ] || die "write hosts.sh up N RATE [DELAY], as in hosts.sh up 4 100mbit 100us"
    up "$1" "$2" "${3:-none}"
    ;;
down) remove "$name" ;;
enter)
    [ $# -ge 2 ] || die "write hosts.sh enter I CMD..."
    need "$1"
    i=$1
    shift
    exec ip netns exec "$name-$i" unshare --uts sh -c 'hostname "$0" && exec "$@"' "host$i" "$@"
    ;;
shell)
    while :; do # options of ssh
        case ${1:-} in
        -[lop]) shift 2 ;;
        -*) shift ;;
        *) break ;;
        esac
    done
    host=${1#*@}
    case $host in 10.99.0.*) i=${host##*.} ;; *) i=${host#[hn]o[sd][te]} ;; esac
    shift
    need "$i"
    exec ip netns exec "$name-$i" unshare --uts sh -c 'hostname "$0" && exec sh -c "$1"' "host$i" "$*"
    ;;
cut) need "$1" && ip -n "$name-hub" link set "p$1" down ;;
mend) need "$1" && ip -n "$name-hub" link set "p$1" up ;;
halt) need "$1" && { ip netns pids "$name-$1" | xargs -r kill -9 2>/dev/null || true; } ;;
*) sed -n '2,16s/^# \{0,1\}//p' "$0" >&2 && exit 2 ;;
esac
