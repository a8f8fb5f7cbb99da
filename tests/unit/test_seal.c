/* test_seal.c: payloads with epoch and CRC-32C, over a test backend that damages data: `noisy` moves it by loop, and flips one bit of
 * what a rank receives. Damage is found and named on the rank that got it, no rank hangs, and a backend without the capability
 * carries no such payload. */
#include "tests/tree/run_options.h"
#include "tests/common/rounds_codec.h"

#define GATHER "comp@cpu > flat.allgather > decomp@cpu"
#define SWAP "comp@cpu > flat.alltoall > decomp@cpu > comp@cpu > flat.allgather > decomp@cpu"
#define ROOTED "comp@cpu > flat.gather > decomp@cpu > comp@cpu > flat.broadcast > decomp@cpu"
#define TREE "comp@cpu > intra.alltoall > decomp@cpu > comp@cpu > inter.allgather > decomp@cpu > intra.allgather"
#define SPREAD "intra.reduce_scatter > comp@cpu > inter.allgather > intra.allgather > decomp@cpu"
enum { RANKS = 4, STEPS = 3 };

/* ---- the backend -------------------------------------------------------------------------------------------------------------- */
static const uint64_t PLAIN = 0, SUMS = ESP_BACKEND_CHECKSUM, EPOCHS = ESP_BACKEND_EPOCH,
                      BOTH = ESP_BACKEND_CHECKSUM | ESP_BACKEND_EPOCH;
typedef struct damage {
    int32_t rank, level; /* who receives it, and in which group; level -1: none */
    uint32_t coll;       /* the collective                                      */
    uint64_t slot, byte; /* slot: of those received                             */
} damage;
static damage planned = {-1, -1, 0, 0, 0};
static atomic_int slots_seen, slots_with_sum, slots_with_epoch, damaged;

typedef struct noisy_comm {
    void *inner;
    int32_t rank, member, level; /* rank: in the job; member: in the group */
    esp_coll last;
    void *of;
} noisy_comm;
static esp_backend noisy, loop;

static esp_status noisy_probe(const esp_host *h, int32_t *score) { return (void)h, *score = 0, ESP_OK; }
static esp_status noisy_open(const esp_host *h, const esp_group *g, const char *params, void **comm) {
    noisy_comm *n = calloc(1, sizeof *n);
    esp_group inner = *g;
    if (g->parent) inner.parent = ((noisy_comm *)g->parent)->inner;
    n->rank = ((const esp_ctx *)h->user)->job.rank;
    n->level = g->level;
    n->member = g->rank;
    *comm = n;
    return loop.open(h, &inner, params, &n->inner);
}
static void noisy_close(void *comm) {
    loop.close(((noisy_comm *)comm)->inner);
    free(comm);
}
static esp_status noisy_start(void *comm, const esp_coll *c, esp_stream s, void **req) {
    noisy_comm *n = comm;
    const int sends = c->op != ESP_COLL_BROADCAST || c->root == n->member;
    for (uint64_t at = 0; sends && c->slot_bytes && c->src.ptr && at < c->src.bytes; at += c->slot_bytes) {
        esp_payload_header h;
        memcpy(&h, (const char *)c->src.ptr + at, sizeof h);
        slots_seen++;
        slots_with_sum += (h.flags & ESP_PAYLOAD_CRC) != 0;
        slots_with_epoch += h.epoch != 0;
    }
    const esp_status st = loop.start(n->inner, c, s, req);
    if (c->slot_bytes) n->last = *c, n->of = *req;
    return st;
}
static esp_status noisy_test(void *comm, void *req) {
    noisy_comm *n = comm;
    const esp_status s = loop.test(n->inner, req);
    const damage *d = &planned;
    if (s || req != n->of) return s;
    n->of = NULL;
    if (d->rank == n->rank && d->level == n->level && d->coll == n->last.op && n->last.dst.ptr) {
        ((unsigned char *)n->last.dst.ptr)[d->slot * n->last.slot_bytes + d->byte] ^= 0x10;
        damaged++;
    }
    return s;
}
static esp_status noisy_progress(void *comm, uint64_t us) { return loop.progress(((noisy_comm *)comm)->inner, us); }
static void noisy_wake(void *comm) { loop.wake(((noisy_comm *)comm)->inner); }
static esp_status noisy_abort(void *comm) { return loop.abort(((noisy_comm *)comm)->inner); }

