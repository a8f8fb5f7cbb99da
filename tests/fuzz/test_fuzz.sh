# test_fuzz.sh: libFuzzer on all that comes from outside, each target for a minute; `make fuzz` lets them run for longer.
# time limit: 1800 s
# runs: long
command -v clang >/dev/null || { echo "skipped: clang is not there" && exit 77; }
unset MAKEFLAGS MAKELEVEL
exec make -s BUILD="${BUILD:-build}" FUZZ_SECONDS=60 fuzz
