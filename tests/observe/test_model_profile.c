/* test_model_profile.c checks how the library records a model's times for the planner: medians, spreads, the slowest
 * rank, the file, and all cases in which no file is written. */
/* runs: quiet tsan */
#include "tests/lib/test.h"
#include "espresso_impl/observe/model_profile.h"
#include "planner/files/read.h"

static char path[128];

static int setup(void **state) {
    snprintf(path, sizeof path, "/tmp/test_record_%d.json", (int)getpid());
    unlink(path);
    return 0;
}
static int teardown(void **state) {
    unsetenv("ESPRESSO_PROFILE");
    unlink(path);
    return 0;
}

static void ask(const char *more) {
    char text[256];
    snprintf(text, sizeof text, "%s%s", path, more);
    setenv("ESPRESSO_PROFILE", text, 1);
}

/* ---- combining the times of several steps ------------------------------------------------------------------------ */
enum { TENSORS = 3, STEPS = 11 };
typedef struct made_up {
    esp_ctx ctx;
    esp__profile r;
    uint64_t ready[STEPS * TENSORS], forward[STEPS];
    double sorted[STEPS];
    union {
        esp__profile_rank rank;
        uint64_t room[64];
    } mine, all;
} made_up;

/* Makes up a forward pass of 1000 ns, and gradients that become ready after gaps of 0, 200 + `more` and 300 ns. In
 * step `long_one` the second gap is 2000 + `more`. */
static void make_up(made_up *m, int long_one, uint64_t more) {
    memset(m, 0, sizeof *m);
    m->ctx.model.n_tensors = TENSORS;
    for (int k = 0; k < STEPS; k++) {
        uint64_t gap = (k == long_one ? 2000 : 200) + more;
        m->forward[k] = 1000;
        m->ready[k * TENSORS] = 1000;
        m->ready[k * TENSORS + 1] = 1000 + gap;
        m->ready[k * TENSORS + 2] = 1300 + gap;
    }
    m->r.ready = m->ready, m->r.forward = m->forward, m->r.sorted = m->sorted;
    m->r.mine = (uint8_t *)&m->mine, m->r.all = (uint8_t *)&m->all;
    m->r.bytes = sizeof(esp__profile_rank) + TENSORS * sizeof(double);
}
static const double *ready_of(const esp__profile_rank *rank) { return (const double *)(const void *)(rank + 1); }

TEST(one_long_step_changes_nothing) {
    static made_up m;
    make_up(&m, 4, 0);
    esp__profile_mine(&m.ctx, &m.r, STEPS);
    const double *t = ready_of(&m.mine.rank);
    assert_true(m.mine.rank.forward_ns == 1000);
    assert_true(t[0] == 1000 && t[1] == 1200 && t[2] == 1500);
    assert_true(m.mine.rank.spread == 0);
}

TEST(ready_times_are_medians) {
    static made_up m;
    make_up(&m, -1, 0);
    for (int k = 0; k < STEPS; k++)
        for (int i = k < 5 ? 1 : k < 10 ? 2 : TENSORS; i < TENSORS; i++) m.ready[k * TENSORS + i] += 100;
    esp__profile_mine(&m.ctx, &m.r, STEPS);
    const double *t = ready_of(&m.mine.rank);
    assert_true(t[2] > 1599.9 && t[2] < 1600.1);
    assert_true(t[1] > 1199.9 && t[1] < 1200.1);
}

/* Sets each time in `a` to the later of the times in a and b, as the library does for two ranks. */
static void merge(made_up *a, const made_up *b) {
    for (uint32_t k = 0; k < STEPS; k++) {
        esp__raise_to(&a->forward[k], &b->forward[k], 1);
        esp__raise_to(a->ready + k * TENSORS, b->ready + k * TENSORS, TENSORS);
    }
}

TEST(the_latest_rank_counts) {
    static made_up a, b;
    make_up(&a, -1, 50);
    make_up(&b, -1, 0);
    for (int k = 0; k < STEPS; k++) b.ready[k * TENSORS + 2] += 500, b.forward[k] -= 10;
    merge(&a, &b);
    esp__profile_mine(&a.ctx, &a.r, STEPS);
    const double *t = ready_of(&a.mine.rank);
    assert_true(a.mine.rank.forward_ns == 1000);
    assert_true(t[0] == 1000 && t[1] == 1250 && t[2] == 2000);
}

TEST(the_latest_rank_of_each_step_counts) {
    static made_up a, b;
    make_up(&a, -1, 0);
    make_up(&b, -1, 0);
    for (int k = 0; k < STEPS; k++) {
        made_up *late = k % 3 == 0 ? &a : k % 3 == 1 ? &b : NULL;
        for (int i = 1; late && i < TENSORS; i++) late->ready[k * TENSORS + i] += 400;
    }
    esp__profile_mine(&b.ctx, &b.r, STEPS);
    assert_true(ready_of(&b.mine.rank)[2] == 1500);
    esp__profile_mine(&a.ctx, &a.r, STEPS);
    assert_true(ready_of(&a.mine.rank)[2] == 1500);
    merge(&a, &b);
    esp__profile_mine(&a.ctx, &a.r, STEPS);
    const double *t = ready_of(&a.mine.rank);
    assert_true(t[0] == 1000 && t[1] == 1600 && t[2] == 1900);
}

