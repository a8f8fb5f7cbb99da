/* test_stats.c checks the statistics of a running job: their JSON lines and Prometheus format, and that errors with a
 * file do not affect the job. */
/* runs: quiet tsan */
#include "tests/lib/test.h"
#include <jansson.h>

/* ---- a job that writes statistics -------------------------------------------------------------------------------- */
enum { RANKS = 2 };
typedef struct training {
    int steps;
    int change_at; /* step before which the strategy changes, or 0 */
    int sampled;
    bool unused;      /* no rank pushes tensor 1 */
    const char *move; /* file that is renamed after the steps, or NULL */
    const char *stats;
    int came_back;
    esp_status started[RANKS], ended[RANKS];
    char error[RANKS][1024];
    uint64_t hash[2];
    long allocations[2];
} training;

static long allocations;
static char heard[8192];
static pthread_mutex_t heard_lock = PTHREAD_MUTEX_INITIALIZER;
static void hear(void *user, const esp_log_event *ev) {
    if (ev->level > ESP_LOG_WARN || strcmp(ev->component, "stats") != 0) return;
    pthread_mutex_lock(&heard_lock);
    strncat(heard, ev->message, sizeof heard - strlen(heard) - 2);
    strcat(heard, "\n");
    pthread_mutex_unlock(&heard_lock);
}
static void *count_alloc(void *user, esp_device d, uint64_t bytes, uint64_t align) {
    char thread[16] = "";
    pthread_getname_np(pthread_self(), thread, sizeof thread);
    if (strcmp(thread, "espresso-stats") != 0) /* does not count the thread that writes the files */
        __atomic_fetch_add(&allocations, 1, __ATOMIC_RELAXED);
    return test_host_alloc(user, d, bytes, align);
}

static const char *const names[] = {"b\"ack\\slash", "fc1.w\xc3\xa9ight", "bad\xffutf8"};

/* Waits until a thread of the library has written the file. Returns 0 after a time limit. */
static int waited_for(const char *path) {
    for (int i = 0; i < 2000; i++) {
        struct stat st;
        if (stat(path, &st) == 0 && st.st_size > 0) return 1;
        usleep(5000);
    }
    return 0;
}

static void train(esp_ctx *ctx, void *user) {
    training *t = user;
    static const esp_stream here;
    float grad[3][256];
    const int rank = esp_rank(ctx);
    for (int i = 0; i < 3; i++) {
        esp_tensor_desc d;
        memset(&d, 0, sizeof d);
        d.name = names[i];
        d.count = 256;
        esp_tensor_add(ctx, &d, NULL);
    }
    t->started[rank] = esp_start(ctx);
    snprintf(t->error[rank], sizeof t->error[rank], "%s", esp_last_error(ctx));
    if (t->started[rank]) return;
    if (rank == 0) t->hash[0] = ctx->active.strategy.hash;
    memset(grad, 0, sizeof grad);
    for (int k = 0; k < t->steps; k++) {
        if (t->change_at && k == t->change_at) t->ended[rank] = esp_strategy_set(ctx, "fp32");
        if (k == 1 && rank == 0) t->allocations[0] = __atomic_load_n(&allocations, __ATOMIC_RELAXED);
        for (uint32_t i = 0; i < 3; i++) {
            if (t->unused && i == 1)
                t->ended[rank] = esp_push_zero(ctx, i, grad[i], here);
            else
                esp_push(ctx, i, grad[i], here);
        }
        if (t->sampled && esp_report_loss(ctx, 2.5)) t->ended[rank] = -1;
        if (esp_wait_all(ctx)) t->ended[rank] = -1;
        if (t->sampled && rank == 0)
            ctx->model.tensors[0].sampled = (esp_tensor_stats){0, (uint32_t)t->sampled, 0.25, 1.5};
    }
    if (rank == 0) t->allocations[1] = __atomic_load_n(&allocations, __ATOMIC_RELAXED);
    if (rank == 0) t->hash[1] = ctx->active.strategy.hash;
    if (t->move && rank == 0) {
        char to[256];
        snprintf(to, sizeof to, "%s.old", t->move);
        t->came_back = waited_for(t->move) && rename(t->move, to) == 0 && waited_for(t->move);
    }
}

