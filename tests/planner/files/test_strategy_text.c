/* test_strategy_text.c checks that the library and the planner accept the same strategy texts and report the same
 * errors for others. */
/* runs: no-tsan: it has only one rank at a time */
#include "tests/lib/test.h"

static const char *const names[] = {"a", "b", "c"};
static const uint64_t counts[] = {1000, 2000, 3000};
#define HEAD "espresso-strategy 1\n"
#define FLAT " none flat.allreduce\n"
#define A "tensor a 1000" FLAT
#define B "tensor b 2000" FLAT
#define C "tensor c 3000" FLAT

static esp_ctx *ctx;

static int open_job(void **state) {
    esp_config cfg = {.size = 1, .backend = "loop"};
    if (esp_open(&cfg, &ctx)) return -1;
    for (int i = 0; i < 3; i++) {
        esp_tensor_desc d = {.name = names[i], .count = counts[i]};
        if (esp_tensor_add(ctx, &d, NULL)) return -1;
    }
    return esp_start(ctx);
}
static int close_job(void **state) {
    esp_close(ctx);
    return 0;
}

enum { LIBRARY, PLANNER, READERS };
static const char *const readers[] = {"library", "planner"};

static esp_status planner(const char *text) {
    esp_plan_tensor tensors[3];
    for (int i = 0; i < 3; i++) tensors[i] = (esp_plan_tensor){names[i], counts[i], 5000, .keep = NULL};
    const esp_plan_model model = {.n_tensors = 3, .name = "abc", .tensors = tensors};
    const esp_plan_system system = {
        .machines = 2, .ranks_per_machine = 1, .devices = 1, .name = "two", .inter = {.bytes_per_us = 1000}};
    const esp_plan_config config = {.flags = ESP_PLAN_NO_BOUND};
    esp_plan *plan;
    esp_status s = esp_plan_simulate(&model, NULL, 0, &system, &config, text, &plan);
    esp_plan_free(plan);
    return s;
}

/* Gives the text to the library or the planner, and copies its error text, or "", to `said`. */
static esp_status give(int reader, const char *text, char *said, size_t cap) {
    esp_status s = reader == LIBRARY ? esp_strategy_set(ctx, text) : planner(text);
    snprintf(said, cap, "%s", s ? esp_last_error(reader == LIBRARY ? ctx : NULL) : "");
    return s;
}

/* ---- refused ---- */
TEST(all_say_the_same) {
    static const char *const texts[] = {
        "fp31\n",
        "espresso-strategy 2\n" A B C,
        HEAD "tensor a\n" B C,
        HEAD "tensor a 1000 none\n" B C,
        HEAD "tensor a +1000" FLAT B C,
        HEAD "tensor a 18446744073709552616" FLAT B C, /* 2^64 + 1000 must not overflow to 1000 */
        HEAD "tensor a 1000 split 1\n",
        HEAD "tensor a 1000 split 1001\n",
        HEAD "tensor a 1000 split 2 3\n",
        HEAD "tensor a 1000 split 2\nchunk 600" FLAT B C,
        HEAD "tensor a 1000 split 2\nchunk 600" FLAT "chunk 399" FLAT B C,
        HEAD "tensor a 1000 split 2\nchunk 1000" FLAT "chunk 0" FLAT B C,
        HEAD "tensor a 1000 split 2\nchunk 18446744073709551615" FLAT,
        HEAD "tensor a 1000 split 2\nchunk 600" FLAT,
        HEAD A "chunk 2000" FLAT,
        HEAD A "group 2000" FLAT,
        HEAD "tensor a 1000 group\ngroup 1000" FLAT B C,
        HEAD "tensor a 1000 group\n" B C,
        HEAD "tensor a 1000 group x\n" B C,
        HEAD "tensor a 1000 split x flat.allreduce\n" B C,
        HEAD "tensor a 1000 group\ntensor b 2000 group\ngroup 2999" FLAT C,
        HEAD A "tensor b 2000 group\ntensor c 3000 group\n",
        HEAD A B C "group 6000" FLAT,
        HEAD A B C "nonsense\n",
        HEAD A B C "order 0:0 1:0 7:0 2:0\n",
        HEAD A B C "order 0:0 1:0 -1:0 2:0\n",
        HEAD A B C "order 0:0 1:0 2:18\n",
        HEAD A B C "order 0:0 1:0 2:0x\n",
        HEAD A B C "order 0:0 1:0 2:0dd\n",
        HEAD A B C "order 0:0 1:0 2:\n",
        HEAD A B C "order bb\n",
        HEAD A "tensor b\v 2000" FLAT C,
        HEAD "tensor a 1000 group flat.allreduce\n" B C,
        HEAD "order b\n" A B C,
        HEAD "tensor a 1000 group\ntensor b 2000 group\norder b\n",
        HEAD A "tensor b 2000 none flat.allredoce\n" C,
        HEAD A "tensor b 2000 none flat.allreduce +\n" C,
        HEAD A "tensor b 2000 none +1\n" C,
        HEAD "tensor a 1000 group\ntensor b 2000 group +1\ngroup 3000" FLAT C,
        HEAD "tensor a 1000 split 2 +1\nchunk 600" FLAT "chunk 400" FLAT B C,
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char said[READERS][1024];
        for (int r = 0; r < READERS; r++) {
            if (give(r, texts[i], said[r], sizeof said[r]) != ESP_E_ARG)
                fail_msg("text %zu: taken by the %s, or another error: %s", i, readers[r], said[r]);
        }
        if (strcmp(said[LIBRARY], said[PLANNER]) != 0)
            fail_msg("text %zu: library: %s\nplanner: %s", i, said[LIBRARY], said[PLANNER]);
    }
}

