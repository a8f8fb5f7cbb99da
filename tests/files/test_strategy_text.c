/* test_strategy_text.c: a strategy's text has one reader: the library, the planner and the JSON form take the same texts and
 * say the same of the others. Every form of a text is given to all three. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "tests/common/library.h"

static const char *const names[] = {"a", "b", "c"};
static const uint64_t counts[] = {1000, 2000, 3000};
#define HEAD "espresso-strategy 1\n"
#define FLAT " none flat.allreduce\n"
#define A "tensor a 1000" FLAT
#define B "tensor b 2000" FLAT
#define C "tensor c 3000" FLAT

static esp_ctx *ctx;

static int open_job(void **state) {
    esp_config cfg = ESP_ZERO;
    (void)state;
    cfg.size = 1;
    cfg.backend = "loop";
    if (esp_open(&cfg, &ctx)) return -1;
    for (int i = 0; i < 3; i++) {
        esp_tensor_desc d = ESP_ZERO;
        d.name = names[i], d.count = counts[i];
        if (esp_tensor_add(ctx, &d, NULL)) return -1;
    }
    return esp_start(ctx);
}
static int close_job(void **state) {
    (void)state;
    esp_close(ctx);
    return 0;
}

enum { LIBRARY, PLANNER, JSON, READERS };
static const char *const readers[] = {"library", "planner", "JSON"};

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

/* The error of one reader, or "". */
static esp_status give(int reader, const char *text, char *said, size_t cap) {
    esp__text json = {0};
    esp_status s = reader == LIBRARY   ? esp_strategy_set(ctx, text)
                   : reader == PLANNER ? planner(text)
                                       : esp__strategy_json_print("strategy", text, NULL, &json);
    snprintf(said, cap, "%s", s ? esp_last_error(reader == LIBRARY ? ctx : NULL) : "");
    esp__text_free(&json);
    return s;
}

/* ---- refused --------------------------------------------------------------------------------------------------------- */
static void all_say_the_same(void **state) {
    (void)state;
    static const char *const texts[] = {
        "fp31\n",
        "espresso-strategy 2\n" A B C,
        HEAD "tensor a\n" B C,
        HEAD "tensor a 1000 none\n" B C,
        HEAD "tensor a +1000" FLAT B C,
        HEAD "tensor a 18446744073709552616" FLAT B C, /* 1000 to a reader that wraps around */
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
            char *number = strstr(said[r], "all 3 tensors"); /* JSON knows of no model */
            if (number) memmove(number + 4, number + 6, strlen(number + 6) + 1);
        }
        for (int r = 1; r < READERS; r++)
            if (strcmp(said[0], said[r]) != 0)
                fail_msg("text %zu: library: %s\n%s: %s", i, said[0], readers[r], said[r]);
    }
}

/* ---- taken ------------------------------------------------------------------------------------------------------------ */
static void all_take_the_same(void **state) {
    (void)state;
    char order[8192], many[65536] = HEAD, said[1024];
    size_t n = (size_t)snprintf(many, sizeof many, HEAD "tensor a 1000 split 1000\n");
    size_t m = (size_t)snprintf(order, sizeof order, "order");
    for (int i = 0; i < 1000; i++) {
        n += (size_t)snprintf(many + n, sizeof many - n, "chunk 1" FLAT);
        m += (size_t)snprintf(order + m, sizeof order - m, " %d:0", i); /* one line of over 5000 bytes */
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
        for (int r = 0; r < READERS; r++) {
            if (r == JSON && strchr(texts[i], 1)) { /* JSON has no place for that, and says so */
                assert_int_equal(give(r, texts[i], said, sizeof said), ESP_E_ARG);
                assert_string_equal(said, "strategy:2: there is a control character in the comment: leave it out");
            } else if (give(r, texts[i], said, sizeof said)) {
                fail_msg("text %zu: the %s says %s", i, readers[r], said);
            }
        }
}

/* What only a model can contradict is the same in the library and in the planner. */
static void models_differ_alike(void **state) {
    (void)state;
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

/* The limits: names of 1000 bytes, 2^58 elements, and JSON that says the same of them. */
static void limits(void **state) {
    (void)state;
    char name[1002], text[2048];
    memset(name, 'n', sizeof name);
    for (int over = 0; over < 2; over++) {
        esp__text json = {0}, back = {0};
        name[1000] = over ? 'n' : 0;
        name[1001] = 0;
        snprintf(text, sizeof text, HEAD "tensor %s 288230376151711743" FLAT "tensor z %d" FLAT, name, 1);
        assert_int_equal(esp__strategy_json_print("s", text, NULL, &json), over ? ESP_E_ARG : ESP_OK);
        if (over) {
            assert_non_null(strstr(esp_last_error(NULL), "it is too long"));
            continue;
        }
        assert_int_equal(esp__strategy_json_parse("j", json.data, json.len, &back, NULL), ESP_OK);
        assert_string_equal(back.data, text);
        esp__text_free(&json);
        esp__text_free(&back);
    }
    snprintf(text, sizeof text, HEAD "tensor n 288230376151711743" FLAT "tensor z 2" FLAT);
    esp__text json = {0};
    assert_int_equal(esp__strategy_json_print("s", text, NULL, &json), ESP_E_ARG);
    assert_non_null(strstr(esp_last_error(NULL), "s:3: tensor 'z' with 2 elements: expected"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_say_the_same),
        cmocka_unit_test(all_take_the_same),
        cmocka_unit_test(models_differ_alike),
        cmocka_unit_test(limits),
    };
    return cmocka_run_group_tests(tests, open_job, close_job);
}