/* If ranks take turns on a core, gaps vary but the whole backward pass does not. That must not count as noise. */
TEST(taking_turns_is_no_noise) {
    static made_up m;
    make_up(&m, -1, 0);
    for (int k = 0; k < STEPS; k++) m.ready[k * TENSORS + 1] = k % 2 ? 1010 : 1490, m.ready[k * TENSORS + 2] = 1500;
    esp__profile_mine(&m.ctx, &m.r, STEPS);
    assert_true(m.mine.rank.spread == 0);
    for (int k = 0; k < STEPS; k++) m.ready[k * TENSORS + 2] += k % 2 ? 600 : 0; /* every second backward is longer */
    esp__profile_mine(&m.ctx, &m.r, STEPS);
    assert_true(m.mine.rank.spread > esp__profile_noisy_spread);
}

/* If all gradients become ready at the end of backward, variations of the short gaps between them do not count as
 * noise. */
TEST(a_burst_is_no_noise) {
    static made_up m;
    make_up(&m, -1, 0);
    for (int k = 0; k < STEPS; k++) {
        m.forward[k] = 100000;
        for (int i = 0; i < TENSORS; i++)
            m.ready[k * TENSORS + i] = 100000 + (uint64_t)(k % 2 ? 5000 : 500) * (uint64_t)i;
    }
    esp__profile_mine(&m.ctx, &m.r, STEPS);
    assert_true(m.mine.rank.spread > 0 && m.mine.rank.spread < esp__profile_noisy_spread);
}

/* ---- recording a job --------------------------------------------------------------------------------------------- */
typedef struct training {
    int steps, tensors;
    esp_status started[8];
    char error[8][1024];
    int finished[8];
    long allocations_before, allocations_after;
} training;

static void add(esp_ctx *ctx, const char *name, uint64_t count, uint64_t rows, uint32_t flags, const char *codec) {
    esp_tensor_desc d;
    memset(&d, 0, sizeof d);
    d.name = name, d.count = count, d.flags = flags, d.codec = codec;
    if (rows) d.rows = rows, d.cols = count / rows;
    esp_tensor_add(ctx, &d, NULL);
}

static long allocations;
static void train(esp_ctx *ctx, void *user) {
    training *t = user;
    static const esp_stream here;
    float grad[3][64];
    int rank = esp_rank(ctx);
    add(ctx, "fc2.bias", 10, 0, ESP_RAW, NULL);
    add(ctx, "fc2.\"weight\"", 64, 8, 0, NULL);
    add(ctx, "fc1.weight", 48, 0, 0, "fp16");
    t->started[rank] = esp_start(ctx);
    snprintf(t->error[rank], sizeof t->error[rank], "%s", esp_last_error(ctx));
    if (t->started[rank]) return;
    memset(grad, 0, sizeof grad);
    for (int k = 0; k < t->steps; k++) {
        if (rank == 0 && k == 1) t->allocations_before = __atomic_load_n(&allocations, __ATOMIC_RELAXED);
        if (rank == 0 && k == 5) t->allocations_after = __atomic_load_n(&allocations, __ATOMIC_RELAXED);
        for (uint32_t i = 0; i < 3; i++) esp_push(ctx, i, grad[i], here);
        if (esp_wait_all(ctx)) return;
    }
    t->finished[rank] = 1;
}

static char heard[8192];
static pthread_mutex_t heard_lock = PTHREAD_MUTEX_INITIALIZER;
static void hear(void *user, const esp_log_event *ev) {
    if (ev->level > ESP_LOG_WARN || strcmp(ev->component, "profile") != 0) return;
    pthread_mutex_lock(&heard_lock);
    strncat(heard, ev->message, sizeof heard - strlen(heard) - 2);
    strcat(heard, "\n");
    pthread_mutex_unlock(&heard_lock);
}
static void *count_alloc(void *user, esp_device d, uint64_t bytes, uint64_t align) {
    __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
    return test_host_alloc(user, d, bytes, align);
}

static void run(training *t, int32_t ranks, int steps) {
    static const esp_host host = {
        .struct_size = sizeof host, .log = hear, .alloc = count_alloc, .free_ = test_host_free};
    *heard = 0;
    *t = (training){.steps = steps};
    test_run(&(test_job){.size = ranks, .body = train, .user = t, .config.host = &host});
}

