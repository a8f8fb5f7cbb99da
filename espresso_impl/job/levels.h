/* levels.h: who takes part in a collective. A job has levels, numbered from 1, the innermost (the ranks of one machine), outwards
 * (machines, racks). A *scope* is a run of neighbouring levels: each of its groups has the ranks that differ in these levels only.
 * The scope of all levels is number 0, "flat". Knows no ranks. */
#ifndef ESP__LEVELS_H
#define ESP__LEVELS_H
#include "espresso_impl/base/private.h"

enum { ESP__LEVELS = ESP_LEVELS }; /* most levels of a job */
/* Scopes of one level have the level's number; those of several levels follow. */
enum { ESP__FLAT = 0, ESP__INTRA = 1, ESP__INTER = 2, ESP__OUTER = 3, ESP__SCOPES = 6 };

/* The levels of a scope in a job of n_levels: *first to *last. */
ESP__FN void esp__scope_levels(uint32_t scope, uint32_t n_levels, uint32_t *first, uint32_t *last);
/* The scope of levels first to last in a job of n_levels. */
ESP__FN uint8_t esp__scope_of(uint32_t first, uint32_t last, uint32_t n_levels);
/* 1: a job of n_levels has the scope. */
ESP__FN int esp__scope_exists(uint32_t scope, uint32_t n_levels);
/* "flat", "intra", "inter", "outer"; of several levels: "intra-inter". Strategies are written with these words. */
ESP__FN const char *esp__scope_word(uint32_t scope);

/* The names that a user gives to a job's levels, for people to read: "gpu", "machine", "rack"; of several levels "gpu-machine". */
enum { ESP__LEVEL_NAME = 16 }; /* bytes of one, with the NUL */
typedef struct esp__level_names {
    uint32_t n; /* levels that have one: all or, 0, none */
    char of[ESP__SCOPES][2 * ESP__LEVEL_NAME];
} esp__level_names;
/* Gives the next level, from the innermost outwards, a name. Returns NULL, or what is wrong with it. */
ESP__FN const char *esp__level_name_add(esp__level_names *names, const char *name);
/* The scope's name, or its word. */
ESP__FN const char *esp__scope_name(const esp__level_names *names, uint32_t scope);
#endif
