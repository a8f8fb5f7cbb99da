# test_check_all.sh: the faults that test_check.sh leaves out.
# runs: long
. tests/cli/check.sh
for fault in shrinks longer ignores order crash shared size round leak poor error params; do codec $fault; done
for fault in slots bits sleep traffic scale paced; do backend $fault; done