static void run(training *t, const char *stats, const char *codec) {
    static const esp_host host = {
        .struct_size = sizeof host, .log = hear, .alloc = count_alloc, .free_ = test_host_free};
    *heard = 0;
    test_run(&(test_job){.size = RANKS,
                         .per_machine = 1,
                         .body = train,
                         .user = t,
                         .config.host = &host,
                         .config.stats = stats,
                         .config.codec = codec});
}

static void finished(const training *t) {
    for (int r = 0; r < RANKS; r++) {
        if (t->started[r]) fail_msg("rank %d: %s", r, t->error[r]);
        assert_int_equal(t->ended[r], ESP_OK);
    }
}

/* ---- JSON lines -------------------------------------------------------------------------------------------------- */
static json_t *lines_of(const char *path) {
    char *text = file_text(path);
    json_t *list = json_array();
    assert_non_null(text);
    for (char *at = text; *at;) {
        char *end = strchr(at, '\n');
        json_error_t e;
        assert_non_null(end); /* every line is complete */
        json_t *line = json_loadb(at, (size_t)(end - at), JSON_REJECT_DUPLICATES, &e);
        if (!line) fail_msg("%s in: %.*s", e.text, (int)(end - at), at);
        json_array_append_new(list, line);
        at = end + 1;
    }
    free(text);
    return list;
}
static const char *kind(json_t *line) { return json_string_value(json_object_get(line, "kind")); }
static double number(json_t *line, const char *key) { return json_number_value(json_object_get(line, key)); }

/* The numbers of steps and bytes in the file must add up to those of the whole job. */
TEST(lines_add_up, folder_make, folder_remove) {
    training t = {.steps = 40};
    char spec[512];
    const char *path = in_folder("a.jsonl");
    snprintf(spec, sizeof spec, "%s,every=10ms", path);
    run(&t, spec, NULL);
    finished(&t);
    json_t *list = lines_of(path), *line, *last = NULL;
    size_t i, n = json_array_size(list);
    double steps = 0, bytes = 0;
    assert_true(n >= 4);
    assert_string_equal(kind(json_array_get(list, 0)), "header");
    assert_string_equal(kind(json_array_get(list, 1)), "strategy");
    assert_string_equal(kind(json_array_get(list, n - 1)), "end");
    json_array_foreach(list, i, line) {
        if (strcmp(kind(line), "sample") != 0) continue;
        double part = number(line, "steps");
        steps += part;
        bytes += part * number(json_object_get(line, "step_bytes"), "inter");
        assert_true(number(line, "step") == steps);
        assert_true((json_object_get(line, "step_us") != NULL) == (part > 0));
        json_t *us = json_object_get(line, "step_us");
        if (us && !(number(us, "median") <= number(us, "p90") && number(us, "median") > 0 && number(us, "mean") > 0))
            fail_msg("sample at step %g, %g steps: median %g, p90 %g, mean %g us", steps, part, number(us, "median"),
                     number(us, "p90"), number(us, "mean"));
        last = line;
    }
    assert_true(steps == 40);
    assert_true(bytes > 0 && bytes - number(json_object_get(last, "bytes"), "inter") < 1 &&
                number(json_object_get(last, "bytes"), "inter") - bytes < 1);
    json_decref(list);
}

