# test_left.sh: after kill -9 of all ranks in the middle of steps, with backends shm and gloo of the launcher too, no
# process, file or shared memory is left behind. test_template_backend.sh has this check for the backend with files.
# runs: quiet slow
set -u
BUILD=${BUILD:-build}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export ESPRESSO_PLUGIN_PATH="$PWD/$BUILD/lib/espresso" ESPRESSO_BACKEND TMPDIR="$dir/tmp" OMP_NUM_THREADS=1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
mpirun=$(command -v mpirun.openmpi || command -v mpirun) || mpirun=
mkdir "$dir/tmp" "$dir/cwd"
cp "$BUILD/tests/jobs/faults/exits" "$dir/left-$$" # a name by which its processes are found
ours() { for p in /proc/[0-9]*; do [ "$(readlink "$p/exe" 2>/dev/null)" != "$dir/left-$$" ] || echo "${p#/proc/}"; done; }
there() { ls "$dir/tmp" "$dir/cwd"; ls /dev/shm | grep -E 'espresso|gloo'; } # other programs have files there, too
espresso=$PWD/$BUILD/bin/espresso skipped= failed=0
bad() { echo "FAILED: $ESPRESSO_BACKEND: $*"; cat "$dir/log"; failed=1; }
for ESPRESSO_BACKEND in shm gloo mpi; do
    [ $ESPRESSO_BACKEND = shm ] || [ -e "$BUILD/lib/espresso/libespresso-$ESPRESSO_BACKEND.so" ] || { skipped="backend $ESPRESSO_BACKEND is not there" && continue; }
    there >"$dir/before"
    case $ESPRESSO_BACKEND in
    mpi)
        [ -n "$mpirun" ] && "$mpirun" --version | grep -qE 'Open MPI|OpenRTE' || { skipped="mpirun of Open MPI is not there" && continue; }
        (cd "$dir/cwd" && exec "$mpirun" --oversubscribe --bind-to none -n 3 "$dir/left-$$" forever) >"$dir/log" 2>&1 &
        ;;
    *) (cd "$dir/cwd" && exec "$espresso" run -n 3 -- "$dir/left-$$" forever) >"$dir/log" 2>&1 & ;;
    esac
    launcher=$!
    for i in $(seq 100); do
        [ "$(ours | wc -l)" -lt 3 ] || break
        sleep 0.1
    done
    sleep 2 # ranks are in their steps
    ranks=$(ours)
    [ "$(echo "$ranks" | wc -w)" = 3 ] || bad "not all ranks ran"
    # shellcheck disable=SC2086
    case $ESPRESSO_BACKEND in
    mpi) kill -9 $ranks ;; # MPI's launcher removes files of MPI itself
    *) kill -9 $launcher $ranks ;;
    esac
    wait $launcher 2>/dev/null
    for i in $(seq 50); do
        there >"$dir/after"
        [ -n "$(ours)" ] || ! cmp -s "$dir/before" "$dir/after" || break
        sleep 0.1
    done
    [ -z "$(ours)" ] || bad "processes are left: $(ours)"
    cmp -s "$dir/before" "$dir/after" || bad "left behind: $(diff "$dir/before" "$dir/after")"
    echo "$ESPRESSO_BACKEND: tried"
done
[ $failed = 0 ] || exit 1
[ -z "$skipped" ] || { echo "skipped: $skipped" && exit 77; }
