/* test_state.c: `espresso state`: shows what was saved, and notices every kind of damage. */
/* runs: quiet no-tsan: ranks are processes; unit/test_step has their threads */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "espresso.h"
#include "spawn.h"

static char base[64], file[80];
static char *bytes;
static long n_bytes;

static void check_said(const spawned *s, int k, const char *text) {
    if (!spawn_said(s, k, text)) fail_msg("not said: \"%s\"\nstdout:\n%s\nstderr:\n%s", text, s->text[0], s->text[1]);
}

static void put(const char *data, long n) {
    FILE *f = fopen(file, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, (size_t)n, f), n);
    fclose(f);
}

/* One rank trains three steps and saves. */
static int save(void **state) {
    (void)state;
    static float g[1000], h[10];
    esp_config cfg = ESP_ZERO;
    esp_tensor_desc d = ESP_ZERO;
    esp_stream stream = ESP_ZERO;
    esp_ctx *ctx;
    uint32_t weight, bias;
    cfg.size = 1;
    cfg.codec = "topk:ratio=0.1";
    if (esp_open(&cfg, &ctx) != ESP_OK) return 1;
    d.name = "fc.weight", d.count = 1000;
    if (esp_tensor_add(ctx, &d, &weight) != ESP_OK) return 1;
    d.name = "fc.bias", d.count = 10, d.flags = ESP_RAW;
    if (esp_tensor_add(ctx, &d, &bias) != ESP_OK || esp_start(ctx) != ESP_OK) return 1;
    for (int s = 0; s < 3; s++) {
        for (int i = 0; i < 1000; i++) g[i] = (float)(i % 13);
        if (esp_push(ctx, weight, g, stream) != ESP_OK || esp_push(ctx, bias, h, stream) != ESP_OK) return 1;
        if (esp_wait_all(ctx) != ESP_OK) return 1;
    }
    snprintf(base, sizeof base, "/tmp/espresso-test-state-%d", (int)getpid());
    snprintf(file, sizeof file, "%s.r0of1", base);
    if (esp_state_save(ctx, base) != ESP_OK) return 1;
    esp_close(ctx);
    FILE *f = fopen(file, "rb");
    if (!f || !(bytes = malloc(1 << 20))) return 1;
    n_bytes = (long)fread(bytes, 1, 1 << 20, f);
    fclose(f);
    return 0;
}

static int clean(void **state) {
    (void)state;
    free(bytes);
    return unlink(file);
}

static void shows(void **state) {
    (void)state;
    char last[96];
    spawned s = SPAWN("state", file);
    if (s.status) fail_msg("%s", s.text[1]);
    check_said(&s, 0, ": rank 0 of 1, step 3, seed 0, strategy ");
    check_said(
        &s, 0,
        "\n  espresso-strategy 1\n  tensor fc.weight 1000 topk:ratio=0.1 comp@cpu > flat.allgather > decomp@cpu\n");
    check_said(&s, 0, "\n  ... and 1 more line\n"); /* the order of collectives */
    check_said(&s, 0, "tensor fc.weight: 1000 elements\n");
    check_said(&s, 0, "tensor fc.bias: 10 elements\n");
    check_said(&s, 0, "Comp 0 of fc.weight: 1000 elements from 0 on, the rank's own gradient, residual of norm ");
    snprintf(last, sizeof last, "whole; tensors: 2, Comps: 1, bytes: %ld\n", n_bytes);
    check_said(&s, 0, last);
    spawn_free(&s);
}

