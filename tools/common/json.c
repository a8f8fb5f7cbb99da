/* json.c: adds values to JSON objects and arrays with the library jansson, and prints them. */
#include "tools/common/json.h"
#include <errno.h>
#include <math.h>

ESP__FN json_t *json_add(json_t *to, const char *key, json_t *value) {
    if ((key ? json_object_set_new(to, key, value) : json_array_append_new(to, value)) == 0) return value;
    fputs("espresso: out of memory\n", stderr);
    exit(TOOL_FAILED);
}

ESP__FN void json_text(json_t *to, const char *key, const char *value) {
    json_t *text = value ? json_string(value) : json_null();
    json_add(to, key, text ? text : json_string("(not UTF-8)"));
}

ESP__FN void json_double(json_t *to, const char *key, double value) {
    const int whole = fabs(value) < 1e15 && floor(value) == value;
    json_add(to, key, !isfinite(value) ? json_null() : whole ? json_integer((json_int_t)value) : json_real(value));
}

ESP__FN void json_us(json_t *to, const char *key, double ns) { json_double(to, key, ns / 1000); }

ESP__FN int json_print(json_t *object) {
    const int failed = json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) || puts("") < 0;
    json_decref(object);
    return failed ? TOOL_FAILED : TOOL_OK;
}
