/* test_levels.c checks jobs of three levels (racks, machines, ranks): the number of options (ways to compress and send
 * a tensor), their text, and options executed by eight ranks in two racks of two machines. */
/* runs: slow asan-long tsan-long */
#include "tests/lib/test.h"
#include "tests/strategy/run_options.h"

static const char *const none[] = {"none", NULL};
static const char *const lossy[] = {"fp16:feedback=residual", "topk:ratio=0.1", "randomk:ratio=0.1", NULL};
/* Neighbouring ranks are in different racks, so that the order of ranks differs from that of racks and machines. */
static const char *const places[] = {"r0/m0", "r1/m0", "r0/m1", "r1/m1", "r1/m0", "r0/m0", "r1/m1", "r0/m1"};

static int count_one(void *user, const esp__option *o) {
    uint32_t *longest = user;
    if (o->n > *longest) *longest = o->n;
    return 0;
}

TEST(test_counts) {
    uint32_t longest = 0;
    assert_int_equal(esp__option_each(ESP__TREE_HIERARCHICAL | ESP__TREE_OF(2), 3, 0, count_one, &longest), 4278);
    assert_int_equal(longest, 12);
    assert_int_equal(esp__option_each(ESP__TREE_FLAT | ESP__TREE_OF(3), 3, 0, count_one, &longest), 63);
    assert_int_equal(esp__option_each(ESP__TREE_HIERARCHICAL | ESP__TREE_OF(3), 1, 0, count_one, &longest), 2556 - 12);
    assert_int_equal(esp__option_each(ESP__TREE_HIERARCHICAL | ESP__TREE_OF(3), 3, 0, count_one, &longest),
                     299271 - 63);
    assert_int_equal(longest, ESP__MAX_STEPS);
}

TEST(test_text_one_to_one) {
    int n = 0;
    esp__option_each(ESP__TREE_FLAT | ESP__TREE_HIERARCHICAL | ESP__TREE_OF(3), 1, 1, round_trip, &n);
    assert_int_equal(n, 6252);
}

TEST(test_bad_text) {
    static const char *const bad[][2] = {
        {"intra.reduce_scatter > outer.allreduce > intra.allgather", "level 'inter' inside it is in none"},
        {"inter.reduce_scatter > outer.allreduce > inter.allgather", "level 'intra' inside it is in none"},
        {"intra.reduce_scatter > intra-inter.allreduce > intra.allgather", "share a level"},
        {"intra.reduce_scatter > inter.reduce_scatter > outer.allreduce > intra.allgather",
         "position 65: 'intra.allgather' cannot stand here; expected inter.allgather"},
        {"intra.reduce_scatter > inter.allreduce > outer.allreduce",
         "cannot stand here; expected inter.reduce_scatter"},
    };
    check_bad_texts(bad, sizeof bad / sizeof *bad);
}

/* Runs every option of three levels, also those for codecs whose payloads can be summed. */
TEST(test_none_is_exact) {
    plan p = {.devices = 1, .codecs = none, .count = 37, .steps = 1, .exact = 1, .extended = 1, .levels = 3};
    p.dtype = ESP_F32;
    p.every = (uint32_t)(10 / test_repeats(10));
    run_plan_at(8, 0, places, &p);
}

TEST(test_lossy) {
    plan p = {.devices = 1, .codecs = lossy, .count = 131, .steps = 10, .extended = 1, .levels = 3, .every = 31};
    p.dtype = ESP_F32;
    run_plan_at(8, 0, places, &p);
}

TEST(test_halves) {
    plan p = {.devices = 1, .codecs = none, .count = 37, .steps = 2, .exact = 1, .levels = 3, .every = 17};
    p.dtype = ESP_BF16;
    run_plan_at(8, 0, places, &p);
}

/* With three machines in a rack, parts are uneven at every level. */
TEST(test_uneven_parts) {
    static const char *const of_18[] = {"a/0", "a/0", "a/0", "a/1", "a/1", "a/1", "a/2", "a/2", "a/2",
                                        "b/0", "b/0", "b/0", "b/1", "b/1", "b/1", "b/2", "b/2", "b/2"};
    plan p = {.devices = 1, .codecs = none, .count = 43, .steps = 1, .exact = 1, .levels = 3, .every = 23};
    p.dtype = ESP_F32;
    run_plan_at(18, 0, of_18, &p);
}