TEST(the_header_tells_the_job, folder_make, folder_remove) {
    training t = {.steps = 3, .sampled = 2};
    run(&t, in_folder("a.jsonl"), "dgc:ratio=0.1");
    finished(&t);
    json_t *list = lines_of(in_folder("a.jsonl")), *header = json_array_get(list, 0),
           *strategy = json_array_get(list, 1), *sample = json_array_get(list, 2), *tensors;
    char hash[32];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)t.hash[0]);
    assert_true(number(header, "ranks") == RANKS && number(header, "machines") == RANKS && number(header, "rank") == 0);
    assert_true(number(header, "every_s") == 1);
    assert_string_equal(json_string_value(json_object_get(header, "backend")), "loop");
    assert_string_equal(json_string_value(json_object_get(header, "strategy")), hash);
    tensors = json_object_get(header, "tensors");
    assert_int_equal(json_array_size(tensors), 3);
    assert_string_equal(json_string_value(json_object_get(json_array_get(tensors, 0), "name")), names[0]);
    assert_string_equal(json_string_value(json_object_get(json_array_get(tensors, 2), "name")), "bad\xef\xbf\xbdutf8");
    assert_true(number(json_array_get(tensors, 1), "elements") == 256);
    assert_true(number(strategy, "units") == 3 && number(strategy, "compressed_units") == 3);
    assert_string_equal(json_string_value(json_array_get(json_object_get(strategy, "codecs"), 0)), "dgc:ratio=0.1");
    assert_non_null(strstr(json_string_value(json_object_get(strategy, "text")), "espresso-strategy 1\n"));
    /* the file has errors only for tensors that have been sampled */
    tensors = json_object_get(sample, "tensors");
    assert_true(json_array_size(tensors) >= 1);
    assert_true(number(json_array_get(tensors, 0), "error") == 0.25);
    assert_true(number(json_array_get(tensors, 0), "feedback") == 1.5 &&
                number(json_array_get(tensors, 0), "samples") == 2);
    assert_true(number(sample, "loss") == 2.5);
    json_decref(list);
}

TEST(a_change_of_strategy_is_a_line, folder_make, folder_remove) {
    training t = {.steps = 6, .change_at = 4};
    run(&t, in_folder("a.jsonl"), "dgc:ratio=0.1");
    finished(&t);
    assert_true(t.hash[0] != t.hash[1]);
    json_t *list = lines_of(in_folder("a.jsonl")), *line, *last = NULL;
    size_t i;
    json_array_foreach(list, i, line) if (!strcmp(kind(line), "strategy")) last = line;
    char hash[32];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)t.hash[1]);
    assert_string_equal(json_string_value(json_object_get(last, "strategy")), hash);
    assert_true(number(last, "step") == 4 && number(last, "compressed_units") == 0);
    assert_null(json_object_get(json_array_get(list, 2), "loss"));
    json_decref(list);
}

/* A second job appends to the file of a first one, whose last line was truncated. */
TEST(a_file_is_continued, folder_make, folder_remove) {
    training t = {.steps = 2};
    FILE *f = fopen(in_folder("a.jsonl"), "w");
    fputs("{\"kind\":\"header\"}\n{\"kind\":\"sam", f);
    fclose(f);
    run(&t, in_folder("a.jsonl"), NULL);
    finished(&t);
    char *text = file_text(in_folder("a.jsonl"));
    const char *begins = "{\"kind\":\"header\"}\n{\"kind\":\"sam\n{\"kind\":\"header\",";
    assert_int_equal(strncmp(text, begins, strlen(begins)), 0);
    free(text);
}

TEST(every_rank_writes_with_its_number, folder_make, folder_remove) {
    training t = {.steps = 2};
    char spec[512];
    snprintf(spec, sizeof spec, "%s,%s", in_folder("a%r.jsonl"), in_folder("only.jsonl"));
    run(&t, spec, NULL);
    finished(&t);
    char *a = file_text(in_folder("a0.jsonl")), *b = file_text(in_folder("a1.jsonl")),
         *only = file_text(in_folder("only.jsonl"));
    assert_true(a && b && only);
    assert_int_equal(count_of(a, "\"rank\":0,"), 1);
    assert_int_equal(count_of(b, "\"rank\":1,"), 1);
    assert_int_equal(count_of(only, "\"kind\":\"end\""), 1);
    free(a), free(b), free(only);
}

