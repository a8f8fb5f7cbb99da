/* builtin.h: systems and codec costs that the planner knows by name, so that a plan needs no files. The same data as
 * files: planner/files/write_builtin.c writes them. Must not know how plans are made. */
#ifndef ESP__BUILTIN_H
#define ESP__BUILTIN_H
#include "planner/plan.h"

/* ---- systems.c ------------------------------------------------------------------------------------------ */
/* A system and what is said of it beyond what the planner needs. */
typedef struct esp__known_system {
    esp_plan_system system;
    const char *accelerator; /* "V100"; NULL: it trains on CPUs         */
    uint32_t cpu_workers;    /* threads that compress, a machine         */
    const char *source;      /* where the figures are from               */
} esp__known_system;
/* The i-th, in the order in which they are shown; NULL behind the last. */
ESP__FN const esp__known_system *esp__known_system_at(uint32_t i);
ESP__FN const esp__known_system *esp__known_system_find(const char *name);
/* The same, where only the system itself is wanted. NULL, and no error, where there is none of that name. */
ESP__FN const esp_plan_system *esp__builtin_system(const char *name);
ESP__FN const esp_plan_system *esp__builtin_system_at(uint32_t i);

/* ---- costs.c -------------------------------------------------------------------------------------------- */
/* What a codec costs. The curves' points are in here: it must not be moved or copied while `codec` is in use. */
typedef struct esp__costs {
    esp_plan_codec codec; /* for esp_plan_make                                                            */
    const char *source;   /* where the figures are from; says "estimate" where nobody measured them       */
    char spec[ESP__SPEC_MAX];
    esp_cost_point points[2][2][17]; /* by device; compress, decompress */
} esp__costs;
/* The costs of `spec` on `system`'s machines. accelerator: what its ranks compute on; NULL: what the built-in system of
 * that name has, else none. ESP_E_ARG for an unknown codec, a wrong parameter, or an accelerator that is not known. */
ESP__FN esp_status esp__builtin_costs(const char *spec, const esp_plan_system *system, const char *accelerator,
                                      esp__costs *out);
/* The same for a kind of machine. accelerator NULL: none; cpu_workers 0: as many as a common server has. */
ESP__FN esp_status esp__builtin_costs_for(const char *spec, const char *accelerator, uint32_t cpu_workers,
                                          esp__costs *out);
/* |decoded - input|^2 / |input|^2 of a codec, for inputs from a normal distribution; -1: nothing is known of it. */
ESP__FN double esp__builtin_error(const char *spec);
/* The i-th codec's name; NULL behind the last. */
ESP__FN const char *esp__builtin_codec_at(uint32_t i);
#endif