static uint64_t noisy_caps;
static int noisy_ready; /* the first rank of a job fills the table, and no other touches it */
static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
static const esp_plugin *noisy_plugin(const esp_host *h) {
    static const esp_backend *const list[] = {&noisy};
    static const esp_plugin plugin = {sizeof plugin, 0, 1, 0, NULL, list, NULL};
    pthread_mutex_lock(&once);
    if (!noisy_ready) {
        noisy = loop = *esp__registry_backend(h->user, "loop");
        noisy.name = "noisy";
        noisy.caps |= noisy_caps;
        noisy.probe = noisy_probe, noisy.open = noisy_open, noisy.close = noisy_close;
        noisy.start = noisy_start, noisy.test = noisy_test, noisy.progress = noisy_progress;
        noisy.wake = noisy_wake, noisy.abort = noisy_abort;
        noisy.wait_fd = NULL, noisy.late = NULL, noisy.traffic = NULL, noisy.reg = NULL, noisy.dereg = NULL;
    }
    noisy_ready = 1;
    pthread_mutex_unlock(&once);
    return &plugin;
}

/* ---- one job ------------------------------------------------------------------------------------------------------------------- */
typedef struct told {
    esp_status status; /* of the first step that failed */
    char text[ESP__ERROR_MAX];
    float mean[3]; /* some elements of the last step */
    int seals, checks;
} told;
typedef struct job {
    const char *option, *codec, *backend;
    const char *gather; /* codec for esp_gather after each step; NULL: none */
    int32_t late_rank;  /* its epoch is another; -1: none */
    uint32_t epoch;
    told ranks[RANKS];
} job;

static void count_ops(const esp_ctx *ctx, told *t) {
    for (uint32_t i = 0; i < ctx->in_force.program.n_ops; i++) {
        const esp__op *op = &ctx->in_force.program.ops[i];
        t->seals += op->kind == ESP__OP_COPY && op->copy == ESP__COPY_SEAL;
        t->checks += op->kind == ESP__OP_COPY && op->copy == ESP__COPY_CHECK;
    }
}

static void body(esp_ctx *ctx, void *user) {
    enum { N = 999 };
    job *j = user;
    told *t = &j->ranks[esp_rank(ctx)];
    esp_tensor_desc d = ESP_ZERO;
    esp_stream here = ESP_ZERO;
    float g[N];
    d.name = "fc1.weight", d.count = N, d.codec = j->codec, d.option = j->option;
    if (j->gather) d.gather = j->gather, d.flags = ESP_SHARD;
    t->status = esp_tensor_add(ctx, &d, NULL);
    if (!t->status) t->status = esp_start(ctx);
    if (esp_rank(ctx) == j->late_rank) ctx->job.epoch = j->epoch;
    count_ops(ctx, t);
    for (int step = 0; step < STEPS && !t->status; step++) {
        for (int i = 0; i < N; i++) g[i] = (float)((i * 7 + step + esp_rank(ctx)) % 11 - 5);
        t->status = esp_push(ctx, 0, g, here);
        if (!t->status) t->status = esp_wait_all(ctx);
        if (!t->status && j->gather) t->status = esp_gather(ctx, 0, g, here);
    }
    if (t->status)
        snprintf(t->text, sizeof t->text, "%s", esp_last_error(ctx));
    else
        t->mean[0] = g[0], t->mean[1] = g[N / 2], t->mean[2] = g[N - 1];
}

