# enter.sh: unpacks a bare root and runs a command in it, as root of a mount and a process namespace (test_bare.sh
# begins them). It has /proc, a few devices, terminals and the network. It does not have what real machines may lack:
# /dev/shm, /sys, /etc/hosts, HOME, a locale.
#   enter.sh FOLDER ROOT.TAR SOURCES.TAR ARCHIVES USER COMMAND...
set -eu
dir=$1 tar=$2 sources=$3 archives=$4 user=$5
shift 5
root=$dir/root
mkdir "$root"
tar -C "$root" --exclude='./dev/*' -xf "$tar"

for device in null zero full random urandom tty; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for name in stdin:0 stdout:1 stderr:2; do ln -s "/proc/self/fd/${name#*:}" "$root/dev/${name%:*}"; done
mount -t proc proc "$root/proc"
mount --bind "$archives" "$root/var/cache/apt/archives" # packages are fetched once
cp /etc/resolv.conf "$root/etc/resolv.conf"

home=$(awk -F: -v user="$user" '$1 == user { print $6 }' "$root/etc/passwd")
mkdir "$root$home/espresso"
tar -C "$root$home/espresso" -xf "$sources"
chroot "$root" chown -R "$user:" "$home/espresso"
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin ${OPT:+OPT="$OPT"} ${CFLAGS:+CFLAGS="$CFLAGS"} \
    chroot "$root" setpriv --reuid "$user" --regid "$user" --init-groups sh -c "cd $home/espresso && $*"
