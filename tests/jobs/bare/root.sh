# root.sh: makes the minimal Debian (or Ubuntu) root of test_bare.sh, once, and prints the path of its tar file. The
# root has the essential packages, apt, sudo and a user `bare` who may use sudo: no compiler, no make, no /etc/hosts, no
# locale. Its package sources and proxy are those of this machine's apt.
#   SUITE=trixie sh tests/jobs/bare/root.sh        (the default is this machine's own release)
# Kept in ${XDG_CACHE_HOME:-~/.cache}/espresso-bare, which `make clean` leaves alone; delete it to start afresh.
set -eu
version=1 # increase it after a change of this script
skip() {
    echo "skipped: $*" >&2
    exit 77
}
command -v apt-get >/dev/null || skip "a bare root is made with apt, which this machine does not have"
command -v mmdebstrap >/dev/null || skip "mmdebstrap is not there to make a bare root (Debian: apt-get install mmdebstrap)"

arch=$(dpkg --print-architecture)
suite=${SUITE:-$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)}
[ -n "$suite" ] || skip "/etc/os-release names no VERSION_CODENAME: say SUITE=NAME of a Debian or Ubuntu release"
cache=${XDG_CACHE_HOME:-${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}/.cache}/espresso-bare
tar=$cache/$suite-$arch-$version.tar
mkdir -p "$cache/archives"
exec 9>"$cache/lock"
flock 9 # only one of two tests at the same time makes the root
if [ -s "$tar" ]; then
    echo "$tar"
    exit 0
fi

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
# this machine's sources of that release; where it has none (SUITE is another release), mmdebstrap knows the usual
# mirror
apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    awk -v suite="$suite" '$2 == suite || index($2, suite "-") == 1 { print "deb", $1, $2, $3 }' | sort -u >"$tmp/sources"
apt-config dump | grep -E '^Acquire::(https?::|Check-|Retries|ForceIPv)' >"$tmp/apt.conf" || :
packages=sudo
if grep -q ' https:' "$tmp/sources"; then packages=sudo,ca-certificates; fi
sources=
[ ! -s "$tmp/sources" ] || sources=$tmp/sources

echo "making a bare root of $suite: $tar" >&2
# shellcheck disable=SC2016 # mmdebstrap's hooks see $1, the root
mmdebstrap --quiet --variant=minbase --include=$packages --aptopt="$tmp/apt.conf" \
    --customize-hook='chroot "$1" useradd --create-home --shell /bin/sh bare' \
    --customize-hook='echo "bare ALL=(ALL) NOPASSWD: ALL" >"$1/etc/sudoers.d/bare"' \
    --customize-hook='rm -f "$1/etc/hosts"' --format=tar "$suite" "$tar.new" ${sources:+"$sources"} >"$tmp/log" 2>&1 || {
    tail -n 20 "$tmp/log" >&2
    rm -f "$tar.new"
    skip "mmdebstrap could not make a root of $suite here (no namespaces, or packages cannot be fetched), see above"
}
mv "$tar.new" "$tar"
echo "$tar"
