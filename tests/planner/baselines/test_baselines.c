/* test_baselines.c checks that each strategy that is named after a published system decides as this system does, in
 * cases computed by hand. On random problems each gives a complete strategy, the same every time. */
/* runs: asan-long */
#include "tests/lib/test.h"
#include "planner/baselines/baselines.h"
#include "tests/planner/open_problem.h"

static const uint64_t kib = 1024 / 4, mib = 1048576 / 4; /* in elements of 4 bytes */

TEST(table) {
    static const char *const names[] = {"fp32",      "ddp",     "fp16",       "layerwise",
                                        "mergecomp", "hipress", "hitopkcomm", "byteps-compress",
                                        "cpu-only",  "paper"};
    const esp__scheme *all = esp__schemes();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assert_non_null(all[i].name);
        assert_string_equal(all[i].name, names[i]);
        assert_ptr_equal(esp__scheme_find(names[i]), &all[i]);
        assert_true(strlen(all[i].summary) > 20 && strlen(all[i].source) > 5);
    }
    assert_null(all[sizeof names / sizeof *names].name);
    assert_null(esp__scheme_find("fp"));
    assert_null(esp__scheme_find("espresso+")); /* "espresso+" names the planner's search instead */
}

TEST(options) {
    static const struct {
        const char *scheme, *tree, *flat, *one_machine;
    } cases[] = {
        {"fp32", "intra.reduce_scatter > inter.allreduce > intra.allgather", "flat.allreduce", "flat.allreduce"},
        {"ddp", "flat.allreduce", "flat.allreduce", "flat.allreduce"},
        {"fp16", "comp@gpu > flat.allreduce > decomp@gpu", "comp@gpu > flat.allreduce > decomp@gpu",
         "comp@gpu > flat.allreduce > decomp@gpu"},
        {"layerwise", "intra.reduce_scatter > comp@gpu > inter.allgather > decomp@gpu > intra.allgather",
         "comp@gpu > flat.allgather > decomp@gpu", "comp@gpu > flat.allgather > decomp@gpu"},
        {"hitopkcomm", "intra.reduce_scatter > comp@gpu > inter.allgather > decomp@gpu > intra.allgather",
         "comp@gpu > flat.allgather > decomp@gpu", "comp@gpu > flat.allgather > decomp@gpu"},
        {"hipress",
         "intra.reduce_scatter > comp@gpu > inter.alltoall > decomp@gpu > comp@gpu > inter.allgather > decomp@gpu > "
         "intra.allgather",
         "comp@gpu > flat.alltoall > decomp@gpu > comp@gpu > flat.allgather > decomp@gpu", "flat.allreduce"},
        {"byteps-compress",
         "intra.reduce_scatter > comp@cpu > inter.alltoall > decomp@cpu > comp@cpu > inter.allgather > decomp@cpu > "
         "intra.allgather",
         "comp@cpu > flat.alltoall > decomp@cpu > comp@cpu > flat.allgather > decomp@cpu", "flat.allreduce"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int where = 0; where < 3; where++) {
            static opened_problem g;
            simple_problem(&g, where == 2 ? 1 : 4, where == 1 ? 1 : 4);
            add_tensor(&g, 900 * kib, 100);
            assert_int_equal(open_problem(&g, 0), ESP_OK);
            esp__schedule d = make_schedule(&g, cases[i].scheme);
            const char *const want[] = {cases[i].tree, cases[i].flat, cases[i].one_machine};
            check_schedule(&g, &d);
            assert_string_equal(option_text(&d, 0), want[where]);
            close_problem(&g);
        }
}

/* If the codec or the system lacks the GPU, the CPU compresses. */
TEST(other_device) {
    static const char *const schemes[] = {"layerwise", "hitopkcomm", "hipress", "mergecomp"};
    for (int no_codec = 0; no_codec < 2; no_codec++)
        for (int i = 0; i < 4; i++) {
            static opened_problem g;
            simple_problem(&g, 4, 4);
            add_tensor(&g, 100 * mib, 100);
            g.in.codecs[0].compress[ESP_ON_GPU].n = g.in.codecs[0].decompress[ESP_ON_GPU].n = 0;
            if (no_codec) g.in.n_codecs = 0;
            assert_int_equal(open_problem(&g, 0), ESP_OK);
            esp__schedule d = make_schedule(&g, schemes[i]);
            check_schedule(&g, &d);
            assert_null(strstr(option_text(&d, 0), "gpu"));
            assert_int_equal(strstr(option_text(&d, 0), "comp@cpu") == NULL, no_codec);
            close_problem(&g);
        }
}

TEST(ddp_buckets) {
    static opened_problem g;
    static const uint32_t first[] = {0, 2, 5, 6}, n[] = {2, 3, 1, 2};
    simple_problem(&g, 2, 4);
    add_tensor(&g, 600 * kib, 10);
    add_tensor(&g, 600 * kib, 10);
    add_tensor(&g, 20 * mib, 10);
    add_tensor(&g, 4 * mib, 10);
    add_tensor(&g, 1 * mib, 10);
    add_tensor(&g, 100 * mib, 10);
    add_tensor(&g, 1, 10);
    add_tensor(&g, 2, 10);
    assert_int_equal(open_problem(&g, 0), ESP_OK);
    esp__schedule d = make_schedule(&g, "ddp");
    check_schedule(&g, &d);
    assert_int_equal(d.n_units, 4);
    for (uint32_t u = 0; u < 4; u++) {
        assert_int_equal(d.units[u].first, first[u]);
        assert_int_equal(d.units[u].n, n[u]);
    }
    esp__schedule half = make_schedule(&g, "fp16");
    assert_int_equal(half.n_units, 4);
    assert_memory_equal(half.units, d.units, 4 * sizeof *d.units);
    close_problem(&g);
}

/* If the user fixes the strategy of a tensor (keep), all baselines must obey. A group ends where such
 * requests change. */
TEST(keeps) {
    static opened_problem g;
    simple_problem(&g, 4, 4);
    for (int i = 0; i < 6; i++) add_tensor(&g, 200 * kib, 10);
    g.in.tensors[2].keep = "fp32";
    g.in.tensors[3].keep = "fp32";
    assert_int_equal(open_problem(&g, 0), ESP_OK);
    for (const esp__scheme *s = esp__schemes(); s->name; s++) {
        esp__schedule d = make_schedule(&g, s->name);
        check_schedule(&g, &d);
        for (uint32_t u = 0; u < d.n_units; u++)
            if (d.units[u].first == 2 || d.units[u].first == 3) assert_int_equal(d.paths[u]->codec, ESP__NO_CODEC);
    }
    esp__schedule d = make_schedule(&g, "ddp");
    assert_int_equal(d.n_units, 3);
    assert_int_equal(d.units[1].first, 2);
    assert_int_equal(d.units[1].n, 2);
    close_problem(&g);
}

TEST(byteps_partitions) {
    static opened_problem g;
    static const uint64_t chunk[] = {1024000, 1024000, 452000, 16384, 16383};
    simple_problem(&g, 4, 4);
    add_tensor(&g, 2500000, 10);
    add_tensor(&g, 16384, 10);
    add_tensor(&g, 16383, 10); /* less than 64 KiB, which BytePS does not compress */
    assert_int_equal(open_problem(&g, 0), ESP_OK);
    esp__schedule d = make_schedule(&g, "byteps-compress");
    check_schedule(&g, &d);
    assert_int_equal(d.n_units, 5);
    for (uint32_t u = 0; u < 5; u++) {
        assert_int_equal(d.units[u].elements, chunk[u]);
        assert_int_equal(d.paths[u]->codec == ESP__NO_CODEC, u == 4);
    }
    close_problem(&g);
}

/* Four machines have one rank each. An allreduce without compression takes 100 us plus 1.5 us per 1000 bytes, which
 * is 250 us for the first tensor and 310 us for the second. With compression it takes about 280 us. */
TEST(hipress_selects) {
    static opened_problem g;
    simple_problem(&g, 4, 1);
    add_tensor(&g, 25000, 10);
    add_tensor(&g, 35000, 10);
    assert_int_equal(open_problem(&g, 0), ESP_OK);
    esp__schedule d = make_schedule(&g, "hipress");
    check_schedule(&g, &d);
    assert_int_equal(d.n_units, 2);
    assert_int_equal(d.paths[0]->codec, ESP__NO_CODEC);
    assert_int_equal(d.paths[1]->codec, 0);
    close_problem(&g);
}

/* Without compression, 4 MiB keep the links inside machines and those between machines busy for 6.3 ms each. With k
 * chunks both work at the same time, so a step takes about 6.3 + 6.3 / k ms, and the largest k is the fastest. */
TEST(hipress_cuts) {
    static opened_problem g;
    simple_problem(&g, 4, 4);
    add_tensor(&g, 4 * mib, 10);
    g.in.n_codecs = 0;
    assert_int_equal(open_problem(&g, 0), ESP_OK);
    esp__schedule d = make_schedule(&g, "hipress"), whole = make_schedule(&g, "fp32");
    check_schedule(&g, &d);
    assert_int_equal(d.n_units, 4);
    assert_true(d.makespan < whole.makespan);
    close_problem(&g);
}

/* If each call takes long and payloads are small, one group is fastest. If times grow with size and backward is long,
 * several groups are faster, because early ones are compressed while backward runs. */
TEST(mergecomp_groups) {
    static const esp_cost_point slow[] = {{1, 10}, {1048576, 10485760}};
    for (int by_size = 0; by_size < 2; by_size++) {
        static opened_problem g;
        simple_problem(&g, 4, 4);
        for (int i = 0; i < 12; i++) add_tensor(&g, by_size ? 500000 : 1000, by_size ? 8000 : 1);
        esp_cost_curve curve = {slow, 2, 0};
        if (by_size) g.in.codecs[0].compress[1] = curve;
        assert_int_equal(open_problem(&g, 0), ESP_OK);
        esp__schedule d = make_schedule(&g, "mergecomp");
        check_schedule(&g, &d);
        assert_int_equal(d.n_units > 1, by_size);
        for (uint32_t u = 0; u < d.n_units; u++) assert_int_equal(d.paths[u]->codec, 0);
        close_problem(&g);
    }
}

/* If costs grow with size, the step time first falls and then rises as the border between two groups moves (MergeComp,
 * theorem 2), so the search finds the best border of all, which an even partition misses. More groups are never slower.
 * Of one group, all strategies make the same. */
TEST(mergecomp_borders) {
    for (uint64_t seed = 1; seed <= test_repeats(20); seed++) {
        static const esp_cost_point slow[] = {{1, 10}, {1048576, 10485760}};
        static const char *const most[] = {"mergecomp-1", "mergecomp-2", "mergecomp-3", "mergecomp-4"};
        static opened_problem g;
        uint64_t draw = seed, before = UINT64_MAX, least = UINT64_MAX;
        simple_problem(&g, 4, 1);
        for (int i = 0; i < 12; i++) add_tensor(&g, 20000 + test_random64(&draw) % 1000000, 8000);
        g.in.codecs[0].compress[1] = (esp_cost_curve){slow, 2, 0};
        assert_int_equal(open_problem(&g, 0), ESP_OK);
        for (int k = 0; k < 4; k++) {
            esp__schedule d = make_schedule(&g, most[k]);
            check_schedule(&g, &d);
            assert_true(d.n_units <= (uint32_t)k + 1 && d.makespan <= before);
            before = d.makespan;
        }
        esp__schedule two = make_schedule(&g, "mergecomp-2"), even = make_schedule(&g, "even-2");
        check_schedule(&g, &even);
        assert_int_equal(even.n_units, 2);
        esp__extent *units = esp__arena_get(g.p.arena, 2 * sizeof *units);
        esp__schedule any;
        memset(&any, 0, sizeof any);
        for (uint32_t at = 1; at < 12; at++) {
            const uint32_t first = esp__units_group(&g.p, units, 0, 0, at);
            esp__schedule_set_units(&g.p, &any, units, esp__units_group(&g.p, units, first, at, 12));
            esp__scheme_fill(&g.p, &any, &esp__form_allgather, ESP_ON_GPU, 0);
            if (any.makespan < least) least = any.makespan;
        }
        assert_true(two.makespan <= least && least <= even.makespan);
        assert_int_equal(make_schedule(&g, "even-4").n_units, 4);
        close_problem(&g);
    }
}

/* A user's own costs of codec fp16 replace the default ones, which are those of a cast. */
TEST(fp16_times) {
    static const esp_cost_point slow[] = {{1099511627776.0, 5e6}};
    uint64_t time[2];
    for (int own = 0; own < 2; own++) {
        static opened_problem g;
        simple_problem(&g, 4, 4);
        add_tensor(&g, 1 * mib, 10);
        esp_plan_codec *c = &g.in.codecs[1];
        c->spec = "fp16";
        c->caps = ESP_CODEC_REDUCIBLE;
        c->unit_bytes = 2, c->units = 1;
        esp_cost_curve curve = {slow, 1, 0};
        for (int d = 0; d < 2; d++) c->compress[d] = c->decompress[d] = curve;
        g.in.n_codecs = own ? 2 : 1;
        assert_int_equal(open_problem(&g, 0), ESP_OK);
        esp__schedule d = make_schedule(&g, "fp16");
        time[own] = d.makespan;
        assert_int_equal(g.p.n_codecs, own ? 2 : 1);
        assert_string_equal(g.p.codecs[d.paths[0]->codec].spec, "fp16");
        esp__schedule later = make_schedule(&g, "paper");
        for (uint32_t u = 0; u < later.n_units; u++) assert_true(later.paths[u]->codec < g.p.n_codecs);
        close_problem(&g);
    }
    assert_true(time[0] + 9000000 < time[1]);
    /* 10 us of backward, 2 casts of 12 us each, and an allreduce of 512 KiB over 16 ranks: 100 us + 2 * 15/16 *
     * 524.288 us */
    assert_int_equal(time[0], 10000 + 2 * 11966 + 100000 + 983040);
}

TEST(cpu_only) {
    for (uint64_t seed = 0; seed < test_repeats(60); seed++) {
        static opened_problem g;
        memset(&g, 0, sizeof g);
        problem_random(seed, 10, 3, &g.in);
        assert_int_equal(open_problem(&g, 0), ESP_OK);
        esp__schedule cpu = make_schedule(&g, "cpu-only");
        for (uint32_t u = 0; u < cpu.n_units; u++) assert_true(esp__path_on(&g.p, cpu.paths[u], 1u << ESP_ON_CPU));
        close_problem(&g);
    }
}

TEST(whole_and_deterministic) {
    for (uint64_t seed = 100; seed < 100 + test_repeats(120); seed++) {
        static opened_problem g, h;
        memset(&g, 0, sizeof g);
        memset(&h, 0, sizeof h);
        problem_random(seed, 30, 0, &g.in);
        problem_random(seed, 30, 0, &h.in);
        assert_int_equal(open_problem(&g, 0), ESP_OK);
        assert_int_equal(open_problem(&h, 0), ESP_OK);
        for (const esp__scheme *s = esp__schemes(); s->name; s++) {
            esp__schedule d = make_schedule(&g, s->name), again = make_schedule(&h, s->name);
            check_schedule(&g, &d);
            expect_same_schedule(&d, &again);
        }
        close_problem(&g);
        close_problem(&h);
    }
}
