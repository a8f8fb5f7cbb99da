/* test_calibrate.c checks that the calibration (the measurement of costs) measures the same sizes on all ranks, gives
 * costs that the planner accepts, and recovers known costs from made-up times. */
/* runs: quiet tsan */
#include "tests/lib/test.h"
#include "planner/calibrate/steps.h"

static void plan(const esp__calibration *s) {
    static const esp_plan_tensor tensors[] = {{"a", 100000, 1e6, .keep = NULL}, {"b", 300, 1e5, .keep = NULL}};
    esp_plan_model m = ESP_ZERO;
    esp_plan_report report = ESP_ZERO;
    esp_plan *p = NULL;
    m.name = "m";
    m.tensors = tensors;
    m.n_tensors = 2;
    CHECK(!esp_plan_make(&m, s->plan_codecs, s->n_codecs, &s->system, NULL, &p));
    if (!p) return;
    report.struct_size = sizeof report;
    CHECK(!esp_plan_report_read(p, &report));
    CHECK(report.iteration_ns > 1.1e6 && report.iteration_ns <= report.fp32_ns);
    esp_plan_free(p);
}

static uint64_t shared_hash[4];

static void curve_fine(const esp__calibration_curve *c, uint32_t n) {
    CHECK(c->n == n);
    for (uint32_t i = 0; i < c->n; i++) {
        CHECK(c->at[i].ns > 0.0 && c->at[i].size > 0.0 && c->spread[i] >= 0.0);
        CHECK(!i || c->at[i].size > c->at[i - 1].size);
    }
}

static void calibration(esp_ctx *ctx, void *user) { /* user: not NULL if steps add points */
    static esp__calibration surveys[4];
    esp__calibration *s = &surveys[esp_rank(ctx)];
    const esp_stream cpu = ESP_ZERO;
    static float grads[4][60000];
    tensor_add(ctx, "a", 49999); /* ranks have parts of different sizes */
    tensor_add(ctx, "b", 10000);
    CHECK(!esp_start(ctx));
    CHECK(!esp__calibration_open(ctx, s, 1 << 20, 1 << 16));
    s->extends = user != NULL;
    CHECK(s->cores >= 1 && s->pack_bytes_per_us > 0.0);
    CHECK(esp__calibration_estimate(ctx, s, ESP__FLAT, ESP_COLL_ALLREDUCE, 1000) <= 0.0);
    for (uint8_t level = 0; level < 3; level++)
        for (uint64_t bytes = 1 << 16; bytes >= 1 << 10; bytes >>= 2)
            CHECK(!esp__calibration_link(ctx, s, level, ESP_COLL_ALLREDUCE, bytes, 3));
    CHECK(!esp__calibration_link(ctx, s, ESP__INTRA, ESP_COLL_ALLGATHER, 4096, 3));
    CHECK(esp__calibration_link(ctx, s, ESP__INTRA, ESP_COLL_ALLGATHER, 4 << 20, 3) == ESP_E_ARG);
    for (int level = 0; level < 3; level++) curve_fine(&s->link[level][ESP_COLL_ALLREDUCE], 4);
    CHECK(!esp__calibration_codec_add(ctx, s, "fp16"));
    CHECK(!esp__calibration_codec_add(ctx, s, "dgc:ratio=0.01"));
    CHECK(!esp__calibration_codec_add(ctx, s, "efsignsgd"));
    CHECK(esp__calibration_codec_add(ctx, s, "nonsense") == ESP_E_NOT_FOUND && s->n_codecs == 3);
    for (uint32_t k = 0; k < 3; k++) {
        for (uint64_t n = 1 << 10; n <= 1 << 16; n <<= 3) CHECK(!esp__calibration_codec_at(ctx, s, k, n, 3));
        curve_fine(&s->codecs[k].compress, 3);
        curve_fine(&s->codecs[k].decompress, 3);
        CHECK(s->codecs[k].error >= 0.0 && s->codecs[k].error < 1.0);
    }
    CHECK(esp__calibration_codec_at(ctx, s, 0, 1 << 20, 3) == ESP_E_ARG);
    CHECK(s->codecs[0].error < 1e-5 && s->codecs[1].error > 0.1);
    CHECK(fabs(s->codecs[0].units - 2.0) < 1e-9 && fabs(s->codecs[0].header_bytes - ESP_PAYLOAD_HEADER) < 1e-6);
    CHECK(fabs(s->codecs[1].units - 0.06) < 0.03 && s->codecs[1].header_bytes < 80.0);
    for (int step = 0; step < 4; step++) {
        float *g = grads[esp_rank(ctx)];
        CHECK(!esp_push(ctx, 0, g, cpu));
        CHECK(!esp_push(ctx, 1, g + 50000, cpu));
        CHECK(!esp_wait_all(ctx));
        CHECK(!esp__calibration_step(ctx, s));
    }
    CHECK(s->link[ESP__INTER][ESP_COLL_ALLREDUCE].n == (s->extends ? 5 : 4)); /* tensor a is larger than any probe */
    CHECK(s->link[ESP__INTRA][ESP_COLL_REDUCE_SCATTER].n == 2);
    CHECK(s->dispatch[ESP__LANE_INTER].n == 4 && s->dispatch_ns[ESP__LANE_INTER] >= 0.0);
    CHECK(esp__calibration_estimate(ctx, s, ESP__FLAT, ESP_COLL_ALLREDUCE, 1000) > 0.0);
    /* A collective that was not measured is estimated from others. */
    CHECK(esp__calibration_estimate(ctx, s, ESP__INTRA, ESP_COLL_REDUCE, 1000) > 0.0);
    CHECK(!esp__calibration_finish(ctx, s));
    CHECK(s->system.machines == 2 && s->system.ranks_per_machine == 2);
    CHECK(s->system.inter.table[ESP_COLL_ALLGATHER].n == s->link[ESP__INTER][ESP_COLL_ALLREDUCE].n &&
          s->system.intra.table[ESP_COLL_GATHER].n == 4);
    CHECK(s->noise > 0.0);
    uint64_t h = esp__hash64(ESP__HASH0, s->link, sizeof s->link);
    h = esp__hash64(h, s->dispatch_ns, sizeof s->dispatch_ns);
    for (uint32_t k = 0; k < 3; k++) {
        h = esp__hash64(h, &s->codecs[k].compress, sizeof s->codecs[k].compress);
        h = esp__hash64(h, &s->codecs[k].header_bytes, 4 * sizeof(double));
    }
    shared_hash[esp_rank(ctx)] = h;
    CHECK(!esp_barrier(ctx));
    CHECK(shared_hash[0] == h);
    if (esp_rank(ctx) == 0) plan(s);
    esp__calibration_close(ctx, s);
    esp__calibration_close(ctx, s);
}

