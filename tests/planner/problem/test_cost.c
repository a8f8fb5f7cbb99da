/* test_cost.c compares the planner's times of ops with times computed by hand. Times are in ns, speeds in bytes/ns;
 * "150000 + 1000 / 2.5" is a latency plus bytes / speed. A part is one rank's share of a tensor. */
/* runs: asan-long */
#include "tests/lib/test.h"
#include "tests/planner/search/paper.h"

enum { C = 1u << ESP__LANE_COMPUTE, P = 1u << ESP__LANE_CPU, A = 1u << ESP__LANE_INTRA, E = 1u << ESP__LANE_INTER };

static void near(double got, double want) {
    if (fabs(got - want) > 1e-9 * (fabs(want) + 1.0)) fail_msg("got %.9g, not %.9g", got, want);
}

/* ---- curves and payloads ---- */
TEST(test_curve) {
    const esp_cost_point points[] = {{100, 10}, {200, 30}, {800, 90}};
    esp_cost_curve linear = {points, 3, 0}, logarithmic = {points, 3, 1}, one = {points + 1, 1, 0};
    near(esp__curve_at(&linear, 1), 10);
    near(esp__curve_at(&linear, 100), 10);
    near(esp__curve_at(&linear, 150), 20);
    near(esp__curve_at(&linear, 200), 30);
    near(esp__curve_at(&linear, 500), 60);
    near(esp__curve_at(&linear, 800), 90);
    near(esp__curve_at(&linear, 2400), 270);    /* above the last point, in proportion to the size */
    near(esp__curve_at(&logarithmic, 400), 60); /* log(400): half way from log(200) to log(800) */
    near(esp__curve_at(&logarithmic, 200), 30);
    near(esp__curve_at(&logarithmic, 1600), 180);
    near(esp__curve_at(&one, 7), 30);
    near(esp__curve_at(&one, 300), 45);
}

TEST(test_payload) {
    esp_plan_codec dgc = {.unit_bytes = 8, .units = 0.01}, sign = {.header_bytes = 4, .unit_bytes = 1, .units = 0.125};
    /* 300 * 0.01 is a little over 3 in binary, but must not round up to 4 values. */
    near(esp__payload_bytes(&dgc, 300), 24);
    near(esp__payload_bytes(&dgc, 301), 32);
    near(esp__payload_bytes(&dgc, 1), 8);
    near(esp__payload_bytes(&dgc, 1000000), 80000);
    near(esp__payload_bytes(&sign, 8), 5);
    near(esp__payload_bytes(&sign, 9), 6);
    near(esp__payload_bytes(&sign, 1000000), 125004);
}

/* ---- collectives ---- */
TEST(test_intra) {
    esp_plan_system s;
    paper_system(&s, 0, 8);
    double whole = 1048576, part = 131072;
    /* Each rank sends 7 parts in each half of the allreduce: 30000 + 2 * 917504 / 2.5. */
    near(esp__collective_ns(&s, ESP__INTRA, ESP_COLL_ALLREDUCE, whole, part, 8), 764003.2);
    /* Each rank sends 7 parts once: 30000 + 917504 / 2.5. */
    near(esp__collective_ns(&s, ESP__INTRA, ESP_COLL_REDUCE_SCATTER, whole, part, 8), 397001.6);
    near(esp__collective_ns(&s, ESP__INTRA, ESP_COLL_ALLTOALL, whole, part, 8), 397001.6);
    /* Each rank receives the parts of the 7 other ranks: 30000 + 917504 / 2.5. */
    near(esp__collective_ns(&s, ESP__INTRA, ESP_COLL_ALLGATHER, part, part, 8), 397001.6);
    near(esp__collective_ns(&s, ESP__INTRA, ESP_COLL_GATHER, part, part, 8), 397001.6);
    near(esp__collective_ns(&s, ESP__INTRA, ESP_COLL_REDUCE, whole, whole, 8), 449430.4);
    near(esp__collective_ns(&s, ESP__INTRA, ESP_COLL_BROADCAST, whole, whole, 8), 449430.4);
}

/* 8 machines average 1 MiB at 2.5 bytes/ns per network card, with 150 us latency. The last argument is the number of
 * ranks that share a card, each with a buffer of its own. */
