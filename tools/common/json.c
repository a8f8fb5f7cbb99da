/* json.c: writes JSON to a text, piece by piece: this file puts commas and brackets, the library's json.h the strings.
 * Must not know what is written. */
#include "tools/common/json.h"
#include "espresso_impl/base/json.h"
#include <math.h>

/* Writes what comes before a value: a comma and the key. `key` is NULL in an array. */
static void json_key(tool_json *j, const char *key) {
    if (j->depth) esp__text_add(&j->text, "%s\n%*s", j->more ? "," : "", 2 * j->depth, "");
    if (key) {
        esp__json_string(&j->text, key);
        esp__text_add(&j->text, ": ");
    }
    j->more = 1;
}

ESP__FN void json_open(tool_json *j, const char *key, char bracket) {
    json_key(j, key);
    esp__text_add(&j->text, "%c", bracket);
    j->depth++;
    j->more = 0;
}
ESP__FN void json_close(tool_json *j, char bracket) {
    j->depth--;
    if (j->more) esp__text_add(&j->text, "\n%*s", 2 * j->depth, "");
    esp__text_add(&j->text, "%c%s", bracket, j->depth ? "" : "\n");
    j->more = 1;
}

ESP__FN void json_text(tool_json *j, const char *key, const char *value) {
    json_key(j, key);
    if (value)
        esp__json_string(&j->text, value);
    else
        esp__text_add(&j->text, "null");
}

/* Writes whole numbers without a fraction. */
ESP__FN void json_number(tool_json *j, const char *key, double value) {
    json_key(j, key);
    if (!isfinite(value))
        esp__text_add(&j->text, "null");
    else if (fabs(value) < 1e15 && floor(value) == value)
        esp__text_add(&j->text, "%.0f", value);
    else
        esp__text_add(&j->text, "%.15g", value);
}

ESP__FN void json_bool(tool_json *j, const char *key, int value) {
    json_key(j, key);
    esp__text_add(&j->text, value ? "true" : "false");
}

ESP__FN void json_us(tool_json *j, const char *key, double ns) { json_number(j, key, ns / 1000); }
