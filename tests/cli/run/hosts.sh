# hosts.sh: for the scripts of `espresso run --hosts`: a remote shell that runs its command on this machine. It records
# its pid and the host's name, prints a login message, and clears the environment.
. tests/cli/lib.sh
cat >rsh <<END
#!/bin/sh
echo "\$\$ \$1" >>"$PWD/pids"
printf 'welcome to %s' "\$1"
case \$1 in gone*) echo "\$1: no such host" >&2; exit 255 ;; esac
h=\$1
shift
unset ESPRESSO_LOG OMP_SCHEDULE NOT_OURS ASKED
cd /
HOST=\$h sh -c "\$*"
exit \$?
END
chmod +x rsh
order=sort varies='s/(pid [0-9]*)/(pid PID)/; /^2> welcome to /d'
on() { run run --rsh "$PWD/rsh" --root 127.0.0.1 --hosts "$@"; } # HOSTS FLAGS
at() { start run --rsh "$PWD/rsh" --root 127.0.0.1 --hosts "$@"; } # the same in the background
ready() { for rank in "$@"; do soon said "[$rank] ready"; done; }