TEST(test_inter) {
    esp_plan_system s;
    paper_system(&s, 0, 8);
    double whole = 1048576, part = 131072;
    near(esp__collective_ns(&s, ESP__INTER, ESP_COLL_ALLREDUCE, whole, part, 1), 884003.2);
    near(esp__collective_ns(&s, ESP__INTER, ESP_COLL_ALLREDUCE, whole, part, 8), 6022025.6);
    near(esp__collective_ns(&s, ESP__INTER, ESP_COLL_REDUCE_SCATTER, whole, part, 1), 517001.6);
    near(esp__collective_ns(&s, ESP__INTER, ESP_COLL_REDUCE_SCATTER, whole, part, 8), 3086012.8);
    near(esp__collective_ns(&s, ESP__INTER, ESP_COLL_ALLTOALL, whole, part, 8), 3086012.8);
    near(esp__collective_ns(&s, ESP__INTER, ESP_COLL_ALLGATHER, part, part, 8), 3086012.8);
    near(esp__collective_ns(&s, ESP__INTER, ESP_COLL_GATHER, part, part, 8), 3086012.8);
    near(esp__collective_ns(&s, ESP__INTER, ESP_COLL_BROADCAST, whole, whole, 1), 569430.4);
    near(esp__collective_ns(&s, ESP__INTER, ESP_COLL_BROADCAST, whole, whole, 8), 3505443.2);
    near(esp__collective_ns(&s, ESP__INTER, ESP_COLL_REDUCE, whole, whole, 8), 3505443.2);
}

/* 64 ranks on 8 machines average 1 MiB, which are 64 parts of 16384 bytes. In a ring, a machine's network card sends
 * only what one rank sends. */
TEST(test_flat) {
    esp_plan_system s;
    double whole = 1048576, part = 16384;
    paper_system(&s, 0, 8);
    near(esp__collective_ns(&s, ESP__FLAT, ESP_COLL_ALLREDUCE, whole, part, 8), 975753.6);
    near(esp__collective_ns(&s, ESP__FLAT, ESP_COLL_REDUCE_SCATTER, whole, part, 8), 562876.8);
    near(esp__collective_ns(&s, ESP__FLAT, ESP_COLL_ALLGATHER, part, part, 8), 562876.8);
    near(esp__collective_ns(&s, ESP__FLAT, ESP_COLL_BROADCAST, whole, whole, 8), 569430.4);
    near(esp__collective_ns(&s, ESP__FLAT, ESP_COLL_REDUCE, whole, whole, 8), 569430.4);
    /* 8 ranks of a machine send 56 parts each to other machines, 7 times the buffer: 150000 + 7340032 / 2.5. */
    near(esp__collective_ns(&s, ESP__FLAT, ESP_COLL_ALLTOALL, whole, part, 8), 3086012.8);
    /* The slower link sets the pace: here the one inside a machine with 2.5 bytes/ns. */
    s.inter.bytes_per_us = 10000;
    near(esp__collective_ns(&s, ESP__FLAT, ESP_COLL_ALLREDUCE, whole, part, 8), 975753.6);
    /* 50 bytes/ns inside a machine and 10 between machines: 150000 + 206438.4. */
    paper_system(&s, 1, 8);
    near(esp__collective_ns(&s, ESP__FLAT, ESP_COLL_ALLREDUCE, whole, part, 8), 356438.4);
    /* On one machine only the link inside it counts. */
    paper_system(&s, 0, 1);
    near(esp__collective_ns(&s, ESP__FLAT, ESP_COLL_ALLREDUCE, whole, 131072, 8), 764003.2);
    near(esp__collective_ns(&s, ESP__FLAT, ESP_COLL_ALLTOALL, whole, 131072, 8), 397001.6);
    paper_system(&s, 0, 8);
    s.ranks_per_machine = 1, s.intra.bytes_per_us = 1;
    near(esp__collective_ns(&s, ESP__FLAT, ESP_COLL_ALLREDUCE, whole, 131072, 1), 884003.2);
    near(esp__collective_ns(&s, ESP__FLAT, ESP_COLL_ALLTOALL, whole, 131072, 1), 517001.6);
}