/* ---- taken ---- */
TEST(all_take_the_same) {
    char order[8192], many[65536] = HEAD, said[1024];
    size_t n = (size_t)snprintf(many, sizeof many, HEAD "tensor a 1000 split 1000\n");
    size_t m = (size_t)snprintf(order, sizeof order, "order");
    for (int i = 0; i < 1000; i++) {
        n += (size_t)snprintf(many + n, sizeof many - n, "chunk 1" FLAT);
        m += (size_t)snprintf(order + m, sizeof order - m, " %d:0", i);
    }
    snprintf(many + n, sizeof many - n, B C "%s 1000:0 1001:0\n", order);
    const char *const texts[] = {
        HEAD A B C,
        HEAD A B C "order 0:0 1:0 2:0",
        "\n# a comment first\n  espresso-strategy 1  # and one here\r\n\t" A "\r\n" B "\n \n" C,
        HEAD "# \x01\n" A "tensor\tb 0002000\tnone \t flat.allreduce\n" C,
        HEAD A B C "order b 00:0\norder b 1:0 b\n#\norder 2:0\n",
        HEAD "tensor a 1000 group\ntensor b 2000 group\ngroup 3000" FLAT C,
        many,
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int r = 0; r < READERS; r++)
            if (give(r, texts[i], said, sizeof said)) fail_msg("text %zu: the %s says %s", i, readers[r], said);
}

/* If text and model contradict each other, the library and the planner report the same errors. */
TEST(models_differ_alike) {
    static const char *const texts[] = {
        HEAD A B,
        HEAD B A C,
        HEAD A B C "tensor d 1" FLAT,
        HEAD "tensor a 999" FLAT B C,
        HEAD A B C "order 0:0 1:0\n",
        HEAD A B C "order 0:0 1:0 1:0 2:0\n",
        HEAD "tensor a 1000 none flat.reduce_scatter > flat.allgather\n" B C "order 0:1 0:0 1:0 2:0\n",
        HEAD A B C "order 0:0d 0:0 1:0 2:0\n",
        HEAD A B C "order 0:0 0:p 1:0 2:0\n",
        HEAD A B C "order 0:0 1:1 2:0\n",
        HEAD A B C "order b 0:0 1:0 b 2:0\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char said[2][1024];
        for (int r = LIBRARY; r <= PLANNER; r++)
            if (give(r, texts[i], said[r], sizeof said[r]) != ESP_E_ARG)
                fail_msg("text %zu: taken by the %s, or another error: %s", i, readers[r], said[r]);
        assert_string_equal(said[LIBRARY], said[PLANNER]);
    }
}

static esp_status read_alone(const char *text) {
    const esp__strategy_lines none = {.user = NULL};
    char *words = strdup(text);
    esp_status s = esp__strategy_read(NULL, "s", words, NULL, &none);
    free(words);
    return s;
}

