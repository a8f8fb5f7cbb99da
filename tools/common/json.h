/* json.h: builds JSON values with the library jansson. All functions end the command if memory runs out. */
#ifndef ESPRESSO_TOOLS_JSON_H
#define ESPRESSO_TOOLS_JSON_H
#include "tools/common/args.h"
#include <jansson.h>

/* Adds a value, to an object if `key` is not NULL, and else to an array. Returns the value. */
ESP__FN json_t *json_add(json_t *to, const char *key, json_t *value);
/* These add a text (null for NULL), a number (null for NaN and infinity), and nanoseconds as microseconds. */
ESP__FN void json_text(json_t *to, const char *key, const char *value);
ESP__FN void json_double(json_t *to, const char *key, double value);
ESP__FN void json_us(json_t *to, const char *key, double ns);
/* Prints the object on standard output, and frees it. Returns the exit status. */
ESP__FN int json_print(json_t *object);
#endif