/* Each hop adds 1000 ns of latency. Trees and recursive halving need ceil(log2 n) hops, an allreduce twice as many, and
 * an alltoall n - 1. */
TEST(test_hops) {
    esp_plan_system s;
    paper_system(&s, 0, 6);
    s.intra.alpha_is = s.inter.alpha_is = ESP_ALPHA_HOP;
    s.intra.alpha_ns = 1000, s.inter.alpha_ns = 10000;
    near(esp__collective_ns(&s, ESP__INTRA, ESP_COLL_ALLREDUCE, 0, 0, 8), 6000);
    near(esp__collective_ns(&s, ESP__INTRA, ESP_COLL_REDUCE_SCATTER, 0, 0, 8), 3000);
    near(esp__collective_ns(&s, ESP__INTRA, ESP_COLL_ALLGATHER, 0, 0, 8), 3000);
    near(esp__collective_ns(&s, ESP__INTRA, ESP_COLL_BROADCAST, 0, 0, 8), 3000);
    near(esp__collective_ns(&s, ESP__INTRA, ESP_COLL_REDUCE, 0, 0, 8), 3000);
    near(esp__collective_ns(&s, ESP__INTRA, ESP_COLL_GATHER, 0, 0, 8), 3000);
    near(esp__collective_ns(&s, ESP__INTRA, ESP_COLL_ALLTOALL, 0, 0, 8), 7000);
    /* Between 6 machines, each half of an allreduce needs 3 hops. */
    near(esp__collective_ns(&s, ESP__INTER, ESP_COLL_ALLREDUCE, 0, 0, 8), 60000);
    near(esp__collective_ns(&s, ESP__INTER, ESP_COLL_ALLTOALL, 0, 0, 8), 50000);
    near(esp__collective_ns(&s, ESP__FLAT, ESP_COLL_ALLGATHER, 0, 0, 8), 60000);
    near(esp__collective_ns(&s, ESP__FLAT, ESP_COLL_ALLTOALL, 0, 0, 8), 470000);
}

/* Measured times of a collective replace latency and bytes / speed. They are looked up by the size of the whole
 * buffer. */
TEST(test_tables) {
    const esp_cost_point reduce_scatter[] = {{1000, 500}, {3000, 900}}, gather[] = {{8000, 100}, {16000, 300}};
    esp_plan_system s;
    paper_system(&s, 0, 8);
    s.intra.table[ESP_COLL_REDUCE_SCATTER] = (esp_cost_curve){reduce_scatter, 2, 0};
    s.intra.table[ESP_COLL_ALLGATHER] = (esp_cost_curve){gather, 2, 0};
    s.flat.table[ESP_COLL_ALLGATHER] = (esp_cost_curve){gather, 2, 0};
    near(esp__collective_ns(&s, ESP__INTRA, ESP_COLL_REDUCE_SCATTER, 2000, 250, 8), 700);
    near(esp__collective_ns(&s, ESP__INTRA, ESP_COLL_ALLGATHER, 1500, 1500, 8), 200);
    near(esp__collective_ns(&s, ESP__FLAT, ESP_COLL_ALLGATHER, 125, 125, 8), 100);
    near(esp__collective_ns(&s, ESP__INTER, ESP_COLL_ALLGATHER, 2500, 2500, 1), 157000);
    near(esp__collective_ns(&s, ESP__INTRA, ESP_COLL_BROADCAST, 2500, 2500, 1), 31000);
    s.inter.table[ESP_COLL_REDUCE_SCATTER] = (esp_cost_curve){reduce_scatter, 2, 0};
    near(esp__collective_ns(&s, ESP__INTER, ESP_COLL_REDUCE_SCATTER, 2000, 250, 8), 700);
    near(esp__collective_ns(&s, ESP__INTER, ESP_COLL_REDUCE_SCATTER, 16000, 2000, 1), 700);
    s.inter.table[ESP_COLL_BROADCAST] = (esp_cost_curve){reduce_scatter, 2, 0};
    near(esp__collective_ns(&s, ESP__INTER, ESP_COLL_BROADCAST, 2000, 2000, 8), 700);
    near(esp__collective_ns(&s, ESP__INTER, ESP_COLL_BROADCAST, 2000, 2000, 1), 700);
    s.machines = 4;
    near(esp__collective_ns(&s, ESP__INTER, ESP_COLL_BROADCAST, 2000, 2000, 8), 700);
    near(esp__collective_ns(&s, ESP__INTER, ESP_COLL_BROADCAST, 4000, 4000, 1), 700);
}