/* ---- jobs with an emulated link for each level ------------------------------------------------------------------- */
enum { LINK_COUNT = 4096 };
typedef struct linked {
    const char *option;
    uint64_t bytes[3]; /* bytes received from ranks at levels 1, 2 and 3 */
    uint64_t outer_ns;
} linked;

static const linked links[] = {
    {"intra.reduce_scatter > inter.reduce_scatter > outer.allreduce > inter.allgather > intra.allgather",
     {4 * LINK_COUNT, 2 * LINK_COUNT, LINK_COUNT},
     0},
    {"intra.reduce_scatter > inter-outer.allreduce > intra.allgather", {4 * LINK_COUNT, 2 * LINK_COUNT / 4 * 2, 0}, 0},
    {"intra.reduce_scatter > inter.allreduce > intra.allgather", {4 * LINK_COUNT, 2 * LINK_COUNT / 4 * 2, 0}, 0},
    {"intra-inter.reduce_scatter > outer.allreduce > intra-inter.allgather", {0, 0, LINK_COUNT}, 0},
    {"flat.allreduce", {0, 0, 0}, 0},
};

static void linked_body(esp_ctx *ctx, void *user) {
    const linked *l = user;
    static float grads[8][LINK_COUNT];
    float *g = grads[ctx->job.rank];
    esp_stream here = ESP_ZERO;
    esp_stats s = ESP_ZERO;
    esp_tensor_desc d = {.name = "w", .count = LINK_COUNT, .option = l->option, .flags = ESP_SUM};
    for (int i = 0; i < LINK_COUNT; i++) g[i] = (float)((i * 3 + ctx->job.rank) % 17);
    CHECK(!esp_tensor_add(ctx, &d, NULL) && !esp_start(ctx) && !esp_push(ctx, 0, g, here) && !esp_wait_all(ctx));
    for (int i = 0; i < LINK_COUNT; i++) {
        float want = 0;
        for (int r = 0; r < 8; r++) want += (float)((i * 3 + r) % 17);
        CHECK(g[i] == want);
    }
    s.struct_size = sizeof s;
    CHECK(esp_stats_read(ctx, &s) == ESP_OK);
    CHECK(s.intra_bytes == s.level_bytes[0]);
    CHECK(s.inter_bytes == s.level_bytes[1] + s.level_bytes[2]);
    for (int k = 0; k < 3; k++)
        if (l->bytes[k]) CHECK(s.level_bytes[k] == l->bytes[k]);
    CHECK(s.level_ns[2] > 0);
}

/* Runs options that divide the three levels in different ways. Checks the sums, and the bytes at each level. */
TEST(test_links) {
    for (size_t k = 0; k < sizeof links / sizeof *links; k++) {
        linked l = links[k];
        RUN_RANKS(.size = 8, .places = places, .body = linked_body, .user = &l,
                  .config.backend = "loop:inter=2gbit,latency=10us,outer=(500mbit,100us)");
    }
}

static void auto_body(esp_ctx *ctx, void *user) {
    static float grads[8][3][20000];
    float(*g)[20000] = grads[ctx->job.rank];
    esp_stream here = ESP_ZERO;
    for (uint32_t t = 0; t < 3; t++) tensor_add(ctx, (const char *[]){"a", "b", "c"}[t], 20000);
    CHECK(esp_start(ctx) == ESP_OK);
    for (int step = 0; step < 60; step++) {
        for (uint32_t t = 0; t < 3; t++) {
            for (int i = 0; i < 20000; i++) g[t][i] = (float)((i + step) % 3 - 1);
            CHECK(esp_push(ctx, t, g[t], here) == ESP_OK);
        }
        CHECK(esp_wait_all(ctx) == ESP_OK);
    }
    check_same_bits(ctx, g, sizeof grads[0]);
    if (ctx->job.rank == 0) {
        const esp__calibration *v = &esp__autopilot_of(ctx)->calibration;
        const esp_plan_system *y = &v->system;
        uint32_t points[ESP__CALIBRATION_LEVELS] = {0};
        CHECK(y->n_outer == 1 && y->outer[0].size == 2 && y->machines == 2 && y->ranks_per_machine == 2);
        for (int level = 0; level < ESP__CALIBRATION_LEVELS; level++)
            for (int k = 0; k < ESP_PLAN_COLLS; k++) {
                const esp__calibration_curve *c = &v->link[level][k];
                points[level] += c->n;
                for (uint32_t i = 0; i < c->n && level == ESP__OUTER; i++) CHECK(c->at[i].ns >= 1e6); /* the latency */
            }
        CHECK(points[ESP__INTRA] && points[ESP__INTER] && points[ESP__OUTER]);
    }
}

