/* test_probe.c checks that collectives can be measured between steps, and that times which are measured during steps
 * are plausible. */
/* runs: quiet tsan */
#include "tests/lib/test.h"

static void probes(esp_ctx *ctx, void *user) {
    esp_stream cpu = ESP_ZERO;
    float grad[100];
    tensor_add(ctx, "a", 100);
    CHECK(!esp_start(ctx));
    for (uint8_t level = 0; level < 3; level++)
        for (uint32_t coll = ESP_COLL_ALLREDUCE; coll <= ESP_COLL_REDUCE; coll++)
            for (uint64_t bytes = 1; bytes <= 40000; bytes = bytes * 11 + 3) {
                esp__probe p;
                uint64_t need = esp__probe_room(ctx, level, coll, bytes), more = coll % 2 ? 0 : 3 * 65536;
                void *room = calloc(1, (size_t)(need + more));
                CHECK(!esp__probe_collective(ctx, level, coll, bytes, 3, room, need + more, &p));
                CHECK(p.median_ns > 0 && p.median_ns < 5000000000u && p.spread_ns < 5000000000u);
                free(room);
            }
    for (int i = 0; i < 100; i++) grad[i] = (float)esp_rank(ctx);
    CHECK(!esp_push(ctx, 0, grad, cpu));
    CHECK(!esp_wait_all(ctx));
    for (int i = 0; i < 100; i++) CHECK(grad[i] == 1.5f);
}

TEST(test_probe) { RUN_RANKS(.size = 4, .per_machine = 2, .body = probes); }

/* In a broadcast between two machines of two ranks, ranks 0 and 2 form one group with root 0, and ranks 1 and 3
 * another with root 3. */
static void roots(esp_ctx *ctx, void *user) {
    const float root[4] = {0.0f, 3.0f, 0.0f, 3.0f};
    float room[16];
    esp__probe p;
    tensor_add(ctx, "a", 100);
    CHECK(!esp_start(ctx));
    for (int i = 0; i < 16; i++) room[i] = (float)esp_rank(ctx);
    CHECK(!esp__probe_collective(ctx, ESP__INTER, ESP_COLL_BROADCAST, sizeof room, 2, room, sizeof room, &p));
    for (int i = 0; i < 16; i++) CHECK(room[i] == root[esp_rank(ctx)]);
}

TEST(test_roots) { RUN_RANKS(.size = 4, .per_machine = 2, .body = roots); }

static void meters(esp_ctx *ctx, void *user) {
    esp_stream cpu = ESP_ZERO;
    float a[100] = {0}, b[100] = {0};
    uint64_t ready[2];
    esp_stats stats;
    tensor_add(ctx, "a", 100);
    tensor_add(ctx, "b", 100);
    CHECK(!esp_start(ctx));
    for (int step = 0; step < 3; step++) {
        usleep(5000);
        CHECK(!esp_push(ctx, 0, a, cpu));
        usleep(10000);
        CHECK(!esp_push(ctx, 1, b, cpu));
        CHECK(!esp_wait_all(ctx));
        esp__meter_ready(ctx, ready);
    }
    CHECK(ready[1] >= ready[0] + 9900000u);
    memset(&stats, 0, sizeof stats);
    stats.struct_size = sizeof stats;
    CHECK(!esp_stats_read(ctx, &stats));
    CHECK(stats.steps == 3 && stats.step_ns >= 45000000u && stats.backward_ns >= 30000000u);
    CHECK(stats.exposed_communication_ns > 0 && stats.exposed_communication_ns < stats.step_ns);
    CHECK(stats.exposed_compression_ns == 0);
    for (uint32_t i = 0; i < ctx->active.program.n_ops; i++)
        CHECK(ctx->active.op_time[i].end_ns >= ctx->active.op_time[i].start_ns);
}

TEST(test_meter) { RUN_RANKS(.size = 2, .body = meters); }