TEST(test_alone) {
    esp_plan_system s;
    paper_system(&s, 0, 1);
    near(esp__collective_ns(&s, ESP__INTER, ESP_COLL_ALLREDUCE, 1000, 1000, 1), 0);
}

/* ---- whole options ---- */
typedef struct want_op {
    uint8_t kind, lanes;
    uint64_t ns;
} want_op;

typedef struct paper_problem {
    jmp_buf on_failure;
    esp__arena arena;
    paper_input paper;
    esp_plan_tensor tensors[2];
    esp_plan_model model;
    esp__problem problem;
} paper_problem;

static void paper_model(paper_problem *g, uint64_t elements) {
    memset(&g->arena, 0, sizeof g->arena);
    memset(&g->model, 0, sizeof g->model);
    g->arena.on_failure = &g->on_failure;
    g->tensors[0] = (esp_plan_tensor){"a", elements, 1000, .keep = NULL};
    g->tensors[1] = (esp_plan_tensor){"b", elements, 1000, .keep = NULL};
    g->model.n_tensors = 2, g->model.tensors = g->tensors, g->model.name = "two";
}

static void open_paper(paper_problem *g) {
    esp_status s =
        esp__problem_open(&g->problem, &g->arena, &g->model, g->paper.codecs, PAPER_CODECS, &g->paper.system, NULL, 0);
    if (s) fail_msg("%s", esp_last_error(NULL));
}

static const esp__path *path_of(paper_problem *g, uint32_t n_pieces, uint32_t codec, const char *option) {
    esp__extent u = {0, n_pieces, 0, n_pieces * g->tensors[0].elements};
    const esp__path *path = esp__path_make(&g->problem, &u, option, codec);
    if (!path) fail_msg("no path for '%s'", option);
    return path;
}

static void expect_path(paper_problem *g, uint32_t n_pieces, uint32_t codec, const char *option, const want_op *want,
                        uint32_t n) {
    const esp__path *path = path_of(g, n_pieces, codec, option);
    uint64_t total = 0;
    for (uint32_t k = 0; k < path->n && k < n; k++) {
        const esp__plan_op *op = &path->ops[k];
        if (op->kind != want[k].kind || op->lanes != want[k].lanes || op->time.ns != want[k].ns)
            fail_msg("'%s': op %u is of kind %u on lanes %u and takes %llu ns, not kind %u, lanes %u, %llu ns", option,
                     k, op->kind, op->lanes, (unsigned long long)op->time.ns, want[k].kind, want[k].lanes,
                     (unsigned long long)want[k].ns);
        total += op->time.ns;
    }
    assert_int_equal(path->n, n);
    assert_int_equal(path->total, total);
}
#define EXPECT_PATH(g, n_pieces, codec, option, ...)                                                                   \
    expect_path(g, n_pieces, codec, option, (const want_op[]){__VA_ARGS__},                                            \
                sizeof((const want_op[]){__VA_ARGS__}) / sizeof(want_op))
enum {
    COLL = ESP_PLAN_COLLECTIVE,
    COMP = ESP_PLAN_COMPRESS,
    DECOMP = ESP_PLAN_DECOMPRESS,
    COPY = ESP_PLAN_COPY,
    PACK = ESP_PLAN_PACK
};

/* 262144 elements (1 MiB) are averaged by 64 ranks. After a reduce_scatter inside a machine a rank has 131072 bytes,
 * after another between the 8 machines 16384. */
