# test_check_all.sh: the faults that test_check.sh leaves out.
# runs: long
. tests/cli/check/check.sh
for fault in header seed among count loses shrinks longer ignores order crash shared size round leak poor error params; do codec $fault; done
for fault in varlen slots bits sleep traffic scale paced; do backend $fault; done
