/* test_files.c: the planner's JSON files: reading, writing them back unchanged, the places of values, and that no input
 * breaks a reader. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tests/common/built.h"
#include "tests/common/library.h"
#include "files.h"

/* ---- what is read -------------------------------------------------------------------------------------------------- */
static void reads_a_model(void **state) {
    (void)state;
    esp__model_file f;
    heard h = {.n = 0};
    const esp__files_log log = {hear, &h};
    assert_int_equal(esp__model_read(full[MODEL], &f, &log), ESP_OK);
    assert_int_equal(h.n, 0);
    assert_string_equal(f.model.name, "two layers");
    assert_string_equal(f.source, "made up \"here\"");
    assert_int_equal(f.batch, 32);
    assert_true(f.model.forward_ns == 12500 && f.model.update_ns == 1250);
    assert_int_equal(f.model.n_tensors, 2);
    assert_string_equal(f.model.tensors[0].name, "fc2.bias");
    assert_string_equal(f.model.tensors[0].keep, "fp32");
    assert_true(f.model.tensors[0].compute_ns == 0.1 * 1000.0);
    assert_int_equal(f.more[0].n_shape, 1);
    assert_int_equal(f.more[0].shape[0], 3);
    assert_true(f.more[0].flops == 1000 && f.more[1].flops < 0);
    assert_true(f.more[0].spread == 0.25 && f.more[1].spread < 0);
    assert_true(f.steps == 100 && f.ranks == 4 && f.cores == 2 && !f.noisy);
    assert_string_equal(f.model.tensors[1].name, "fc2.w\xc3\xa9ight");
    assert_null(f.model.tensors[1].keep);
    assert_int_equal(f.model.tensors[1].elements, 30);
    assert_true(f.model.tensors[0].rows == 3 && f.model.tensors[0].cols == 1);
    assert_true(!f.model.tensors[1].rows && !f.model.tensors[1].cols);
    esp__model_free(&f);
    esp__model_free(&f); /* once more harms nothing */
}

