/* json.h: adds values to JSON objects and arrays of jansson. All functions end the command if memory runs out. */
#ifndef ESPRESSO_TOOLS_JSON_H
#define ESPRESSO_TOOLS_JSON_H
#include "tools/common/args.h"
#include <jansson.h>

/* Adds a value, to an object if `key` is not NULL, and else to an array. Returns the value. */
ESP__FN json_t *json_add(json_t *to, const char *key, json_t *value);
ESP__FN void json_text(json_t *to, const char *key, const char *value); /* adds null if value is NULL */
ESP__FN void json_double(json_t *to, const char *key, double value);    /* adds null for NaN or infinity */
ESP__FN void json_us(json_t *to, const char *key, double ns);           /* adds ns as microseconds */
/* Prints the object on standard output, and frees it. Returns the exit status. */
ESP__FN int json_print(json_t *object);
#endif
