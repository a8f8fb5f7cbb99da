/* test_builtin.c checks the built-in systems and codec costs: published numbers are exact, and estimates come from the
 * codecs' own models of their times. */
/* runs: no-tsan: one rank at a time: no thread but the context's own */
#include "tests/lib/test.h"
#include <fnmatch.h>
#include "planner/problem/problem.h"
#include "planner/builtin/v100.h"
#include "planner/files/read.h"

static void near(double got, double want, double relative) {
    if (!(fabs(got - want) <= relative * fabs(want))) fail_msg("%.17g is not %.17g (within %g)", got, want, relative);
}

static esp_ctx *ctx;
static int open_ctx(void **state) { return esp__open_alone(&ctx) != ESP_OK; }
static int close_ctx(void **state) {
    esp_close(ctx);
    return 0;
}

static const esp_plan_codec *costs_of(const char *spec, const char *system, esp__costs *out) {
    if (esp__builtin_costs(ctx, spec, esp__builtin_system(system), NULL, out) != ESP_OK)
        fail_msg("%s on %s: %s", spec, system, esp_last_error(ctx));
    return &out->codec;
}

static double us(const esp_cost_curve *c, double elements) { return esp__curve_at(c, elements) / 1000.0; }

/* ---- systems ---- */
TEST(test_systems) {
    static const char *const names[] = {"paper-nvlink", "paper-pcie", "cloud-h100", "commodity-10g", "one-box"};
    uint32_t n = 0;
    for (; esp__known_system_at(n); n++) {
        const esp_plan_system *s = &esp__known_system_at(n)->system;
        assert_string_equal(s->name, names[n]);
        assert_ptr_equal(s, esp__builtin_system(names[n]));
        assert_int_equal(s->struct_size, sizeof *s);
        assert_int_equal(esp__check_system(s), ESP_OK);
        assert_non_null(esp__known_system_at(n)->source);
    }
    assert_int_equal(n, 5);
    assert_null(esp__builtin_system("paper"));
    assert_null(esp__builtin_system(NULL));
}

