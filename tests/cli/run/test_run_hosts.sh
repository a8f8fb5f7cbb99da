# test_run_hosts.sh: `espresso run --hosts`: the variables of ranks on other hosts, their output, and wrong usage.
. tests/cli/run/hosts.sh

export ESPRESSO_LOG=error OMP_SCHEDULE=static,7 NOT_OURS=x ASKED="with = and \" and ' and	tab"
export ESPRESSO_RANK=77 ESPRESSO_SECRET=of-the-job-around-this-one
on a:2,user@b:1 --env A=b=c --env ASKED --env ESPRESSO_TIMEOUT_MS=1234 -- sh -c 'echo $HOST $ESPRESSO_RANK $ESPRESSO_SIZE $ESPRESSO_MACHINE $ESPRESSO_LOCAL_RANK $ESPRESSO_LAUNCHER $ESPRESSO_LOG $OMP_SCHEDULE "<$NOT_OURS>" $A $ESPRESSO_TIMEOUT_MS; echo "$ASKED"; pwd'
has "$top/2" 'welcome to a' | sed 's/.* has/stderr has/'
on a,b,c,d -n 4 --racks 2 -- sh -c 'echo $ESPRESSO_PLACE'
# the launcher makes a secret for the job; both ranks have it, and no command line does (grep's would: it reads a file)
on a:1,b:1 -- sh -c 'cat /proc/[0-9]*/cmdline 2>/dev/null | tr "\0" "\n" >lines.$ESPRESSO_RANK
    printenv ESPRESSO_SECRET >secret.$ESPRESSO_RANK
    echo "found $(grep -c -f secret.$ESPRESSO_RANK lines.$ESPRESSO_RANK), $(grep -c -- --root lines.$ESPRESSO_RANK | sed "s/[1-9][0-9]*/some/") lines with --root, ${#ESPRESSO_SECRET} long"'
unset ESPRESSO_LOG OMP_SCHEDULE NOT_OURS ASKED ESPRESSO_RANK ESPRESSO_SECRET

# arguments with special characters; also the command's own path
odd=$(printf 'a'\''b"c $HOME `x` \\ *\n;&|<>()~#! \t\001\377')
quiet run --rsh "$PWD/rsh" --root 127.0.0.1 --hosts a:1,b:1 --no-prefix -- printf '%s|%s|' "$odd" '' >"$top/said"
printf '%s||\n%s||\n' "$odd" "$odd" | sort >odd
sort "$top/1" | cmp - odd # the lines of two ranks, in any order
ln -s "$ESPRESSO_COMMAND" "it's \"\$x"
on a:1,b:1 --espresso "$PWD/it's \"\$x" -- echo hello
# ranks connect at the port that the launcher chose, and average: by shared memory, since the "hosts" are one
on a:2,b:2 --env ESPRESSO_BACKEND=shm -- "$programs/trainer" 1 --say weight:10

quiet run --rsh "$PWD/rsh" --hosts 127.0.0.1,127.0.0.2 -n2 --no-prefix sh -c 'echo $ESPRESSO_ROOT'
uniq "$top/1" | sed 's/:[1-9][0-9]*$/:PORT/'
on a:1,b:1 --root '[fe80::1]:29400' -- sh -c 'echo $ESPRESSO_ROOT'
varies="$varies; s/\\(\\]:\\)[1-9][0-9]*\$/\\1PORT/"
run run --rsh "$PWD/rsh" --hosts '[::1]:1,127.0.0.1:1' sh -c 'echo $HOST $ESPRESSO_ROOT'

# lines are complete, in order, and none is lost
quiet run --rsh "$PWD/rsh" --root 127.0.0.1 --hosts a:3,b:1 -- sh -c 'seq 0 9999 | awk '\''{ s = $0 " the quick brown fox"; print s; print s > "/dev/stderr" }'\'
for stream in 1 2; do
    grep -v welcome "$top/$stream" | awk '{ r = substr($1, 2) + 0; if (NF != 6 || $2 != next_of[r]++ || $6 != "fox") bad++ }
        END { for (r = 0; r < 4; r++) if (next_of[r] != 10000) bad++; print NR " lines, " bad + 0 " wrong" }'
done
echo hello | on a:1,b:1 -- sh -c 'cat; echo end' # no rank reads the input
# many variables and a long command: more than a pipe takes by default
long=$(head -c 120000 /dev/zero | tr '\0' x)
quiet run --rsh "$PWD/rsh" --root 127.0.0.1 --hosts a:1,b:1 --env "A=$long" -- sh -c 'echo ${#1} ${#A}' sh "$long" >"$top/said"
sort "$top/1"

# ---- errors: no rank is started if a host is not ready ---------------------------------------------------------------
# one of the hosts reports it
any="$varies; s/version [0-9.]*[0-9]/VERSION/g; s/host [ab] (rank [01])/host H (rank R)/; s/run on [ab]/run on H/; /^2> [a-z]*: .*exec: /d; /failed after that/d; /ending what/d"
printf '#!/bin/sh\nhead -c 32 | sed "s/^[0-9.]*/0.0.1/" | "%s" "$@"\n' "$PWD/rsh" >bad && chmod +x bad
for flags in a:1,gone:1 'a:1,b:1 --espresso /no/such/espresso' 'a:1,b:1 --espresso /bin/true' 'a:1,b:1 --rsh /no/such/rsh' "a:1,b:1 --rsh $PWD/bad"; do
    varies=$any order='sort -u'
    on $flags -- touch started
done
ls started 2>"$top/said"
on a:1,b:1 -- ./no/such/program
# the directory does not exist on the other host
printf '#!/bin/sh\nif [ $1 = b ]; then mv "%s/folder" "%s/elsewhere"; sleep 0.2; fi\nexec "%s" "$@"\n' "$PWD" "$PWD" "$PWD/rsh" >moved && chmod +x moved
mkdir folder
(cd folder && "$ESPRESSO_COMMAND" run --hosts a:1,b:1 --root 127.0.0.1 --rsh "$top/here/moved" true 2>"$top/2"; echo "[exit $?]")
grep -o "cannot enter .*" "$top/2" | sort -u | plain

wrong() { run run "$@" ls; }
order=cat
wrong --hosts a,b
wrong --hosts a,b -n 3
wrong --hosts a:2,b:1 -n 4
wrong --hosts a:2,b
wrong --hosts a:2,a:1
wrong --hosts a,you@a -n2
wrong --hosts a,,b -n2
wrong --hosts '' -n2
wrong --hosts=-oProxyCommand=x,b -n2
wrong --hosts a:0,b:1
wrong --hosts fe80::1,b -n2
wrong --hosts localhost,b -n2
wrong --hosts a,b -n2 --root a:x
wrong --hosts a,b -n2 --machines=2
wrong --hosts a,b -n2 --inter=1gbit
wrong --hosts a,b --ranks-per-machine=1,2
wrong --hosts a,b,c -n3 --racks=2
wrong --rsh x -n2
wrong -n2 --env NOT_SET_HERE
