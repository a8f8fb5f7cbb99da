/* put.c: writes lines of JSON to a text. Knows nothing of what they mean. */
#include "espresso_impl/base/json.h"

static void files_put_number(esp__text *t, double x) { esp__json_scaled(t, x, 1.0); }
static void files_put_us(esp__text *t, double ns) { esp__json_scaled(t, ns, 1000.0); }

/* Adds the line `indent`"key": "text",; nothing if text is NULL. */
static void files_put_text_line(esp__text *t, const char *indent, const char *key, const char *text) {
    if (!text) return;
    esp__text_add(t, "%s\"%s\": ", indent, key);
    esp__json_string(t, text);
    esp__text_add(t, ",\n");
}

static void files_put_us_line(esp__text *t, const char *indent, const char *key, double ns) {
    esp__text_add(t, "%s\"%s\": ", indent, key);
    files_put_us(t, ns);
    esp__text_add(t, ",\n");
}

/* Ends the last line without its comma. */
static void files_put_no_comma(esp__text *t) {
    if (!t->failed && t->len >= 2 && !strcmp(t->data + t->len - 2, ",\n")) t->len -= 2, t->data[t->len] = 0;
    esp__text_add(t, "\n");
}

/* Writes the text to `path` and frees it. */
static esp_status files_output_text(const char *path, esp__text *t) {
    esp_status s = t->failed ? esp__fail(NULL, ESP_E_NOMEM, "%s: out of memory", path)
                             : esp__output_write(path, t->data ? t->data : "", t->len);
    esp__text_free(t);
    return s;
}