TEST(the_file_is_a_model, setup, teardown) {
    training t;
    ask(",steps=4,skip=2,name=mine");
    run(&t, 4, 9);
    for (int r = 0; r < 4; r++) assert_true(t.started[r] == ESP_OK && t.finished[r]);
    char *text = file_text(path);
    assert_non_null(text);
    assert_non_null(strstr(text, "\"model\": \"mine\""));
    assert_non_null(strstr(text, "medians of 4 steps, in each the latest of 4 rank(s)"));
    assert_non_null(strstr(text, "\"steps\": 4,\n  \"ranks\": 4,\n"));
    assert_non_null(strstr(text, "\"parameters\": 122,"));
    assert_non_null(strstr(text, "\"name\": \"fc2.\\\"weight\\\"\", \"elements\": 64"));
    free(text);
    assert_int_equal(t.allocations_before, t.allocations_after); /* recording allocates nothing in steps */
    esp__model_file f;
    heard[0] = 0;
    assert_int_equal(esp__model_read(path, &f, NULL), ESP_OK);
    assert_true(f.model.n_tensors == 3 && f.steps == 4 && f.measured.ranks == 4 && f.measured.cores >= 1);
    assert_string_equal(f.model.tensors[0].keep, "fp32");
    assert_null(f.model.tensors[1].keep);
    assert_string_equal(f.model.tensors[2].keep, "fp16");
    assert_true(f.model.tensors[1].rows == 8 && f.model.tensors[1].cols == 8 && !f.model.tensors[0].rows);
    assert_true(f.model.forward_ns > 0);
    esp__model_free(&f);
}

TEST(fewer_steps_are_said, setup, teardown) {
    training t;
    ask(",steps=100,skip=2");
    run(&t, 2, 5);
    assert_non_null(strstr(heard, "only 3 of 100 steps were made (after 2 that do not count)"));
    char *text = file_text(path);
    assert_non_null(strstr(text, "medians of 3 steps, in each the latest of 1 rank(s)"));
    free(text);
    unlink(path);
    run(&t, 2, 2);
    assert_null(file_text(path));
    assert_non_null(strstr(heard, "was not written: 2 step(s) were made, and the first 2 do not count"));
    run(&t, 1, 0);
    assert_null(file_text(path));
    assert_non_null(strstr(heard, "was not written: 0 step(s) were made"));
}

TEST(without_it_nothing_is_kept, setup, teardown) {
    training t;
    unsetenv("ESPRESSO_PROFILE");
    run(&t, 2, 3);
    assert_true(t.finished[0] && t.finished[1] && !*heard && !file_text(path));
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */
TEST(wrong_words_are_refused, setup, teardown) {
    static const struct {
        const char *more, *says;
    } cases[] = {{",steps=0", "steps=0: write a whole number from 1"},
                 {",steps=-1", "steps=-1: write a whole number"},
                 {",steps=2x", "steps=2x: write a whole number"},
                 {",skip=", "skip=: write a whole number from 0"},
                 {",setps=3", "'setps' is not known: there are steps, skip and name"},
                 {",5", "is no key=value"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        training t;
        ask(cases[i].more);
        run(&t, 1, 1);
        assert_int_equal(t.started[0], ESP_E_ARG);
        if (!strstr(t.error[0], cases[i].says)) fail_msg("%s: %s", cases[i].more, t.error[0]);
    }
    training t;
    setenv("ESPRESSO_PROFILE", ",steps=3", 1);
    run(&t, 1, 1);
    assert_non_null(strstr(t.error[0], "the file's name is missing"));
}

TEST(a_file_that_cannot_be_written, setup, teardown) {
    training t;
    setenv("ESPRESSO_PROFILE", "/no/such/folder/m.json", 1);
    run(&t, 2, 1);
    assert_true(t.started[0] == ESP_E_ARG && t.started[1] == ESP_E_ARG);
    assert_non_null(strstr(t.error[0], "/no/such/folder/m.json cannot be written: No such file"));
    assert_non_null(strstr(t.error[1], "rank 0 could not start"));
    setenv("ESPRESSO_PROFILE", "/tmp", 1);
    run(&t, 1, 1);
    assert_non_null(strstr(t.error[0], "/tmp cannot be written: Is a directory"));
}

static void disagree(esp_ctx *ctx, void *user) {
    training *t = user;
    int rank = esp_rank(ctx);
    esp__profile seven = {.steps = 7};
    t->started[rank] = esp__profile_agree(ctx, rank != 1 ? &seven : NULL, ESP_OK);
    snprintf(t->error[rank], sizeof t->error[rank], "%s", esp_last_error(ctx));
}

/* If only some ranks recorded times, they would wait for the others. */
TEST(all_ranks_record_or_none, setup, teardown) {
    training t = {0};
    RUN_RANKS(.size = 3, .body = disagree, .user = &t);
    for (int r = 0; r < 3; r++) assert_int_equal(t.started[r], ESP_E_MISMATCH);
    assert_non_null(strstr(
        t.error[0], "rank 0 has 'ESPRESSO_PROFILE: 7 steps, after 0 others', rank 1 has 'ESPRESSO_PROFILE: 0 steps"));
}
