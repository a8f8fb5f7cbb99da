# test_check.sh: `espresso plugins --check`: built-in plugins keep every rule, and each fault of a faulty plugin
# (tests/abi) is found by its check, with a message about what to do. test_check_all.sh has more faults.
# runs: slow asan-long
. tests/cli/check/check.sh
for name in none loop shm; do check $name; done # others: codecs/test_codecs.c, backends/test_rules.c
for fault in unknown capacity linear lists nan; do codec $fault; done
several same codec clock
for fault in abort; do backend $fault; done
several numbers backend sum
check --path "$fixtures" lazy
check "$fixtures/libespresso-faulty.so"
check no_such_codec