/* Comps of chunks and groups say which elements they are about. */
static void shows_units(void **state) {
    (void)state;
    static float g[1000], h[10];
    static const char text[] = "espresso-strategy 1\n"
                               "tensor fc.weight 1000 split 2\n"
                               "chunk 600 topk:ratio=0.1 comp@cpu > flat.allgather > decomp@cpu\n"
                               "chunk 400 topk:ratio=0.1 comp@cpu > flat.allgather > decomp@cpu\n"
                               "tensor fc.bias 10 group\ntensor fc.scale 10 group\n"
                               "group 20 topk:ratio=0.1 comp@cpu > flat.allgather > decomp@cpu\n";
    esp_config cfg = ESP_ZERO;
    esp_stream stream = ESP_ZERO;
    esp_ctx *ctx;
    char at[96], name[112];
    cfg.size = 1;
    assert_int_equal(esp_open(&cfg, &ctx), ESP_OK);
    for (uint32_t t = 0; t < 3; t++) {
        esp_tensor_desc d = ESP_ZERO;
        d.name = t == 0 ? "fc.weight" : t == 1 ? "fc.bias" : "fc.scale", d.count = t ? 10 : 1000;
        assert_int_equal(esp_tensor_add(ctx, &d, NULL), ESP_OK);
    }
    assert_int_equal(esp_start(ctx), ESP_OK);
    if (esp_strategy_set(ctx, text)) fail_msg("%s", esp_last_error(ctx));
    for (uint32_t t = 0; t < 3; t++) assert_int_equal(esp_push(ctx, t, t ? h : g, stream), ESP_OK);
    assert_int_equal(esp_wait_all(ctx), ESP_OK);
    snprintf(at, sizeof at, "%s.units", base);
    snprintf(name, sizeof name, "%s.r0of1", at);
    assert_int_equal(esp_state_save(ctx, at), ESP_OK);
    esp_close(ctx);
    spawned s = SPAWN("state", name);
    unlink(name);
    if (s.status) fail_msg("%s", s.text[1]);
    check_said(&s, 0, "Comp 0 of fc.weight (elements 0 to 599): 600 elements from 0 on, the rank's own gradient");
    check_said(&s, 0, "Comp 0 of fc.weight (elements 600 to 999): 400 elements");
    check_said(&s, 0, "Comp 0 of fc.bias to fc.scale: 20 elements from 0 on");
    spawn_free(&s);
}

static void damage(void **state) {
    (void)state;
    for (long at = 0; at < n_bytes; at += n_bytes / 60 + 1) {
        bytes[at] ^= 4;
        put(bytes, n_bytes);
        bytes[at] ^= 4;
        spawned s = SPAWN("state", file);
        if (s.status != 1) fail_msg("byte %ld changed: status %d\n%s", at, s.status, s.text[1]);
        check_said(&s, 1, file);
        spawn_free(&s);
    }
    put(bytes, n_bytes);
}

static void truncation(void **state) {
    (void)state;
    for (long n = 0; n < n_bytes; n += n_bytes / 60 + 1) {
        put(bytes, n);
        spawned s = SPAWN("state", file);
        if (s.status != 1) fail_msg("cut to %ld bytes: status %d\n%s", n, s.status, s.text[1]);
        spawn_free(&s);
    }
    bytes[n_bytes] = 0;
    put(bytes, n_bytes + 1);
    spawned s = SPAWN("state", file);
    assert_int_equal(s.status, 1);
    check_said(&s, 1, "something follows its end");
    spawn_free(&s);
    put(bytes, n_bytes);
}

static void no_such_file(void **state) {
    (void)state;
    spawned s = SPAWN("state", base);
    assert_int_equal(s.status, 1);
    check_said(&s, 1, ".r0of1?\n");
    spawn_free(&s);
    s = SPAWN("state", "/no/such/file");
    assert_int_equal(s.status, 1);
    check_said(&s, 1, "/no/such/file: No such file");
    spawn_free(&s);
    s = SPAWN("state");
    assert_int_equal(s.status, 2);
    spawn_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shows),      cmocka_unit_test(shows_units),  cmocka_unit_test(damage),
        cmocka_unit_test(truncation), cmocka_unit_test(no_such_file),
    };
    return cmocka_run_group_tests(tests, save, clean);
}