TEST(test_raw_options) {
    paper_problem g;
    paper_open(&g.paper, 0, 8);
    paper_model(&g, 262144);
    open_paper(&g);
    EXPECT_PATH(&g, 1, ESP__NO_CODEC, "flat.allreduce", {COLL, A | E, 975754});
    /* inter.allreduce: 150000 ns + 8 ranks * 14 parts * 16384 bytes / 2.5 bytes/ns */
    EXPECT_PATH(&g, 1, ESP__NO_CODEC, "intra.reduce_scatter > inter.allreduce > intra.allgather", {COLL, A, 397002},
                {COLL, E, 884003}, {COLL, A, 397002});
    EXPECT_PATH(&g, 1, ESP__NO_CODEC, "intra.reduce > inter.allreduce > intra.broadcast", {COLL, A, 449430},
                {COLL, E, 884003}, {COLL, A, 449430});
    EXPECT_PATH(&g, 1, ESP__NO_CODEC, "intra.reduce_scatter > inter.reduce > inter.broadcast > intra.allgather",
                {COLL, A, 397002}, {COLL, E, 569430}, {COLL, E, 569430}, {COLL, A, 397002});
    EXPECT_PATH(&g, 1, ESP__NO_CODEC, "intra.reduce > inter.reduce_scatter > inter.allgather > intra.broadcast",
                {COLL, A, 449430}, {COLL, E, 517002}, {COLL, E, 517002}, {COLL, A, 449430});
    esp__arena_free(&g.arena);
}

/* Parts round up: 1000003 elements make 125001 per rank inside a machine, and these 15626 per machine. */
TEST(test_uneven) {
    paper_problem g;
    paper_open(&g.paper, 0, 8);
    paper_model(&g, 1000003);
    open_paper(&g);
    /* intra.reduce_scatter: 30000 ns + 7 parts * 500004 bytes / 2.5 bytes/ns. inter.allreduce: 150000 ns + 8 ranks * 14
     * parts * 62504 bytes / 2.5 bytes/ns. */
    EXPECT_PATH(&g, 1, ESP__NO_CODEC, "intra.reduce_scatter > inter.allreduce > intra.allgather", {COLL, A, 1430011},
                {COLL, E, 2950179}, {COLL, A, 1430011});
    esp__arena_free(&g.arena);
}

/* DGC keeps 1% of the elements and sends 8 bytes for each. */
TEST(test_gpu_options) {
    paper_problem g;
    paper_open(&g.paper, 0, 8);
    paper_model(&g, 262144);
    open_paper(&g);
    /* inter.alltoall: 150000 ns + 8 ranks * 7 payloads * 328 bytes / 2.5 bytes/ns. A payload has 8 bytes for each of 41
     * elements. */
    EXPECT_PATH(
        &g, 1, PAPER_DGC,
        "intra.reduce_scatter > comp@gpu > inter.alltoall > decomp@gpu > comp@gpu > inter.allgather > decomp@gpu > "
        "intra.allgather",
        {COLL, A, 397002}, {COMP, C, 356000}, {COLL, E, 157347}, {DECOMP, C, 34000}, {COMP, C, 356000},
        {COLL, E, 157347}, {DECOMP, C, 34000}, {COLL, A, 397002});
    EXPECT_PATH(&g, 1, PAPER_DGC, "comp@gpu > intra.alltoall > inter.allgather > intra.allgather > decomp@gpu",
                {COMP, C, 356000}, {COLL, A, 37347}, {COLL, E, 620221}, {COLL, A, 500221}, {DECOMP, C, 544000});
    EXPECT_PATH(&g, 1, PAPER_DGC,
                "comp@gpu > intra.alltoall > inter.alltoall > inter.allgather > intra.allgather > decomp@gpu",
                {COMP, C, 356000}, {COLL, A, 37347}, {COLL, E, 208778}, {COLL, E, 620221}, {COLL, A, 500221},
                {DECOMP, C, 544000});
    /* intra.gather: 30000 ns + 7 payloads * 20976 bytes / 2.5 bytes/ns. Its root decompresses 8 payloads of 262144
     * elements. */
    EXPECT_PATH(&g, 1, PAPER_DGC, "comp@gpu > intra.gather > decomp@gpu > inter.allreduce > intra.broadcast",
                {COMP, C, 356000}, {COLL, A, 88733}, {DECOMP, C, 68000}, {COLL, E, 884003}, {COLL, A, 449430});
    /* flat.allgather: 150000 ns + 63 payloads * 20976 bytes / 2.5 bytes/ns. Each rank decompresses 64 payloads. */
    EXPECT_PATH(&g, 1, PAPER_DGC, "comp@gpu > flat.allgather > decomp@gpu", {COMP, C, 356000}, {COLL, A | E, 678595},
                {DECOMP, C, 544000});
    /* flat.alltoall: 150000 ns + 8 ranks * 56 payloads * 328 bytes / 2.5 bytes/ns. flat.allgather: 150000 ns + 63
     * payloads * 328 bytes / 2.5 bytes/ns. */
    EXPECT_PATH(&g, 1, PAPER_DGC, "comp@gpu > flat.alltoall > decomp@gpu > comp@gpu > flat.allgather > decomp@gpu",
                {COMP, C, 356000}, {COLL, A | E, 208778}, {DECOMP, C, 34000}, {COMP, C, 356000}, {COLL, A | E, 158266},
                {DECOMP, C, 34000});
    esp__arena_free(&g.arena);
}