TEST(test_survey) {
    int extends;
    RUN_RANKS(.size = 4, .per_machine = 2, .body = calibration, .config.progress = "threads");
    RUN_RANKS(.size = 4, .per_machine = 2, .body = calibration, .user = &extends, .config.progress = "threads");
}

/* Ops of the first tensor that wait for 100 ms during backward, and last 150 ms longer than usual, cost the step no
 * time. */
static void slow_in_backward(esp_ctx *ctx, void *user) {
    static esp__calibration calibrations[2];
    static float grads[2][2000];
    esp__calibration *s = &calibrations[esp_rank(ctx)];
    const esp_stream cpu = ESP_ZERO;
    float *g = grads[esp_rank(ctx)];
    tensor_add(ctx, "a", 1000);
    tensor_add(ctx, "b", 1000);
    CHECK(!esp_start(ctx));
    CHECK(!esp__calibration_open(ctx, s, 1 << 12, 1 << 12));
    for (uint8_t level = 0; level < 3; level++)
        CHECK(!esp__calibration_link(ctx, s, level, ESP_COLL_ALLREDUCE, 4096, 3));
    s->sharing = s->cores + 1;
    CHECK(!esp_push(ctx, 0, g, cpu));
    CHECK(!esp_push(ctx, 1, g + 1000, cpu));
    CHECK(!esp_wait_all(ctx));
    const esp__unit *a = &ctx->active.strategy.units[ctx->active.strategy.of_tensor[0].first];
    esp__span *op = &ctx->active.op_time[a->first_op];
    CHECK(a->n_ops == 1 && ctx->model.tensors[1].enter_ns > 400000000);
    ctx->model.tensors[0].enter_ns = ctx->model.tensors[1].enter_ns - 400000000;
    op->start_ns = ctx->model.tensors[0].enter_ns + 100000000;
    op->end_ns = op->start_ns + 150000000;
    /* the second tensor's op is as fast as usual, even if another program had the core */
    esp__span *last =
        &ctx->active.op_time[ctx->active.strategy.units[ctx->active.strategy.of_tensor[1].first].first_op];
    last->start_ns = ctx->model.tensors[1].enter_ns;
    last->end_ns = last->start_ns + 1000;
    CHECK(!esp__calibration_step(ctx, s));
    for (int lane = 0; lane < ESP__LANES; lane++) CHECK(s->dispatch_ns[lane] < 30e6);
    esp__calibration_close(ctx, s);
}

