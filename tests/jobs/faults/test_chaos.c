/* test_chaos.c runs jobs of 4 ranks on 2 machines with one fault at a random moment. All ranks must react as
 * docs/use/faults.md describes. Without arguments it makes 20 runs of every kind; `make soak` makes more and reports
 * when ranks notice. Kind and seed, which a failure prints, determine a run.
 *   test_chaos [--kind NAME] [--runs N] [--seed FIRST] [--timeout MS] [--within MS] [--report FILE] [--verbose]
 *              [--backend NAME] [--launcher "mpirun -n 4"] */
/* runs: quiet slow asan-long no-tsan: ranks are processes; context/test_step has their threads */
#include "tests/lib/test.h"
#include "espresso_impl/base/quantile.h"

#include "espresso_impl/job/peers.h"

/* The library version that a rank states when it connects. The linker redirects esp__hello_make to this file. */
static const char *chaos_version = ESPRESSO_VERSION;
void __real_esp__hello_make(const esp__peers *p, uint64_t job, esp__hello *out);
void __wrap_esp__hello_make(const esp__peers *p, uint64_t job, esp__hello *out);
void __wrap_esp__hello_make(const esp__peers *p, uint64_t job, esp__hello *out) {
    __real_esp__hello_make(p, job, out);
    memset(out->version, 0, sizeof out->version);
    snprintf(out->version, sizeof out->version, "%s/2", chaos_version);
}
#include "tests/jobs/faults/chaos/board.h"
#include "tests/jobs/faults/chaos/rank.h"
#include "tests/jobs/faults/chaos/driver.h"
enum { CI_RUNS = 20, TIMEOUT_MS = 600, CI_BOUND_MS = 8000, SOAK_BOUND_MS = 100 };
#include "tests/jobs/faults/chaos/report.h"

static void run_kind(void **state) {
    const kind k = *(const kind *)*state;
    const options o = {"shm", NULL, TIMEOUT_MS, CI_BOUND_MS, 0};
    tally t = {0};
    tally_runs(&t, k, 1, test_repeats(CI_RUNS), &o);
    tally_print(stdout, k, &t);
    const int failed = t.failed + t.late;
    tally_free(&t);
    assert_int_equal(failed, 0);
}

static int skip_kind(kind k) {
#if defined(__SANITIZE_ADDRESS__)
    if (k == MEMORY) return 1; /* the sanitizer maps terabytes, so that no limit works */
#endif
    return k == LINK_CUT;
}

int main(int argc, char **argv) {
    static kind all[KINDS];
    struct CMUnitTest tests[KINDS];
    size_t n = 0;
    if (argc == 4 && !strcmp(argv[1], "--rank")) return rank_main(argv[2], argv[3]);
    if (argc > 1) return soak_main(argc, argv);
    for (int k = 0; k < KINDS; k++) {
        all[k] = (kind)k;
        if (skip_kind(all[k])) continue;
        tests[n++] = (struct CMUnitTest){kinds[k].name, run_kind, NULL, NULL, &all[k]};
    }
    return _cmocka_run_group_tests("chaos", tests, n, NULL, NULL);
}