TEST(test_paper_systems_are_as_published) {
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

/* ---- published costs ---- */
TEST(test_published_gpu_times) {
    static const struct {
        const char *spec;
        double compress, decompress;
    } v100[] = {
        {"dgc:ratio=0.01", 356, 34}, {"randomk:ratio=0.01", 54, 34}, {"efsignsgd", 130, 140}, {"onebit", 450, 170}};
    esp__costs c;
    for (int i = 0; i < 4; i++) {
        const esp_plan_codec *k = costs_of(v100[i].spec, i % 2 ? "paper-pcie" : "paper-nvlink", &c);
        const esp_cost_curve *both[] = {&k->compress[ESP_ON_GPU], &k->decompress[ESP_ON_GPU]};
        for (int d = 0; d < 2; d++) {
            double want = d ? v100[i].decompress : v100[i].compress;
            assert_true(us(both[d], 1) == want && us(both[d], 1048576) == want);
            near(us(both[d], 3.0 * 1048576), 3 * want, 1e-12);
            near(us(both[d], 1048577), want * 1048577 / 1048576, 1e-12);
        }
        assert_int_equal(k->caps, 0);
        assert_string_equal(k->spec, v100[i].spec);
        assert_int_equal(esp__check_codec(k, 0), ESP_OK);
    }
}

TEST(test_published_cpu_times) {
    esp__costs c;
    const esp_plan_codec *k = costs_of("dgc:ratio=0.01", "paper-nvlink", &c);
    const esp_cost_curve *to = &k->compress[ESP_ON_CPU], *from = &k->decompress[ESP_ON_CPU];
    assert_int_equal(to->n, 17);
    assert_true(to->log_size && from->log_size);
    assert_true(us(to, 100) == 13 && us(to, 1024) == 13 && us(from, 1024) == 4);
    assert_true(us(to, 1048576) == 2312 && us(from, 1048576) == 211);
    near(us(to, sqrt(2.0) * 1048576), (2312 + 4547) / 2.0, 1e-12);
    assert_true(us(to, 67108864) == 134170 && us(from, 67108864) == 38245);
    near(us(to, 2.0 * 67108864), 2 * 134170.0, 1e-12);
    k = costs_of("randomk:ratio=0.01", "paper-pcie", &c);
    assert_true(us(&k->compress[0], 16384) == 72 && us(&k->compress[0], 32768) == 64);
}

TEST(test_published_payloads) {
    esp__costs dgc, randomk, sign;
    costs_of("dgc:ratio=0.01", "paper-nvlink", &dgc);
    costs_of("randomk:ratio=0.01", "paper-nvlink", &randomk);
    costs_of("efsignsgd", "paper-nvlink", &sign);
    for (uint64_t e = 1; e < 40000000; e += e < 5000 ? 1 : e / 7) {
        const double k = (double)((e + 99) / 100);
        assert_true(esp__payload_bytes(&dgc.codec, e) == 8 * k);
        assert_true(esp__payload_bytes(&randomk.codec, e) == 4 * k);
        assert_true(esp__payload_bytes(&sign.codec, e) == (double)((e + 7) / 8 + 4));
    }
    costs_of("dgc:ratio=0.001", "paper-nvlink", &dgc);
    assert_true(esp__payload_bytes(&dgc.codec, 1000000) == 8000);
    assert_true(us(&dgc.codec.compress[1], 1) == 356 && us(&dgc.codec.compress[0], 1048576) == 2312);
}

/* Checksums of the codec times that the Espresso authors published (EuroSys 2023). */
TEST(test_published_figures) {
    static const struct {
        const char *name;
        uint32_t gpu[2], sum[2], weighted[2];
    } figures[] = {{"dgc", {356, 34}, {267980, 73900}, {4280398, 1191813}},
                   {"randomk", {54, 34}, {176384, 73130}, {2831618, 1182572}},
                   {"efsignsgd", {130, 140}, {141059, 48444}, {2256993, 776313}},
                   {"onebit", {450, 170}, {144581, 50812}, {2313786, 814249}}};
    for (int i = 0; i < 4; i++) {
        const esp__published *p = esp__published_find(figures[i].name);
        assert_non_null(p);
        for (int d = 0; d < 2; d++) {
            uint32_t sum = 0, weighted = 0;
            for (uint32_t k = 0; k < ESP__V100_SIZES; k++) sum += p->cpu[d][k], weighted += (k + 1) * p->cpu[d][k];
            assert_int_equal(p->gpu[d], figures[i].gpu[d]);
            assert_int_equal(sum, figures[i].sum[d]);
            assert_int_equal(weighted, figures[i].weighted[d]);
        }
    }
}

/* ---- estimates ---- */
TEST(test_faster_memory_moves_the_knee) {
    esp__costs c;
    const esp_plan_codec *k = costs_of("dgc:ratio=0.01", "cloud-h100", &c);
    const double knee = 1048576 * 3350.0 / 900.0;
    assert_true(us(&k->compress[ESP_ON_GPU], 1) == 356 && us(&k->decompress[ESP_ON_GPU], 3e6) == 34);
    near(us(&k->compress[ESP_ON_GPU], 10 * knee), 3560, 1e-12);
    k = costs_of("fp16", "cloud-h100", &c);
    near(us(&k->compress[ESP_ON_GPU], 1e6), 10 + 6e6 / (3350e3 * 8 / 9), 1e-9);
    assert_int_equal(k->caps, ESP_CODEC_REDUCIBLE);
    k = costs_of("topk", "cloud-h100", &c); /* launches of few elements, on a faster and on a slower device */
    for (int slow = 0; slow < 2; slow++) {
        if (slow) assert_int_equal(esp__builtin_costs_for(ctx, "topk", "T4", 0, 0, &c), ESP_OK);
        near(us(&k->compress[ESP_ON_GPU], 4096), 10, 0.02);
        near(us(&k->compress[ESP_ON_GPU], 4097), 50, 0.01);
        near(us(&k->compress[ESP_ON_GPU], 17100), 70, 0.02);
    }
    k = costs_of("powersgd:rank=2", "cloud-h100", &c);
    near(us(&k->vector_compress[ESP_ON_GPU], 100), 40, 0.01);
    near(us(&k->vector_decompress[ESP_ON_GPU], 100), 20, 0.01);
    k = costs_of("randomk:ratio=0.1", "commodity-10g", &c);
    assert_int_equal(k->caps, ESP_CODEC_REDUCIBLE);
    k = costs_of("topk", "one-box", &c);
    assert_true(!k->compress[ESP_ON_GPU].n && !k->decompress[ESP_ON_GPU].n && k->compress[ESP_ON_CPU].n);
}

/* The planner's costs must be those that the codec itself states (its esp_codec_model). More threads divide the time
 * per element. */
TEST(test_estimates_are_the_codecs_models) {
    static const char *const specs[] = {
        "fp16", "bf16",           "efsignsgd",          "twobit",         "int8", "int8:block=64", "int4", "chunktopk",
        "topk", "topk:ratio=0.2", "randomk:ratio=0.05", "dgc:ratio=0.001"};
    esp__costs one, four;
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        esp__codec *c = NULL;
        assert_int_equal(esp__codec_make(ctx, specs[i], NULL, &c), ESP_OK);
        assert_int_equal(esp__builtin_costs_for(ctx, specs[i], NULL, 1, 0, &one), ESP_OK);
        assert_int_equal(esp__builtin_costs_for(ctx, specs[i], NULL, 4, 0, &four), ESP_OK);
        assert_true(!(one.codec.caps & ESP_CODEC_REDUCIBLE) == !(c->traits.caps & ESP_CODEC_REDUCIBLE));
        assert_int_equal(one.codec.lossy, (c->model.flags & ESP_MODEL_LOSSY) != 0);
        /* that of twobit depends on the gradients' size, so it counts as the largest */
        assert_true(one.codec.error == (strcmp(specs[i], "twobit") == 0 ? 1 : c->model.error));
        assert_true(one.codec.error >= 0);
        const esp_codec_time *t = c->model.times;
        assert_int_equal(c->model.n_times, 2);
        const double slope[] = {(t[1].compress_ns - t[0].compress_ns) / (t[1].elements - t[0].elements),
                                (t[1].decompress_ns - t[0].decompress_ns) / (t[1].elements - t[0].elements)};
        for (uint64_t e = 100000; e <= 10000000; e *= 10)
            for (int d = 0; d < 2; d++) {
                const double at_one = d ? t[0].decompress_ns : t[0].compress_ns, more = slope[d] * ((double)e - 1);
                const esp_cost_curve *a = d ? &one.codec.decompress[0] : &one.codec.compress[0];
                const esp_cost_curve *b = d ? &four.codec.decompress[0] : &four.codec.compress[0];
                near(esp__curve_at(a, (double)e), at_one + more, 1e-9);
                near(esp__curve_at(b, (double)e), at_one + more / 4, 1e-3);
            }
        esp__codec_free(ctx, c);
    }
}

