/* test_auto_die.c kills ranks while strategy auto measures, plans, changes the strategy or checks its gain. Every other
 * rank must get an error that names the killed one, and no file may stay behind. */
/* runs: quiet no-tsan: ranks are processes; context/test_step has their threads */
#include "tests/lib/test.h"
#include "tests/lib/processes.h"

enum { N = 20000, TENSORS = 3, RANKS = 4 };
enum { MEASURING, PROBING, PLANNING, SWITCHING, SWITCHED };
static const char *const situations[] = {"killed while measuring", "killed in a probe", "killed while planning",
                                         "killed at the switch", "killed after the switch"};

/* when the victim dies: in what phase of strategy auto, and after how many steps, allocations or ms */
static int situation, depth;
static int32_t victim;
static esp_ctx *own;
static int own_depth;

static void die(void) { kill(getpid(), SIGKILL); }

/* ---- made-up costs: fp32 is the slowest, so that auto switches ---- */
static uint64_t made_up_step(void *user, esp_ctx *ctx) {
    const esp__autopilot *a = esp__autopilot_of(ctx);
    int now = situation == MEASURING  ? a->phase == ESP__AUTO_MEASURE && (int)a->phase_steps == depth
              : situation == SWITCHED ? a->phase == ESP__AUTO_TRY && (int)a->phase_steps == depth
                                      : 0;
    if (ctx->job.rank == victim && now) die();
    return ctx->active.strategy.hash == a->fp32 ? 20000000u : 7000000u;
}
static void made_up_ready(void *user, esp_ctx *ctx, uint64_t *out) {
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) out[i] = 1000000u * (i + 1);
}
/* Called before ranks exchange measurements, such as after the other ranks' wait for rank 0's plan. */
static double made_up_waiting(void *user, esp_ctx *ctx) {
    const esp__autopilot *a = esp__autopilot_of(ctx);
    if (situation == PLANNING && ctx->job.rank == victim && a->phase == ESP__AUTO_TRY && !a->tournament.more) die();
    return 0.5;
}
/* Called on rank 0 when it plans. */
static esp_status made_up_costs(void *user, esp_ctx *ctx, esp_plan_system *s, esp_plan_codec *codecs, uint32_t *n) {
    static const esp_cost_point quick[] = {{1, 1000}, {1000, 2000}};
    if (situation == PLANNING && ctx->job.rank == victim && esp__autopilot_of(ctx)->phase == ESP__AUTO_TRY) die();
    memset(s, 0, sizeof *s);
    memset(codecs, 0, sizeof *codecs);
    s->struct_size = sizeof *s;
    s->machines = (uint32_t)ctx->job.topo.n_machines;
    s->ranks_per_machine = (uint32_t)ctx->job.topo.n_local;
    s->devices = 1;
    s->intra.alpha_ns = s->inter.alpha_ns = 1000;
    s->intra.bytes_per_us = 1e6;
    s->inter.bytes_per_us = 1;
    codecs->struct_size = sizeof *codecs;
    codecs->spec = "topk:ratio=0.25";
    codecs->header_bytes = 32;
    codecs->unit_bytes = 1;
    codecs->units = 0.5;
    codecs->error = 0.5;
    codecs->compress[0].points = codecs->decompress[0].points = quick;
    codecs->compress[0].n = codecs->decompress[0].n = 2;
    *n = 1;
    return ESP_OK;
}

/* ---- dying at an allocation while the strategy changes ---- */
static void *counting_alloc(void *user, esp_device d, uint64_t bytes, uint64_t align) {
    const esp__autopilot *a = own ? esp__autopilot_of(own) : NULL;
    if (situation == SWITCHING && a && own->job.rank == victim && a->phase >= ESP__AUTO_TRY && a->all &&
        a->all[0].bytes && ++own_depth == depth)
        die();
    return test_host_alloc(user, d, bytes, align);
}

/* ---- dying soon after measuring has begun ---- */
static void *die_soon(void *arg) {
    usleep((useconds_t)depth * 1000);
    die();
    return arg;
}

