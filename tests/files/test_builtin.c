/* test_builtin.c: the built-in systems and codec costs: published figures are exact, estimates equal the codecs'
 * own, errors are as measured with our codecs, and make writes files of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fnmatch.h>
#include "tests/common/library.h"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function" /* the test uses some of: */
#include "planner/problem/tree.c"
#include "planner/problem/cost.c"
#include "planner/problem/templates.c"
#include "planner/problem/candidates.c"
#include "planner/problem/problem.c"
#include "planner/builtin/codecs.c"
#include "planner/builtin/v100.c"
#include "espresso_impl/plugins/codec_instance.c"
#include "planner/files/files.c"
#pragma GCC diagnostic pop
#include "tests/common/built.h"
#include <ctype.h>
#include <math.h>

static void near(double got, double want, double relative) {
    if (!(fabs(got - want) <= relative * fabs(want))) fail_msg("%.17g is not %.17g (within %g)", got, want, relative);
}

static const esp_plan_codec *costs_of(const char *spec, const char *system, esp__costs *out) {
    if (esp__builtin_costs(spec, esp__builtin_system(system), NULL, out) != ESP_OK)
        fail_msg("%s on %s: %s", spec, system, esp_last_error(NULL));
    return &out->codec;
}

static double us(const esp_cost_curve *c, double elements) { return esp__curve_at(c, elements) / 1000.0; }

/* ---- systems ------------------------------------------------------------------------------------------------------ */
static void test_systems(void **state) {
    (void)state;
    static const char *const names[] = {"paper-nvlink", "paper-pcie", "cloud-h100", "commodity-10g", "one-box"};
    uint32_t n = 0;
    for (; esp__known_system_at(n); n++) {
        const esp_plan_system *s = esp__builtin_system_at(n);
        assert_string_equal(s->name, names[n]);
        assert_ptr_equal(s, esp__builtin_system(names[n]));
        assert_int_equal(s->struct_size, sizeof *s);
        assert_int_equal(esp__check_system(s), ESP_OK);
        assert_non_null(esp__known_system_at(n)->source);
    }
    assert_int_equal(n, 5);
    assert_null(esp__builtin_system_at(n));
    assert_null(esp__builtin_system("paper"));
    assert_null(esp__builtin_system(NULL));
}

static void test_paper_systems_are_as_published(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double intra, inter;
    } paper[] = {{"paper-nvlink", 50000, 10000}, {"paper-pcie", 2500, 2500}};
    for (int i = 0; i < 2; i++) {
        const esp_plan_system *s = esp__builtin_system(paper[i].name);
        assert_int_equal(s->machines, 8);
        assert_int_equal(s->ranks_per_machine, 8);
        assert_int_equal(s->devices, 3);
        assert_true(s->intra.bytes_per_us == paper[i].intra && s->intra.alpha_ns == 30e3);
        assert_true(s->inter.bytes_per_us == paper[i].inter && s->inter.alpha_ns == 150e3);
        assert_true(s->intra.alpha_is == ESP_ALPHA_COLLECTIVE && s->inter.alpha_is == ESP_ALPHA_COLLECTIVE);
        assert_true(s->host_bytes_per_us == paper[i].intra);
        assert_true(s->pack_ns == 10e3 && s->pack_bytes_per_us == 400000);
        for (int c = 0; c < ESP_PLAN_COLLS; c++)
            assert_true(!s->intra.table[c].n && !s->inter.table[c].n && !s->flat.table[c].n);
    }
}