TEST(test_auto) {
    RUN_RANKS(.size = 8, .places = places, .body = auto_body,
              .config.backend = "loop:inter=10gbit,latency=10us,outer=(200mbit,1ms)", .config.strategy = "auto",
              .config.codec = "fp16");
}

/* ---- a job with another backend for each level ---- */
enum { PATIENCE_S = 60 };
/* Runs a collective on two backends, one for each level. Rank 0 must sleep until the other ranks begin. */
static void sleeps_on_both(esp_ctx *ctx) {
    const uint8_t scope[2] = {ESP__INTRA, ESP__INTER};
    float in[2] = {1, 2}, out[2] = {0, 0};
    void *req[2] = {NULL, NULL};
    esp_stream here = ESP_ZERO;
    int sleeps = 0;
    if (ctx->job.rank) usleep(50000);
    for (int k = 0; k < 2; k++) {
        const esp__comm *c = &ctx->job.comms[scope[k]];
        esp_coll coll = ESP_ZERO;
        coll.struct_size = sizeof coll, coll.op = ESP_COLL_ALLREDUCE, coll.dtype = ESP_F32, coll.count = 1;
        coll.src.ptr = &in[k], coll.dst.ptr = &out[k], coll.src.bytes = coll.dst.bytes = 4;
        CHECK(c->backend->start(c->handle, &coll, here, &req[k]) == ESP_OK);
    }
    for (uint64_t end = esp__now_ns() + PATIENCE_S * 1000000000ull / 2; (req[0] || req[1]) && esp__now_ns() < end;
         sleeps++) {
        for (int turn = 0; turn < 2; turn++) {
            for (int k = 0; k < 2; k++) {
                const esp__comm *c = &ctx->job.comms[scope[k]];
                if (req[k] && c->backend->test(c->handle, req[k]) == ESP_OK) req[k] = NULL;
            }
            if (!turn) CHECK(esp__comms_arm(ctx));
        }
        if (req[0] || req[1]) esp__comms_sleep(ctx, PATIENCE_S * 1000000ull);
    }
    CHECK(!req[0] && !req[1]);
    CHECK(out[0] == 2.0f && out[1] == 4.0f);
    CHECK(sleeps < 1000); /* the thread slept, and did not poll */
}

static void mixed_body(esp_ctx *ctx, void *user) {
    static float grads[4][2][1000];
    static const char *const options[] = {
        "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather",
        "intra.reduce > inter.allreduce > intra.broadcast"};
    esp_stream here = ESP_ZERO;
    CHECK(!strcmp(ctx->job.comms[ESP__INTRA].backend->name, "loop"));
    CHECK(!strcmp(ctx->job.comms[ESP__INTER].backend->name, "shm"));
    CHECK(!strcmp(ctx->job.comms[ESP__FLAT].backend->name, "shm"));
    CHECK(ctx->job.n_parents == 2);
    esp_barrier(ctx);
    sleeps_on_both(ctx);
    for (uint32_t t = 0; t < 2; t++) {
        esp_tensor_desc d = {.name = t ? "b" : "a", .count = 1000, .option = options[t], .flags = ESP_SUM};
        CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    }
    CHECK(esp_start(ctx) == ESP_OK);
    for (int step = 0; step < 5 && !atomic_load(&failures); step++) {
        for (uint32_t t = 0; t < 2; t++) {
            for (int i = 0; i < 1000; i++) grads[ctx->job.rank][t][i] = (float)((i + step + ctx->job.rank) % 9);
            CHECK(esp_push(ctx, t, grads[ctx->job.rank][t], here) == ESP_OK);
        }
        CHECK(esp_wait_all(ctx) == ESP_OK);
        for (int i = 0; i < 1000; i++) {
            float want = 0;
            for (int r = 0; r < 4; r++) want += (float)((i + step + r) % 9);
            CHECK(grads[ctx->job.rank][0][i] == want && grads[ctx->job.rank][1][i] == want);
        }
    }
}

TEST(test_two_backends) {
    RUN_RANKS(.size = 4, .per_machine = 2, .body = mixed_body, .config.backend = "levels:intra=(loop),inter=(shm)");
}