TEST(test_slow_in_backward) { RUN_RANKS(.size = 2, .body = slow_in_backward, .config.progress = "caller"); }

/* Steps add the codec calls of the tensors' sizes: each of two ranks compresses all of a tensor, and decompresses two
 * payloads of it. All ranks have the same curves. */
static void codec_calls(esp_ctx *ctx, void *user) {
    static esp__calibration surveys[2];
    static float grads[2][60000];
    esp__calibration *s = &surveys[esp_rank(ctx)];
    float *g = grads[esp_rank(ctx)];
    const esp_stream cpu = ESP_ZERO;
    tensor_add(ctx, "a", 50000);
    tensor_add(ctx, "b", 10000);
    CHECK(!esp_start(ctx));
    CHECK(!esp__calibration_open(ctx, s, 1 << 12, 1 << 12));
    CHECK(!esp__calibration_codec_add(ctx, s, "fp16") && !esp__calibration_codec_add(ctx, s, "efsignsgd"));
    for (uint32_t k = 0; k < 2; k++) CHECK(!esp__calibration_codec_at(ctx, s, k, 1024, 3));
    for (int step = 0; step < 3; step++) {
        CHECK(!esp_push(ctx, 0, g, cpu) && !esp_push(ctx, 1, g + 50000, cpu) && !esp_wait_all(ctx));
        CHECK(!esp__calibration_step(ctx, s));
    }
    const esp__calibration_codec *k = &s->codecs[1];
    CHECK(s->codecs[0].compress.n == 1 && k->compress.n == 3 && k->decompress.n == 3 && k->decompress_more.n == 3);
    CHECK(k->compress.seen[2].n == 3 && fabs(k->compress.probed - 1024.0) < 1e-9);
    for (uint32_t i = 0; i < 3; i++) {
        CHECK(fabs(k->compress.at[i].size - (i ? i > 1 ? 50000.0 : 10000.0 : 1024.0)) < 1e-9);
        CHECK(k->compress.at[i].ns > 0.0 && k->decompress.at[i].ns > 0.0);
    }
    shared_hash[esp_rank(ctx)] = esp__hash64(ESP__HASH0, &k->compress, 3 * sizeof k->compress);
    CHECK(!esp_barrier(ctx));
    CHECK(shared_hash[0] == shared_hash[1]);
    esp__calibration_close(ctx, s);
}

TEST(test_codec_calls) {
    RUN_RANKS(.size = 2, .body = codec_calls, .config.strategy = "layerwise", .config.codec = "efsignsgd");
}

/* Only one rank of a machine compresses or sends, and the ranks' parts differ in size. All ranks have the same curves
 * nevertheless. */
