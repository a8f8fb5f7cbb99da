/* json.h finds the end of a JSON value, for tests of files that contain JSON. */
#ifndef TEST_JSON_H
#define TEST_JSON_H
#include <jansson.h>
#include <string.h>

/* Returns what follows the JSON array or object at the beginning of `text`, after white space. Returns NULL if the text
 * does not begin with one. */
static inline const char *json_end(const char *text) {
    json_error_t e;
    json_t *value = json_loads(text, JSON_DISABLE_EOF_CHECK, &e);
    if (!value) return NULL;
    json_decref(value);
    text += e.position;
    return text + strspn(text, " \t\r\n");
}
#endif
