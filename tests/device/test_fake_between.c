/* test_fake_between.c checks calls between training steps, with gradients on the fake device: changes of strategy,
 * discarded steps, scaled residuals, state files, broadcast and allreduce, tensors that are not pushed, and measured
 * compression errors. */
/* runs: tsan */
#include "tests/lib/test.h"
#include "tests/device/device_job.h"

static void change(esp_ctx *ctx, device_job *j, int step) {
    static const struct {
        int kind;
        const char *codec, *option;
    } to[] = {{CHUNKS, "topk:ratio=0.2", FLAT_COMP},
              {WHOLE, "none", FLAT_RAW},
              {MIXED, "topk:ratio=0.1", FLAT_GPU},
              {GROUPS, "topk:ratio=0.1", TREE_GPU}};
    const int n = (step + j->task.kind) % 4;
    const text t = strategy_of(to[n].kind, to[n].codec, to[n].option);
    CHECK(esp_strategy_set(ctx, t.data) == ESP_OK);
}

static void change_sides(esp_ctx *ctx, device_job *j, int step) {
    const text t =
        step ? strategy_of(WHOLE, "topk:ratio=0.1", TREE_GPU) : strategy_of(WHOLE, "topk:ratio=0.1", FLAT_COMP);
    const text bad = strategy_of(GROUPS, "topk:ratio=0.1", FLAT_COMP);
    CHECK(esp_strategy_set(ctx, t.data) == ESP_OK);
    if (j->devices == 2)
        CHECK(esp_strategy_set(ctx, bad.data) == ESP_E_ARG &&
              error_has(ctx, "tensors 'a' and 'b' lie on different devices"));
}

TEST(test_change_of_strategy) {
    static const char *const options[] = {FLAT_GPU, FLAT_COMP, TREE_GPU};
    for (int kind = 0; kind < KINDS; kind++) {
        device_job j = job_of("topk:ratio=0.1", options[kind % 3], ESP_F32, kind);
        j.between = change;
        j.wait = kind % 4;
        assert_int_equal(same_on_device(&j, 4, 2, 0), 0);
    }
    device_job j = job_of("topk:ratio=0.1", FLAT_GPU, ESP_F32, WHOLE);
    j.task.dtype = ESP_F16;
    j.between = change;
    assert_int_equal(same_on_device(&j, 4, 2, 0), 0);
    j = job_of("topk:ratio=0.1", FLAT_GPU, ESP_F32, CHUNKS);
    j.devices = 2;
    j.between = change_sides;
    assert_int_equal(same_on_device(&j, 4, 2, 0), 0);
}

static void discard(esp_ctx *ctx, device_job *j, int step) {
    if (step == 0) CHECK(esp_discard_step(ctx) == ESP_OK);
    if (step == 1 && j->task.kind == WHOLE) {
        change(ctx, j, 1);
        CHECK(esp_discard_step(ctx) == ESP_OK);
    }
}

static void scale(esp_ctx *ctx, device_job *j, int step) {
    if (step == 0) change(ctx, j, 1);
    CHECK(esp_feedback_scale(ctx, 0.3f) == ESP_OK);
}

TEST(test_discard_and_scale) {
    device_job j = job_of("topk:ratio=0.1", FLAT_GPU, ESP_F32, CHUNKS);
    j.between = discard;
    assert_int_equal(same_on_device(&j, 4, 2, ESP_DISCARDABLE), 0);
    j.task.kind = WHOLE;
    assert_int_equal(same_on_device(&j, 2, 2, ESP_DISCARDABLE), 0);
    j.task.option = FLAT_COMP;
    assert_int_equal(same_on_device(&j, 2, 2, ESP_DISCARDABLE), 0);
    j = job_of("topk:ratio=0.1", FLAT_GPU, ESP_F32, WHOLE);
    j.between = scale;
    assert_int_equal(same_on_device(&j, 4, 2, 0), 0);
}

/* ---- state files ------------------------------------------------------------------------------------------------- */

