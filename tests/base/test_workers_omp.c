/* test_workers_omp.c checks loops of the library that run on the trainer's OpenMP team: every index runs once, a
 * context starts neither compression threads nor a second team, and results equal those of the library's own
 * threads. */
/* runs: quiet no-tsan: runs loops on an OpenMP team: the sanitizer does not understand the barriers of libgomp */
#include "tests/lib/test.h"
#include <sched.h>
#ifdef _OPENMP
#include <omp.h>
#include "tests/lib/allocations.h"

enum { TEAM = 3, MOST = 1000, ELEMENTS = 300000, TENSORS = 3 };

static int n_threads(void) { return test_count_files("/proc/self/task", ""); }

/* ---- one loop ------------------------------------------------------------------------------------------------- */
typedef struct loop {
    esp__workers *workers;
    uint64_t n, grain;
    atomic_int hits[MOST], wrong, bodies, now, most, on_cpu, helped, late, slow;
    pthread_t cpu;
} loop;

static void hit(void *arg, uint64_t begin, uint64_t end) {
    loop *l = (loop *)arg;
    int now = atomic_fetch_add(&l->now, 1) + 1, most = atomic_load(&l->most);
    while (now > most && !atomic_compare_exchange_weak(&l->most, &most, now)) {
    }
    atomic_fetch_add(&l->bodies, 1);
    if (!pthread_equal(pthread_self(), l->cpu)) {
        atomic_store(&l->helped, 1);
    } else {
        atomic_fetch_add(&l->on_cpu, 1);
        atomic_fetch_add(&l->late, atomic_load(&l->helped));
    }
    if (begin >= end || end > l->n || begin % l->grain) atomic_fetch_add(&l->wrong, 1);
    for (uint64_t i = begin; i < end; i++) atomic_fetch_add(&l->hits[i], 1);
    if (l->slow) usleep((useconds_t)l->slow);
    atomic_fetch_sub(&l->now, 1);
}

static void check(const loop *l, int times) {
    assert_int_equal(atomic_load(&l->wrong), 0);
    for (uint64_t i = 0; i < l->n; i++) assert_int_equal(atomic_load(&l->hits[i]), times);
}

static loop *loop_new(esp__workers *w, uint64_t n, uint64_t grain) {
    loop *l = (loop *)calloc(1, sizeof *l);
    l->workers = w, l->n = n, l->grain = grain;
    return l;
}

static atomic_int offers, waiting, quit;
static void offer(esp_ctx *ctx) { atomic_fetch_add(&offers, 1); }

/* Runs as the library's compression thread: it starts a loop after the trainer's threads began to wait. */
static void *cpu_main(void *arg) {
    loop *l = (loop *)arg;
    esp__workers_never_lend();
    l->cpu = pthread_self();
    while (!atomic_load(&waiting)) sched_yield();
    esp__workers_for(l->workers, l->n, l->grain, hit, l);
    atomic_store(&quit, 1);
    return NULL;
}

/* Waits and runs pieces of loops meanwhile, as esp_wait does. */
static int wait_and_help(loop *l) {
    int helped = 0;
    atomic_store(&waiting, 1);
    while (!atomic_load(&quit))
        if (esp__workers_offered(l->workers))
            esp__workers_help(l->workers), helped++;
        else
            sched_yield();
    return helped;
}

typedef struct scene {
    int most, slow, in_region;
} scene;

static loop *run_scene(scene s, int *helped) {
    esp__workers *w = NULL;
    pthread_t cpu;
    assert_int_equal(esp__workers_open_omp(NULL, s.most, offer, &w), ESP_OK);
    loop *l = loop_new(w, MOST, 1);
    l->slow = s.slow;
    atomic_store(&offers, 0), atomic_store(&waiting, 0), atomic_store(&quit, 0);
    esp__workers_offered(w);
    assert_int_equal(pthread_create(&cpu, NULL, cpu_main, l), 0);
    *helped = 0;
    if (s.in_region) {
        atomic_int sum = 0;
#pragma omp parallel num_threads(TEAM)
        atomic_fetch_add(&sum, wait_and_help(l));
        *helped = atomic_load(&sum);
    } else {
        *helped = wait_and_help(l);
    }
    pthread_join(cpu, NULL);
    check(l, 1);
    esp__workers_close(w);
    return l;
}

