/* test_params.c checks the errors of codecs for wrong parameters, and the members that every codec's table must
 * have. */
#include "tests/lib/test.h"
#include "conformance.h"
#include "codecs/common/params.h"

static void expect(const char *codec, const char *params, esp_status want, const char *part) {
    const esp_codec *c = cf_find(codec);
    void *self = NULL;
    assert_non_null(c);
    cf_message[0] = 0;
    const esp_status st = c->open(&cf_plain, params, &self);
    if (st != want) fail_msg("%s:%s gives status %d: %s", codec, params, (int)st, cf_message);
    if (st == ESP_OK)
        c->close(self);
    else if (!strstr(cf_message, part) || !strstr(cf_message, codec) || (c->params && !strstr(cf_message, c->params)))
        fail_msg("%s:%s: the message lacks '%s', the codec or its parameters: %s", codec, params, part, cf_message);
    assert_int_equal(cf_live, 0);
}

TEST(missing_and_unknown) {
    for (uint32_t i = 0; cf_nth(i); i++) expect(cf_nth(i)->name, "nosuch=1", ESP_E_ARG, "nosuch");
    expect("none", "ratio=1", ESP_E_ARG, "takes none");
    expect("warmup", "steps=3", ESP_E_ARG, "of= is missing");
}

TEST(values) {
    const char *const bad[] = {"",    "x",    "0",     "-1", "nan", "inf", "0.5x", "0.5 ",
                               "0,5", "1e99", "0x1p2", "1e", ".",   "-",   "1..2", "1e+"};
    char text[64];
    for (size_t i = 0; i < CF_COUNT(bad); i++) {
        (void)snprintf(text, sizeof text, "threshold=%s", bad[i]);
        expect("twobit", text, ESP_E_ARG, "threshold");
        (void)snprintf(text, sizeof text, "ratio=%s", bad[i]);
        expect("topk", text, ESP_E_ARG, "ratio");
        expect("randomk", text, ESP_E_ARG, "ratio");
        expect("dgc", text, ESP_E_ARG, "ratio");
    }
    expect("twobit", "threshold=1e-99", ESP_E_ARG, "threshold");
    expect("topk", "ratio=1.5", ESP_E_ARG, "ratio");
    expect("topk", "ratio=1", ESP_OK, "");
    expect("twobit", "threshold=1e-3", ESP_OK, "");
    expect("inceptionn", "bound=1.5", ESP_E_ARG, "a whole number");
    expect("inceptionn", "bound=0", ESP_OK, "");
}

TEST(numbers) {
    const struct {
        const char *text;
        double value;
    } good[] = {{"0.01", 0.01}, {"1", 1},     {"-2.5", -2.5}, {"1e-3", 1e-3},   {"+.5", .5},
                {"12.", 12},    {"0.3", 0.3}, {"1E2", 100},   {"0.001", 0.001}, {"123456.789", 123456.789}};
    for (size_t i = 0; i < CF_COUNT(good); i++) {
        double x = 0;
        assert_int_equal(esp_params_number(good[i].text, NULL, &x), 1);
        assert_memory_equal(&x, &good[i].value, sizeof x);
    }
}

TEST(tables) {
    for (uint32_t i = 0; cf_nth(i); i++) {
        const esp_codec *c = cf_nth(i);
        assert_int_equal(c->struct_size, sizeof(esp_codec));
        assert_true(c->wire_version > 0 && c->name && c->summary && c->default_option && c->n_rounds >= 1);
        assert_true((c->dtypes & ESP_BIT(ESP_F32)) && (c->devices & ESP_BIT(ESP_CPU)));
        assert_int_equal((c->caps & ESP_CODEC_REDUCIBLE) != 0, c->rounds != NULL && c->rounds[c->n_rounds - 1].op != 0);
    }
}

/* dgc logs that the trainer's momentum must be off, unless the codec's momentum is 0. */
static char said[256];
static void hear(void *user, const esp_log_event *ev) {
    if (ev->level == ESP_LOG_INFO) (void)snprintf(said, sizeof said, "%s", ev->message);
}
TEST(momentum) {
    const esp_host *const plain = &cf_plain;
    esp_host h = *plain;
    void *self = NULL;
    h.log = hear;
    for (int own = 0; own < 2; own++) {
        const esp_codec *c = cf_find("dgc");
        said[0] = 0;
        assert_int_equal(c->open(&h, own ? "momentum=0.8" : "momentum=0", &self), ESP_OK);
        c->close(self);
        assert_int_equal(strstr(said, "a momentum of 0.8 itself: turn the trainer's momentum off") != NULL, own);
        assert_int_equal(said[0] != 0, own);
    }
}
