/* test_fake_tree.c: every option with compression on the device, and some of those that compress on either side, in one job with a
 * tensor each: the fake device's bits are the CPU's. With a stream-ordered backend, and with codecs of several rounds. For a backend
 * that only knows the host's memory see test_fake_processes.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include "tests/device/device_rig.h"
#include "tests/device/backend_fake.c"
#include "tests/common/rounds_codec.h"

enum { ELEMENTS = 67, MOST = 700, TREE_STEPS = 2, TREE_RANKS = 4 };

typedef struct tree_job {
    const char *codec;
    int on_device;
    uint32_t n, seen; /* tensors, options */
    float *out;       /* [rank][step][n][ELEMENTS] */
} tree_job;

typedef struct adding {
    esp_ctx *ctx;
    tree_job *j;
    uint32_t devices, seen, n;
} adding;

/* All options on the GPU, and every 17th of the others. */
static int add_option(void *user, const esp__option *o) {
    adding *a = user;
    char text[ESP__TEXT_MAX], name[32];
    int gpu = 1;
    for (uint32_t i = 0; i < o->n; i++)
        if ((o->steps[i].kind == ESP__COMP || o->steps[i].kind == ESP__DECOMP) && o->steps[i].device != ESP__DEV_GPU)
            gpu = 0;
    if (!gpu && a->seen++ % 17) return 0;
    esp_tensor_desc d = ESP_ZERO;
    snprintf(name, sizeof name, "t%u", a->n);
    esp__option_print(o, text, sizeof text);
    d.name = name;
    d.count = ELEMENTS;
    d.codec = a->j->codec;
    d.option = text;
    if (a->j->on_device) d.device.kind = FAKE_KIND;
    CHECK(a->n < MOST && esp_tensor_add(a->ctx, &d, NULL) == ESP_OK);
    a->n++;
    return 0;
}

static void tree_body(esp_ctx *ctx, void *user) {
    tree_job *j = user;
    adding a = {ctx, j, 3, 0, 0};
    place p;
    esp__option_each(ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL, 3, 0, add_option, &a);
    const uint64_t all = (uint64_t)a.n * ELEMENTS;
    place_open(ctx, &p, (esp_device){j->on_device ? FAKE_KIND : 0, 0}, all * 4);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int step = 0; step < TREE_STEPS; step++) {
        for (uint64_t i = 0; i < all; i++) ((float *)p.pinned)[i] = input(esp_rank(ctx), step, i);
        write_late(&p);
        for (uint32_t t = 0; t < a.n; t++)
            CHECK(esp_push(ctx, t, (float *)p.grad + (uint64_t)t * ELEMENTS, p.stream) == ESP_OK);
        CHECK(esp_wait_all(ctx) == ESP_OK);
        if (j->on_device) fake_get(p.pinned, p.grad, all * 4);
        memcpy(j->out + ((uint64_t)esp_rank(ctx) * TREE_STEPS + (uint64_t)step) * MOST * ELEMENTS, p.pinned, all * 4);
    }
    if (esp_rank(ctx) == 0) j->n = a.n;
    place_close(&p);
}

static void run_tree(const char *codec, const char *backend) {
    static const esp_plugin_fn entries[4] = {fake_plugin, moved_plugin, rounds_entry, fake_rounds_plugin};
    const uint64_t floats = (uint64_t)TREE_RANKS * TREE_STEPS * MOST * ELEMENTS;
    float *out[2];
    uint32_t n = 0;
    for (int k = 0; k < 2; k++) {
        tree_job j = {codec, k, 0, 0, calloc(floats, sizeof(float))};
        test_job x;
        memset(&x, 0, sizeof x);
        x.size = TREE_RANKS;
        x.per_machine = 2;
        x.body = tree_body;
        x.user = &j;
        x.config.backend = backend;
        x.config.timeout_ms = 60000;
        x.config.builtin = entries;
        x.config.n_builtin = 4;
        x.config.log_level = ESP_LOG_ERROR;
        atomic_store(&failures, 0);
        test_run(&x);
        assert_int_equal(atomic_load(&failures), 0);
        out[k] = j.out;
        n = j.n;
    }
    assert_true(n > 174);
    for (uint64_t i = 0; i < floats; i++)
        if (memcmp(&out[0][i], &out[1][i], 4))
            fail_msg("%s over %s: tensor %d, element %d: %g on the CPU, %g on the device", codec, backend,
                     (int)(i / ELEMENTS % MOST), (int)(i % ELEMENTS), (double)out[0][i], (double)out[1][i]);
    free(out[0]);
    free(out[1]);
    assert_int_equal(fake_live + fake_refused, 0);
}

static void test_ordered(void **state) {
    (void)state;
    run_tree("topk:ratio=0.1", "ordered");
}
/* Codecs of several rounds: reduced payloads go to the side of the next round, and of the Decomp. */
static void test_rounds(void **state) {
    (void)state;
    run_tree("shared2", "loop");
    run_tree("shared3", "ordered");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ordered),
        cmocka_unit_test(test_rounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