/* Pieces take long here, so the team joins before the loop ends and runs the remaining ones. */
TEST(test_who_waits_helps) {
    int helped;
    loop *l = run_scene((scene){.slow = 3000}, &helped);
    assert_true(helped > 0 && atomic_load(&offers) == 1);
    assert_true(atomic_load(&l->most) <= TEAM + 1);
    assert_true(atomic_load(&l->on_cpu) < atomic_load(&l->bodies));
    assert_true(atomic_load(&l->late) <= 1);
    free(l);
}

TEST(test_at_most_n) {
    int helped;
    loop *l = run_scene((scene){.most = 2, .slow = 3000}, &helped);
    assert_true(helped > 0 && atomic_load(&l->most) <= 3);
    free(l);
    l = run_scene((scene){.most = 1, .slow = 100}, &helped);
    assert_true(helped == 0 && atomic_load(&offers) == 0);
    assert_int_equal(atomic_load(&l->on_cpu), 1);
    free(l);
}

/* Inside a parallel region no further thread starts, even if nested regions are allowed. Each waiting thread runs
 * pieces itself. */
TEST(test_waiting_inside_a_region) {
    int helped, levels = omp_get_max_active_levels(), before;
    omp_set_max_active_levels(4);
#pragma omp parallel num_threads(TEAM)
    {}
    before = n_threads();
    loop *l = run_scene((scene){.slow = 3000, .in_region = 1}, &helped);
    assert_true(helped > 0 && atomic_load(&l->most) <= TEAM + 1);
    assert_int_equal(n_threads(), before);
    omp_set_max_active_levels(levels);
    free(l);
}

static void nested(void *arg, uint64_t begin, uint64_t end) {
    loop *l = (loop *)arg;
    for (uint64_t i = begin; i < end; i++) {
        loop *inner = loop_new(l->workers, 10, 1);
        esp__workers_for(l->workers, 10, 1, hit, inner);
        for (int j = 0; j < 10; j++) atomic_fetch_add(&l->hits[j], atomic_load(&inner->hits[j]));
        free(inner);
    }
}

/* A thread that is not the library's compression thread runs its loop on its own team. A loop inside another loop or a
 * parallel region, or one that has only one piece, runs in the calling thread. */
TEST(test_own_loops) {
    esp__workers *w = NULL;
    assert_int_equal(esp__workers_open_omp(NULL, 0, offer, &w), ESP_OK);
    for (uint64_t n = 1; n <= MOST; n = n * 3 + 1)
        for (uint64_t grain = 1; grain <= MOST; grain = grain * 4 + 1) {
            loop *l = loop_new(w, n, grain);
            esp__workers_for(w, n, grain, hit, l);
            check(l, 1);
            assert_true(n > grain || atomic_load(&l->bodies) == 1);
            assert_true((uint64_t)atomic_load(&l->bodies) <= (n - 1) / grain + 1);
            free(l);
        }
    loop *l = loop_new(w, 10, 1);
    esp__workers_for(w, 20, 1, nested, l);
    check(l, 20);
    free(l);
    l = loop_new(w, MOST, 1);
    l->slow = 1;
    esp__workers_for(w, MOST, 1, hit, l);
    assert_true(atomic_load(&l->bodies) > TEAM);
    free(l);
    l = loop_new(w, MOST, 1);
#pragma omp parallel num_threads(TEAM)
    {
#pragma omp single
        esp__workers_for(w, MOST, 1, hit, l);
    }
    check(l, 1);
    assert_int_equal(atomic_load(&l->bodies), 1);
    free(l);
    esp__workers_close(w);
}

/* ---- whole steps ------------------------------------------------------------------------------------------------ */
enum { OUTSIDE, PUSH_INSIDE, WAIT_INSIDE, WAIT_EACH, WAYS };
static float grad[TENSORS][ELEMENTS];

static void fill(int step) {
    for (int t = 0; t < TENSORS; t++)
        for (uint32_t i = 0; i < ELEMENTS; i++)
            grad[t][i] = (float)((i * 2654435761u + (uint32_t)(t + 7 * step)) >> 12 & 4095) / 64.0f - 32.0f;
}

static esp_ctx *job(const char *workers, const char *codec) {
    esp_config cfg = {.workers = workers, .codec = codec, .backend = "loop", .cpu_workers = workers ? 0 : 2};
    esp_ctx *ctx;
    assert_int_equal(esp_open(&cfg, &ctx), ESP_OK);
    static const char *const names[TENSORS] = {"a", "b", "c"};
    for (int t = 0; t < TENSORS; t++) {
        esp_tensor_desc d = {.name = names[t], .count = ELEMENTS, .option = "comp@cpu > flat.allgather > decomp@cpu"};
        if (!strcmp(codec, "none")) d.option = NULL;
        assert_int_equal(esp_tensor_add(ctx, &d, NULL), ESP_OK);
    }
    assert_int_equal(esp_start(ctx), ESP_OK);
    return ctx;
}

