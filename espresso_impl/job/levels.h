/* levels.h: which ranks take part in a collective. A job has levels: 1 is the innermost (the ranks of a machine), 2
 * comes next (the machines of a rack, or all machines), and so on. A scope is a run of neighbouring levels. It divides
 * the job into groups: the ranks of a group differ in these levels only. Scope 0, "flat", is all levels. */
#ifndef ESP__LEVELS_H
#define ESP__LEVELS_H
#include "espresso_impl/base/private.h"

enum { ESP__LEVELS = ESP_LEVELS }; /* most levels of a job */
/* A scope of one level has the level's number; scopes of several levels follow. */
enum { ESP__FLAT = 0, ESP__INTRA = 1, ESP__INTER = 2, ESP__OUTER = 3, ESP__SCOPES = 6 };

/* The first and last level of a scope in a job of n_levels. */
ESP__FN void esp__scope_levels(uint32_t scope, uint32_t n_levels, uint32_t *first, uint32_t *last);
/* The scope of levels `first` to `last` in a job of n_levels. */
ESP__FN uint8_t esp__scope_of(uint32_t first, uint32_t last, uint32_t n_levels);
ESP__FN bool esp__scope_exists(uint32_t scope, uint32_t n_levels);
/* A scope's word in strategies: "flat", "intra", "inter", "outer"; of several levels: "intra-inter". */
ESP__FN const char *esp__scope_word(uint32_t scope);

/* The user's own names of a job's levels, for messages: "gpu", "machine", "rack"; of several levels "gpu-machine". */
enum { ESP__LEVEL_NAME = 16 }; /* bytes of a name, with the NUL */
typedef struct esp__level_names {
    uint32_t n; /* 0, or all of the job's levels */
    char of[ESP__SCOPES][2 * ESP__LEVEL_NAME];
} esp__level_names;
/* Names the next level, from the innermost outwards. Returns NULL or an error text. */
ESP__FN const char *esp__level_name_add(esp__level_names *names, const char *name);
/* The scope's name or, if it has none, its word. */
ESP__FN const char *esp__scope_name(const esp__level_names *names, uint32_t scope);
#endif
