# lib.sh: for the scripts of this folder. What they print is compared with the file .out beside them (run.sh); standard error has "2> "
# in front of each line. Each runs in a folder of its own, which goes away at the end.
set -u
for tool in flock script; do command -v $tool >/dev/null || { echo "skipped: $tool is not there (Debian: util-linux, bsdutils)" && exit 77; }; done
unset ESPRESSO_STATS ESPRESSO_PROFILE ESPRESSO_PLUGIN_PATH OMP_NUM_THREADS
root=$PWD
programs=$(dirname "$ESPRESSO_COMMAND")/../cli # the trainer, built as the command was
export LC_ALL=C ESPRESSO_MIN_COMPRESS_ELEMENTS=0 ESPRESSO_MODELS="$root/planner/models"
top=$(mktemp -d "${TMPDIR:-/tmp}/espresso-cli-XXXXXX") || exit 1
trap 'rm -rf "$top"' EXIT
trap 'exit 143' HUP INT TERM
mkdir "$top/here" && cd "$top/here" || exit 1

# What differs from run to run is taken out: paths here, the rest by a script that says other words of sed.
varies=
plain() { sed -e "s|$ESPRESSO_COMMAND|ESPRESSO|g; s|$programs|PROGRAMS|g; s|${ESPRESSO_COMMAND%/*}|BIN|g; s|$ESPRESSO_BUILD|BUILD|g; s|${PREFIX:-/usr/local}/|PREFIX/|g; s|$top/here|HERE|g; s|$root|ROOT|g" -e "$varies"; }

# All processes that the command starts inherit the lock, so that it is free once they are gone.
become() { flock 9 && exec env --default-signal=INT,QUIT "$ESPRESSO_COMMAND" "$@" >"$top/1" 2>"$top/2"; }
launch() { (become "$@") 9>"$top/lock"; }
order=cat # or sort, where it is not said in the same order in each run
ended() { # STATUS: shows what the command said
    { sed -e '$a\' "$top/1" && sed -e 's/^/2> /' -e '$a\' "$top/2"; } | plain | $order
    [ "$1" -eq 0 ] || echo "[exit $1]"
    flock -w 5 "$top/lock" true || echo "processes that it started live on"
}
run() { # ARGS: runs espresso, and shows its output and its exit status where that is not 0
    printf '$ espresso %s\n' "$*" | plain
    launch "$@"
    ended $?
}
quiet() { # ARGS: the same, and shows the exit status alone; the output is in $top/1 and $top/2
    printf '$ espresso %s ...\n' "$*" | plain
    launch "$@" || echo "[exit $?]"
    flock -w 5 "$top/lock" true || echo "processes that it started live on"
}
start() { # ARGS: the same in the background, as $pid
    printf '$ espresso %s &\n' "$*" | plain
    : >"$top/1" && : >"$top/2"
    become "$@" 9>"$top/lock" &
    pid=$!
}
finish() { # waits for it
    wait "$pid" 2>"$top/shell"
    ended $?
}
# Waits until a command succeeds; for 20 seconds at most.
soon() { # COMMAND
    tries=0
    until "$@" >"$top/soon" 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 400 ] || { echo "never: $*" && return 1; }
        sleep 0.05
    done
}
said() { grep -qF -- "$1" "$top/1" "$top/2"; } # TEXT
# The values of a key of JSON on standard input, one a line, in the order in which they are there.
key() { grep -oE "\"$1\": *(\"[^\"]*\"|[^],}]*)" | sed 's/^[^:]*: *//'; } # NAME
has() { if grep -qF -- "$2" "$1"; then echo "$1 has $2"; else echo "$1 lacks $2"; fi; } # FILE TEXT
# What must be so whatever the numbers are: else the script fails, and UPDATE=1 writes nothing.
holds() { awk "BEGIN { exit !($*) }" || { echo "this must hold: $*" && exit 1; }; } # CONDITION of awk
