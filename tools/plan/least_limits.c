/* least_limits.c: prints the least possible limits if no plan satisfies --max-memory, --max-volume or --max-error. */
#include "tools/plan/plan.h"
#include <math.h>

typedef struct plan_least {
    double memory;        /* bytes per rank */
    double volume, error; /* fractions, as in --max-volume and --max-error */
} plan_least;

/* Adds up the least value that any option of each tensor has. Merging and splitting tensors would change it little. */
static esp_status plan_find_least(const plan_inputs *in, esp__arena *arena, plan_least *out) {
    esp__problem *p = esp__arena_get(arena, sizeof *p);
    double elements = 0;
    const esp_status s = esp__problem_open(p, arena, &in->model, in->codecs, in->n_codecs, &in->system, &in->config, 0);
    memset(out, 0, sizeof *out);
    for (uint32_t t = 0; s == ESP_OK && t < in->model.n_tensors; t++) {
        const esp__extent u = {t, 1, 0, in->model.tensors[t].elements};
        const esp__candidates *candidates = esp__candidates_get(p, &u);
        double least[3] = {INFINITY, INFINITY, INFINITY};
        for (uint32_t i = 0; i < candidates->n; i++) {
            const esp__path *path = &candidates->paths[i];
            const double has[3] = {(double)path->memory, (double)path->volume, path->error};
            for (int k = 0; k < 3; k++) least[k] = has[k] < least[k] ? has[k] : least[k];
        }
        out->memory += least[0];
        out->volume += least[1];
        out->error += least[2];
        elements += (double)u.elements;
    }
    out->volume /= 4 * elements;
    out->error /= elements;
    return s;
}

/* Called when no plan was found. Prints the error and the smallest possible limits. Returns the exit status. */
ESP__FN int plan_print_limits(const plan_inputs *in) {
    const esp_plan_config *c = &in->config;
    tool_fail(in->command, "%s", esp_last_error(NULL));
    if (!c->max_memory_bytes && !(c->max_volume > 0) && !(c->max_error > 0)) return TOOL_FAILED;
    esp__arena *arena = tool_zeroed(sizeof *arena);
    jmp_buf no_memory;
    plan_least least;
    arena->on_failure = &no_memory;
    /* if this fails too, limits are not the cause of the error */
    if (!setjmp(no_memory) && plan_find_least(in, arena, &least) == ESP_OK) {
        if (c->max_memory_bytes)
            fprintf(stderr, "  --max-memory %s: the least that these tensors need is %s a rank\n",
                    tool_bytes((double)c->max_memory_bytes), tool_bytes(least.memory));
        if (c->max_volume > 0)
            fprintf(stderr, "  --max-volume %g: the least that these codecs and options reach is %.4g\n", c->max_volume,
                    least.volume);
        if (c->max_error > 0)
            fprintf(stderr, "  --max-error %g: the least that these codecs and options reach is %.4g\n", c->max_error,
                    least.error);
    }
    esp__arena_free(arena);
    free(arena);
    return TOOL_FAILED;
}