/* Of several payloads that are summed, the first takes 34 us for up to 2^20 elements, each further one 5 us.
 * Payloads of different parts take as long as one payload with all of their elements. */
TEST(test_decompress_more) {
    static const esp_cost_point five = {1048576, 5000};
    paper_problem g;
    paper_open(&g.paper, 0, 8);
    g.paper.codecs[PAPER_DGC].decompress_more[ESP_ON_GPU] = (esp_cost_curve){&five, 1, 0};
    paper_model(&g, 262144);
    open_paper(&g);
    EXPECT_PATH(
        &g, 1, PAPER_DGC,
        "intra.reduce_scatter > comp@gpu > inter.alltoall > decomp@gpu > comp@gpu > inter.allgather > decomp@gpu > "
        "intra.allgather",
        {COLL, A, 397002}, {COMP, C, 356000}, {COLL, E, 157347}, {DECOMP, C, 69000}, {COMP, C, 356000},
        {COLL, E, 157347}, {DECOMP, C, 34000}, {COLL, A, 397002});
    EXPECT_PATH(&g, 1, PAPER_DGC, "comp@gpu > intra.alltoall > inter.allgather > intra.allgather > decomp@gpu",
                {COMP, C, 356000}, {COLL, A, 37347}, {COLL, E, 620221}, {COLL, A, 500221}, {DECOMP, C, 349000});
    esp__arena_free(&g.arena);
}

/* The ranks of a machine share its CPUs, so the CPU ops of its 8 ranks run one after the other. */
TEST(test_cpu_options) {
    paper_problem g;
    paper_open(&g.paper, 0, 8);
    paper_model(&g, 262144);
    open_paper(&g);
    /* inter.allgather: 150000 ns + 8 ranks * 7 payloads * 2624 bytes / 2.5 bytes/ns. The CPU works for 8 ranks, one
     * after the other. */
    EXPECT_PATH(&g, 1, PAPER_DGC, "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather",
                {COLL, A, 397002}, {COMP, P, 632000}, {COLL, E, 208778}, {DECOMP, P, 416000}, {COLL, A, 397002});
    EXPECT_PATH(&g, 1, PAPER_DGC,
                "intra.reduce_scatter > inter.reduce > comp@cpu > inter.broadcast > decomp@cpu > intra.allgather",
                {COLL, A, 397002}, {COLL, E, 569430}, {COMP, P, 79000}, {COLL, E, 158397}, {DECOMP, P, 72000},
                {COLL, A, 397002});
    EXPECT_PATH(&g, 1, PAPER_DGC, "intra.reduce > comp@cpu > inter.allgather > decomp@cpu > intra.broadcast",
                {COLL, A, 449430}, {COMP, P, 585000}, {COLL, E, 208733}, {DECOMP, P, 424000}, {COLL, A, 449430});
    esp__arena_free(&g.arena);
}

/* With 3 machines of 8 ranks, a machine is the root of 2 or 3 reductions. The planner assumes 3. */
TEST(test_roots_spread) {
    paper_problem g;
    paper_open(&g.paper, 0, 3);
    paper_model(&g, 262144);
    open_paper(&g);
    const esp__path *path =
        path_of(&g, 1, PAPER_DGC,
                "intra.reduce_scatter > inter.reduce > comp@cpu > inter.broadcast > decomp@cpu > intra.allgather");
    assert_int_equal(path->ops[2].time.ns, 3 * 79000);
    assert_int_equal(path->ops[4].time.ns, 8 * 9000);
    esp__arena_free(&g.arena);
}

