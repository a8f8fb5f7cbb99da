/* test_files.c checks that the planner's JSON files are read correctly and written back unchanged, and that no input
 * breaks a reader. */
#include "tests/lib/test.h"
#include "planner/files/write.h"
#include "files.h"

/* ---- what is read ---- */
TEST(reads_a_model) {
    esp__model_file f;
    heard h = {.n = 0};
    const esp__files_log log = {hear, &h};
    assert_int_equal(esp__model_read(full[MODEL], &f, &log), ESP_OK);
    assert_int_equal(h.n, 0);
    assert_string_equal(f.model.name, "two layers");
    assert_string_equal(f.source, "made up \"here\"");
    assert_true(f.model.forward_ns == 12500 && f.model.update_ns == 1250);
    assert_int_equal(f.model.n_tensors, 2);
    assert_string_equal(f.model.tensors[0].name, "fc2.bias");
    assert_string_equal(f.model.tensors[0].keep, "fp32");
    assert_true(f.model.tensors[0].compute_ns == 0.1 * 1000.0);
    assert_true(f.steps == 100 && f.measured.ranks == 4 && f.measured.cores == 2 && !f.measured.noisy);
    assert_string_equal(f.model.tensors[1].name, "fc2.w\xc3\xa9ight");
    assert_null(f.model.tensors[1].keep);
    assert_int_equal(f.model.tensors[1].elements, 30);
    assert_true(f.model.tensors[0].rows == 3 && f.model.tensors[0].cols == 1);
    assert_true(!f.model.tensors[1].rows && !f.model.tensors[1].cols);
    esp__model_free(&f);
    esp__model_free(&f);
}

/* A model that was measured on a busy machine is accepted with a warning. */
TEST(says_that_a_model_is_noisy) {
    esp__model_file f;
    heard h = {.n = 0};
    const esp__files_log log = {hear, &h};
    esp__text out = {0};
    size_t len;
    char *text = slurp(full[MODEL], &len), *noisy = replaced(text, "\"noisy\": false", "\"noisy\": true");
    assert_int_equal(esp__model_parse("m.json", noisy, strlen(noisy), &f, &log), ESP_OK);
    assert_int_equal(h.n, 1);
    assert_non_null(strstr(h.text, "m.json: noisy: the times were measured on a busy machine"));
    assert_true(f.measured.noisy);
    model_print(&f, &out);
    assert_non_null(strstr(out.data, "\"noisy\": true,\n"));
    esp__text_free(&out);
    esp__model_free(&f);
    free(noisy);
    free(text);
}

static void read_measured(const esp__measured *m) {
    assert_true(m->ranks == 8 && m->cores == 2 && m->has_spread && m->spread == 0.125 && !m->noisy);
    assert_string_equal(m->device, "one box");
}

TEST(warns_of_noise) {
    for (int k = 0; k < 2; k++) {
        heard h = {.n = 0};
        const esp__files_log log = {hear, &h};
        size_t len;
        char *text = slurp(full[k ? SYSTEM : GC], &len),
             *changed = replaced(text, "\"noisy\": false", "\"noisy\": true");
        esp__gc_file g;
        esp__system_file y;
        esp_status s = k ? esp__system_parse("f", changed, strlen(changed), &y, &log)
                         : esp__gc_parse("f", changed, strlen(changed), &g, &log);
        assert_int_equal(s, ESP_OK);
        assert_true(h.n == 1 && strstr(h.text, "busy machine") && (k ? y.measured.noisy : g.measured.noisy));
        if (k)
            esp__system_free(&y);
        else
            esp__gc_free(&g);
        free(text);
        free(changed);
    }
}

TEST(reads_a_codec) {
    esp__gc_file f;
    assert_int_equal(esp__gc_read(full[GC], &f, NULL), ESP_OK);
    assert_string_equal(f.spec, "dgc:ratio=0.01");
    assert_string_equal(f.codec.spec, "dgc:ratio=0.01,feedback=(residual:beta=1,gamma=0.5)");
    assert_int_equal(f.codec.caps, ESP_CODEC_REDUCIBLE | ESP_CODEC_NEEDS_MATRIX);
    assert_int_equal(f.codec.takes_list, 1);
    assert_true(f.codec.error == 0.9 && f.codec.header_bytes == 32 && f.codec.unit_bytes == 8 && f.codec.units == 0.01);
    const esp_cost_curve *c = &f.codec.compress[ESP_ON_CPU];
    assert_true(c->n == 2 && c->log_size == 1 && c->points[1].size == 2048 && c->points[1].ns == 15500);
    const esp_cost_curve *more = f.codec.decompress_more;
    assert_true(more[ESP_ON_CPU].n == 1 && more[ESP_ON_CPU].points[0].ns == 1500 &&
                more[ESP_ON_GPU].points[0].ns == 9000);
    assert_true(f.codec.decompress[ESP_ON_GPU].n == 1 && f.codec.decompress[ESP_ON_GPU].log_size == 0);
    assert_true(f.codec.decompress[ESP_ON_GPU].points[0].ns == 34000);
    read_measured(&f.measured);
    esp__gc_free(&f);
    assert_int_equal(esp__gc_read("tests/fuzz/corpus/gc/least.json", &f, NULL), ESP_OK);
    assert_string_equal(f.codec.spec, "onebit");
    assert_true(f.codec.compress[ESP_ON_CPU].n == 0 && f.codec.compress[ESP_ON_GPU].n == 1 && f.codec.caps == 0);
    esp__gc_free(&f);
}

