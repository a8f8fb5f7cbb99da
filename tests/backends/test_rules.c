/* test_rules.c runs `espresso plugins --check` on every built-in backend. */
/* runs: no-tsan: each check is a process, in which the sanitizer cannot follow threads */
#include "tests/lib/test.h"
#include "tests/lib/run_check.h"

static const char *const specs[] = {"loop", "shm"};
enum { SPECS = sizeof specs / sizeof *specs };

TEST(all_rules) {
    for (int i = 0; i < SPECS; i++) run_check(specs[i]);
}

TEST(all_backends) {
    esp_ctx *ctx = NULL;
    assert_int_equal(esp__open_alone(&ctx), ESP_OK);
    assert_true(ctx->registry.backends.n > 0);
    for (uint32_t i = 0; i < ctx->registry.backends.n; i++)
        run_check_named(ctx->registry.backends.at[i].backend->name, specs, SPECS);
    esp_close(ctx);
}