static void run(job *j, uint64_t caps) {
    static esp_plugin_fn entries[2];
    test_job x;
    entries[0] = noisy_plugin, entries[1] = rounds_entry;
    memset(&x, 0, sizeof x);
    memset(j->ranks, 0, sizeof j->ranks);
    noisy_caps = caps;
    noisy_ready = 0;
    slots_seen = slots_with_sum = slots_with_epoch = damaged = 0;
    x.size = RANKS, x.per_machine = 2, x.body = body, x.user = j;
    x.config.backend = j->backend ? j->backend : "noisy";
    x.config.builtin = entries, x.config.n_builtin = 2;
    x.config.timeout_ms = 30000;
    x.config.log_level = ESP_LOG_ERROR;
    test_run(&x);
    for (int32_t r = 0; r < RANKS; r++) assert_int_equal(x.open_status[r], ESP_OK);
}

static void all_well(const job *j) {
    for (int32_t r = 0; r < RANKS; r++) {
        if (j->ranks[r].status) fail_msg("%s: rank %d: %s", j->option, (int)r, j->ranks[r].text);
        assert_memory_equal(j->ranks[r].mean, j->ranks[0].mean, sizeof j->ranks[0].mean);
    }
}

/* Rank `at` got what `from` sent, and says so. The others end too: with the same step's result, or because a rank left. */
static void found(const job *j, int32_t at, int32_t from, const char *step, const char *what) {
    char want[256];
    snprintf(want, sizeof want, "tensor 'fc1.weight': %s: the payload that rank %d sent %s", step, (int)from, what);
    if (!strstr(j->ranks[at].text, want)) fail_msg("expected: %s\nrank %d: %s", want, (int)at, j->ranks[at].text);
    for (int32_t r = 0; r < RANKS; r++) {
        const esp_status s = j->ranks[r].status;
        assert_true(s != ESP_OK && s != ESP_E_TIMEOUT);
        if (r != at && strstr(j->ranks[r].text, "damaged")) fail_msg("rank %d: %s", (int)r, j->ranks[r].text);
    }
}

/* ---- tests ------------------------------------------------------------------------------------------------------------------- */
static const char *const options[] = {GATHER, SWAP, ROOTED, TREE, SPREAD};

static void codecs_see_none_of_it(void **state) {
    static const uint64_t caps[] = {PLAIN, SUMS, EPOCHS, BOTH};
    static const char *const codecs[] = {"none", "topk:ratio=0.1", "shared2", "fp16:of=(topk:ratio=0.1)"};
    (void)state;
    for (size_t o = 0; o < sizeof options / sizeof *options; o++)
        for (int k = 0; k < 4; k++) {
            float plain[3] = {0};
            for (int c = 0; c < 4; c++) {
                job j = {.option = options[o], .codec = codecs[k], .late_rank = -1};
                run(&j, caps[c]);
                all_well(&j);
                if (c == 0) memcpy(plain, j.ranks[0].mean, sizeof plain);
                assert_memory_equal(j.ranks[0].mean, plain, sizeof plain);
                assert_true(slots_seen > 0);
                assert_int_equal(slots_with_sum, caps[c] & SUMS ? slots_seen : 0);
                assert_int_equal(slots_with_epoch, caps[c] & EPOCHS ? slots_seen : 0);
                for (int32_t r = 0; r < RANKS; r++) {
                    assert_true(!caps[c] == !j.ranks[r].checks);
                    assert_true(caps[c] || !j.ranks[r].seals);
                }
            }
        }
}

