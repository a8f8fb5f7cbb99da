/* json.h: adds values to jansson's objects and arrays, and prints these. Where memory is short the command ends with an error. */
#ifndef ESPRESSO_TOOLS_JSON_H
#define ESPRESSO_TOOLS_JSON_H
#include "tools/common/args.h"
#include <jansson.h>

/* `key` is NULL in an array. Returns the value. */
ESP__FN json_t *json_add(json_t *to, const char *key, json_t *value);
ESP__FN void json_text(json_t *to, const char *key, const char *value); /* value NULL: null */
ESP__FN void json_double(json_t *to, const char *key, double value);    /* NaN and infinity, which JSON lacks: null */
ESP__FN void json_us(json_t *to, const char *key, double ns); /* in microseconds, the unit of keys that end in _us */
/* Prints the object on standard output, and frees it. Returns the exit status. */
ESP__FN int json_print(const tool_command *c, json_t *object);
#endif