static void step(esp_ctx *ctx, int how) {
    const esp_stream here = ESP_ZERO;
    atomic_int bad = 0;
    if (how == PUSH_INSIDE) {
#pragma omp parallel for num_threads(TEAM)
        for (uint32_t t = 0; t < TENSORS; t++) atomic_fetch_add(&bad, esp_push(ctx, t, grad[t], here) != ESP_OK);
    } else {
        for (uint32_t t = 0; t < TENSORS; t++) atomic_fetch_add(&bad, esp_push(ctx, t, grad[t], here) != ESP_OK);
    }
    if (how == WAIT_INSIDE) {
#pragma omp parallel num_threads(TEAM)
        {
#pragma omp single
            atomic_fetch_add(&bad, esp_wait_all(ctx) != ESP_OK);
        }
    } else {
        if (how == WAIT_EACH) {
#pragma omp parallel for num_threads(TEAM)
            for (uint32_t t = 0; t < TENSORS; t++) atomic_fetch_add(&bad, esp_wait(ctx, t) != ESP_OK);
        }
        atomic_fetch_add(&bad, esp_wait_all(ctx) != ESP_OK);
    }
    assert_int_equal(atomic_load(&bad), 0);
}

static uint64_t steps(const char *workers, const char *codec, int how) {
    esp_ctx *ctx = job(workers, codec);
    uint64_t h = ESP__HASH0;
    for (int s = 0; s < 4; s++) {
        fill(s);
        step(ctx, how);
        h = esp__hash64(h, grad, sizeof grad);
    }
    esp_close(ctx);
    return h;
}

TEST(test_same_results) {
    static const char *const codecs[] = {"none", "fp16", "efsignsgd", "topk:ratio=0.02", "dgc:ratio=0.02", "twobit"};
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++) {
        const uint64_t own = steps(NULL, codecs[c], OUTSIDE);
        for (int how = 0; how < WAYS; how++) assert_true(steps("openmp", codecs[c], how) == own);
        assert_true(steps("openmp:2", codecs[c], OUTSIDE) == own);
        assert_true(steps("pthreads:3", codecs[c], OUTSIDE) == own);
    }
}

/* With ESPRESSO_WORKERS=openmp, the process has the trainer's team and at most three threads of the library: for
 * compression, for links, and the watchdog, which a job of one rank does not have. With pthreads it has more. */
TEST(test_one_pool) {
#pragma omp parallel num_threads(TEAM)
    {}
    const int before = n_threads();
    for (int how = 0; how < WAYS; how++) {
        esp_ctx *ctx = job("openmp", "efsignsgd");
        for (int s = 0; s < 20; s++) {
            fill(s);
#pragma omp parallel num_threads(TEAM)
            {}
            step(ctx, how);
            assert_int_equal(n_threads(), before + 2);
        }
        esp_close(ctx);
    }
    esp_ctx *ctx = job("pthreads:4", "efsignsgd");
    assert_int_equal(n_threads(), before + 2 + 3);
    esp_close(ctx);
}

TEST(test_a_step_allocates_nothing) {
#if COUNTS_ALLOCATIONS
    esp_ctx *ctx = job("openmp", "topk:ratio=0.02");
    for (int s = 0; s < 6; s++) {
        fill(s);
        atomic_store(&counting, s >= 3);
        step(ctx, OUTSIDE);
        atomic_store(&counting, 0);
    }
    esp_close(ctx);
    assert_int_equal(atomic_load(&allocations), 0);
#else
    test_skip("this build does not count allocations");
#endif
}

/* The team of OpenMP's library does not survive a fork: a parallel region in the child would wait for it for ever. */
TEST(test_in_a_forked_child) {
    const uint64_t here = steps("openmp", "efsignsgd", OUTSIDE);
    const pid_t child = child_fork(60);
    if (!child) _exit(steps("openmp", "efsignsgd", OUTSIDE) != here);
    assert_int_equal(child_wait(child), 0);
}

int main(void) {
    omp_set_dynamic(0);
    omp_set_num_threads(TEAM);
    unsetenv("ESPRESSO_WORKERS");
    return test_main();
}
#else
TEST(test_openmp) { test_skip("the compiler has no OpenMP"); }
#endif