/* ---- published costs ------------------------------------------------------------------------------------------------ */
static void test_published_gpu_times(void **state) {
    (void)state;
    static const struct {
        const char *spec;
        double compress, decompress;
    } v100[] = {
        {"dgc:ratio=0.01", 356, 34}, {"randomk:ratio=0.01", 54, 34}, {"efsignsgd", 130, 140}, {"onebit", 450, 170}};
    esp__costs c;
    for (int i = 0; i < 4; i++) {
        const esp_plan_codec *k = costs_of(v100[i].spec, i % 2 ? "paper-pcie" : "paper-nvlink", &c);
        const esp_cost_curve *both[] = {&k->compress[ESP_PLAN_GPU], &k->decompress[ESP_PLAN_GPU]};
        for (int d = 0; d < 2; d++) {
            double want = d ? v100[i].decompress : v100[i].compress;
            assert_true(us(both[d], 1) == want && us(both[d], 1048576) == want);
            near(us(both[d], 3.0 * 1048576), 3 * want, 1e-12);
            near(us(both[d], 1048577), want * 1048577 / 1048576, 1e-12);
        }
        assert_int_equal(k->caps, 0); /* the paper's tree: no payload is summed undecoded */
        assert_string_equal(k->spec, v100[i].spec);
        assert_null(strstr(c.source, "estimate"));
        assert_int_equal(esp__check_codec(k, 0), ESP_OK);
    }
}

static void test_published_cpu_times(void **state) {
    (void)state;
    esp__costs c;
    const esp_plan_codec *k = costs_of("dgc:ratio=0.01", "paper-nvlink", &c);
    const esp_cost_curve *to = &k->compress[ESP_PLAN_CPU], *from = &k->decompress[ESP_PLAN_CPU];
    assert_int_equal(to->n, 17);
    assert_true(to->log_size && from->log_size);
    assert_true(us(to, 100) == 13 && us(to, 1024) == 13 && us(from, 1024) == 4);
    assert_true(us(to, 1048576) == 2312 && us(from, 1048576) == 211);
    near(us(to, sqrt(2.0) * 1048576), (2312 + 4547) / 2.0, 1e-12); /* half way in log(size) */
    assert_true(us(to, 67108864) == 134170 && us(from, 67108864) == 38245);
    near(us(to, 2.0 * 67108864), 2 * 134170.0, 1e-12);
    k = costs_of("randomk:ratio=0.01", "paper-pcie", &c);
    assert_true(us(&k->compress[0], 16384) == 72 && us(&k->compress[0], 32768) == 64); /* as published, falling */
}

static void test_published_payloads(void **state) {
    (void)state;
    esp__costs dgc, randomk, sign;
    costs_of("dgc:ratio=0.01", "paper-nvlink", &dgc);
    costs_of("randomk:ratio=0.01", "paper-nvlink", &randomk);
    costs_of("efsignsgd", "paper-nvlink", &sign);
    for (uint64_t e = 1; e < 40000000; e += e < 5000 ? 1 : e / 7) {
        const double k = (double)((e + 99) / 100); /* ceil(0.01 e) in whole numbers */
        assert_true(esp__payload_bytes(&dgc.codec, e) == 8 * k);
        assert_true(esp__payload_bytes(&randomk.codec, e) == 4 * k);
        assert_true(esp__payload_bytes(&sign.codec, e) == (double)((e + 7) / 8 + 4));
    }
    costs_of("dgc:ratio=0.001", "paper-nvlink", &dgc); /* another ratio: other payload, same times */
    assert_true(esp__payload_bytes(&dgc.codec, 1000000) == 8000);
    assert_true(us(&dgc.codec.compress[1], 1) == 356 && us(&dgc.codec.compress[0], 1048576) == 2312);
}

/* Sums of the published table (EuroSys 2023, the authors' artifact), over sizes and over sizes times their place: a
 * figure that is mistyped, or stands in another's place, shows. */
static void test_published_figures(void **state) {
    static const struct {
        const char *name;
        uint32_t gpu[2], sum[2], weighted[2];
    } figures[] = {{"dgc", {356, 34}, {267980, 73900}, {4280398, 1191813}},
                   {"randomk", {54, 34}, {176384, 73130}, {2831618, 1182572}},
                   {"efsignsgd", {130, 140}, {141059, 48444}, {2256993, 776313}},
                   {"onebit", {450, 170}, {144581, 50812}, {2313786, 814249}}};
    (void)state;
    for (int i = 0; i < 4; i++) {
        const esp__published *p = esp__published_find(figures[i].name);
        assert_non_null(p);
        for (int d = 0; d < 2; d++) {
            uint32_t sum = 0, weighted = 0;
            for (uint32_t k = 0; k < ESP__V100_SIZES; k++) sum += p->cpu[k][d], weighted += (k + 1) * p->cpu[k][d];
            assert_int_equal(p->gpu[d], figures[i].gpu[d]);
            assert_int_equal(sum, figures[i].sum[d]);
            assert_int_equal(weighted, figures[i].weighted[d]);
        }
    }
}