/* Every option of the tree, and sums of bodies: codec none gives the exact mean. */
static void whole_tree(void **state) {
    static const char *const all[] = {"none", "topk:ratio=0.1", NULL};
    plan p = {.devices = 1, .codecs = all, .count = 37, .steps = 2, .extended = 1, .dtype = ESP_F32};
    static const esp_plugin_fn entry[] = {noisy_plugin};
    test_job x;
    (void)state;
    noisy_caps = BOTH;
    noisy_ready = 0;
    memset(&x, 0, sizeof x);
    x.size = RANKS, x.per_machine = 2, x.body = run_body, x.user = &p;
    x.config.backend = "noisy", x.config.builtin = entry, x.config.n_builtin = 1;
    x.config.log_level = ESP_LOG_ERROR;
    test_run(&x);
    for (int32_t r = 0; r < RANKS; r++) assert_int_equal(x.open_status[r], ESP_OK);
    assert_int_equal(atomic_load(&p.failures), 0);
}

static void damage_is_named(void **state) {
    static const struct {
        const char *option, *step;
        int32_t rank, level, from;
        uint32_t coll;
        uint64_t slot, byte;
    } cases[] = {
        {GATHER, "flat.allgather", 2, 0, 1, ESP_COLL_ALLGATHER, 1, 64 + 100}, /* in the body */
        {GATHER, "flat.allgather", 0, 0, 3, ESP_COLL_ALLGATHER, 3, 4},        /* wire_version */
        {GATHER, "flat.allgather", 1, 0, 0, ESP_COLL_ALLGATHER, 0, 6},        /* flags */
        {GATHER, "flat.allgather", 1, 0, 2, ESP_COLL_ALLGATHER, 2, 22},       /* body_bytes: longer than the slot */
        {GATHER, "flat.allgather", 3, 0, 2, ESP_COLL_ALLGATHER, 2, 33},       /* epoch */
        {GATHER, "flat.allgather", 3, 0, 2, ESP_COLL_ALLGATHER, 2, 36},       /* the checksum itself */
        {SWAP, "flat.alltoall", 1, 0, 3, ESP_COLL_ALLTOALL, 3, 70},
        {TREE, "intra.alltoall", 3, 1, 2, ESP_COLL_ALLTOALL, 0, 70},
        {TREE, "inter.allgather", 3, 2, 1, ESP_COLL_ALLGATHER, 0, 70},
        {SPREAD, "inter.allgather", 0, 2, 2, ESP_COLL_ALLGATHER, 1, 70},
        {SPREAD, "intra.allgather", 0, 1, 1, ESP_COLL_ALLGATHER, 3, 70}, /* two slots from each rank */
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        job j = {.option = cases[i].option, .codec = "none", .late_rank = -1};
        planned = (damage){cases[i].rank, cases[i].level, cases[i].coll, cases[i].slot, cases[i].byte};
        run(&j, i % 2 ? SUMS : BOTH);
        planned.rank = -1;
        assert_int_equal(damaged, 1);
        assert_int_equal(j.ranks[cases[i].rank].status, ESP_E_CORRUPT);
        found(&j, cases[i].rank, cases[i].from, cases[i].step, "was damaged on its way to rank");
        assert_non_null(strstr(j.ranks[cases[i].rank].text, "check the network cards"));
    }
}

/* The root differs from unit to unit: whichever rank it is, damage is found at it in a gather, and elsewhere in a broadcast. */
static void damage_of_rooted(void **state) {
    int at_root = 0, elsewhere = 0;
    (void)state;
    for (int32_t r = 0; r < RANKS; r++)
        for (int k = 0; k < 2; k++) {
            job j = {.option = ROOTED, .codec = "none", .late_rank = -1};
            planned = (damage){r, 0, k ? ESP_COLL_BROADCAST : ESP_COLL_GATHER, k ? 0 : r ? 0 : 1, 70};
            run(&j, SUMS);
            planned.rank = -1;
            if (j.ranks[r].status == ESP_OK)
                continue; /* in a gather nothing comes to it; what it sends itself is whole */
            assert_int_equal(j.ranks[r].status, ESP_E_CORRUPT);
            assert_non_null(strstr(j.ranks[r].text, k ? "flat.broadcast" : "flat.gather"));
            *(k ? &elsewhere : &at_root) += 1;
        }
    assert_int_equal(at_root, 1);
    assert_int_equal(elsewhere, RANKS - 1);
}

