# test_fuzz.sh: runs libFuzzer on each fuzz target for a minute; `make fuzz` runs them for longer.
# time limit: 1800 s
# runs: long
command -v clang >/dev/null || { echo "skipped: clang is not there" && exit 77; }
unset MAKEFLAGS MAKELEVEL
exec make -s BUILD="${BUILD:-build}" FUZZ_SECONDS=60 fuzz