static int same_files(const char *a, const char *b) {
    FILE *f = fopen(a, "rb"), *g = fopen(b, "rb");
    int x = 0, same = f && g;
    while (same && x != EOF) same = (x = getc(f)) == getc(g);
    if (f) fclose(f);
    if (g) fclose(g);
    return same;
}

/* After step 0, the job on host memory saves its state. The job on the device must save the same bytes. Then it changes
 * its residuals, and loads the other job's state. */
static void save_and_load(esp_ctx *ctx, device_job *j, int step) {
    char cpu[128], device[128], a[160], b[160];
    if (step == 0 && j->task.kind == WHOLE) change(ctx, j, 1);
    if (step) return;
    snprintf(cpu, sizeof cpu, "%s", in_folder("cpu"));
    snprintf(device, sizeof device, "%s", in_folder("device"));
    CHECK(esp_state_save(ctx, j->devices ? device : cpu) == ESP_OK);
    if (!j->devices) return;
    snprintf(a, sizeof a, "%s.r%dof4", cpu, (int)esp_rank(ctx));
    snprintf(b, sizeof b, "%s.r%dof4", device, (int)esp_rank(ctx));
    CHECK(same_files(a, b));
    CHECK(esp_feedback_scale(ctx, 0.5f) == ESP_OK);
    CHECK(esp_state_load(ctx, cpu) == ESP_OK);
}

TEST(test_state_files, folder_make, folder_remove) {
    for (int kind = 0; kind < KINDS; kind++) {
        device_job j = job_of("topk:ratio=0.1", kind % 2 ? TREE_GPU : FLAT_GPU, ESP_F32, kind);
        j.between = save_and_load;
        assert_int_equal(same_on_device(&j, 4, 2, 0), 0);
    }
}

/* ---- broadcast and allreduce, and tensors that are not pushed ---------------------------------------------------- */
enum { LARGE = 300001 };
static void helpers_body(esp_ctx *ctx, void *user) {
    place p;
    float *x;
    place_open(ctx, &p, test_device(0), LARGE * 4);
    x = p.pinned;
    for (uint64_t i = 0; i < LARGE; i++) x[i] = esp_rank(ctx) == 1 ? (float)i : -1.0f;
    write_late(&p);
    CHECK(esp_broadcast_on(ctx, p.stream, p.grad, LARGE * 4 - 1, 1) == ESP_OK);
    place_get(&p);
    for (uint64_t i = 0; i + 1 < LARGE; i++) CHECK(x[i] == (float)i);
    for (uint64_t i = 0; i < LARGE; i++) x[i] = (float)(i % 1000) * (float)(1 + esp_rank(ctx));
    write_late(&p);
    CHECK(esp_allreduce_on(ctx, p.stream, p.grad, LARGE) == ESP_OK);
    place_get(&p);
    for (uint64_t i = 0; i < LARGE; i++) CHECK(x[i] == (float)(i % 1000) * 6.0f);
    CHECK(esp_broadcast_on(ctx, p.stream, NULL, 4, 0) == ESP_E_ARG && error_has(ctx, "data is NULL"));
    place_close(&p);
}