/* Between two measured points, times grow with log(size). Compressing 1.5 * 16384 elements takes 46 + 33 * log2(1.5)
 * us, and decompressing 1.5 * 131072 elements takes 27 + 25 * log2(1.5) us. The CPU does this for 8 ranks. */
TEST(test_cpu_between_points) {
    paper_problem g;
    paper_open(&g.paper, 0, 8);
    paper_model(&g, 196608);
    open_paper(&g);
    const esp__path *path =
        path_of(&g, 1, PAPER_DGC, "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather");
    assert_int_equal(path->ops[1].time.ns, 522430);
    assert_int_equal(path->ops[3].time.ns, 332993);
    esp__arena_free(&g.arena);
}

/* With tensors on a GPU and codecs on the CPU, data is copied over the machine's inner links at 12 bytes/ns per rank.
 * Between a decompress op and a compress op that are both on the CPU nothing is copied. */
TEST(test_host_copies) {
    paper_problem g;
    paper_open(&g.paper, 0, 8);
    paper_model(&g, 262144);
    g.paper.system.host_bytes_per_us = 12000;
    open_paper(&g);
    EXPECT_PATH(&g, 1, PAPER_DGC, "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather",
                {COLL, A, 397002}, {COPY, A, 10923}, {COMP, P, 632000}, {COLL, E, 208778}, {DECOMP, P, 416000},
                {COPY, A, 10923}, {COLL, A, 397002});
    EXPECT_PATH(
        &g, 1, PAPER_DGC,
        "intra.reduce_scatter > comp@cpu > inter.alltoall > decomp@cpu > comp@cpu > inter.allgather > decomp@cpu > "
        "intra.allgather",
        {COLL, A, 397002}, {COPY, A, 10923}, {COMP, P, 632000}, {COLL, E, 157347}, {DECOMP, P, 72000},
        {COMP, P, 152000}, {COLL, E, 157347}, {DECOMP, P, 72000}, {COPY, A, 10923}, {COLL, A, 397002});
    EXPECT_PATH(
        &g, 1, PAPER_DGC,
        "intra.reduce_scatter > comp@gpu > inter.alltoall > decomp@cpu > comp@gpu > inter.allgather > decomp@gpu > "
        "intra.allgather",
        {COLL, A, 397002}, {COMP, C, 356000}, {COLL, E, 157347}, {DECOMP, P, 72000}, {COPY, A, 1365}, {COMP, C, 356000},
        {COLL, E, 157347}, {DECOMP, C, 34000}, {COLL, A, 397002});
    esp__arena_free(&g.arena);
}

/* In training on CPUs, compression takes the cores that compute gradients. */
TEST(test_shared_cores) {
    paper_problem g;
    paper_open(&g.paper, 0, 8);
    paper_model(&g, 262144);
    g.paper.system.cores_per_rank = 1;
    open_paper(&g);
    EXPECT_PATH(&g, 1, PAPER_DGC, "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather",
                {COLL, A, 397002}, {COMP, C | P, 632000}, {COLL, E, 208778}, {DECOMP, C | P, 416000},
                {COLL, A, 397002});
    esp__arena_free(&g.arena);
}

/* A measured allreduce has three curves: the time until it ends, the time until its link is free for the next one, and
 * how long it occupies processor cores. The number of cores per rank changes the last. */