/* ---- estimates -------------------------------------------------------------------------------------------------------- */
static void test_faster_memory_moves_the_knee(void **state) {
    (void)state;
    esp__costs c;
    const esp_plan_codec *k = costs_of("dgc:ratio=0.01", "cloud-h100", &c);
    const double knee = 1048576 * 3350.0 / 900.0;
    assert_non_null(strstr(c.source, "estimate"));
    assert_true(us(&k->compress[ESP_PLAN_GPU], 1) == 356 && us(&k->decompress[ESP_PLAN_GPU], 3e6) == 34);
    near(us(&k->compress[ESP_PLAN_GPU], 10 * knee), 3560, 1e-12);
    k = costs_of("fp16", "cloud-h100", &c); /* 10 us and 6 bytes an element at 8/9 of 3350 GB/s */
    near(us(&k->compress[ESP_PLAN_GPU], 1e6), 10 + 6e6 / (3350e3 * 8 / 9), 1e-9);
    assert_int_equal(k->caps, ESP_CODEC_REDUCIBLE);
    k = costs_of("randomk:ratio=0.1", "commodity-10g", &c);
    assert_int_equal(k->caps, ESP_CODEC_REDUCIBLE);
    k = costs_of("topk", "one-box", &c);
    assert_true(!k->compress[ESP_PLAN_GPU].n && !k->decompress[ESP_PLAN_GPU].n && k->compress[ESP_PLAN_CPU].n);
}

/* On the CPU our codecs cost what they say themselves, divided by the workers; and so many bytes as they write. */
static void test_estimates_agree_with_the_codecs(void **state) {
    (void)state;
    static const char *const specs[] = {"fp16", "bf16",           "efsignsgd",          "twobit",
                                        "topk", "topk:ratio=0.2", "randomk:ratio=0.05", "dgc:ratio=0.001"};
    esp_config cfg = ESP_ZERO;
    esp_ctx *ctx;
    esp__costs one, four;
    assert_int_equal(esp_open(&cfg, &ctx), ESP_OK);
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        esp__codec *c = NULL;
        assert_int_equal(esp__codec_make(ctx, specs[i], NULL, &c), ESP_OK);
        assert_int_equal(esp__builtin_costs_for(specs[i], NULL, 1, &one), ESP_OK);
        assert_int_equal(esp__builtin_costs_for(specs[i], NULL, 4, &four), ESP_OK);
        assert_true(!(one.codec.caps & ESP_CODEC_REDUCIBLE) == !(c->table->caps & ESP_CODEC_REDUCIBLE));
        for (uint64_t e = 100000; e <= 10000000; e *= 10) {
            esp_tensor like = {0};
            esp_bound bound = {0};
            double ours = esp__payload_bytes(&one.codec, e);
            like.struct_size = sizeof like, like.dtype = ESP_F32, like.count = e;
            bound.struct_size = sizeof bound;
            assert_int_equal(c->table->bound(c->self, &like, 0, 1, &bound), ESP_OK);
            const esp_codec_time *t = c->model.times; /* a line through two points */
            const double share = ((double)e - t[0].elements) / (t[1].elements - t[0].elements);
            const double to = t[0].compress_ns + share * (t[1].compress_ns - t[0].compress_ns);
            const double from = t[0].decompress_ns + share * (t[1].decompress_ns - t[0].decompress_ns);
            near(esp__curve_at(&one.codec.compress[0], (double)e), to, 1e-3);
            near(esp__curve_at(&one.codec.decompress[0], (double)e), from, 1e-3);
            near(4 * (esp__curve_at(&four.codec.compress[0], (double)e) - esp__known_codecs[0].cpu_ns[0]),
                 to - esp__known_codecs[0].cpu_ns[0], 0.2);
            near(ours, (double)bound.payload_bytes, 0.02); /* dgc's bound has its places in spans and a floor */
        }
        esp__codec_free(ctx, c);
    }
    esp_close(ctx);
}

