/* json.h: adds values to JSON objects and arrays of jansson, and prints them. Ends the command without memory. */
#ifndef ESPRESSO_TOOLS_JSON_H
#define ESPRESSO_TOOLS_JSON_H
#include "tools/common/args.h"
#include <jansson.h>

/* Adds a value, in an array with a NULL key. Returns the value. */
ESP__FN json_t *json_add(json_t *to, const char *key, json_t *value);
ESP__FN void json_text(json_t *to, const char *key, const char *value); /* NULL becomes null */
ESP__FN void json_double(json_t *to, const char *key, double value);    /* NaN and infinity become null */
ESP__FN void json_us(json_t *to, const char *key, double ns);           /* in microseconds */
/* Prints the object on standard output, and frees it. Returns the exit status. */
ESP__FN int json_print(const tool_command *c, json_t *object);
#endif
