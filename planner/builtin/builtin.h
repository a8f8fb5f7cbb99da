/* builtin.h: systems known by name, and what a codec costs by its own model, so that a plan needs no files.
 * planner/files/write_builtin.c writes the systems to files. Must not know how plans are made. */
#ifndef ESP__BUILTIN_H
#define ESP__BUILTIN_H
#include "espresso_impl/codec/codec.h"
#include "planner/plan.h"

/* ---- systems.c ------------------------------------------------------------------------------------------ */
/* A system, with facts that the planner does not need. */
typedef struct esp__known_system {
    esp_plan_system system;
    const char *accelerator; /* "V100"; NULL if it trains on CPUs */
    uint32_t cpu_workers;    /* threads per machine that compress */
    const char *source;      /* where its numbers come from */
} esp__known_system;
/* The i-th system, in the order of display; NULL after the last. */
ESP__FN const esp__known_system *esp__known_system_at(uint32_t i);
ESP__FN const esp__known_system *esp__known_system_find(const char *name);
/* Only what the planner needs of it; NULL, without an error, if no system has that name. */
ESP__FN const esp_plan_system *esp__builtin_system(const char *name);

/* ---- costs.c -------------------------------------------------------------------------------------------- */
/* What a codec costs. Must not be moved or copied, because `codec` points into it. `codec` also points to the codec
 * that the context has open. */
typedef struct esp__costs {
    esp_plan_codec codec; /* for esp_plan_make */
    char spec[ESP__SPEC_MAX];
    esp_cost_point points[2][2][17]; /* [device][0: compress, 1: decompress] */
    esp_cost_point vector_points[2][17];
} esp__costs;
/* The costs of `spec` on `system`'s machines: as the codec describes itself, or as they were published (v100.c).
 * accelerator: the GPU on which its ranks compute; NULL: that of the built-in system with the system's name, if any.
 * Errors: ESP_E_NOT_FOUND (unknown codec), ESP_E_ARG (unknown accelerator or wrong parameter), ESP_E_UNSUPPORTED (the
 * codec does not describe its costs). */
ESP__FN esp_status esp__builtin_costs(esp_ctx *ctx, const char *spec, const esp_plan_system *system,
                                      const char *accelerator, esp__costs *out);
/* The same for a kind of machine. accelerator may be NULL (none); cpu_workers may be 0 (as many as a common server
 * has). */
ESP__FN esp_status esp__builtin_costs_for(esp_ctx *ctx, const char *spec, const char *accelerator, uint32_t cpu_workers,
                                          esp__costs *out);
#endif