static double uniform(uint64_t *seed) { /* 0 < x <= 1 */
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (double)((*seed >> 11) + 1) / 9007199254740992.0;
}

static float normal(uint64_t *seed) { /* Box and Muller */
    const double radius = sqrt(-2 * log(uniform(seed)));
    return (float)(radius * cos(2 * 3.14159265358979323846 * uniform(seed)));
}

static double measured_error(esp_ctx *ctx, const char *spec, const float *x, uint64_t n) {
    esp_codec_handle *h = NULL;
    float *y = malloc(n * sizeof *y);
    double lost = 0, whole = 0;
    assert_int_equal(esp_codec_open(ctx, spec, n, "none", &h), ESP_OK);
    uint64_t bound = esp_compress_bound(h), used;
    void *payload = malloc(bound);
    assert_int_equal(esp_compress(h, x, n, payload, bound, &used), ESP_OK);
    assert_int_equal(esp_decompress(h, payload, used, y, n, ESP_OUT_SET), ESP_OK);
    for (uint64_t i = 0; i < n; i++)
        lost += ((double)y[i] - x[i]) * ((double)y[i] - x[i]), whole += (double)x[i] * x[i];
    esp_codec_close(h);
    free(payload);
    free(y);
    return lost / whole;
}

static void test_errors_are_what_our_codecs_lose(void **state) {
    (void)state;
    static const char *const specs[] = {"fp16",
                                        "bf16",
                                        "efsignsgd",
                                        "twobit",
                                        "twobit:threshold=2",
                                        "topk:ratio=0.01",
                                        "topk:ratio=0.3",
                                        "randomk:ratio=0.01",
                                        "randomk:ratio=0.4",
                                        "dgc:ratio=0.1"};
    const uint64_t n = 400000;
    uint64_t seed = 1;
    float *x = malloc(n * sizeof *x);
    esp_config cfg = ESP_ZERO;
    esp_ctx *ctx;
    esp__costs c;
    for (uint64_t i = 0; i < n; i++) x[i] = normal(&seed);
    assert_int_equal(esp_open(&cfg, &ctx), ESP_OK);
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        assert_int_equal(esp__builtin_costs_for(specs[i], NULL, 0, &c), ESP_OK);
        near(c.codec.error, measured_error(ctx, specs[i], x, n), 0.02);
    }
    assert_int_equal(esp__builtin_costs_for("randomk:ratio=0.9,unbiased=1", NULL, 0, &c), ESP_OK);
    near(c.codec.error, measured_error(ctx, "randomk:ratio=0.9,unbiased=1", x, n), 0.05);
    esp_close(ctx);
    free(x);
}

/* ---- specs --------------------------------------------------------------------------------------------------------------- */
static void refused(const char *spec, const char *accelerator, const char *why) {
    esp__costs c;
    assert_int_equal(esp__builtin_costs_for(spec, accelerator, 0, &c), ESP_E_ARG);
    if (!strstr(esp_last_error(NULL), why)) fail_msg("'%s' is not in: %s", why, esp_last_error(NULL));
}

static void test_bad_specs(void **state) {
    (void)state;
    esp__costs c;
    refused("nosuch", "V100", "Known: fp16, bf16, efsignsgd, onebit, twobit, topk, randomk, dgc");
    refused("none", "V100", "Known: fp16");
    refused("dgc:ratio=0", "V100", "above 0 and at most 1");
    refused("dgc:ratio=1.5", "V100", "above 0 and at most 1");
    refused("dgc:ratio=-0.5", "V100", "above 0 and at most 1");
    refused("dgc:ratio=nan", "V100", "ratio=nan");
    refused("dgc:ratio=0x1", "V100", "ratio=0x1");
    refused("dgc:ratio=", "V100", "ratio=");
    refused("dgc:ratio=1e999", "V100", "ratio=1e999");
    refused("dgc:ration=0.1", "V100", "expected one of feedback, ratio, momentum");
    refused("efsignsgd:ratio=0.1", "V100", "expected one of feedback");
    refused("twobit:threshold=0", NULL, "threshold=0");
    refused("dgc:masking=0.5", NULL, "whole number");
    refused("dgc:", "V200", "Known: V100, H100");
    refused("", NULL, "expected a name");
    refused("dgc ratio", NULL, "position");
    refused("dgc:ratio=0.1,feedback=(residual:beta = 1)", NULL, "blanks");
    refused("dgc:ratio", NULL, "key=value");
    assert_int_equal(esp__builtin_costs_for("dgc:ratio=1e-2,feedback=(residual:beta=0.9)", "V100", 0, &c), ESP_OK);
    assert_true(c.codec.units == 0.01);
    assert_string_equal(c.codec.spec, "dgc:ratio=1e-2,feedback=(residual:beta=0.9)");
}