static void calls_of_roots(esp_ctx *ctx, void *user) {
    static const char text[] = "espresso-strategy 1\n"
                               "tensor a 50001 efsignsgd intra.reduce > comp@cpu > inter.allgather > "
                               "intra.broadcast > decomp@cpu\n"
                               "tensor b 3 efsignsgd intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > "
                               "intra.allgather\n"
                               "tensor c 9001 none intra.reduce > inter.allreduce > intra.broadcast\n"
                               "tensor d 9003 none intra.reduce_scatter > inter.allreduce > intra.allgather\n";
    static esp__calibration surveys[4];
    static float grads[4][50004 + 9001 + 9003];
    esp__calibration *s = &surveys[esp_rank(ctx)];
    float *g = grads[esp_rank(ctx)];
    const esp_stream cpu = ESP_ZERO;
    tensor_add(ctx, "a", 50001);
    tensor_add(ctx, "b", 3);
    tensor_add(ctx, "c", 9001);
    tensor_add(ctx, "d", 9003);
    CHECK(!esp_start(ctx) && !esp_strategy_set(ctx, text));
    CHECK(!esp__calibration_open(ctx, s, 1 << 12, 1 << 12) && !esp__calibration_codec_add(ctx, s, "efsignsgd"));
    CHECK(!esp__calibration_link(ctx, s, ESP__INTER, ESP_COLL_ALLREDUCE, 1024, 3));
    s->extends = true;
    CHECK(!esp__calibration_codec_at(ctx, s, 0, 1024, 3));
    esp__core_times(ctx, ESP__CORE_CALIBRATION, 1);
    for (int step = 0; step < 3; step++) {
        CHECK(!esp_push(ctx, 0, g, cpu) && !esp_push(ctx, 1, g + 50001, cpu));
        CHECK(!esp_push(ctx, 2, g + 50004, cpu) && !esp_push(ctx, 3, g + 59005, cpu) && !esp_wait_all(ctx));
        CHECK(!esp__calibration_step(ctx, s));
    }
    const esp__calibration_curve *c = &s->codecs[0].compress;
    CHECK(c->n >= 3 && fabs(c->at[c->n - 1].size - 50001.0) < 1e-9 && c->at[0].size > 0.0);
    const uint64_t codecs = esp__hash64(ESP__HASH0, c, 3 * sizeof *c);
    shared_hash[esp_rank(ctx)] = esp__hash64(codecs, s->link, sizeof s->link);
    CHECK(!esp_barrier(ctx));
    CHECK(shared_hash[0] == shared_hash[esp_rank(ctx)]);
    CHECK(s->link[ESP__INTER][ESP_COLL_ALLREDUCE].n <= 2); /* the probe, and d */
    esp__calibration_close(ctx, s);
}

TEST(test_calls_of_roots) { RUN_RANKS(.size = 4, .per_machine = 2, .body = calls_of_roots); }

/* The time of a call with several payloads is divided as predicted. */
TEST(test_codec_op) {
    static esp__calibration_codec k;
    memset(&k, 0, sizeof k);
    esp__calibration_codec_op(&k, false, 1000.0, 2, 500.0);
    assert_int_equal(k.decompress.n, 0); /* nothing is known about it */
    esp__calibration_observe(&k.decompress, 1000.0, 100.0, 100.0, 0.0);
    esp__calibration_observe(&k.decompress_more, 1000.0, 50.0, 50.0, 0.0);
    esp__calibration_codec_op(&k, false, 4000.0, 3, 1600.0);
    assert_true(k.decompress.n == 2 && fabs(k.decompress.at[1].ns - 800.0) < 1e-3);
    assert_true(k.decompress_more.n == 2 && fabs(k.decompress_more.at[1].ns - 400.0) < 1e-3);
    esp__calibration_codec_op(&k, true, 4000.0, 1, 700.0);
    assert_true(k.compress.n == 1 && fabs(k.compress.at[0].ns - 700.0) < 1e-3 && k.compress.probed < 1.0);
}

static void alone(esp_ctx *ctx, void *user) {
    static esp__calibration s;
    CHECK(!esp__calibration_open(ctx, &s, 1 << 12, 1 << 12));
    CHECK(!esp__calibration_link(ctx, &s, ESP__FLAT, ESP_COLL_ALLREDUCE, 1024, 2));
    CHECK(s.link[ESP__FLAT][ESP_COLL_ALLREDUCE].n == 0);
    CHECK(!esp__calibration_codec_add(ctx, &s, "bf16"));
    CHECK(!esp__calibration_codec_at(ctx, &s, 0, 4096, 2));
    CHECK(!esp__calibration_finish(ctx, &s));
    CHECK(s.system.machines == 1 && s.system.ranks_per_machine == 1);
    esp__calibration_close(ctx, &s);
}

TEST(test_alone) { RUN_RANKS(.size = 1, .body = alone); }