/* Only the root of the gather looks, so that it is known who speaks; the others have its status, and that it left. */
static void other_epoch(void **state) {
    int by_root = 0;
    (void)state;
    for (int32_t late = 0; late < RANKS; late++) {
        job j = {.option = ROOTED, .codec = "topk:ratio=0.1", .late_rank = late, .epoch = 7};
        int n = 0;
        run(&j, late % 2 ? EPOCHS : BOTH);
        for (int32_t r = 0; r < RANKS; r++) {
            char want[128];
            assert_true(j.ranks[r].status == ESP_E_PEER || j.ranks[r].status == ESP_E_MISMATCH);
            if (j.ranks[r].status != ESP_E_MISMATCH || strstr(j.ranks[r].text, " left, as ")) continue;
            snprintf(want, sizeof want, "rank %d sent is of epoch %d, but rank %d is in epoch %d",
                     r != late ? (int)late : late == 0, r == late ? 1 : 7, (int)r, r == late ? 7 : 1);
            if (!strstr(j.ranks[r].text, want)) fail_msg("expected: %s\nrank %d: %s", want, (int)r, j.ranks[r].text);
            assert_non_null(strstr(j.ranks[r].text, "tensor 'fc1.weight': flat.gather"));
            by_root += r != late;
            n++;
        }
        assert_int_equal(n, 1);
    }
    assert_int_equal(by_root, RANKS - 1);
    job old = {.option = GATHER, .codec = "none", .late_rank = 2, .epoch = 7}; /* who does not ask is not told */
    run(&old, SUMS);
    all_well(&old);
}

/* Two backends in one job: only the level whose backend asks pays. */
static void level_by_level(void **state) {
    static const char *const backends[] = {"levels:intra=(noisy),inter=(loop)", "levels:intra=(loop),inter=(noisy)"};
    (void)state;
    for (int k = 0; k < 2; k++) {
        job j = {.option = TREE, .codec = "none", .late_rank = -1, .backend = backends[k]};
        run(&j, SUMS);
        all_well(&j);
        assert_int_equal(slots_with_sum, slots_seen);
        assert_int_equal(slots_seen, RANKS * STEPS * (k ? 1 : 2)); /* an alltoall sends two */
        for (int32_t r = 0; r < RANKS; r++) {
            assert_int_equal(j.ranks[r].seals, 1);
            assert_int_equal(j.ranks[r].checks, 1);
        }
        planned = (damage){1, k + 1, k ? ESP_COLL_ALLGATHER : ESP_COLL_ALLTOALL, k ? 1 : 0, 70};
        run(&j, SUMS);
        planned.rank = -1;
        found(&j, 1, k ? 3 : 0, k ? "inter.allgather" : "intra.alltoall", "was damaged");
    }
}

/* Compressed parameters, which no op carries. */
static void gathered(void **state) {
    int n = 0;
    (void)state;
    for (int32_t level = 0; level <= 2; level++) {
        job j = {.gather = "fp16", .late_rank = -1};
        run(&j, BOTH);
        all_well(&j);
        assert_true(slots_seen > 0);
        assert_int_equal(slots_with_sum, slots_seen);
        planned = (damage){1, level, ESP_COLL_ALLGATHER, level == 2, 70};
        run(&j, SUMS);
        planned.rank = -1;
        if (!damaged) continue;
        n++;
        assert_int_equal(j.ranks[1].status, ESP_E_CORRUPT);
        found(&j, 1, level == 2 ? 3 : 0, "esp_gather", "was damaged on its way to rank 1");
    }
    assert_true(n > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codecs_see_none_of_it),
        cmocka_unit_test(whole_tree),
        cmocka_unit_test(damage_is_named),
        cmocka_unit_test(damage_of_rooted),
        cmocka_unit_test(other_epoch),
        cmocka_unit_test(level_by_level),
        cmocka_unit_test(gathered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