/* A system of the user's own: its accelerator decides; where it has GPUs, it must say which. */
static void test_other_systems(void **state) {
    (void)state;
    esp_plan_system mine = *esp__builtin_system("paper-pcie");
    esp__costs c;
    mine.name = "mine";
    assert_int_equal(esp__builtin_costs("efsignsgd", &mine, NULL, &c), ESP_E_ARG);
    assert_non_null(strstr(esp_last_error(NULL), "system 'mine'"));
    assert_int_equal(esp__builtin_costs("efsignsgd", &mine, "V100", &c), ESP_OK);
    assert_true(us(&c.codec.compress[ESP_PLAN_GPU], 1) == 130);
    mine.devices = 1u << ESP_PLAN_CPU;
    assert_int_equal(esp__builtin_costs("efsignsgd", &mine, NULL, &c), ESP_OK);
    assert_true(!c.codec.compress[ESP_PLAN_GPU].n && c.codec.compress[ESP_PLAN_CPU].n);
    assert_int_equal(esp__builtin_costs(NULL, &mine, NULL, &c), ESP_E_ARG);
}

/* Every parameter that a codec of ours takes is known here, and no other. */
static void test_parameters_are_the_codecs(void **state) {
    (void)state;
    esp_config cfg = ESP_ZERO;
    esp_ctx *ctx;
    esp__costs costs;
    size_t known = 0, taken = 0;
    assert_int_equal(esp_open(&cfg, &ctx), ESP_OK);
    for (uint32_t i = 0; esp__builtin_codec_at(i); i++) {
        const char *name = esp__builtin_codec_at(i), *params;
        char key[ESP__NAME_MAX], value[ESP__NAME_MAX], spec[ESP__SPEC_MAX];
        if (!strcmp(name, "onebit")) continue; /* the artifact's: we have none */
        const esp_codec *c = esp__registry_codec(ctx, name);
        assert_non_null(c);
        params = c->params ? c->params : "";
        while (esp_params_next(&params, key, sizeof key, value, sizeof value) == 1) {
            snprintf(spec, sizeof spec, "%s:%s=%s", name, key, value);
            assert_int_equal(esp__builtin_costs_for(spec, NULL, 0, &costs), ESP_OK);
            taken++;
        }
        for (size_t k = 0; k < sizeof esp__known_params / sizeof *esp__known_params; k++)
            known += (size_t)esp__has_word(esp__known_params[k].codecs, name);
    }
    assert_int_equal(known, taken);
    esp_close(ctx);
}

/* ---- files ------------------------------------------------------------------------------------------------------------------ */
static void same_curve(const esp_cost_curve *a, const esp_cost_curve *b) {
    assert_int_equal(a->n, b->n);
    if (a->n > 1) assert_int_equal(a->log_size, b->log_size);
    for (uint32_t i = 0; i < a->n; i++) {
        assert_true(a->points[i].size == b->points[i].size);
        near(a->points[i].ns, b->points[i].ns, 1e-14);
    }
}

