/* test_trace.c checks the events of the timeline and its file, also if several threads add events at the same time. */
/* runs: tsan */
#include "tests/lib/test.h"
#include "tests/lib/json.h"
#include "espresso_impl/observe/trace.h"

static char path[128], temporary[160];

static int setup(void **state) {
    snprintf(path, sizeof path, "/tmp/test_trace_%d.json", (int)getpid());
    snprintf(temporary, sizeof temporary, "%s.tmp-espresso", path);
    return 0;
}
static int teardown(void **state) {
    unlink(path);
    unlink(temporary);
    return 0;
}

static char *json_of_file(void) {
    char *text = file_text(path);
    const char *end = json_end(text);
    if (!end || *end) fail_msg("not JSON, or more than one value:\n%s", text);
    return text;
}

static void write_ranks(int32_t ranks, esp__trace **traces) {
    esp__trace_file *f;
    assert_int_equal(esp__trace_file_open(NULL, path, &f), ESP_OK);
    for (int32_t r = 0; r < ranks; r++) {
        void *data;
        uint64_t bytes;
        assert_int_equal(esp__trace_pack(NULL, traces[r], &data, &bytes), ESP_OK);
        esp__trace_file_rank(f, r, data, bytes);
        esp__free(NULL, data);
    }
    assert_int_equal(esp__trace_file_close(f), ESP_OK);
}

TEST(test_file, setup, teardown) {
    esp__trace *t[2];
    char *text, label[32] = "comp@cpu \"odd\"\\\n\xc3\xa9\xff";
    for (int i = 0; i < 2; i++) assert_int_equal(esp__trace_open(NULL, 100, &t[i]), ESP_OK);
    esp__trace_add(t[0], ESP__LANE_CPU, label, 3, 7, (esp__span){t[0]->origin_ns + 1500, t[0]->origin_ns + 4001}, 2250,
                   64);
    memset(label, 'x', sizeof label - 1); /* the trace must have copied the label */
    esp__trace_add(t[0], ESP__LANE_COMPUTE, "backward", UINT32_MAX, 7,
                   (esp__span){t[0]->origin_ns, t[0]->origin_ns + 10}, 0, 0);
    esp__trace_add(t[1], ESP__LANE_INTER, "inter.alltoall fc1", 0, 8,
                   (esp__span){t[0]->origin_ns + 1000000, t[0]->origin_ns + 2000000}, 0, 9);
    write_ranks(2, t);
    text = json_of_file();
    assert_int_equal(count_of(text, "\"ph\":\"X\""), 3);
    assert_int_equal(count_of(text, "\"thread_name\""), 8);
    assert_non_null(strstr(text, "\"name\":\"rank 1 (machine 0)\""));
    assert_non_null(strstr(text, "\"ts\":1.500,\"dur\":2.501,\"name\":\"comp@cpu \\\"odd\\\"\\\\\\n\xc3\xa9\\ufffd\""));
    assert_non_null(strstr(text, "\"args\":{\"step\":7,\"tensor\":3,\"core_us\":2.250,\"bytes\":64}"));
    assert_non_null(strstr(text, "\"args\":{\"step\":7,\"bytes\":0}"));
    assert_non_null(strstr(text, "\"ts\":1000.000,\"dur\":1000.000"));
    assert_true(access(temporary, F_OK) != 0);
    free(text);
    for (int i = 0; i < 2; i++) esp__trace_free(NULL, t[i]);
}

enum { THREADS = 4, EACH = 3000, DISTINCT = 700 };
static void *adder(void *arg) {
    esp__trace *t = (esp__trace *)arg;
    for (uint64_t i = 0; i < EACH; i++) {
        char label[32];
        snprintf(label, sizeof label, "op %d", (int)(i % DISTINCT));
        esp__trace_add(t, ESP__LANE_CPU, label, (uint32_t)(i % DISTINCT), i, (esp__span){i, i + 1}, 0, 0);
    }
    return NULL;
}

TEST(test_threads_lose_nothing) {
    esp__trace *t;
    int seen[DISTINCT] = {0};
    assert_int_equal(esp__trace_open(NULL, THREADS * EACH, &t), ESP_OK);
    run_threads(THREADS, adder, t, 0);
    assert_int_equal(atomic_load(&t->n), THREADS * EACH);
    for (int i = 0; i < THREADS * EACH; i++) {
        char label[32];
        snprintf(label, sizeof label, "op %u", (unsigned)t->events[i].tensor);
        assert_string_equal(t->labels[t->events[i].label].text, label);
        seen[t->events[i].tensor]++;
    }
    for (int i = 0; i < DISTINCT; i++) assert_int_equal(seen[i], THREADS * (EACH / DISTINCT + (i < EACH % DISTINCT)));
    esp__trace_free(NULL, t);
}

TEST(test_full_trace_and_full_label_table, setup, teardown) {
    esp__trace *t;
    char *text;
    assert_int_equal(esp__trace_open(NULL, 5000, &t), ESP_OK);
    for (uint64_t i = 0; i < 5010; i++) {
        char label[300];
        snprintf(label, sizeof label, "%d %0250d", (int)i, 7); /* labels all differ, and are too long */
        esp__trace_add(t, ESP__LANE_CPU, label, 0, i, (esp__span){t->origin_ns, t->origin_ns}, 0, 0);
    }
    write_ranks(1, &t);
    text = json_of_file();
    assert_int_equal(count_of(text, "\"ph\":\"X\""), 5000);
    assert_true(count_of(text, "\"name\":\"op\"") > 0);
    free(text);
    esp__trace_free(NULL, t);
}

TEST(test_unwritable_path_is_said_at_once, setup, teardown) {
    esp__trace_file *f;
    assert_int_equal(esp__trace_file_open(NULL, "/no/such/dir/t.json", &f), ESP_E_ARG);
    assert_non_null(strstr(esp_last_error(NULL), "/no/such/dir/t.json"));
    assert_null(f);
    assert_int_equal(esp__trace_file_open(NULL, "/tmp", &f), ESP_E_ARG);
    assert_non_null(strstr(esp_last_error(NULL), "directory"));
    /* no file is created until there are events */
    assert_int_equal(esp__trace_file_open(NULL, path, &f), ESP_OK);
    assert_true(access(temporary, F_OK) != 0);
    assert_int_equal(esp__trace_file_close(f), ESP_OK);
    assert_true(access(path, F_OK) != 0);
}

TEST(test_damaged_events_are_left_out, setup, teardown) {
    esp__trace_file *f;
    esp__trace *t;
    void *data;
    uint64_t bytes;
    char *text;
    assert_int_equal(esp__trace_open(NULL, 10, &t), ESP_OK);
    esp__trace_add(t, 99, "a", 0, 0, (esp__span){0, 0}, 0, 0);
    assert_int_equal(esp__trace_pack(NULL, t, &data, &bytes), ESP_OK);
    assert_int_equal(esp__trace_file_open(NULL, path, &f), ESP_OK);
    esp__trace_file_rank(f, 0, data, bytes);
    for (uint64_t cut = 1; cut < bytes; cut += 997) esp__trace_file_rank(f, 1, data, bytes - cut);
    ((esp__trace_head *)data)->n_events = UINT64_MAX / 2;
    esp__trace_file_rank(f, 1, data, bytes);
    assert_int_equal(esp__trace_file_close(f), ESP_OK);
    text = json_of_file();
    assert_int_equal(count_of(text, "\"ph\":\"X\""), 1);
    free(text);
    esp__free(NULL, data);
    esp__trace_free(NULL, t);
}
