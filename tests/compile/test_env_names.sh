# test_env_names.sh: every ESPRESSO_* variable that the code reads or sets is in the list of known ones
# (job/env_names.c), and the list has no others.
. tests/compile/common.sh
code=$(find espresso_impl codecs backends planner tools \( -name '*.[ch]' -o -name '*.cu' \) ! -name env_names.c)
quoted='"ESPRESSO_[A-Z_]*"'
grep -ho "$quoted" espresso_impl/job/env_names.c | sort -u >"$tmp/known"
grep -hoE "(getenv|setenv|run_set[a-z_]*|esp__env_(get|int))\($quoted" $code | grep -o "$quoted" | sort -u >"$tmp/read"
if ! diff "$tmp/known" "$tmp/read" >"$tmp/diff"; then
    echo "known (<) and read (>) differ:"
    cat "$tmp/diff"
    exit 1
fi
[ "$(wc -l <"$tmp/read")" -gt 10 ]
