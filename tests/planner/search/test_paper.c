/* test_paper.c checks which strategy is the fastest in figures 2, 5 and 9 of the Espresso paper (EuroSys'23). The
 * figures have no numbers; those here give the same situations. Times were computed by hand and are in us. */
/* runs: asan-long */
#include "tests/lib/test.h"

#define FP32 "none flat.allreduce"
#define ON_GPU "sign comp@gpu > flat.allgather > decomp@gpu"
#define ON_CPU "sign comp@cpu > flat.allgather > decomp@cpu"

/* Two machines with one rank each, with a link of 1 byte/ns without latency. An allreduce of e elements takes 4 e ns,
 * an allgather of payloads takes e ns. The codec takes 3 us on the GPU or 5 us on the CPU, for every size. */
static const esp_cost_point gpu3 = {1e9, 3000}, cpu5 = {1e9, 5000};
static const esp_plan_codec sign = {.spec = "sign",
                                    .unit_bytes = 1,
                                    .units = 1,
                                    .compress = {{&cpu5, 1, 0}, {&gpu3, 1, 0}},
                                    .decompress = {{&cpu5, 1, 0}, {&gpu3, 1, 0}}};
static const esp_plan_system two_machines = {
    .machines = 2, .ranks_per_machine = 1, .devices = 3, .name = "two machines", .inter = {.bytes_per_us = 1000}};

/* Returns the step time in us of a strategy whose lines for the three tensors are a, b and c. */
static double step(const esp_plan_tensor *t, const char *a, const char *b, const char *c) {
    char text[2048];
    esp_plan_model model = {.n_tensors = 3, .name = "three", .tensors = t};
    const char *const options[] = {a, b, c};
    size_t n = (size_t)snprintf(text, sizeof text, "espresso-strategy 1\n");
    for (int i = 0; i < 3; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "tensor %s %llu %s\n", t[i].name,
                              (unsigned long long)t[i].elements, options[i]);
    esp_plan *plan;
    esp_plan_report r = {.struct_size = sizeof r};
    if (esp_plan_simulate(&model, &sign, 1, &two_machines, NULL, text, &plan)) fail_msg("%s", esp_last_error(NULL));
    assert_int_equal(esp_plan_report_read(plan, &r), ESP_OK);
    esp_plan_free(plan);
    return r.iteration_ns / 1000.0;
}

static void near(double got, double want) {
    if (fabs(got - want) > 0.004) fail_msg("the step takes %.6g us, not %.6g", got, want);
}

static double planned(const esp_plan_tensor *t, const char *strategy, const char *codecs[3]) {
    static const char *const only[] = {"flat.allreduce", "comp@gpu > flat.allgather > decomp@gpu",
                                       "comp@cpu > flat.allgather > decomp@cpu"};
    static char kept[3][32];
    esp_plan_model model = {.n_tensors = 3, .name = "three", .tensors = t};
    esp_plan_config config = {
        .flags = ESP_PLAN_NO_MERGE | ESP_PLAN_NO_SPLIT, .strategy = strategy, .only = only, .n_only = 3};
    esp_plan *plan;
    esp_plan_report r = {.struct_size = sizeof r};
    uint32_t n;
    if (esp_plan_make(&model, &sign, 1, &two_machines, &config, &plan)) fail_msg("%s", esp_last_error(NULL));
    assert_int_equal(esp_plan_report_read(plan, &r), ESP_OK);
    const esp_plan_unit *units = esp_plan_units(plan, &n);
    assert_int_equal(n, 3);
    for (uint32_t i = 0; i < n; i++) {
        snprintf(kept[i], sizeof kept[i], "%s", units[i].codec);
        codecs[i] = kept[i];
    }
    assert_true(r.bound_ns <= r.iteration_ns + 0.5);
    esp_plan_free(plan);
    return r.iteration_ns / 1000.0;
}

/* Figure 2: compressing all three tensors can make the step longer. Compressing the right ones on the right device
 * makes it shorter. Each backward takes 10 us. Transfers take 10, 16 and 10 us, or 2.5, 4 and 2.5 us if compressed. */