/* ---- specs ---- */
static void refused(const char *spec, const char *accelerator, const char *why) {
    esp__costs c;
    if (!esp__builtin_costs_for(ctx, spec, accelerator, 0, 0, &c)) fail_msg("'%s' is not refused", spec);
    if (!strstr(esp_last_error(ctx), why)) fail_msg("'%s' is not in: %s", why, esp_last_error(ctx));
}

TEST(test_bad_specs) {
    esp__costs c;
    refused("nosuch", "V100", "there is no codec \"nosuch\"; known: none, fp16");
    refused("none", "V100", "codec 'none' makes nothing smaller");
    refused("dgc:ratio=0", "V100", "above 0 and at most 1");
    refused("dgc:ratio=nan", "V100", "ratio=nan");
    refused("dgc:ration=0.1", "V100", "unknown parameter 'ration'");
    refused("efsignsgd:ratio=0.1", "V100", "unknown parameter 'ratio'");
    refused("onebit:ratio=0.1", "V100", "unknown parameter 'ratio'");
    refused("dgc:", "V200", "Known: V100, H100");
    refused("", NULL, "expected a name");
    refused("dgc ratio", NULL, "position");
    refused("dgc:ratio=0.1,feedback=(residual:beta = 1)", NULL, "blanks");
    refused("dgc:ratio", NULL, "key=value");
    assert_int_equal(esp__builtin_costs_for(ctx, "dgc:ratio=1e-2,feedback=(residual:beta=0.9)", "V100", 0, 0, &c),
                     ESP_OK);
    assert_true(c.codec.units == 0.01);
    assert_string_equal(c.codec.spec, "dgc:ratio=1e-2,feedback=(residual:beta=0.9)");
    assert_int_equal(esp__builtin_costs_for(ctx, "onebit:feedback=none", "H100", 0, 0, &c), ESP_OK);
}

