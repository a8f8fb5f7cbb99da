/* test_fake_errors.c: errors of a device that fails or has no memory name it, nothing hangs, and nothing leaks. */
/* runs: quiet tsan */
#include "tests/lib/test.h"
#include "tests/device/device_job.h"

static const char option[] = "comp@gpu > flat.allgather > decomp@gpu";
enum { COUNT = 5000 };
typedef struct one {
    place p;
    uint32_t id;
} one;

static esp_ctx *open_one(one *x) {
    static const esp_plugin_fn entry = fake_plugin;
    esp_tensor_desc d = ESP_ZERO;
    esp_ctx *ctx;
    esp_config c = {.backend = "loop", .size = 1, .builtin = &entry, .n_builtin = 1, .log_level = ESP_LOG_ERROR};
    assert_int_equal(esp_open(&c, &ctx), ESP_OK);
    d.name = "w";
    d.count = COUNT;
    d.device.kind = FAKE_KIND;
    d.codec = "topk:ratio=0.1";
    d.option = option;
    assert_int_equal(esp_tensor_add(ctx, &d, &x->id), ESP_OK);
    place_open(ctx, &x->p, d.device, COUNT * 4);
    return ctx;
}

static void close_one(esp_ctx *ctx, one *x) {
    place_close(&x->p);
    esp_close(ctx);
    assert_int_equal(fake_live + fake_refused, 0);
}

static void one_step(esp_ctx *ctx, one *x) {
    write_late(&x->p);
    assert_int_equal(esp_push(ctx, x->id, x->p.grad, x->p.stream), ESP_OK);
    assert_int_equal(esp_wait_all(ctx), ESP_OK);
}
static void assert_error(const esp_ctx *ctx, const char *part) {
    if (!strstr(esp_last_error(ctx), part)) fail_msg("\"%s\" lacks \"%s\"", esp_last_error(ctx), part);
}

/* The device has memory for `left` more bytes only. Then esp_start fails or succeeds, and after a failure it works when
 * it is called again with enough memory. A change of strategy that needs more must fail, too. */
TEST(test_no_memory) {
    int failed = 0;
    for (uint64_t left = 0; left < 1u << 20; left = left * 2 + 1000) {
        one x;
        esp_ctx *ctx = open_one(&x);
        fake_left = left;
        const esp_status s = esp_start(ctx);
        fake_left = UINT64_MAX;
        if (s) {
            assert_int_equal(s, ESP_E_NOMEM);
            assert_error(ctx, "device fake:0");
            failed++;
            assert_int_equal(esp_start(ctx), ESP_OK);
        }
        one_step(ctx, &x);
        fake_left = 100;
        assert_int_equal(esp_strategy_set(ctx,
                                          "espresso-strategy 1\ntensor w 5000 split 2\nchunk 2500 topk comp@gpu > "
                                          "flat.allgather > decomp@gpu\nchunk 2500 topk comp@gpu > flat.allgather > "
                                          "decomp@gpu\n"),
                         ESP_E_NOMEM);
        fake_left = UINT64_MAX;
        one_step(ctx, &x);
        close_one(ctx, &x);
    }
    assert_true(failed > 2);
}

TEST(test_broken) {
    for (int wait = 0; wait < 4; wait++) {
        one x;
        esp_ctx *ctx = open_one(&x);
        assert_int_equal(esp_start(ctx), ESP_OK);
        one_step(ctx, &x);
        write_late(&x.p);
        fake_hold(1);
        __atomic_store_n(&fake_broken, 1, __ATOMIC_SEQ_CST);
        assert_int_equal(esp_push(ctx, x.id, x.p.grad, x.p.stream), ESP_OK);
        fake_hold(0);
        esp_status s = ESP_PENDING;
        if (wait == 1) s = esp_wait(ctx, x.id);
        if (wait == 2) s = esp_wait_on(ctx, x.id, x.p.stream);
        while (wait == 3 && s == ESP_PENDING) s = esp_test(ctx, x.id);
        if (wait) assert_int_equal(s, ESP_E_DEVICE);
        if (wait) assert_error(ctx, "the device failed");
        assert_int_equal(esp_wait_all(ctx), ESP_E_DEVICE);
        assert_error(ctx, "the device failed");
        assert_int_equal(esp_push(ctx, x.id, x.p.grad, x.p.stream), ESP_E_DEVICE);
        close_one(ctx, &x);
        __atomic_store_n(&fake_broken, 0, __ATOMIC_SEQ_CST);
    }
}