static void zeros_body(esp_ctx *ctx, void *user) {
    const esp_device device = test_device(0);
    place p[2];
    uint32_t id[2];
    for (int t = 0; t < 2; t++) {
        esp_tensor_desc d = {.name = names[t], .count = 100, .device = device};
        CHECK(esp_tensor_add(ctx, &d, &id[t]) == ESP_OK);
        place_open(ctx, &p[t], device, 400);
    }
    CHECK(esp_start(ctx) == ESP_OK);
    for (int step = 0; step < 2; step++) {
        for (int t = 0; t < 2; t++) {
            for (int i = 0; i < 100; i++) ((float *)p[t].pinned)[i] = 6.0f;
            write_late(&p[t]);
        }
        if (esp_rank(ctx) == 0)
            CHECK(esp_push_zero(ctx, id[0], p[0].grad, p[0].stream) == ESP_OK);
        else
            CHECK(esp_push(ctx, id[0], p[0].grad, p[0].stream) == ESP_OK);
        if (step == 0 || esp_rank(ctx) == 1) CHECK(esp_push(ctx, id[1], p[1].grad, p[1].stream) == ESP_OK);
        const esp_status s = esp_wait_all(ctx);
        CHECK(s == (step == 0 || esp_rank(ctx) == 1 ? ESP_OK : ESP_E_STATE));
        if (s) CHECK(error_has(ctx, "never pushed in this step: 'b'"));
        for (int t = 0; t < 2; t++) {
            place_get(&p[t]);
            if (t && step && esp_rank(ctx) == 0) continue;
            for (int i = 0; i < 100; i++) CHECK(((float *)p[t].pinned)[i] == (t == 0 || step ? 3.0f : 6.0f));
        }
    }
    esp_stream other = p[0].stream;
    char told[96];
    other.dev.ordinal = 1;
    snprintf(told, sizeof told, "tensor 'a' lies on device %d:0, and the stream belongs to device %d:1", DEVICE_KIND,
             DEVICE_KIND);
    CHECK(esp_push(ctx, id[0], p[0].grad, other) == ESP_E_UNSUPPORTED && error_has(ctx, told));
    CHECK(esp_wait_on(ctx, id[0], other) == ESP_E_UNSUPPORTED);
    for (int t = 0; t < 2; t++) place_close(&p[t]);
}

static void run_plain(void (*body)(esp_ctx *, void *), int32_t size) {
    static const esp_plugin_fn entry = device_plugin;
    RUN_RANKS(.size = size, .body = body, .config.timeout_ms = 30000, .config.builtin = &entry, .config.n_builtin = 1);
    assert_int_equal(fake_live + fake_refused, 0);
}

TEST(test_helpers) { run_plain(helpers_body, 3); }
TEST(test_zeros) { run_plain(zeros_body, 2); }

/* ---- compression errors ------------------------------------------------------------------------------------------ */
typedef struct errors {
    int on_device;
    esp_tensor_stats of[2]; /* of tensor 0 with error feedback, and 1 without */
} errors;

static void errors_body(esp_ctx *ctx, void *user) {
    errors *e = user;
    place p[2];
    ctx->config.sample_errors = 1;
    for (uint32_t t = 0; t < 2; t++) {
        esp_tensor_desc d = {.name = names[t], .count = 20000};
        d.codec = t ? "topk:ratio=0.1,feedback=none" : "topk:ratio=0.1";
        d.option = FLAT_GPU;
        if (e->on_device) d.device = test_device(0);
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
        place_open(ctx, &p[t], d.device, 80000);
    }
    CHECK(esp_start(ctx) == ESP_OK);
    for (int step = 0; step < 2; step++) { /* each step samples one of the two tensors */
        for (uint32_t t = 0; t < 2; t++) {
            for (uint64_t i = 0; i < 20000; i++) ((float *)p[t].pinned)[i] = input(0, 0, i);
            write_late(&p[t]);
            CHECK(esp_push(ctx, t, p[t].grad, p[t].stream) == ESP_OK);
            CHECK(esp_wait(ctx, t) == ESP_OK);
        }
        CHECK(esp_wait_all(ctx) == ESP_OK);
        e->of[step].struct_size = sizeof *e->of;
        CHECK(esp_tensor_stats_read(ctx, (uint32_t)step, &e->of[step]) == ESP_OK);
    }
    for (uint32_t t = 0; t < 2; t++) place_close(&p[t]);
}

TEST(test_errors) {
    static const esp_plugin_fn entry = device_plugin;
    errors e[2] = {{0}};
    for (int k = 0; k < 2; k++) {
        e[k].on_device = k;
        RUN_RANKS(.size = 1, .body = errors_body, .user = &e[k], .config.builtin = &entry, .config.n_builtin = 1);
    }
    for (int t = 0; t < 2; t++) {
        assert_int_equal(e[0].of[t].samples, 1);
        assert_int_equal(e[1].of[t].samples, 1);
        assert_true(e[0].of[t].error > 0.1 && e[0].of[t].error < 1.0);
        assert_memory_equal(&e[0].of[t], &e[1].of[t], sizeof e[0].of[t]);
    }
}