/* The user may name the levels. Strategies keep the names intra, inter and outer; all other texts have the user's
 * names. */
static void named_body(esp_ctx *ctx, void *user) {
    static float grads[8][4];
    float *w = grads[ctx->job.rank];
    esp_tensor_desc d = ESP_ZERO;
    esp_stream here = ESP_ZERO;
    const esp__unit *u;
    for (int i = 0; i < 4; i++) w[i] = 1.0f;
    CHECK(!strcmp(esp__scope_name(&ctx->job.names, 1), "gpu") && !strcmp(esp__lane_name(ctx, ESP__LANE_OUTER), "rack"));
    CHECK(!strcmp(esp__scope_name(&ctx->job.names, esp__scope_of(2, 3, 3)), "machine-rack"));
    CHECK(!strcmp(esp__scope_name(&ctx->job.names, ESP__FLAT), "flat"));
    d.name = "w", d.count = 4;
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    CHECK(esp_start(ctx) == ESP_OK);
    CHECK(esp_push(ctx, 0, w, here) == ESP_OK && esp_wait_all(ctx) == ESP_OK && w[3] == 1.0f);
    u = &ctx->active.strategy.units[0];
    CHECK(!strcmp(ctx->active.program.ops[u->first_op].label, "gpu.reduce_scatter w"));
    CHECK(strstr(ctx->active.strategy.text, "intra.reduce_scatter > inter.reduce_scatter > outer.allreduce"));
}

TEST(test_named_levels) {
    static const char *const places[] = {"a/0", "a/0", "a/1", "a/1", "b/0", "b/0", "b/1", "b/1"};
    char dir[] = "/tmp/espresso-levels-XXXXXX", trace[64];
    assert_non_null(mkdtemp(dir));
    snprintf(trace, sizeof trace, "%s.json", dir);
    RUN_RANKS(.size = 8, .places = places, .body = named_body,
              .config.backend = "levels:flat=(loop),gpu=(loop),machine=(loop),rack=(shm)", .config.trace = trace);
    char *text = file_text(trace);
    assert_non_null(text);
    for (int r = 0; r < 8; r++) { /* in the timeline, each rank has a row for each link */
        static const char *const names[] = {"gpu", "machine", "rack"};
        char want[128];
        for (int k = 0; k < 3; k++) {
            snprintf(want, sizeof want, "\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}", r + 1,
                     10 * (r + 1) + ESP__LANE_INTRA + k, names[k]);
            if (!strstr(text, want)) fail_msg("%s is not in the trace", want);
        }
        snprintf(want, sizeof want, "\"cat\":\"rack\",\"pid\":%d,\"tid\":%d,", r + 1, 10 * (r + 1) + ESP__LANE_OUTER);
        const char *at = strstr(text, want);
        if (!at) fail_msg("%s is not in the trace", want);
        assert_int_equal(strncmp(strstr(at, "\"name\":"), "\"name\":\"rack.allreduce ", 23), 0);
    }
    assert_null(strstr(text, "outer"));
    free(text);
    unlink(trace);
    assert_int_equal(rmdir(dir), 0);
}

TEST(test_bad_levels) {
    static const char *const bad[][2] = {
        {"levels:intra=(loop)", "has none for level 'inter'"},
        {"levels:intra=(loop),inter=(loop),outer=(loop)", "has one for level 'outer', but this job has 2 levels"},
        {"levels:rack=(loop)", "names 1 level, 'rack', but this job has 2 levels: name each of them"},
        {"levels:gpu=(loop),machine=(loop),rack=(loop)", "names 3 levels, 'gpu' to 'rack', but this job has 2 levels"},
        {"levels:intra=(loop),rack=(loop)", "'rack' is no level: expected intra, inter, outer or flat"},
        {"levels:intar=(loop),inter=(loop)", "'intar' is no level: expected intra, inter, outer or flat"},
        {"levels:gpu=(loop),inter-outer=(loop)", "'gpu' is no level"},
        {"levels:intra=(loop),intra=(loop)", "'intra' is there twice"},
        {"levels:gpu=(loop),gpu=(loop)", "'gpu' cannot name a level: two levels have this name"},
        {"levels:cpu=(loop),node=(loop)", "'cpu' cannot name a level: a lane that is no link has this name"},
        {"levels:gpu=(loop),my-node=(loop)", "'my-node' cannot name a level: a name has letters, digits and '_'"},
        {"levels:gpu=(loop),2nd=(loop)", "'2nd' cannot name a level: a name has letters, digits and '_'"},
        {"levels:gpu=(loop),machine_of_racks=(loop)", "'machine_of_racks' cannot name a level: a name has at most 15"},
        {"levels:a=(loop),b=(loop),c=(loop),d=(loop)", "'d' cannot name a level: a job has at most 3 levels"},
        {"levels:intra=loop,inter=(loop)", "write the level's backend in parentheses: intra=(loop)"},
        {"levels:intra=(lop),inter=(loop)", "lop"},
    };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        esp_ctx *ctx = NULL;
        esp_config c = {.backend = bad[k][0], .size = 1};
        assert_true(esp_open(&c, &ctx) < 0);
        if (!strstr(esp_last_error(NULL), bad[k][1])) fail_msg("%s: %s", bad[k][0], esp_last_error(NULL));
    }
}