static const esp_plan_tensor figure2[] = {
    {"T0", 2500, 10000, .keep = NULL}, {"T1", 4000, 10000, .keep = NULL}, {"T2", 2500, 10000, .keep = NULL}};

TEST(test_figure2) {
    /* figure 2 (a): no compression */
    double fp32 = step(figure2, FP32, FP32, FP32);
    near(fp32, 46);
    /* figure 2 (b): all tensors are compressed on the GPU, which delays backward */
    double all_gpu = step(figure2, ON_GPU, ON_GPU, ON_GPU);
    near(all_gpu, 50.5);
    assert_true(all_gpu > fp32);
    /* figure 2 (c): all tensors are compressed on the CPU, which takes longer */
    double all_cpu = step(figure2, ON_CPU, ON_CPU, ON_CPU);
    near(all_cpu, 45);
    near(step(figure2, FP32, FP32, ON_GPU), 41.5);
    near(step(figure2, ON_GPU, FP32, FP32), 49);
    /* figure 2 (d): T1 is compressed on the CPU and T2 on the GPU */
    double wise = step(figure2, FP32, ON_CPU, ON_GPU);
    near(wise, 38.5);
    static const char *const choice[] = {FP32, ON_GPU, ON_CPU};
    for (int i = 0; i < 27; i++)
        assert_true(step(figure2, choice[i % 3], choice[i / 3 % 3], choice[i / 9]) >= wise - 1e-9);
    const char *codecs[3];
    assert_true(planned(figure2, NULL, codecs) <= wise + 1e-9);
    assert_true(planned(figure2, "paper", codecs) < fp32);
}

/* Figure 5: one allgather of whole payloads needs one compression and one latency. Alltoall, decompression, compression
 * and allgather send fewer bytes. The size of the tensor decides which is faster. Here, 8 machines have links of 1
 * byte/ns with 10 us latency, and one call of the codec takes 5 us for up to 2^20 elements. */
static const esp_cost_point five = {1048576, 5000};
static const esp_plan_codec onebit = {.spec = "onebit",
                                      .unit_bytes = 1,
                                      .units = 0.125,
                                      .compress = {{NULL, 0, 0}, {&five, 1, 0}},
                                      .decompress = {{NULL, 0, 0}, {&five, 1, 0}}};

static double one_tensor(const esp_plan_system *s, uint64_t elements, const char *option, char chosen[512]) {
    esp_plan_tensor t = {"T", elements, 1000, .keep = NULL};
    esp_plan_model model = {.n_tensors = 1, .name = "one", .tensors = &t};
    esp_plan_config config = {.flags = ESP_PLAN_NO_MERGE | ESP_PLAN_NO_SPLIT};
    esp_plan_report r = {.struct_size = sizeof r};
    char text[1024];
    esp_plan *plan;
    esp_status e;
    uint32_t n;
    snprintf(text, sizeof text, "espresso-strategy 1\ntensor T %llu %s\n", (unsigned long long)elements,
             option ? option : "");
    e = option ? esp_plan_simulate(&model, &onebit, 1, s, &config, text, &plan)
               : esp_plan_make(&model, &onebit, 1, s, &config, &plan);
    if (e) fail_msg("%s", esp_last_error(NULL));
    assert_int_equal(esp_plan_report_read(plan, &r), ESP_OK);
    if (chosen) snprintf(chosen, 512, "%s", esp_plan_units(plan, &n)[0].option);
    esp_plan_free(plan);
    return r.iteration_ns / 1000.0 - 1;
}

