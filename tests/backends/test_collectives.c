/* test_collectives.c runs every collective on backends loop and shm, within a machine and over an emulated network
 * between machines, and on the backend of plugins/template_backend. */
/* runs: slow tsan */
#include "tests/lib/test.h"
#include "collectives.h"
#include "tests/lib/entries.h"

static void expect_ok(const char *name, const char *params, int32_t n, int32_t per_machine, ranks_fn fn) {
    const char *why = ranks_run(ranks_backend(name), params, n, per_machine, fn, NULL, -1);
    if (why[0]) fail_msg("%s", why);
}
static void run_both(const char *name, const char *params, int32_t per_machine) {
    static const int32_t sizes[] = {3, 5, 1, 2, 4}; /* sanitizers use only the first size */
    for (int k = 0; k < (SANITIZED ? 1 : (int)test_repeats(per_machine ? 2 : 5)); k++) {
        expect_ok(name, params, sizes[k], per_machine, all_numbers);
        expect_ok(name, params, sizes[k], per_machine, all_slots);
    }
}
TEST(loop_direct) { run_both("loop", "", 0); }
TEST(shm_by_window) { run_both("shm", "", 0); }
/* The emulated links are so fast that transfers take next to no time. */
TEST(loop_linked) { run_both("loop", "inter=100gbit,latency=1us", 1); }
TEST(loop_ring) { run_both("loop", "inter=100gbit", 2); }
TEST(shm_ring) { run_both("shm", "inter=100gbit", 2); }

TEST(template_by_files) {
    const esp_backend *b = espresso_plugin_v1_example(&ranks_host)->backends[0];
    char dir[] = "/tmp/espresso-test-XXXXXX", params[64];
    assert_non_null(mkdtemp(dir));
    snprintf(params, sizeof params, "dir=%s", dir);
    for (int32_t per_machine = 0; per_machine < 3; per_machine += 2) {
        const char *why = ranks_run(b, params, 3, per_machine, few, NULL, -1);
        if (why[0]) fail_msg("%s", why);
    }
    assert_int_equal(rmdir(dir), 0);
}