/* Times that were computed from a latency and two speeds give this latency and these speeds. */
TEST(test_fit) {
    static esp__calibration s;
    esp_ctx ctx;
    int32_t machine_of[4] = {0, 0, 1, 1}, local_of[4] = {0, 1, 0, 1};
    int32_t place[4 * ESP__LEVELS] = {0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 1, 0};
    memset(&ctx, 0, sizeof ctx);
    memset(&s, 0, sizeof s);
    ctx.job.size = 4;
    ctx.base.job = &ctx.job;
    ctx.job.topo.size = 4, ctx.job.topo.n_machines = 2, ctx.job.topo.n_local = 2;
    ctx.job.topo.n_levels = 2, ctx.job.topo.level_size[1] = ctx.job.topo.level_size[2] = 2;
    ctx.job.topo.machine_of = machine_of, ctx.job.topo.local_of = local_of, ctx.job.topo.place = place;
    s.pack_bytes_per_us = 1e4;
    s.cores = 2, s.sharing = 4, s.load = 1.0;
    for (uint64_t bytes = 1 << 10; bytes <= 1 << 24; bytes <<= 2) {
        double b = (double)bytes;
        esp__calibration_observe(&s.link[ESP__INTRA][ESP_COLL_ALLREDUCE], b, 2 * 3000.0 + b * 1000.0 / 5000.0, 3000.0,
                                 0.1);
        esp__calibration_observe(&s.link[ESP__INTER][ESP_COLL_ALLREDUCE], b, 2 * 50000.0 + 2 * b * 1000.0 / 125.0,
                                 2000.0, 0.1);
        esp__calibration_observe(&s.link[ESP__INTER][ESP_COLL_ALLTOALL], b, 50000.0 + b * 1000.0 / 125.0, 1000.0, 0.1);
    }
    assert_int_equal(esp__calibration_finish(&ctx, &s), ESP_OK);
    assert_true(fabs(s.system.intra.alpha_ns - 3000.0) < 1.0 && fabs(s.system.intra.bytes_per_us - 5000.0) < 1.0);
    assert_true(fabs(s.system.inter.alpha_ns - 50000.0) < 1.0 && fabs(s.system.inter.bytes_per_us - 125.0) < 0.01);
    /* An allgather that was not measured follows from the allreduce: it moves half of its bytes, in one hop instead of
     * two. */
    const esp_cost_curve *t = &s.system.inter.table[ESP_COLL_ALLGATHER];
    assert_true(t->n > 3);
    /* Four ranks share two cores, so a collective's processor time is doubled, but not beyond the collective's
     * duration. */
    assert_true(s.system.cores_per_rank == 1 &&
                fabs(esp__curve_at(&s.system.intra.core[ESP_COLL_ALLREDUCE], 65536.0) - 6000.0) < 1.0);
    assert_true(fabs(esp__curve_at(t, 65536.0) - (50000.0 + 65536.0 * 8.0)) < 100.0);
    assert_true(fabs(esp__calibration_estimate(&ctx, &s, ESP__INTER, ESP_COLL_REDUCE_SCATTER, 1 << 26) /
                         (50000.0 + (1 << 26) * 8.0) -
                     1.0) < 0.01);
    assert_true(s.system.flat.table[ESP_COLL_ALLREDUCE].n == 0);
    /* Times of collectives of all ranks are enough to find the speed between machines, since in a ring the data enters
     * each machine once. */
    memset(&s, 0, sizeof s);
    s.cores = 2, s.sharing = 4, s.load = 1.0;
    for (uint64_t bytes = 1 << 10; bytes <= 1 << 24; bytes <<= 2)
        esp__calibration_observe(&s.link[ESP__FLAT][ESP_COLL_ALLREDUCE], (double)bytes,
                                 4 * 20000.0 + 1.5 * (double)bytes * 1000.0 / 12.5, 1000.0, 0.1);
    assert_int_equal(esp__calibration_finish(&ctx, &s), ESP_OK);
    assert_true(fabs(s.system.inter.alpha_ns - 20000.0) < 1.0 && fabs(s.system.inter.bytes_per_us - 12.5) < 0.01);
}

