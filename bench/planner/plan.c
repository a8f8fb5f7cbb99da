/* plan.c: measures how fast the planner is and how good its plans are, with one thread. Results go to standard
 * output.
 *
 *     build/bench/plan speed [growth.csv]      times against targets, naive evaluation, growth with size, effect of each part
 *     build/bench/plan quality [cases.csv]     144 cases: 6 models x 3 codecs x 2 testbeds x 4 cluster sizes
 *
 * bench/planner/plan.sh runs both, stores the results and plots them. Models are the published traces in
 * ESPRESSO_SHARED/models (or ../shared/models); where these are missing, those of planner/models. */
#define ESPRESSO_STATIC
#define ESPRESSO_IMPLEMENTATION
#include "espresso.h"
#include "plan/input.h"
#include "plan/naive.h"
#include "plan/growth.h"
#include "plan/parts.h"
#include "plan/speed.h"
#include "plan/explain.h"
#include "plan/quality.h"

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    int speed = !strcmp(what, "speed"), quality = !strcmp(what, "quality");
    if ((!speed && !quality) || argc > 3) {
        fprintf(stderr, "usage: plan speed|quality [FILE.csv]\n");
        return 2;
    }
    machine_line(what);
    FILE *csv = NULL;
    if (argc > 2 && !(csv = fopen(argv[2], "w"))) die("cannot write", argv[2]);
    int rc = speed ? speed_main(csv) : quality_main(csv);
    if (csv && fclose(csv)) die("cannot write", argv[2]);
    return rc;
}