/* ---- which levels a job has, by the position of its ranks ---- */
typedef struct shape {
    int32_t size;
    const char *places[8];
    uint32_t n_levels;
    int32_t n_local;
    const char *raw;
} shape;

static const shape shapes[] = {
    {8,
     {"a/0", "a/0", "a/1", "a/1", "b/0", "b/0", "b/1", "b/1"},
     3,
     2,
     "intra.reduce_scatter > inter.reduce_scatter > outer.allreduce > inter.allgather > intra.allgather"},
    {8, {"0", "0", "1", "1", "2", "2", "3", "3"}, 2, 2, "intra.reduce_scatter > inter.allreduce > intra.allgather"},
    {8,
     {"a/0", "a/0", "a/1", "a/1", "a/2", "a/2", "b/0", "b/0"},
     2,
     2,
     "intra.reduce_scatter > inter.allreduce > intra.allgather"},
    {4, {"a/0", "a/0", "a/1", "b/0"}, 2, 0, "flat.allreduce"}, /* machines of two ranks and of one */
    {4, {"a/0", "a/1", "b/0", "b/1"}, 3, 1, "intra-inter.reduce_scatter > outer.allreduce > intra-inter.allgather"},
    {4, {"a/0", "a/0", "b/0", "b/0"}, 3, 2, "intra.reduce_scatter > inter-outer.allreduce > intra.allgather"},
    {4, {"a/0", "a/0", "a/0", "a/0"}, 3, 4, "flat.allreduce"},
    {2, {"a/0", "1"}, 2, 1, "flat.allreduce"},
};

static void shape_body(esp_ctx *ctx, void *user) {
    const shape *s = user;
    char option[ESP__TEXT_MAX];
    esp_tensor_desc d = {.name = "w", .count = 8};
    CHECK(ctx->job.topo.n_levels == s->n_levels);
    CHECK(ctx->job.topo.n_local == s->n_local);
    CHECK(esp_tensor_add(ctx, &d, NULL) == ESP_OK);
    CHECK(esp_start(ctx) == ESP_OK);
    esp__option_print(&ctx->active.strategy.units[0].option, option, sizeof option);
    CHECK(!strcmp(option, s->raw));
    for (uint8_t scope = 1; scope < ESP__SCOPES; scope++) {
        int32_t index, members[8], n = esp__group_members(&ctx->job.topo, scope, members, &index);
        if (!esp__group_size(&ctx->job.topo, scope)) continue;
        CHECK(n == esp__group_size(&ctx->job.topo, scope));
        CHECK(index == esp__group_index(&ctx->job.topo, scope));
        CHECK(members[index] == ctx->job.rank);
        for (int32_t i = 0; i < n; i++) CHECK(esp__group_rank(ctx, scope, i) == members[i]);
    }
}

TEST(test_shapes) {
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        shape s = shapes[k];
        RUN_RANKS(.size = s.size, .places = s.places, .body = shape_body, .user = &s, .config.strategy = "fp32");
    }
}

TEST(test_bad_places) {
    static const char *const bad[] = {"/a", "a/", "a//b", "a/b/c"};
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        esp_config c = ESP_ZERO;
        esp_ctx *ctx = NULL;
        c.place = bad[k];
        assert_int_equal(esp_open(&c, &ctx), ESP_E_ARG);
        if (!strstr(esp_last_error(NULL), "esp_config.place")) fail_msg("%s", esp_last_error(NULL));
    }
}
