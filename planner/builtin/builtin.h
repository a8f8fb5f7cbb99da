/* builtin.h: known systems, and costs of codecs on known accelerators, so that planning needs no files with
 * measurements. */
#ifndef ESP__BUILTIN_H
#define ESP__BUILTIN_H
#include "espresso_impl/codec/codec.h"
#include "planner/plan.h"

/* ---- systems.c ------------------------------------------------------------------------------------------ */
typedef struct esp__known_system {
    esp_plan_system system;
    const char *accelerator; /* such as "V100"; NULL if training runs on CPUs */
    uint32_t cpu_workers;
    const char *source;
} esp__known_system;
/* Returns the i-th system, in the order of display, or NULL after the last. */
ESP__FN const esp__known_system *esp__known_system_at(uint32_t i);
ESP__FN const esp__known_system *esp__known_system_find(const char *name);
/* Returns the machines, links and costs of the built-in system of this name, or NULL, without an error text. */
ESP__FN const esp_plan_system *esp__builtin_system(const char *name);

/* ---- known_costs.c -------------------------------------------------------------------------------------- */
/* What a codec costs. It must not be moved or copied, because `codec` points to its other members and into the
 * context's codec. */
typedef struct esp__costs {
    esp_plan_codec codec;
    char spec[ESP__SPEC_MAX];
    esp_cost_point points[2][2][17]; /* [0: CPU, 1: GPU][0: compress, 1: decompress] */
    esp_cost_point vector_points[2][2][17];
} esp__costs;
/* Returns the name of the i-th known accelerator, or NULL after the last. */
ESP__FN const char *esp__known_accelerator_at(uint32_t i);
/* Computes the costs of `spec` on the machines of `system`, from the codec's own description or from published times on
 * a V100 GPU (v100.c). `accelerator` is the GPU of the ranks; if NULL, that of the built-in system with the same name.
 * Errors: ESP_E_NOT_FOUND (unknown codec), ESP_E_ARG (unknown accelerator or wrong parameter), ESP_E_UNSUPPORTED (the
 * codec does not describe its costs). */
ESP__FN esp_status esp__builtin_costs(esp_ctx *ctx, const char *spec, const esp_plan_system *system,
                                      const char *accelerator, esp__costs *out);
/* Like esp__builtin_costs, but without a system. `accelerator` is NULL if there is no GPU. `cpu_workers` is the number
 * of threads that compress on the CPU, or 0 for a typical number. `copied` is how many bytes a core copies in a
 * microsecond, which reads and writes as many, or 0 for a typical number. */
ESP__FN esp_status esp__builtin_costs_for(esp_ctx *ctx, const char *spec, const char *accelerator, uint32_t cpu_workers,
                                          double copied, esp__costs *out);

/* ---- safety.c -------------------------------------------------------------------------------------------- */
/* How a codec affects the loss if training uses a given optimizer. */
typedef struct esp__effect {
    /* Steps to the same loss, relative to fp32; 1 if the codec is safe or nothing is known. */
    double slower;
    /* What a user can expect, such as "a loss within 1% of fp32's"; NULL if the optimizer is unknown. */
    const char *loss;
} esp__effect;
/* Returns the effect of a codec. `error` is its measured compression error, which counts if the codec declares none. */
ESP__FN const esp__effect *esp__safety(const esp__codec *c, double error, uint32_t optimizer, double momentum);
/* Whether the codec changes every number only a little. */
ESP__FN int esp__safety_rounds(const esp__codec *c, double error);
#endif
