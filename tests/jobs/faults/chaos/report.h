/* report.h makes many jobs with one kind of fault, and measures when ranks notice. It reads the flags of test_chaos. */
#ifndef CHAOS_REPORT_H
#define CHAOS_REPORT_H
#include "driver.h"

typedef struct tally {
    int runs, failed, busy, late;
    double *ms;
    size_t n;
} tally;

static int double_order(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static void tally_free(tally *t) { free(t->ms); }

/* Makes jobs with the seeds first, first + 1, ... If ranks were too slow, repeats a job with a longer timeout. */
static void tally_runs(tally *t, kind k, uint64_t first, unsigned runs, const options *o) {
    t->ms = (double *)realloc(t->ms, (t->n + runs * (size_t)RANKS) * sizeof *t->ms);
    for (unsigned i = 0; i < runs; i++) {
        static result r; /* too large for the stack */
        options slower = *o;
        for (int tries = 0; tries < 3; tries++, slower.timeout_ms *= 3) {
            run_once(k, first + i, &slower, state_file_hash, &r);
            if (!r.busy) break;
            t->busy++;
            r.failed = 1;
        }
        t->runs++;
        t->failed += r.failed;
        t->late += r.late;
        if (r.late && !r.failed)
            fprintf(stderr, "%s, seed %llu: %d ranks noticed it after more than %.0f ms\n", kinds[k].name,
                    (unsigned long long)(first + i), r.late, o->bound_ms);
        memcpy(t->ms + t->n, r.noticed_ms, (size_t)r.n_noticed * sizeof *t->ms);
        t->n += (size_t)r.n_noticed;
    }
    qsort(t->ms, t->n, sizeof *t->ms, double_order);
}

static void tally_print(FILE *f, kind k, const tally *t) {
    fprintf(f, "%s,%d,%d,%d", kinds[k].name, t->runs, t->failed, t->busy);
    if (t->n)
        fprintf(f, ",%.2f,%.2f,%.2f,%d", esp__quantile(t->ms, t->n, 0.5), esp__quantile(t->ms, t->n, 0.95),
                t->ms[t->n - 1], t->late);
    else
        fprintf(f, ",,,,");
    fprintf(f, ",\"%s\"\n", kinds[k].what);
    fflush(f);
}

static void machine_print(FILE *f) {
    char line[256], model[128] = "unknown CPU";
    double load[3] = {0};
    FILE *in = fopen("/proc/cpuinfo", "r");
    while (in && fgets(line, sizeof line, in))
        if (!strncmp(line, "model name", 10)) sscanf(strchr(line, ':') + 1, " %127[^\n]", model);
    if (in) fclose(in);
    if (getloadavg(load, 3) < 0) load[0] = 0;
    fprintf(f, "# machine: %ld cores, %s", sysconf(_SC_NPROCESSORS_ONLN), model);
    in = fopen("/proc/sys/kernel/osrelease", "r");
    if (in && fgets(line, sizeof line, in)) fprintf(f, ", Linux %.*s", (int)strcspn(line, "\n"), line);
    if (in) fclose(in);
    fprintf(f, "; load before (1, 5, 15 minutes): %.1f %.1f %.1f\n", load[0], load[1], load[2]);
}

static void report_head(FILE *f, const options *o) {
    fprintf(f, "# make soak: faults at random moments: 4 ranks on 2 emulated machines, backend %s\n", o->backend);
    machine_print(f);
    fprintf(f,
            "# failures: runs that did not keep what docs/use/faults.md promises, times aside; again: repeated, as the "
            "machine was too busy to start the ranks\n"
            "# ms: from the fault until the failed call returned, on every other rank (stop: from the end of "
            "ESPRESSO_TIMEOUT_MS = %u); late: ranks for which it took more than %.0f ms\n"
            "kind,runs,failures,again,median_ms,p95_ms,worst_ms,late,fault\n",
            (unsigned)o->timeout_ms, o->bound_ms);
}

static int soak_main(int argc, char **argv) {
    options o = {"shm", NULL, TIMEOUT_MS, SOAK_BOUND_MS, 0};
    const char *only = NULL, *path = NULL;
    unsigned runs = 500;
    uint64_t seed = 1;
    int failed = 0, known = 0;
    if (getenv("ESPRESSO_BACKEND")) o.backend = getenv("ESPRESSO_BACKEND");
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        const int takes = strcmp(argv[i], "--verbose") != 0;
        if (!strcmp(argv[i], "--kind"))
            only = value;
        else if (!strcmp(argv[i], "--runs"))
            runs = (unsigned)strtoul(value, NULL, 10);
        else if (!strcmp(argv[i], "--seed"))
            seed = strtoull(value, NULL, 10);
        else if (!strcmp(argv[i], "--timeout"))
            o.timeout_ms = (uint32_t)strtoul(value, NULL, 10);
        else if (!strcmp(argv[i], "--within"))
            o.bound_ms = strtod(value, NULL);
        else if (!strcmp(argv[i], "--report"))
            path = value;
        else if (!strcmp(argv[i], "--backend"))
            o.backend = value;
        else if (!strcmp(argv[i], "--launcher"))
            o.launcher = value;
        else if (!strcmp(argv[i], "--verbose"))
            o.verbose = 1;
        else
            return fprintf(stderr, "%s: unknown %s\n", argv[0], argv[i]), 2;
        i += takes;
    }
    FILE *f = path ? fopen(path, "w") : stdout;
    if (!f) return fprintf(stderr, "%s: cannot write %s: %s\n", argv[0], path, strerror(errno)), 2;
    report_head(f, &o);
    for (int k = 0; k < KINDS; k++) {
        tally t = {0};
        if (only && strcmp(only, kinds[k].name) != 0) continue;
        known = 1;
        if (k == LINK_CUT) continue;
        tally_runs(&t, (kind)k, seed, runs, &o);
        tally_print(f, (kind)k, &t);
        if (path) tally_print(stdout, (kind)k, &t);
        failed += t.failed + t.late;
        tally_free(&t);
    }
    if (path) fclose(f);
    if (!known) return fprintf(stderr, "%s: there is no kind '%s'\n", argv[0], only), 2;
    return failed != 0;
}
#endif