/* A kernel finds that a payload is damaged, but only after esp_push has returned. So waiting must fail, with an error
 * that names the tensor, the rank and the device. */
TEST(test_corrupt) {
    static const char *const says[] = {"device fake:0: rank 0: work of step 1 (tensor 'w') failed: the data is corrupt",
                                       "device fake:0: rank 0: 'decomp@gpu w', or work before it, failed: the data"};
    for (int k = 0; k < 8; k++) {
        const int wait = k % 4, at_once = k / 4;
        one x;
        esp_ctx *ctx = open_one(&x);
        assert_int_equal(esp_start(ctx), ESP_OK);
        one_step(ctx, &x);
        write_late(&x.p);
        __atomic_store_n(&fake_corrupts, 1, __ATOMIC_SEQ_CST);
        __atomic_store_n(&fake_at_once, at_once, __ATOMIC_SEQ_CST);
        esp_status s = esp_push(ctx, x.id, x.p.grad, x.p.stream);
        assert_int_equal(s, ESP_OK);
        if (wait == 1) s = esp_wait(ctx, x.id);
        if (wait == 2) {
            s = esp_wait_on(ctx, x.id, x.p.stream); /* does not wait, so it may succeed */
            assert_true(s == ESP_OK || s == ESP_E_CORRUPT);
        }
        while (wait == 3 && (!s || s == ESP_PENDING)) s = esp_test(ctx, x.id);
        if (wait == 1 || wait == 3) assert_int_equal(s, ESP_E_CORRUPT);
        if (wait == 1 || wait == 3) assert_error(ctx, says[1]);
        assert_int_equal(esp_wait_all(ctx), ESP_E_CORRUPT);
        assert_error(ctx, strstr(esp_last_error(ctx), says[0]) ? says[0] : says[1]);
        assert_int_equal(esp_push(ctx, x.id, x.p.grad, x.p.stream), ESP_E_CORRUPT);
        close_one(ctx, &x);
        __atomic_store_n(&fake_corrupts, 0, __ATOMIC_SEQ_CST);
        __atomic_store_n(&fake_at_once, 0, __ATOMIC_SEQ_CST);
    }
}

/* If a context is closed in the middle of a step, the device's work ends before its memory is freed. */
TEST(test_closed_early) {
    for (int k = 0; k < 20; k++) {
        one x;
        esp_ctx *ctx = open_one(&x);
        assert_int_equal(esp_start(ctx), ESP_OK);
        write_late(&x.p);
        assert_int_equal(esp_push(ctx, x.id, x.p.grad, x.p.stream), ESP_OK);
        place p = x.p;
        usleep((unsigned)k * 100);
        place_sync(&p);
        p.table->stream_destroy(p.self, p.stream);
        esp_close(ctx);
        fake_give(p.grad);
        fake_give(p.pinned);
        assert_int_equal(fake_live + fake_refused, 0);
    }
}

TEST(test_absent) {
    one x;
    esp_ctx *ctx = open_one(&x);
    esp_tensor_desc d = {.name = "v", .count = 10, .device = (esp_device){FAKE_KIND, 7}};
    assert_int_equal(esp_tensor_add(ctx, &d, NULL), ESP_E_UNSUPPORTED);
    assert_error(ctx, "tensor 'v': there is no device fake:7 here: 2 can be used, from 0 on");
    d.device.kind = ESP_DEVKIND_OWN + 1;
    assert_int_equal(esp_tensor_add(ctx, &d, NULL), ESP_E_UNSUPPORTED);
    assert_error(ctx, "tensor 'v': there is no device of kind 17 here: load the plugin that brings it");
    assert_int_equal(esp_start(ctx), ESP_OK);
    one_step(ctx, &x);
    close_one(ctx, &x);
}