TEST(unpushed_tensors_are_named, folder_make, folder_remove) {
    training t = {.steps = 3, .unused = true};
    run(&t, in_folder("a%r.jsonl"), NULL);
    finished(&t);
    char line[200];
    snprintf(line, sizeof line, "\"unpushed\":[\"%s\"]", names[1]);
    for (int r = 0; r < RANKS; r++) {
        char *text = file_text(in_folder(r ? "a1.jsonl" : "a0.jsonl"));
        assert_non_null(text);
        assert_true(count_of(text, line) > 0);
        assert_int_equal(count_of(text, line), count_of(text, "\"unpushed\""));
        free(text);
    }
}

/* If the file is renamed, as by logrotate, a new file is written, and begins with a header. */
TEST(a_moved_file_begins_anew, folder_make, folder_remove) {
    char spec[512], path[256];
    snprintf(path, sizeof path, "%s", in_folder("a.jsonl"));
    training t = {.steps = 2, .move = path};
    snprintf(spec, sizeof spec, "%s,every=10ms", path);
    run(&t, spec, NULL);
    finished(&t);
    assert_true(t.came_back);
    char *text = file_text(path);
    assert_int_equal(strncmp(text, "{\"kind\":\"header\",", 17), 0);
    assert_int_equal(count_of(text, "\"kind\":\"strategy\""), 1);
    free(text);
}

/* ---- Prometheus -------------------------------------------------------------------------------------------------- */
static int is_name(const char *p, const char *end) {
    for (const char *c = p; c < end; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || *c == '_' || *c == ':' ||
              (c > p && *c >= '0' && *c <= '9')))
            return 0;
    return end > p;
}

/* Returns the end of labels such as {a="b",c="d"}, or NULL if they are malformed. */
static const char *labels_end(const char *p) {
    for (p++; *p != '}';) {
        const char *eq = strchr(p, '=');
        if (!eq || !is_name(p, eq) || eq[1] != '"') return NULL;
        for (p = eq + 2; *p != '"'; p++) {
            if (*p == '\n' || !*p) return NULL;
            if (*p == '\\' && !strchr("\\\"n", *++p)) return NULL;
        }
        p++;
        if (*p == ',') p++;
    }
    return p + 1;
}

/* Checks the format's rules: a sample belongs to the family whose TYPE came last, families and series come once,
 * counters end in _total, every line ends. */
static void check_prometheus(const char *text) {
    char family[128] = "", type[32] = "", seen[64][128];
    int n_seen = 0;
    assert_true(*text && text[strlen(text) - 1] == '\n');
    for (const char *line = text, *next; *line; line = next) {
        const char *end = strchr(line, '\n'), *p = line;
        next = end + 1;
        if (!strncmp(line, "# HELP ", 7)) continue;
        if (!strncmp(line, "# TYPE ", 7)) {
            assert_int_equal(sscanf(line, "# TYPE %127s %31s", family, type), 2);
            for (int i = 0; i < n_seen; i++) assert_string_not_equal(seen[i], family);
            assert_true(n_seen < 64);
            strcpy(seen[n_seen++], family);
            assert_true(!strcmp(type, "counter") || !strcmp(type, "gauge") || !strcmp(type, "summary"));
            if (!strcmp(type, "counter")) assert_string_equal(family + strlen(family) - 6, "_total");
            continue;
        }
        p += strcspn(p, "{ ");
        assert_true(is_name(line, p));
        size_t len = (size_t)(p - line);
        int summary = !strcmp(type, "summary") &&
                      (!strncmp(line + strlen(family), "_sum{", 5) || !strncmp(line + strlen(family), "_count{", 7));
        if (strncmp(line, family, strlen(family)) != 0 || (len != strlen(family) && !summary))
            fail_msg("not of the family %s: %.*s", family, (int)(end - line), line);
        if (*p == '{') p = labels_end(p);
        if (!p || *p != ' ') fail_msg("labels: %.*s", (int)(end - line), line);
        char *stop;
        strtod(p + 1, &stop);
        if (stop != end || stop == p + 1) fail_msg("no number: %.*s", (int)(end - line), line);
        char series[1024];
        snprintf(series, sizeof series, "\n%.*s", (int)(p + 1 - line), line);
        assert_int_equal(count_of(text, series), 1);
    }
}