/* A user's own system with GPUs must name its accelerator, which determines the costs. */
TEST(test_other_systems) {
    esp_plan_system mine = *esp__builtin_system("paper-pcie");
    esp__costs c;
    mine.name = "mine";
    assert_int_equal(esp__builtin_costs(ctx, "efsignsgd", &mine, NULL, &c), ESP_E_ARG);
    assert_non_null(strstr(esp_last_error(ctx), "system 'mine'"));
    assert_int_equal(esp__builtin_costs(ctx, "efsignsgd", &mine, "V100", &c), ESP_OK);
    assert_true(us(&c.codec.compress[ESP_ON_GPU], 1) == 130);
    mine.devices = 1u << ESP_ON_CPU;
    assert_int_equal(esp__builtin_costs(ctx, "efsignsgd", &mine, NULL, &c), ESP_OK);
    assert_true(!c.codec.compress[ESP_ON_GPU].n && c.codec.compress[ESP_ON_CPU].n);
    assert_int_equal(esp__builtin_costs(ctx, NULL, &mine, NULL, &c), ESP_E_ARG);
}

/* There must be costs for every codec that compresses. The size of threshold's payloads depends on the gradient: with
 * its default of 0.01 it sends nearly all of the normally distributed numbers of the model. */
TEST(test_all_codecs) {
    esp__costs c;
    uint32_t n = 0;
    for (uint32_t k = 0; k < ctx->registry.codecs.n; k++) {
        if (esp__codec_opens(ctx, k, NULL) <= 0) continue;
        const char *name = ctx->registry.codecs.at[k].codec->name;
        assert_string_not_equal(name, "none");
        if (!strcmp(name, "threshold")) name = "threshold:value=2";
        if (esp__builtin_costs_for(ctx, name, NULL, 0, 0, &c)) fail_msg("%s: %s", name, esp_last_error(ctx));
        assert_int_equal(esp__check_codec(&c.codec, 0), ESP_OK);
        n++;
    }
    assert_true(n >= 7);
}

/* ---- files ---- */
TEST(test_system_files) {
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
        assert_int_equal(s->cores_per_rank, t->cores_per_rank);
        assert_true(s->intra.alpha_ns == t->intra.alpha_ns && s->inter.alpha_ns == t->inter.alpha_ns);
        assert_true(s->intra.alpha_is == t->intra.alpha_is && s->inter.alpha_is == t->inter.alpha_is);
        assert_true(s->intra.bytes_per_us == t->intra.bytes_per_us && s->inter.bytes_per_us == t->inter.bytes_per_us);
        assert_true(s->host_bytes_per_us == t->host_bytes_per_us);
        assert_true(s->pack_ns == t->pack_ns && s->pack_bytes_per_us == t->pack_bytes_per_us);
        esp__system_free(&f);
    }
}

TEST_GROUP(open_ctx, close_ctx)