TEST(reads_a_system) {
    esp__system_file f;
    assert_int_equal(esp__system_read(full[SYSTEM], &f, NULL), ESP_OK);
    const esp_plan_system *s = &f.system;
    assert_string_equal(s->name, "two boxes");
    assert_true(s->machines == 2 && s->ranks_per_machine == 4 && s->devices == 3 && s->cores_per_rank == 1);
    assert_true(s->intra.alpha_ns == 30000 && s->intra.alpha_is == ESP_ALPHA_HOP && s->intra.bytes_per_us == 2500);
    assert_true(s->inter.bytes_per_us == 10000 && s->inter.alpha_ns == 150000 &&
                s->inter.alpha_is == ESP_ALPHA_COLLECTIVE);
    const esp_cost_curve *c = &s->intra.table[ESP_COLL_ALLREDUCE];
    assert_true(c->n == 2 && c->log_size == 1 && c->points[1].size == 1048576 && c->points[1].ns == 99750);
    assert_true(s->inter.table[ESP_COLL_REDUCE].n == 1 && s->flat.table[ESP_COLL_ALLGATHER].points[0].ns == 2000);
    assert_true(s->host_bytes_per_us == 2500 && s->pack_ns == 10000 && s->pack_bytes_per_us == 400000);
    assert_string_equal(f.accelerator, "V100");
    assert_int_equal(f.cpu_workers, 12);
    assert_true(s->dispatch_ns[0] == 0 && s->dispatch_ns[1] == 12500 && s->dispatch_ns[2] == 20000);
    assert_true(s->dispatch_ns[3] == 33250);
    read_measured(&f.measured);
    esp__system_free(&f);
}

/* The example's directions are the other way round. */
TEST(a_slower_way_down_counts) {
    size_t len;
    char *text = slurp(full[SYSTEM], &len),
         *changed = replaced(text, "\"down_bytes_per_us\": 20000", "\"down_bytes_per_us\": 12.5");
    esp__system_file f;
    assert_int_equal(esp__system_parse("f", changed, strlen(changed), &f, NULL), ESP_OK);
    assert_true(f.system.inter.bytes_per_us == 12.5 && f.system.intra.bytes_per_us == 2500);
    esp__system_free(&f);
    free(text);
    free(changed);
}

/* Both directions, and those of each rack, are written again; but not if the link's rate is another by then. */
TEST(writes_all_rates_of_a_link) {
    esp__text out = {0};
    esp__system_file f;
    assert_int_equal(esp__system_read(full[SYSTEM], &f, NULL), ESP_OK);
    assert_true(f.system.outer[0].link.bytes_per_us == 1250.5);
    f.system.intra.bytes_per_us = 1000;
    esp__system_print(&f, &out);
    assert_null(strstr(out.data, "\"down_bytes_per_us\": 5000"));
    assert_non_null(strstr(out.data, "\"bytes_per_us\": 1000,"));
    assert_non_null(strstr(out.data, "\"bytes_per_us\": 10000,\n    \"down_bytes_per_us\": 20000,"));
    assert_non_null(strstr(out.data, "\"bytes_per_us\": [1300, 1250.5],\n    \"down_bytes_per_us\": [2500, 3000],"));
    esp__text_free(&out);
    esp__system_free(&f);
}