TEST(test_points) {
    static esp__calibration s;
    esp__calibration_curve *c = &s.link[0][1];
    memset(&s, 0, sizeof s);
    esp__calibration_observe(c, 1000, 500, 50, 0.1);
    assert_true(c->n == 1 && fabs(c->at[0].ns - 500) < 1e-3 && fabs(c->core[0].ns - 50) < 1e-3);
    esp__calibration_observe(c, 1000, 700, 90, 0.1);
    esp__calibration_observe(c, 1000, 600, 10, 0.2);
    assert_true(fabs(c->at[0].ns - 600) < 1e-3 && fabs(c->core[0].ns - 50) < 1e-3 && fabs(c->spread[0] - 0.2) < 1e-6);
    for (int i = 0; i < 20; i++) esp__calibration_observe(c, 1000, i % 2 ? 900 : 1e9, 400, 0.1);
    assert_true(c->n == 1 && c->at[0].ns >= 900 && fabs(c->core[0].ns - 400) < 1e-3);
    for (int i = 0; i < 9; i++) esp__calibration_observe(c, 1030, 1.03 * (900 + i), 1.03 * 400, -1.0);
    assert_true(c->n == 1 && fabs(c->probed - 1000) < 1e-9 && fabs(c->at[0].ns - 904) < 1e-2);
    for (int i = 0; i < 100; i++) esp__calibration_observe(c, 5000 - 40 * i, 10, 1, 0.1);
    assert_int_equal(c->n, ESP__CALIBRATION_POINTS);
    for (uint32_t i = 1; i < c->n; i++) assert_true(c->at[i].size > c->at[i - 1].size);
    memset(&s, 0, sizeof s);
    for (int i = 0; i < 100; i++) esp__calibration_observe(c, 1000.0 * pow(1.1, i), 10, 1, -1.0);
    assert_int_equal(c->n, ESP__CALIBRATION_POINTS - ESP__CALIBRATION_PROBED);
    for (int i = 0; i < 10; i++) esp__calibration_observe(c, 1 << i, 10, 1, 0.1); /* there is room for probes */
    assert_true(c->n == ESP__CALIBRATION_POINTS && c->probed < 129.0 && c->probed > 127.0);
}

/* Large variations of short times do not count as noise if those of long times are small. */
TEST(test_noise) {
    static esp__calibration s;
    esp__calibration_curve *c = &s.link[0][1];
    for (int i = 0; i < 8; i++) esp__calibration_observe(c, 1000 << i, 2000, 50, 3.0);
    esp__calibration_observe(c, 4e6, 5e6, 50, 0.02);
    esp__calibration_noise(&s);
    assert_true(s.noise > 0.02 && s.noise < 0.04);
    esp__calibration_observe(c, 8e6, 1e7, 50, 1.0);
    esp__calibration_noise(&s);
    assert_true(s.noise > 0.6 && s.noise < 0.8);
}