/* Times of a busy machine are taken, but never in silence. */
static void says_that_a_model_is_noisy(void **state) {
    (void)state;
    esp__model_file f;
    heard h = {.n = 0};
    const esp__files_log log = {hear, &h};
    esp__text out = {0};
    size_t len;
    char *text = slurp(full[MODEL], &len), *noisy = replaced(text, "\"noisy\": false", "\"noisy\": true");
    assert_int_equal(esp__model_parse("m.json", noisy, strlen(noisy), &f, &log), ESP_OK);
    assert_int_equal(h.n, 1);
    assert_non_null(strstr(h.text, "m.json:11: noisy: the times were measured on a busy machine"));
    assert_true(f.noisy);
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

/* A noisy file is read, with a warning. */
static void warns_of_noise(void **state) {
    (void)state;
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

static void reads_a_codec(void **state) {
    (void)state;
    esp__gc_file f;
    assert_int_equal(esp__gc_read(full[GC], &f, NULL), ESP_OK);
    assert_string_equal(f.spec, "dgc:ratio=0.01");
    assert_string_equal(f.codec.spec, "dgc:ratio=0.01,feedback=(residual:beta=1,gamma=0.5)");
    assert_int_equal(f.codec.caps, ESP_CODEC_REDUCIBLE | ESP_CODEC_NEEDS_MATRIX);
    assert_int_equal(f.codec.takes_list, 1);
    assert_true(f.codec.error == 0.9 && f.codec.header_bytes == 32 && f.codec.unit_bytes == 8 && f.codec.units == 0.01);
    const esp_cost_curve *c = &f.codec.compress[ESP_PLAN_CPU];
    assert_true(c->n == 2 && c->log_size == 1 && c->points[1].size == 2048 && c->points[1].ns == 15500);
    const esp_cost_curve *more = f.codec.decompress_more;
    assert_true(more[ESP_PLAN_CPU].n == 1 && more[ESP_PLAN_CPU].points[0].ns == 1500 &&
                more[ESP_PLAN_GPU].points[0].ns == 9000);
    assert_true(f.codec.decompress[ESP_PLAN_GPU].n == 1 && f.codec.decompress[ESP_PLAN_GPU].log_size == 0);
    assert_true(f.codec.decompress[ESP_PLAN_GPU].points[0].ns == 34000);
    read_measured(&f.measured);
    esp__gc_free(&f);
    assert_int_equal(esp__gc_read("tests/fuzz/corpus/gc/least.json", &f, NULL), ESP_OK);
    assert_string_equal(f.codec.spec, "onebit");
    assert_true(f.codec.compress[ESP_PLAN_CPU].n == 0 && f.codec.compress[ESP_PLAN_GPU].n == 1 && f.codec.caps == 0);
    esp__gc_free(&f);
}

static void reads_a_system(void **state) {
    (void)state;
    esp__system_file f;
    assert_int_equal(esp__system_read(full[SYSTEM], &f, NULL), ESP_OK);
    const esp_plan_system *s = &f.system;
    assert_string_equal(s->name, "two boxes");
    assert_true(s->machines == 2 && s->ranks_per_machine == 4 && s->devices == 3 && s->cores_per_rank == 1);
    assert_true(s->intra.alpha_ns == 30000 && s->intra.alpha_is == ESP_ALPHA_HOP && s->intra.bytes_per_us == 2500);
    assert_true(s->inter.alpha_ns == 150000 && s->inter.alpha_is == ESP_ALPHA_COLLECTIVE);
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

/* Two files of others: the smallest of the traces that the Espresso authors published with their artifact (EuroSys
 * 2023). */
static void reads_published_traces(void **state) {
    (void)state;
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
        snprintf(path, sizeof path, "tests/files/published/%s.json", models[i].name);
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

/* ---- what comes back --------------------------------------------------------------------------------------------------- */
static void every_example_comes_back(void **state) {
    (void)state;
    static const char *const kinds[] = {"model", "gc", "system", "strategy"};
    int seen = 0;
    for (int k = 0; k < 4; k++) {
        char dir[128], path[512];
        snprintf(dir, sizeof dir, "tests/fuzz/corpus/%s", kinds[k]);
        DIR *d = opendir(dir);
        assert_non_null(d);
        for (struct dirent *e; (e = readdir(d));) {
            size_t len;
            if (!strstr(e->d_name, "full") && !strstr(e->d_name, "least")) continue;
            snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
            char *text = slurp(path, &len);
            int ok = k == MODEL    ? fuzz_model(text, len)
                     : k == GC     ? fuzz_gc(text, len)
                     : k == SYSTEM ? fuzz_system(text, len)
                                   : fuzz_strategy(text, len);
            if (!ok) fail_msg("%s", esp_last_error(NULL));
            free(text);
            seen++;
        }
        closedir(d);
    }
    assert_true(seen >= 9);
}

static uint64_t random_state = 88172645463325252u;
static uint64_t random_next(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
}

/* Any number of microseconds that a file can hold gives the nanoseconds that its text gives again. */
static void numbers_lose_nothing(void **state) {
    (void)state;
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

static void strategy_text_comes_back_byte_by_byte(void **state) {
    (void)state;
    esp__text json = {0}, text = {0};
    size_t len;
    char *was = slurp("tests/fuzz/corpus/strategy/full.strategy", &len);
    assert_int_equal(esp__strategy_json_print("s", was, NULL, &json), ESP_OK);
    assert_non_null(
        strstr(json.data, "{\"first\": 2, \"tensors\": 2, \"begin\": 0, \"elements\": 12, \"codec\": \"none\","));
    assert_int_equal(esp__strategy_json_parse("j", json.data, json.len, &text, NULL), ESP_OK);
    assert_string_equal(text.data, was);
    esp__text_free(&json);
    esp__text_free(&text);
    free(was);
}

/* A plan's JSON has its times, and gives back its text. */
static void a_plan_comes_back(void **state) {
    (void)state;
    esp__model_file m;
    esp__gc_file g;
    esp__system_file y;
    esp_plan *plan;
    esp_plan_report r = {.struct_size = sizeof r};
    esp__text json = {0}, text = {0};
    json_error_t e;
    assert_int_equal(esp__model_read("planner/models/vgg16.json", &m, NULL), ESP_OK);
    assert_int_equal(esp__gc_read(built("share/espresso/costs/dgc-v100.json"), &g, NULL), ESP_OK);
    assert_int_equal(esp__system_read(built("share/espresso/systems/paper-pcie.json"), &y, NULL), ESP_OK);
    if (esp_plan_make(&m.model, &g.codec, 1, &y.system, NULL, &plan) != ESP_OK) fail_msg("%s", esp_last_error(NULL));
    assert_int_equal(esp_plan_report_read(plan, &r), ESP_OK);
    assert_int_equal(esp__strategy_json_print("s", esp_plan_text(plan), plan, &json), ESP_OK);
    json_t *root = json_loadb(json.data, json.len, JSON_REJECT_DUPLICATES, &e), *units, *unit;
    assert_non_null(root);
    double iteration_us = json_number_value(json_object_get(json_object_get(root, "predicted"), "iteration_us")),
           last = 0;
    assert_true(iteration_us * 1000.0 == r.iteration_ns);
    units = json_object_get(root, "units");
    assert_int_equal(json_array_size(units), r.n_units);
    size_t i;
    json_array_foreach(units, i, unit) {
        double end = json_number_value(json_object_get(unit, "end_us"));
        assert_true(end > json_number_value(json_object_get(unit, "start_us")));
        if (end > last) last = end;
    }
    assert_true(m.model.forward_ns / 1e3 + last <= iteration_us + 1);
    assert_int_equal(esp__strategy_json_parse("j", json.data, json.len, &text, NULL), ESP_OK);
    assert_string_equal(text.data, esp_plan_text(plan));
    json_decref(root);
    esp__text_free(&json);
    esp__text_free(&text);
    esp_plan_free(plan);
    esp__model_free(&m);
    esp__gc_free(&g);
    esp__system_free(&y);
}

/* ---- where values stand ---------------------------------------------------------------------------------------------------- */
typedef struct growing {
    char text[200000];
    size_t len;
    int line, leaf;
    int lines[20000]; /* of each leaf */
} growing;

static void put_blanks(growing *g) {
    static const char *const blanks[] = {"", "", " ", "\t", "\n", "\r\n", " \n\n "};
    const char *b = blanks[random_next() % 7];
    for (const char *p = b; *p; p++) g->line += *p == '\n';
    g->len += (size_t)sprintf(g->text + g->len, "%s", b);
}

/* Values with numbers as leaves, each number once; keys and other strings are full of what could mislead. */
static void put_value(growing *g, int depth) {
    static const char *const traps[] = {"\\\"",           "{",  "[,",       "\\\\", ":", "\\u00e9",
                                        "\\ud83d\\ude00", "]}", "\xc3\xa9", "\\n",  "a"};
    int kind = depth > 6 || g->len > 150000 ? 0 : (int)(random_next() % 4), n = (int)(random_next() % 5);
    put_blanks(g);
    if (kind < 2) {
        if (random_next() % 4 == 0) {
            g->len +=
                (size_t)sprintf(g->text + g->len, "\"%s%s\"", traps[random_next() % 11], traps[random_next() % 11]);
        } else {
            g->lines[g->leaf] = g->line;
            g->len += (size_t)sprintf(g->text + g->len, "%d", g->leaf++);
        }
    } else {
        g->text[g->len++] = kind == 2 ? '[' : '{';
        for (int i = 0; i < n; i++) {
            if (i) g->text[g->len++] = ',';
            put_blanks(g);
            if (kind == 3) {
                g->len += (size_t)sprintf(g->text + g->len, "\"%s%d%s\"", traps[random_next() % 11], i,
                                          traps[random_next() % 11]);
                put_blanks(g);
                g->text[g->len++] = ':';
            }
            put_value(g, depth + 1);
        }
        put_blanks(g);
        g->text[g->len++] = kind == 2 ? ']' : '}';
    }
    put_blanks(g);
}

static void check_lines(const growing *g, const files_input *in, const files_place *p, int *checked) {
    const char *key;
    json_t *value;
    size_t i;
    if (json_is_integer(p->value)) {
        assert_int_equal(files_place_line(in, p), g->lines[json_integer_value(p->value)]);
        ++*checked;
    }
    if (json_is_object(p->value)) json_object_foreach(p->value, key, value) {
            files_place at = {p, key, 0, value};
            check_lines(g, in, &at, checked);
        }
    json_array_foreach(p->value, i, value) {
        files_place at = {p, NULL, i, value};
        check_lines(g, in, &at, checked);
    }
}

static void every_value_is_found(void **state) {
    (void)state;
    growing *g = malloc(sizeof *g);
    int checked = 0;
    for (int round = 0; round < 400; round++) {
        memset(g, 0, sizeof *g);
        g->line = 1;
        g->text[g->len++] = '[';
        for (int i = 0; i < 4; i++) {
            if (i) g->text[g->len++] = ',';
            put_value(g, 0);
        }
        g->text[g->len++] = ']';
        json_error_t e;
        json_t *root = json_loadb(g->text, g->len, JSON_REJECT_DUPLICATES, &e);
        if (!root) fail_msg("%s in %s", e.text, g->text);
        files_input in = {.name = "f", .text = g->text, .len = g->len, .root = root};
        files_place place = {.value = root};
        check_lines(g, &in, &place, &checked);
        json_decref(root);
    }
    free(g);
    assert_true(checked > 3000);
}

/* ---- files -------------------------------------------------------------------------------------------------------------------- */
static void bad_files_are_named(void **state) {
    (void)state;
    esp__model_file f;
    assert_int_equal(esp__model_read("tests/no-such.json", &f, NULL), ESP_E_NOT_FOUND);
    assert_string_equal(esp_last_error(NULL), "tests/no-such.json: cannot be read: No such file or directory");
    assert_int_equal(esp__model_read("tests", &f, NULL), ESP_E_ARG);
    assert_string_equal(esp_last_error(NULL), "tests: cannot be read: it is a directory: give a file in it");
    assert_int_equal(esp__model_read("/dev/null", &f, NULL), ESP_E_ARG);
    assert_string_equal(esp_last_error(NULL), "/dev/null:1: the file is empty");
    esp__model_free(&f);
    assert_int_equal(parse(GC, "f", NULL, 0, NULL), ESP_E_ARG);
    char path[] = "/tmp/espresso-test-files-XXXXXX";
    int fd = mkstemp(path);
    close(fd);
    if (chmod(path, 0) == 0 && access(path, R_OK) != 0) { /* root may read anything */
        assert_int_equal(esp__model_read(path, &f, NULL), ESP_E_ARG);
        assert_non_null(strstr(esp_last_error(NULL), "Permission denied"));
    }
    unlink(path);
}

static int files_in(const char *dir) {
    int n = 0;
    DIR *d = opendir(dir);
    while (readdir(d)) n++;
    closedir(d);
    return n - 2;
}

static esp_status model_write(const char *path, const esp__model_file *f) {
    esp__text t = {0};
    model_print(f, &t);
    return files_output_text(path, &t);
}
static void files_are_written_whole_or_not(void **state) {
    (void)state;
    char dir[] = "/tmp/espresso-test-files-XXXXXX", path[64], link[64];
    esp__model_file f, again;
    struct stat st;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/m.json", dir);
    snprintf(link, sizeof link, "%s/link.json", dir);
    assert_int_equal(esp__model_read(full[MODEL], &f, NULL), ESP_OK);
    for (int i = 0; i < 2; i++) assert_int_equal(model_write(path, &f), ESP_OK); /* also over itself */
    assert_int_equal(files_in(dir), 1);
    assert_int_equal(symlink("m.json", link), 0);
    assert_int_equal(model_write(link, &f), ESP_OK);
    assert_true(lstat(link, &st) == 0 && S_ISLNK(st.st_mode));
    assert_int_equal(files_in(dir), 2);
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
    assert_int_equal(files_in(dir), 2);
    esp__model_free(&f);
    unlink(path);
    unlink(link);
    assert_int_equal(rmdir(dir), 0);
}

/* ---- many, and any input ---------------------------------------------------------------------------------------------------- */
static void a_million_tensors(void **state) {
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    const int n = 200000; /* several times the memory there */
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
             "f:%d: tensors[%d].name: \"t123456\" is already tensors[123456]: expected each name once", n + 1, n - 1);
    assert_string_equal(esp_last_error(NULL), error);
    free(text);
}

/* Puts, changes, swaps and takes out bytes and whole stretches. */
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

static void any_input_is_survived(void **state) {
    (void)state;
    static const char *const seeds[] = {"tests/fuzz/corpus/model/full.json", "tests/fuzz/corpus/gc/full.json",
                                        "tests/fuzz/corpus/system/full.json", "tests/fuzz/corpus/strategy/full.json",
                                        "tests/fuzz/corpus/strategy/full.strategy"};
    int accepted = 0;
    for (int k = 0; k < 5; k++) {
        size_t len;
        char *seed = slurp(seeds[k], &len), *text = malloc(len + 256);
        for (int i = 0; i < 3000; i++) {
            memcpy(text, seed, len);
            size_t n = mutate(text, len, len + 256);
            accepted += k == MODEL    ? fuzz_model(text, n)
                        : k == GC     ? fuzz_gc(text, n)
                        : k == SYSTEM ? fuzz_system(text, n)
                                      : fuzz_strategy(text, n);
        }
        free(seed);
        free(text);
    }
    assert_in_range(accepted, 100, 10000); /* else the mutations teach nothing */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_model),
        cmocka_unit_test(says_that_a_model_is_noisy),
        cmocka_unit_test(warns_of_noise),
        cmocka_unit_test(reads_a_codec),
        cmocka_unit_test(reads_a_system),
        cmocka_unit_test(reads_published_traces),
        cmocka_unit_test(every_example_comes_back),
        cmocka_unit_test(numbers_lose_nothing),
        cmocka_unit_test(strategy_text_comes_back_byte_by_byte),
        cmocka_unit_test(a_plan_comes_back),
        cmocka_unit_test(every_value_is_found),
        cmocka_unit_test(bad_files_are_named),
        cmocka_unit_test(files_are_written_whole_or_not),
        cmocka_unit_test(a_million_tensors),
        cmocka_unit_test(any_input_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