/* Reads files that other programs wrote: the smallest traces that the Espresso authors published (EuroSys 2023). */
TEST(reads_published_traces) {
    static const struct {
        const char *name;
        uint32_t n;
        uint64_t elements;
    } models[] = {{"lstm", 10, 85974278}, {"ncf", 12, 178064769}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char path[256];
        esp__model_file f;
        heard h = {.n = 0};
        const esp__files_log log = {hear, &h};
        uint64_t elements = 0;
        size_t len;
        snprintf(path, sizeof path, "tests/planner/files/published/%s.json", models[i].name);
        if (esp__model_read(path, &f, &log) != ESP_OK) fail_msg("%s", esp_last_error(NULL));
        assert_int_equal(h.n, 0);
        assert_string_equal(f.model.name, models[i].name);
        assert_int_equal(f.model.n_tensors, models[i].n);
        for (uint32_t k = 0; k < f.model.n_tensors; k++) elements += f.model.tensors[k].elements;
        assert_int_equal(elements, models[i].elements);
        esp__model_free(&f);
        char *text = slurp(path, &len);
        assert_true(fuzz_model(text, len));
        free(text);
    }
}

/* ---- what comes back ---- */
TEST(every_example_comes_back) {
    static const char *const kinds[] = {"model", "gc", "system"};
    int seen = 0;
    for (int k = 0; k < KINDS; k++) {
        char dir[128], path[512];
        snprintf(dir, sizeof dir, "tests/fuzz/corpus/%s", kinds[k]);
        DIR *d = opendir(dir);
        assert_non_null(d);
        for (struct dirent *e; (e = readdir(d));) {
            size_t len;
            if (!strstr(e->d_name, "full") && !strstr(e->d_name, "least")) continue;
            snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
            char *text = slurp(path, &len);
            int ok = k == MODEL ? fuzz_model(text, len) : k == GC ? fuzz_gc(text, len) : fuzz_system(text, len);
            if (!ok) fail_msg("%s", esp_last_error(NULL));
            free(text);
            seen++;
        }
        closedir(d);
    }
    assert_true(seen >= 6);
}

