/* plan.c: measures how fast the planner is and how good its plans are, on one thread. bench/planner/plan.sh runs it.
 * Model files are in ESPRESSO_SHARED/models (or ../shared/models) or, if missing there, in planner/models.
 *
 *     build/bench/plan speed [DIR]      writes plan-speed.csv, plan-growth.csv, plan-parts.csv and plan-trials.csv
 *     build/bench/plan relax [DIR]      writes plan-relax.csv, for the 144 cases of `quality`
 *     build/bench/plan quality [DIR]    writes plan-quality.csv and plan-misses.csv, for 144 cases: 6 models x 3 codecs
 *                                       x 2 testbeds x 4 cluster sizes */
#define ESPRESSO_STATIC
#define ESPRESSO_IMPLEMENTATION
#include "espresso.h"
#include "bench/planner/input.h"
#include "bench/planner/naive.h"
#include "bench/planner/growth.h"
#include "bench/planner/parts.h"
#include "bench/planner/speed.h"
#include "bench/planner/explain.h"
#include "bench/planner/quality.h"
#include "bench/planner/relax.h"

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "", *dir = argc > 2 ? argv[2] : ".";
    const int speed = !strcmp(what, "speed"), quality = !strcmp(what, "quality"), relaxed = !strcmp(what, "relax");
    if ((!speed && !quality && !relaxed) || argc > 3)
        return fprintf(stderr, "usage: plan speed|quality|relax [DIR]\n"), 2;
    if (speed)
        speed_main(dir);
    else if (quality)
        quality_main(dir);
    else
        relax_main(dir);
    return 0;
}