TEST(test_figure5_divisible) {
    static const char indivisible[] = "onebit comp@gpu > flat.allgather > decomp@gpu";
    static const char divisible[] =
        "onebit comp@gpu > flat.alltoall > decomp@gpu > comp@gpu > flat.allgather > decomp@gpu";
    const esp_plan_system s = {
        .machines = 8, .ranks_per_machine = 1, .devices = 2, .inter = {.alpha_ns = 10000, .bytes_per_us = 1000}};
    char chosen[512];
    /* 5 us to compress, 10 us latency, 7 payloads of 125 us, and 38.147 us to decompress 8 * 10^6 elements */
    near(one_tensor(&s, 1000000, indivisible, NULL), 928.147);
    near(one_tensor(&s, 1000000, divisible, NULL), 258.75);
    near(one_tensor(&s, 1000000, "none flat.allreduce", NULL), 7010);
    assert_true(one_tensor(&s, 1000000, NULL, chosen) <= 258.75 + 1e-6);
    if (!strstr(chosen, "comp@gpu > flat.alltoall")) fail_msg("chose %s", chosen);
    near(one_tensor(&s, 8000, indivisible, NULL), 27);
    near(one_tensor(&s, 8000, divisible, NULL), 41.75);
    near(one_tensor(&s, 8000, "none flat.allreduce", NULL), 66);
    assert_true(one_tensor(&s, 8000, NULL, chosen) <= 27 + 1e-6);
    assert_string_equal(chosen, strchr(indivisible, ' ') + 1);
}

/* With fast links inside machines it pays to compress only between machines, with slow ones from the start. */
TEST(test_figure5_levels) {
    static const char between[] = "onebit intra.reduce_scatter > comp@gpu > inter.alltoall > decomp@gpu > comp@gpu > "
                                  "inter.allgather > decomp@gpu > intra.allgather";
    static const char everywhere[] = "onebit comp@gpu > intra.alltoall > decomp@gpu > comp@gpu > inter.alltoall > "
                                     "decomp@gpu > comp@gpu > inter.allgather > decomp@gpu > "
                                     "comp@gpu > intra.allgather > decomp@gpu";
    esp_plan_system s = {.machines = 4, .ranks_per_machine = 4, .devices = 2, .inter = {.bytes_per_us = 1000}};
    char chosen[512];
    s.intra.bytes_per_us = 500000;
    near(one_tensor(&s, 1 << 20, between, NULL), 2 * 6.291456 + 2 * 98.304 + 20);
    near(one_tensor(&s, 1 << 20, everywhere, NULL), 2 * 0.196608 + 2 * 98.304 + 40);
    double best = one_tensor(&s, 1 << 20, NULL, chosen);
    assert_true(best <= one_tensor(&s, 1 << 20, between, NULL) + 1e-6);
    assert_true(strncmp(chosen, "comp", 4) != 0);
    s.intra.bytes_per_us = 2000;
    near(one_tensor(&s, 1 << 20, between, NULL), 2 * 1572.864 + 2 * 98.304 + 20);
    near(one_tensor(&s, 1 << 20, everywhere, NULL), 2 * 49.152 + 2 * 98.304 + 40);
    best = one_tensor(&s, 1 << 20, NULL, chosen);
    assert_true(best <= one_tensor(&s, 1 << 20, everywhere, NULL) + 1e-6);
    assert_true(strncmp(chosen, "comp", 4) == 0);
}

/* Figure 9: the transfer of T0 ends before that of T1 can begin, so a shorter transfer of T0 does not help. Compressing
 * it on the GPU delays backward and makes the step longer. */
static const esp_plan_tensor figure9[] = {
    {"T0", 2000, 10000, .keep = NULL}, {"T1", 4000, 20000, .keep = NULL}, {"T2", 2000, 10000, .keep = NULL}};

TEST(test_figure9) {
    near(step(figure9, FP32, FP32, FP32), 54);
    near(step(figure9, ON_CPU, FP32, FP32), 54);
    near(step(figure9, ON_GPU, FP32, FP32), 57);
    near(step(figure9, FP32, ON_GPU, FP32), 51);
    static const char *const choice[] = {FP32, ON_GPU, ON_CPU};
    for (int i = 0; i < 9; i++)
        for (int k = 1; k < 3; k++)
            assert_true(step(figure9, choice[k], choice[i % 3], choice[i / 3]) >=
                        step(figure9, FP32, choice[i % 3], choice[i / 3]) - 1e-9);
    const char *codecs[3];
    double made = planned(figure9, "paper", codecs);
    assert_true(made < 54);
    assert_string_equal(codecs[0], "none");
    assert_true(planned(figure9, NULL, codecs) <= made + 1e-9);
}