static uint64_t random_state = 88172645463325252u;
static uint64_t random_next(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

/* Microseconds in a file become nanoseconds, and these give the same text again. */
TEST(numbers_lose_nothing) {
    for (int i = 0; i < 20000; i++) {
        esp__text t = {0};
        uint64_t bits = random_next() % 2 ? random_next() : random_next() & ~0xffffffffu;
        double us, whole = (double)(random_next() >> (11 + random_next() % 50));
        memcpy(&us, &bits, sizeof us);
        if (!(us >= 0 && us <= 1e12) || i % 3 == 0) us = i % 2 ? whole / 1000.0 : whole / 1e6;
        double ns = us * 1000.0;
        files_put_us(&t, ns);
        if (strtod(t.data, NULL) * 1000.0 != ns) fail_msg("%.17g us: %.17g ns were written as %s us", us, ns, t.data);
        esp__text_free(&t);
        files_put_number(&t, us);
        assert_true(strtod(t.data, NULL) == us);
        esp__text_free(&t);
    }
}

/* ---- files ------------------------------------------------------------------------------------------------------- */
TEST(bad_files_are_named) {
    esp__model_file f;
    assert_int_equal(esp__model_read("tests/no-such.json", &f, NULL), ESP_E_NOT_FOUND);
    assert_string_equal(esp_last_error(NULL), "tests/no-such.json: cannot be read: No such file or directory");
    assert_int_equal(esp__model_read("tests", &f, NULL), ESP_E_ARG);
    assert_string_equal(esp_last_error(NULL), "tests: cannot be read: it is a directory: give a file in it");
    assert_int_equal(esp__model_read("/dev/null", &f, NULL), ESP_E_ARG);
    assert_string_equal(esp_last_error(NULL), "/dev/null: the file is empty");
    esp__model_free(&f);
    assert_int_equal(parse(GC, "f", NULL, 0, NULL), ESP_E_ARG);
    char path[] = "/tmp/espresso-test-files-XXXXXX";
    int fd = mkstemp(path);
    close(fd);
    if (chmod(path, 0) == 0 && access(path, R_OK) != 0) { /* root may read every file */
        assert_int_equal(esp__model_read(path, &f, NULL), ESP_E_ARG);
        assert_non_null(strstr(esp_last_error(NULL), "Permission denied"));
    }
    unlink(path);
}

static esp_status model_write(const char *path, const esp__model_file *f) {
    esp__text t = {0};
    model_print(f, &t);
    return files_write(path, &t);
}
TEST(files_are_written_whole_or_not) {
    char dir[] = "/tmp/espresso-test-files-XXXXXX", path[64], link[64];
    esp__model_file f, again;
    struct stat st;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/m.json", dir);
    snprintf(link, sizeof link, "%s/link.json", dir);
    assert_int_equal(esp__model_read(full[MODEL], &f, NULL), ESP_OK);
    for (int i = 0; i < 2; i++) assert_int_equal(model_write(path, &f), ESP_OK);
    assert_int_equal(test_count_files(dir, ""), 1);
    assert_int_equal(symlink("m.json", link), 0);
    assert_int_equal(model_write(link, &f), ESP_OK);
    assert_true(lstat(link, &st) == 0 && S_ISLNK(st.st_mode));
    assert_int_equal(test_count_files(dir, ""), 2);
    assert_int_equal(esp__model_read(link, &again, NULL), ESP_OK);
    assert_string_equal(again.source, f.source);
    esp__model_free(&again);
    assert_int_equal(model_write(dir, &f), ESP_E_ARG);
    assert_non_null(strstr(esp_last_error(NULL), "Is a directory"));
    assert_int_equal(model_write("/no/such/folder/m.json", &f), ESP_E_ARG);
    assert_string_equal(esp_last_error(NULL), "/no/such/folder/m.json: cannot be written: No such file or directory");
    assert_int_equal(access("/dev/full", W_OK), 0);
    {
        assert_int_equal(model_write("/dev/full", &f), ESP_E_ARG);
        assert_non_null(strstr(esp_last_error(NULL), "No space left"));
    }
    assert_int_equal(test_count_files(dir, ""), 2);
    esp__model_free(&f);
    unlink(path);
    unlink(link);
    assert_int_equal(rmdir(dir), 0);
}

/* ---- many, and any input ---- */
TEST(a_million_tensors) {
#ifdef __SANITIZE_ADDRESS__
    const int n = 200000; /* AddressSanitizer needs several times as much memory */
#else
    const int n = 1000000;
#endif
    size_t cap = (size_t)n * 64 + 200, len;
    char *text = malloc(cap);
    esp__model_file f;
    len = (size_t)sprintf(text, "{\"espresso\": 1, \"model\": \"m\", \"forward_us\": 1, \"tensors\": [\n");
    for (int i = 0; i < n; i++)
        len += (size_t)sprintf(text + len, "{\"name\":\"t%d\",\"elements\":7,\"compute_us\":1}%s", i,
                               i + 1 < n ? ",\n" : "]}\n");
    assert_int_equal(esp__model_parse("f", text, len, &f, NULL), ESP_OK);
    assert_int_equal(f.model.n_tensors, n);
    esp__model_free(&f);
    char last[32], error[160];
    snprintf(last, sizeof last, "\"t%d\"", n - 1);
    memcpy(strstr(text, last), "\"t123456\"", strlen(last));
    assert_int_equal(esp__model_parse("f", text, len, &f, NULL), ESP_E_ARG);
    snprintf(error, sizeof error,
             "f: tensors[%d].name: \"t123456\" is already tensors[123456]: expected each name once", n - 1);
    assert_string_equal(esp_last_error(NULL), error);
    free(text);
}

/* Changes the text at random: inserts, changes, swaps or deletes bytes and longer pieces. */
static size_t mutate(char *text, size_t len, size_t cap) {
    static const char *const words[] = {"0", "-1", "1e308",   "null", "\"",     "{", "}", "[",
                                        "]", ",",  "\\u0000", "\xff", "1e-320", "#", "\n"};
    for (uint64_t k = 1 + random_next() % 4; k; k--) {
        size_t at = len ? random_next() % len : 0, to = len ? random_next() % len : 0, n = 1 + random_next() % 16;
        if (n > len - at) n = len - at;
        if (n > len - to) n = len - to;
        switch (random_next() % 4) {
        case 0:
            if (len) text[at] = (char)(random_next() % 256);
            break;
        case 1: memmove(text + at, text + at + n, len - at - n), len -= n; break;
        case 2: memmove(text + to, text + at, n); break;
        default: {
            const char *w = words[random_next() % (sizeof words / sizeof *words)];
            size_t size = strlen(w);
            if (len + size > cap) break;
            memmove(text + at + size, text + at, len - at);
            memcpy(text + at, w, size);
            len += size;
        }
        }
    }
    return len;
}

TEST(any_input_is_survived) {
    static const char *const seeds[] = {"tests/fuzz/corpus/model/full.json", "tests/fuzz/corpus/gc/full.json",
                                        "tests/fuzz/corpus/system/full.json"};
    int accepted = 0;
    for (int k = 0; k < KINDS; k++) {
        size_t len;
        char *seed = slurp(seeds[k], &len), *text = malloc(len + 256);
        for (int i = 0; i < 3000; i++) {
            memcpy(text, seed, len);
            size_t n = mutate(text, len, len + 256);
            accepted += k == MODEL ? fuzz_model(text, n) : k == GC ? fuzz_gc(text, n) : fuzz_system(text, n);
        }
        free(seed);
        free(text);
    }
    assert_in_range(accepted, 100, 10000);
}