static esp_ctx *open_ctx(procs *p, int32_t rank) {
    static esp_host host;
    report *me = &p->b->rank[rank];
    esp_ctx *ctx = NULL;
    host.struct_size = sizeof host;
    host.abi_major = ESP_ABI_MAJOR;
    host.alloc = counting_alloc;
    host.free_ = test_host_free;
    esp_config cfg = {
        .host = &host, .rank = rank, .size = p->size, .machine = 1 + rank / 2, .root = p->root, .backend = "shm"};
    cfg.codec = "topk:ratio=0.25";
    cfg.strategy = situation == PROBING ? "auto:steps=2000,min_gain=0" : "auto:steps=4";
    cfg.timeout_ms = 20000;
    cfg.cpu_workers = 1;
    cfg.log_level = ESP_LOG_ERROR;
    if (esp_open(&cfg, &ctx) != ESP_OK) {
        snprintf(me->text, sizeof me->text, "open: %.900s", esp_last_error(NULL));
        return NULL;
    }
    for (int i = 0; i < TENSORS; i++) {
        esp_tensor_desc d = ESP_ZERO;
        char name[32];
        snprintf(name, sizeof name, "layer%d.weight", i);
        d.name = name;
        d.count = N;
        if (esp_tensor_add(ctx, &d, NULL) != ESP_OK)
            snprintf(me->text, sizeof me->text, "add: %.900s", esp_last_error(ctx));
    }
    if (esp_start(ctx) != ESP_OK) {
        snprintf(me->text, sizeof me->text, "start: %.900s", esp_last_error(ctx));
        esp_close(ctx);
        return NULL;
    }
    if (situation != PROBING)
        esp__autopilot_of(ctx)->source = (esp__auto_source){
            .step_ns = made_up_step, .ready = made_up_ready, .costs = made_up_costs, .waiting = made_up_waiting};
    own = ctx;
    return ctx;
}

static void body_train(procs *p, int32_t rank) {
    report *me = &p->b->rank[rank];
    float *grads = (float *)malloc(TENSORS * N * sizeof *grads);
    esp_ctx *ctx = open_ctx(p, rank);
    esp_status s = ctx ? ESP_OK : ESP_E_STATE;
    esp_stream here = ESP_ZERO;
    for (int k = 0; s == ESP_OK && k < 100000; k++) {
        pthread_t soon;
        if (situation == PROBING && rank == victim && k == 5) pthread_create(&soon, NULL, die_soon, NULL);
        for (int i = 0; i < TENSORS * N; i++) grads[i] = (float)(i % 13) - 6.0f;
        for (uint32_t i = 0; i < TENSORS && s == ESP_OK; i++) s = esp_push(ctx, i, grads + i * N, here);
        if (s == ESP_OK) s = esp_wait_all(ctx);
    }
    if (ctx) snprintf(me->text, sizeof me->text, "%.1000s", s == ESP_OK ? "it goes on" : esp_last_error(ctx));
    if (s != ESP_OK && ctx && esp_push(ctx, 0, grads, here) != s) atomic_store(&me->other, 1);
    atomic_store(&me->status, s);
    esp_close(ctx);
    atomic_store(&me->closed_ns, esp__now_ns());
    free(grads);
}

static void killed(int where, int32_t who, int deep) {
    procs p;
    char name[32];
    situation = where, victim = who, depth = deep;
    own_depth = 0;
    procs_init(&p, RANKS);
    procs_start_all(&p, body_train);
    int all_back = PROCS_AWAIT(&p, closed_ns, 0, victim), wrong = !all_back;
    snprintf(name, sizeof name, "rank %d", (int)victim);
    for (int32_t r = 0; r < p.size; r++) {
        report *x = &p.b->rank[r];
        if (r == victim) continue;
        if (atomic_load(&x->status) == ESP_E_PEER && strstr(x->text, name) && strstr(x->text, "died") &&
            !atomic_load(&x->other))
            continue;
        print_error("rank %d %s (%d): rank %d: %d %s%s\n", (int)victim, situations[where], deep, (int)r,
                    atomic_load(&x->status), x->text, atomic_load(&x->other) ? " (and pushes say something else)" : "");
        wrong = 1;
    }
    assert_int_equal(procs_end(&p), 0);
    assert_int_equal(wrong, 0);
}

TEST(test_measuring) {
    for (int32_t r = 0; r < RANKS; r += 3) killed(MEASURING, r, 1 + r / 3);
}
TEST(test_in_a_probe) {
    for (int32_t r = 0; r < RANKS; r++) killed(PROBING, r, 1 + 3 * r);
}
TEST(test_planning) {
    killed(PLANNING, 0, 0); /* only rank 0 plans */
    killed(PLANNING, 2, 0);
}
TEST(test_at_the_switch) {
    for (int deep = 1; deep < 28; deep = deep * 2 + 1) killed(SWITCHING, deep % RANKS, deep);
}
TEST(test_after_the_switch) {
    killed(SWITCHED, 0, 1);
    killed(SWITCHED, 3, 2);
}

/* Counts the library's files in /dev/shm, which other programs use too. */
static int our_files(void) { return test_count_files("/dev/shm", "esp"); }
static int files_before;
static int count_before(void **state) {
    files_before = our_files();
    return 0;
}
TEST(test_nothing_stays) { assert_int_equal(our_files(), files_before); }

TEST_GROUP(count_before)
