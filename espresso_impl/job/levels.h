/* levels.h: which ranks take part in a collective. Level 1 is the innermost (the ranks of a machine), level 2 comes
 * next (the machines of a rack, or all machines), and so on. A scope is one level or several neighbouring ones. It
 * divides the job into groups: the ranks of a group differ in these levels only. Scope 0, "flat", is all levels. */
#ifndef ESP__LEVELS_H
#define ESP__LEVELS_H
#include "espresso_impl/base/private.h"

enum { ESP__LEVELS = ESP_LEVELS }; /* most levels of a job */
/* A scope of one level has that level's number. Scopes of several levels have larger numbers. */
enum { ESP__FLAT = 0, ESP__INTRA = 1, ESP__INTER = 2, ESP__OUTER = 3, ESP__SCOPES = 6 };

ESP__FN void esp__scope_levels(uint32_t scope, uint32_t n_levels, uint32_t *first, uint32_t *last);
ESP__FN uint8_t esp__scope_of(uint32_t first, uint32_t last, uint32_t n_levels);
ESP__FN bool esp__scope_exists(uint32_t scope, uint32_t n_levels);
/* A scope's name in strategies, such as "flat", "intra" or, for several levels, "intra-inter". */
ESP__FN const char *esp__scope_word(uint32_t scope);

/* The user's own names of the levels, for messages, such as "gpu", "rack" or, for several levels, "gpu-machine". */
enum { ESP__LEVEL_NAME = 16 };
typedef struct esp__level_names {
    uint32_t n;
    char of[ESP__SCOPES][2 * ESP__LEVEL_NAME];
} esp__level_names;
/* Names the next level; the innermost is first. Returns NULL or an error text. */
ESP__FN const char *esp__level_name_add(esp__level_names *names, const char *name);
/* Returns the user's name of the scope or, if there is none, esp__scope_word. */
ESP__FN const char *esp__scope_name(const esp__level_names *names, uint32_t scope);
#endif
