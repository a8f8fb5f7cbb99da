/* shared.c: flags, reports and times, shared with examples/train. */
#include "../train/report.c"
#include "../train/run.c"