TEST(errors_name_the_line) {
    static const struct {
        const char *text, *error;
    } rows[] = {
        {"", "s:1: expected 'espresso-strategy 1' in the first line: this is no strategy file"},
        {"espresso-strategy 2\n", "s:1: expected 'espresso-strategy 1' in the first line: this is no strategy file"},
        {"espresso-strategy 1\n", "s:1: expected at least one 'tensor' line"},
        {"espresso-strategy 1\ntensor a 0 none flat.allreduce",
         "s:2: tensor 'a' with 0 elements: expected at least one element, and in all tensors at most 2^58; and at most "
         "16777216 tensors"},
        {"espresso-strategy 1\ntensor a 5 none",
         "s:2: expected 'tensor NAME ELEMENTS CODEC OPTION' (or split N, or group)"},
        {"espresso-strategy 1\ntensor a 5 split 1\nchunk 5 none flat.allreduce",
         "s:2: tensor 'a': 'split 1': expected a number of chunks from 2 to its 5 elements"},
        {"espresso-strategy 1\ntensor a 5 split 2\nchunk 5 none flat.allreduce",
         "s:3: tensor 'a' has no elements left after chunk 1 of 2"},
        {"espresso-strategy 1\ntensor a 5 split 2\nchunk 3 none flat.allreduce\nchunk 1 none flat.allreduce",
         "s:4: the chunks of tensor 'a' add up to 4 elements with this one, but it has 5"},
        {"espresso-strategy 1\ntensor a 5 split 2\nchunk 3 none flat.allreduce\n",
         "s:3: the text ends after 1 of 2 chunks of tensor 'a'"},
        {"espresso-strategy 1\ntensor a 5 group\ngroup 5 none flat.allreduce\n",
         "s:3: tensor 'a' is alone in its group: expected at least two 'tensor NAME ELEMENTS group' lines before it, "
         "or "
         "'tensor a 5 CODEC OPTION' without a group"},
        {"espresso-strategy 1\ntensor a 5 group\ntensor b 5 group\ngroup 9 none flat.allreduce\n",
         "s:4: the group has 9 elements, but its 2 tensors add up to 10"},
        {"espresso-strategy 1\ntensor a 5 group\ntensor b 5 none flat.allreduce\n",
         "s:3: the group of tensor 'a' is not closed: expected 'group ELEMENTS CODEC OPTION', or another 'tensor NAME "
         "ELEMENTS group'"},
        {"espresso-strategy 1\ntensor a 5 group\ntensor b 5 group\n",
         "s:3: the text ends before the group of tensor 'b' is closed: expected 'group ELEMENTS CODEC OPTION'"},
        {"espresso-strategy 1\ntensor a 5 none flat.allreduce\norder b 1:0",
         "s:3: order: '1:0' names no collective or other op; expected UNIT:STAGE, both from 0, or b, UNIT:STAGEd, "
         "UNIT:STAGEu, UNIT:p, UNIT:u"},
        {"espresso-strategy 1\nsensor a 5 none flat.allreduce",
         "s:2: 'sensor': expected 'tensor', 'chunk', 'group' or 'order'"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(read_alone(rows[i].text), ESP_E_ARG);
        assert_string_equal(esp_last_error(NULL), rows[i].error);
    }
}

/* Names have at most 1000 bytes, tensors at most 2^58 elements. */
TEST(limits) {
    char name[1002] = "", text[2048];
    memset(name, 'n', 1000);
    snprintf(text, sizeof text, HEAD "tensor %s 288230376151711743" FLAT "tensor z 1" FLAT, name);
    assert_int_equal(read_alone(text), ESP_OK);
    name[1000] = 'n';
    snprintf(text, sizeof text, HEAD "tensor %s 1" FLAT, name);
    assert_int_equal(read_alone(text), ESP_E_ARG);
    assert_non_null(strstr(esp_last_error(NULL), "it is too long"));
    assert_int_equal(read_alone(HEAD "tensor n 288230376151711743" FLAT "tensor z 2" FLAT), ESP_E_ARG);
    assert_non_null(strstr(esp_last_error(NULL), "s:3: tensor 'z' with 2 elements: expected"));
}

TEST_GROUP(open_job, close_job)
