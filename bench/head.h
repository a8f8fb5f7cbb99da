/* head.h: writes the comment lines at the start of a CSV: what was measured, when, and on which machine. */
#ifndef BENCH_HEAD_H
#define BENCH_HEAD_H
#include "espresso_impl/base/machine.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/utsname.h>
#include <time.h>

static inline void bench_head(FILE *out, const char *what) {
    char cpu[256], date[32] = "";
    double load[3] = {0};
    struct utsname os = {0};
    const time_t now = time(NULL);
    esp__cpu_name(cpu, sizeof cpu);
    strftime(date, sizeof date, "%Y-%m-%d", localtime(&now));
    if (getloadavg(load, 3) != 3) load[0] = load[1] = load[2] = 0;
    uname(&os);
    fprintf(out, "# %s\n# machine: %s, %u cores, %s %s, compiler %s, load before: %.2f %.2f %.2f; %s\n", what,
            *cpu ? cpu : "unknown CPU", esp__cores(), os.sysname, os.release, __VERSION__, load[0], load[1], load[2],
            date);
    fflush(out);
}
#endif