TEST(test_cores_per_rank) {
    static const esp_cost_point time[] = {{1e6, 2e6}, {2e6, 3e6}}, gap[] = {{1e6, 1e6}, {2e6, 2e6}},
                                core[] = {{1e6, 4e5}};
    static const uint8_t lane[] = {0, 1u << ESP__LANE_COMPUTE, 1u << ESP__LANE_CPU, 1u << ESP__LANE_PROGRESS};
    for (uint32_t cores = 0; cores <= 3; cores++) {
        paper_problem g;
        paper_open(&g.paper, 0, 8);
        paper_model(&g, 250000);
        g.paper.system.ranks_per_machine = 1;
        g.paper.system.cores_per_rank = cores;
        g.paper.system.flat.table[ESP_COLL_ALLREDUCE] = (esp_cost_curve){time, 2, 0};
        g.paper.system.flat.gap[ESP_COLL_ALLREDUCE] = (esp_cost_curve){gap, 2, 0};
        g.paper.system.flat.core[ESP_COLL_ALLREDUCE] = (esp_cost_curve){core, 1, 0};
        open_paper(&g);
        const esp__extent u = {0, 1, 0, 250000};
        const esp__path *path = esp__path_make(&g.problem, &u, "flat.allreduce", ESP__NO_CODEC);
        assert_non_null(path);
        assert_int_equal(path->ops[0].lanes, lane[cores] | 1u << ESP__LANE_INTER);
        assert_int_equal(path->ops[0].time.ns, 2000000);
        assert_int_equal(path->ops[0].time.link, 1000000);
        assert_int_equal(path->ops[0].time.core, cores ? 400000 : 0);
        assert_int_equal(path->load[ESP__LANE_INTER], 1000000);
        assert_int_equal(path->total, 2000000);
        esp__arena_free(&g.arena);
    }
}

/* A group of two tensors of 131072 elements is packed and unpacked at 100 bytes/ns after 5 us: 5000 + 1048576 / 100. A
 * codec that accepts a list of tensors needs no packing before it and no unpacking after it. */
TEST(test_groups) {
    paper_problem g;
    paper_open(&g.paper, 0, 8);
    paper_model(&g, 131072);
    g.paper.system.pack_ns = 5000, g.paper.system.pack_bytes_per_us = 100000;
    g.paper.codecs[PAPER_EFSIGN].takes_list = 1;
    open_paper(&g);
    EXPECT_PATH(&g, 2, ESP__NO_CODEC, "intra.reduce_scatter > inter.allreduce > intra.allgather", {PACK, C, 15486},
                {COLL, A, 397002}, {COLL, E, 884003}, {COLL, A, 397002}, {PACK, C, 15486});
    EXPECT_PATH(&g, 2, PAPER_DGC, "comp@gpu > flat.allgather > decomp@gpu", {PACK, C, 15486}, {COMP, C, 356000},
                {COLL, A | E, 678595}, {DECOMP, C, 544000}, {PACK, C, 15486});
    EXPECT_PATH(&g, 2, PAPER_EFSIGN, "comp@gpu > flat.allgather > decomp@gpu", {COMP, C, 130000}, {COLL, A | E, 975854},
                {DECOMP, C, 2240000});
    EXPECT_PATH(&g, 2, PAPER_EFSIGN, "intra.reduce_scatter > comp@gpu > inter.allgather > decomp@gpu > intra.allgather",
                {PACK, C, 15486}, {COLL, A, 397002}, {COMP, C, 130000}, {COLL, E, 241840}, {DECOMP, C, 140000},
                {COLL, A, 397002}, {PACK, C, 15486});
    esp__arena_free(&g.arena);
}

/* Payloads of codec fp16 can be summed without decompressing them, so that a rank decompresses only one.
 * flat.allreduce: 150000 ns + 126 parts * 8192 bytes / 2.5 bytes/ns. */
TEST(test_summed_payloads) {
    paper_problem g;
    paper_open(&g.paper, 0, 8);
    paper_model(&g, 262144);
    esp_plan_codec *half = &g.paper.codecs[PAPER_RANDOMK];
    half->spec = "fp16", half->unit_bytes = 2, half->units = 1, half->caps = ESP_CODEC_REDUCIBLE;
    open_paper(&g);
    EXPECT_PATH(&g, 1, PAPER_RANDOMK, "comp@gpu > flat.allreduce > decomp@gpu", {COMP, C, 54000}, {COLL, A | E, 562877},
                {DECOMP, C, 34000});
    esp__extent u = {0, 1, 0, 262144};
    assert_null(esp__path_make(&g.problem, &u, "comp@gpu > flat.allreduce > decomp@gpu", PAPER_DGC));
    esp__arena_free(&g.arena);
}