static void test_system_files(void **state) {
    (void)state;
    char name[256];
    for (uint32_t i = 0; esp__known_system_at(i); i++) {
        const esp__known_system *k = esp__known_system_at(i);
        const esp_plan_system *s = &k->system, *t;
        esp__system_file f = {0};
        snprintf(name, sizeof name, "share/espresso/systems/%s.json", s->name);
        if (esp__system_read(built(name), &f, NULL) != ESP_OK) fail_msg("%s", esp_last_error(NULL));
        t = &f.system;
        assert_string_equal(s->name, t->name);
        assert_string_equal(k->accelerator ? k->accelerator : "", f.accelerator ? f.accelerator : "");
        assert_string_equal(k->source, f.source);
        assert_int_equal(k->cpu_workers, f.cpu_workers);
        assert_int_equal(s->machines, t->machines);
        assert_int_equal(s->ranks_per_machine, t->ranks_per_machine);
        assert_int_equal(s->devices, t->devices);
        assert_int_equal(s->shared_cores, t->shared_cores);
        assert_true(s->intra.alpha_ns == t->intra.alpha_ns && s->inter.alpha_ns == t->inter.alpha_ns);
        assert_true(s->intra.alpha_is == t->intra.alpha_is && s->inter.alpha_is == t->inter.alpha_is);
        assert_true(s->intra.bytes_per_us == t->intra.bytes_per_us && s->inter.bytes_per_us == t->inter.bytes_per_us);
        assert_true(s->host_bytes_per_us == t->host_bytes_per_us);
        assert_true(s->pack_ns == t->pack_ns && s->pack_bytes_per_us == t->pack_bytes_per_us);
        esp__system_free(&f);
    }
}

/* costs/CODEC-ACCELERATOR.json: every codec on every accelerator of a system, and on CPUs alone. */
static void test_cost_files(void **state) {
    (void)state;
    static const char *const systems[] = {"paper-nvlink", "cloud-h100", "commodity-10g", "one-box"};
    static const char *const sparse[] = {"topk", "randomk", "dgc"};
    for (size_t k = 0; k < sizeof systems / sizeof *systems; k++)
        for (uint32_t i = 0; esp__builtin_codec_at(i); i++) {
            const esp__known_system *s = esp__known_system_find(systems[k]);
            char path[256], spec[64];
            esp__costs c;
            esp__gc_file f = {0};
            snprintf(spec, sizeof spec, "%s", esp__builtin_codec_at(i));
            for (int n = 0; n < 3; n++)
                if (!strcmp(spec, sparse[n])) strcat(spec, ":ratio=0.01");
            snprintf(path, sizeof path, "share/espresso/costs/%s-%s.json", esp__builtin_codec_at(i),
                     s->accelerator ? s->accelerator : "cpu");
            for (char *p = path; *p; p++) *p = (char)tolower((unsigned char)*p);
            costs_of(spec, systems[k], &c);
            if (esp__gc_read(built(path), &f, NULL) != ESP_OK) fail_msg("%s", esp_last_error(NULL));
            assert_string_equal(f.codec.spec, c.codec.spec);
            assert_string_equal(f.source, c.source);
            assert_int_equal(f.codec.caps, c.codec.caps);
            assert_int_equal(f.codec.takes_list, c.codec.takes_list);
            assert_true(f.codec.header_bytes == c.codec.header_bytes && f.codec.unit_bytes == c.codec.unit_bytes);
            assert_true(f.codec.units == c.codec.units);
            near(f.codec.error, c.codec.error, 1e-12);
            for (int d = 0; d < 2; d++) {
                same_curve(&f.codec.compress[d], &c.codec.compress[d]);
                same_curve(&f.codec.decompress[d], &c.codec.decompress[d]);
            }
            esp__gc_free(&f);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_systems),
        cmocka_unit_test(test_paper_systems_are_as_published),
        cmocka_unit_test(test_published_gpu_times),
        cmocka_unit_test(test_published_cpu_times),
        cmocka_unit_test(test_published_payloads),
        cmocka_unit_test(test_published_figures),
        cmocka_unit_test(test_faster_memory_moves_the_knee),
        cmocka_unit_test(test_estimates_agree_with_the_codecs),
        cmocka_unit_test(test_errors_are_what_our_codecs_lose),
        cmocka_unit_test(test_bad_specs),
        cmocka_unit_test(test_other_systems),
        cmocka_unit_test(test_parameters_are_the_codecs),
        cmocka_unit_test(test_system_files),
        cmocka_unit_test(test_cost_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
