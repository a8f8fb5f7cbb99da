# lib.sh: for the scripts of this folder. run.sh compares their output with the .out file beside them; lines of standard
# error begin with "2> ". Each script runs in a temporary folder.
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

# Replaces what differs between runs: paths, and what a script adds in $varies.
varies=
plain() { sed -e "s|$ESPRESSO_COMMAND|ESPRESSO|g; s|$programs|PROGRAMS|g; s|${ESPRESSO_COMMAND%/*}|BIN|g; s|$ESPRESSO_BUILD|BUILD|g; s|${PREFIX:-/usr/local}/|PREFIX/|g; s|$top/here|HERE|g; s|$root|ROOT|g" -e "$varies"; }

# All processes that the command starts inherit the lock, so that it is free once they have ended.
become() { flock 9 && exec env --default-signal=INT,QUIT "$ESPRESSO_COMMAND" "$@" >"$top/1" 2>"$top/2"; }
launch() { (become "$@") 9>"$top/lock"; }
order=cat # or sort, if the order of lines varies
ended() { # STATUS: shows the command's output
    { sed -e '$a\' "$top/1" && sed -e 's/^/2> /' -e '$a\' "$top/2"; } | plain | $order
    [ "$1" -eq 0 ] || echo "[exit $1]"
    flock -w 5 "$top/lock" true || echo "processes that it started live on"
}
run() { # ARGS: runs espresso, shows its output, and its exit status if it is not 0
    printf '$ espresso %s\n' "$*" | plain
    launch "$@"
    ended $?
}
quiet() { # ARGS: runs espresso, shows only its exit status; the output is in $top/1 and $top/2
    printf '$ espresso %s ...\n' "$*" | plain
    launch "$@" || echo "[exit $?]"
    flock -w 5 "$top/lock" true || echo "processes that it started live on"
}
start() { # ARGS: runs espresso in the background, as $pid
    printf '$ espresso %s &\n' "$*" | plain
    : >"$top/1" && : >"$top/2"
    become "$@" 9>"$top/lock" &
    pid=$!
}
finish() { # waits for the command of start
    wait "$pid" 2>"$top/shell"
    ended $?
}
# Repeats a command until it succeeds, at most for 20 seconds.
soon() { # COMMAND
    tries=0
    until "$@" >"$top/soon" 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 400 ] || { echo "never: $*" && return 1; }
        sleep 0.05
    done
}
said() { grep -qF -- "$1" "$top/1" "$top/2"; } # TEXT: is it in the output?
# Prints the values of a key in the JSON on standard input, one per line.
key() { grep -oE "\"$1\": *(\"[^\"]*\"|[^],}]*)" | sed 's/^[^:]*: *//'; } # NAME
has() { if grep -qF -- "$2" "$1"; then echo "$1 has $2"; else echo "$1 lacks $2"; fi; } # FILE TEXT
# Checks a condition on numbers that vary. If it is false, the script fails, also with UPDATE=1.
holds() { awk "BEGIN { exit !($*) }" || { echo "this must hold: $*" && exit 1; }; } # CONDITION of awk