TEST(prometheus_reads_it, folder_make, folder_remove) {
    training t = {.steps = 5, .sampled = 1};
    run(&t, in_folder("a.prom"), "dgc:ratio=0.1");
    finished(&t);
    char *text = file_text(in_folder("a.prom"));
    assert_non_null(text);
    check_prometheus(text);
    assert_non_null(strstr(text, "\nespresso_steps_total{rank=\"0\"} 5\n"));
    assert_non_null(strstr(text, "\nespresso_step_seconds_count{rank=\"0\"} 5\n"));
    assert_non_null(strstr(text, "\nespresso_running{rank=\"0\"} 0\n"));
    assert_non_null(strstr(text, "espresso_bytes_total{rank=\"0\",level=\"inter\"} "));
    assert_non_null(strstr(text, "espresso_compression_error{rank=\"0\",tensor=\"b\\\"ack\\\\slash\"} 0.25\n"));
    assert_non_null(strstr(text, "espresso_feedback_ratio{rank=\"0\",tensor=\"b\\\"ack\\\\slash\"} 1.5\n"));
    free(text);
    char command[256];
    snprintf(command, sizeof command, "test \"$(ls -A '%s')\" = a.prom", in_folder(""));
    assert_int_equal(system(command), 0);
}

/* ---- mistakes ---- */
TEST(a_file_error_is_said_once, folder_make, folder_remove) {
    static const char *const paths[] = {"/no/such/folder/a.jsonl", "/no/such/folder/a.prom", "/tmp", "/dev/full"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        training t = {.steps = 20};
        char spec[256];
        snprintf(spec, sizeof spec, "%s,every=10ms", paths[i]);
        run(&t, spec, NULL);
        finished(&t);
        if (count_of(heard, "cannot be written") != 1) fail_msg("%s: %s", paths[i], heard);
        assert_non_null(strstr(heard, "Training continues"));
    }
}

/* A pipe that nobody reads neither blocks nor ends the job. */
TEST(nobody_reads_the_pipe, folder_make, folder_remove) {
    training t = {.steps = 20};
    char spec[256];
    assert_int_equal(mkfifo(in_folder("pipe"), 0600), 0);
    snprintf(spec, sizeof spec, "%s,every=10ms", in_folder("pipe"));
    run(&t, spec, NULL);
    finished(&t);
}

TEST(steps_take_no_memory, folder_make, folder_remove) {
    training t = {.steps = 50};
    char spec[512];
    snprintf(spec, sizeof spec, "%s,%s,every=10ms", in_folder("a%r.jsonl"), in_folder("a.prom"));
    run(&t, spec, NULL);
    finished(&t);
    assert_int_equal(t.allocations[0], t.allocations[1]);
}

TEST(wrong_words_are_refused, folder_make, folder_remove) {
    static const struct {
        const char *spec, *says;
    } cases[] = {{"/tmp/a,every=0", "every=0: write a time"},
                 {"/tmp/a,every=1h", "every=1h: write a time"},
                 {"/tmp/a,every=-1s", "every=-1s"},
                 {"/tmp/a,every=nan", "every=nan"},
                 {"/tmp/a,evry=1s", "'evry=1s' is not known: there is every=1s"},
                 {"every=1s", "no file is named"},
                 {",", "no file is named"},
                 {"a,b,c,d,e,f,g,h,i", "at most 8 files"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        training t = {.steps = 1};
        run(&t, cases[i].spec, NULL);
        assert_int_equal(t.started[0], ESP_E_ARG);
        if (!strstr(t.error[0], cases[i].says)) fail_msg("%s: %s", cases[i].spec, t.error[0]);
    }
}