TEST(test_longer) {
    static esp__calibration s;
    esp__calibration_longer longer;
    esp_ctx ctx;
    esp__op op;
    int32_t machine_of[2] = {0, 1}, local_of[2] = {0, 0}, place[2 * ESP__LEVELS] = {0};
    memset(&ctx, 0, sizeof ctx);
    memset(&s, 0, sizeof s);
    memset(&op, 0, sizeof op);
    memset(&longer, 0, sizeof longer);
    ctx.job.size = 2, ctx.base.job = &ctx.job;
    ctx.job.topo.size = 2, ctx.job.topo.n_machines = 2, ctx.job.topo.n_local = 1;
    ctx.job.topo.n_levels = 2, ctx.job.topo.level_size[1] = 1, ctx.job.topo.level_size[2] = 2;
    ctx.job.topo.machine_of = machine_of, ctx.job.topo.local_of = local_of, ctx.job.topo.place = place;
    for (uint64_t bytes = 1 << 10; bytes <= 1 << 16; bytes <<= 2)
        esp__calibration_observe(&s.link[ESP__INTER][ESP_COLL_ALLREDUCE], (double)bytes, 1000.0 + (double)bytes, 100.0,
                                 0.1);
    op.collective.coll.op = ESP_COLL_ALLREDUCE, op.collective.coll.dtype = ESP_F32, op.collective.coll.count = 1024;
    op.collective.scope = ESP__INTER, op.lane = ESP__LANE_INTER;
    esp__calibration_op(&ctx, &s, &op, esp__calibration_op_size(&op.collective.coll), 1000.0 + 4096.0 + 300.0, 0.0,
                        &longer);
    assert_true(longer.n[ESP__LANE_INTER] == 1 && fabs(longer.ns[ESP__LANE_INTER] - 300.0) < 1.0);
    op.collective.coll.count = 4096;
    esp__calibration_op(&ctx, &s, &op, esp__calibration_op_size(&op.collective.coll), 1000.0 + 16384.0 - 100.0, 0.0,
                        &longer);
    assert_true(longer.n[ESP__LANE_INTER] == 2 && fabs(longer.ns[ESP__LANE_INTER] - 200.0) < 1.0);
    assert_int_equal(s.link[ESP__INTER][ESP_COLL_ALLREDUCE].n, 4);
    /* Larger than any probe: extrapolating is no base for comparison, so the time becomes a point of the curve, if
     * wanted. */
    op.collective.coll.count = 1 << 20;
    esp__calibration_op(&ctx, &s, &op, esp__calibration_op_size(&op.collective.coll), 9e6, 500.0, &longer);
    assert_true(longer.n[ESP__LANE_INTER] == 2 && s.link[ESP__INTER][ESP_COLL_ALLREDUCE].n == 4);
    s.extends = true;
    esp__calibration_op(&ctx, &s, &op, esp__calibration_op_size(&op.collective.coll), 9e6, 500.0, &longer);
    assert_true(longer.n[ESP__LANE_INTER] == 2 && s.link[ESP__INTER][ESP_COLL_ALLREDUCE].n == 5);
    assert_true(fabs(s.link[ESP__INTER][ESP_COLL_ALLREDUCE].at[4].ns - 9e6) < 1.0);
    op.collective.coll.op = ESP_COLL_REDUCE_SCATTER;
    esp__calibration_op(&ctx, &s, &op, esp__calibration_op_size(&op.collective.coll), 7000.0, 500.0, &longer);
    const esp__calibration_curve *c = &s.link[ESP__INTER][ESP_COLL_REDUCE_SCATTER];
    assert_true(longer.n[ESP__LANE_INTER] == 2 && c->n == 1 && c->probed < 1.0);
    assert_true(fabs(c->at[0].ns - 7000.0) < 1.0 && fabs(c->core[0].ns - 500.0) < 1.0);
    /* The time of a broadcast is not recorded, because a rank may leave it before the others. */
    op.collective.coll.op = ESP_COLL_BROADCAST;
    esp__calibration_op(&ctx, &s, &op, esp__calibration_op_size(&op.collective.coll), 7000.0, 500.0, &longer);
    assert_true(longer.n[ESP__LANE_INTER] == 2 && !s.link[ESP__INTER][ESP_COLL_BROADCAST].n);
}

TEST(test_cores) {
    static const struct {
        uint32_t cores, sharing;
        double load;
        uint32_t per_rank;
        double stretch;
    } cases[] = {{2, 1, 1.0, 2, 1.0},  {2, 2, 1.0, 1, 1.0}, {2, 4, 1.0, 1, 2.0},  {2, 4, 0.5, 1, 2.0},
                 {16, 4, 1.0, 3, 1.0}, {2, 1, 2.0, 1, 1.0}, {16, 8, 0.0, 3, 1.0}, {2, 2, 0.0, 2, 1.0},
                 {8, 2, 3.0, 2, 1.0},  {1, 1, 1.0, 1, 1.0}};
    static esp__calibration s;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        s.cores = cases[i].cores, s.sharing = cases[i].sharing, s.load = cases[i].load;
        assert_int_equal(esp__calibration_cores(&s), cases[i].per_rank);
        assert_true(fabs(esp__calibration_stretch(&s) - cases[i].stretch) < 1e-9);
    }
}

/* A measurement takes about 30 ms, with at least 2 and at most 15 repetitions. */
TEST(repeats) {
    assert_int_equal(esp__calibration_repeats(0), 15);
    assert_int_equal(esp__calibration_repeats(1e6), 15);
    assert_int_equal(esp__calibration_repeats(2.99e6), 10);
    assert_int_equal(esp__calibration_repeats(12e6), 2);
    assert_int_equal(esp__calibration_repeats(1e12), 2);
}
