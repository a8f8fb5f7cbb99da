/* json.h: JSON text that is written piece by piece. */
#ifndef ESPRESSO_TOOLS_JSON_H
#define ESPRESSO_TOOLS_JSON_H
#include "espresso.h"
#include "espresso_impl/base/text.h"

typedef struct tool_json {
    esp__text text;
    int more; /* this object or array has a value already: the next one needs a comma */
    int depth;
} tool_json;

/* `key` is NULL in an array; `bracket` is '{' or '['. */
ESP__FN void json_open(tool_json *j, const char *key, char bracket);
ESP__FN void json_close(tool_json *j, char bracket);
ESP__FN void json_text(tool_json *j, const char *key, const char *value); /* value NULL: null */
ESP__FN void json_number(tool_json *j, const char *key, double value);    /* NaN and infinity, which JSON lacks: null */
ESP__FN void json_bool(tool_json *j, const char *key, int value);
ESP__FN void json_us(tool_json *j, const char *key, double ns); /* in microseconds, the unit of keys that end in _us */
#endif
