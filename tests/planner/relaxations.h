/* relaxations.h makes pairs of planning problems, `tight` and `loose`. `loose` permits more or is faster, so its
 * optimum is no longer, and the plan that the planner finds for it should not be longer either. */
#ifndef TESTS_PLANNER_RELAXATIONS_H
#define TESTS_PLANNER_RELAXATIONS_H

enum { RELAX_CODECS = 3, RELAX_POINTS = 4096 };
typedef struct relax_input {
    esp_plan_model model;
    esp_plan_codec codecs[RELAX_CODECS];
    uint32_t n_codecs;
    esp_plan_system system;
    esp_plan_config config;
} relax_input;

enum {
    RELAX_UNITS = 0,
    RELAX_COMPRESSION,
    RELAX_CODEC,
    RELAX_DEVICE,
    RELAX_OPTIONS,
    RELAX_SIZES,
    RELAX_VOLUME,
    RELAX_LINK,
    RELAX_CODEC_SPEED,
    RELAX_KINDS
};
static const char *const relax_names[RELAX_KINDS] = {"tensors may be merged and split",
                                                     "tensors may be compressed",
                                                     "a codec more",
                                                     "a device more",
                                                     "no option is forbidden",
                                                     "small tensors too may be compressed",
                                                     "no limit of volume",
                                                     "a faster link",
                                                     "faster codecs"};

static esp_cost_point relax_points[RELAX_POINTS];
static uint32_t relax_used;
static void relax_curve(esp_cost_curve *c, double factor) {
    if (!c->n || relax_used + c->n > RELAX_POINTS) return;
    esp_cost_point *points = &relax_points[relax_used];
    for (uint32_t i = 0; i < c->n; i++) points[i] = (esp_cost_point){c->points[i].size, c->points[i].ns * factor};
    c->points = points;
    relax_used += c->n;
}

/* Makes the pair that `kind` selects from `in`. It is valid until the next call. Returns 0 if `in` does not allow such
 * a pair. */
static int relax(uint32_t kind, const relax_input *in, relax_input *tight, relax_input *loose) {
    static const char *const forbid[] = {"inter.alltoall", "flat.allgather"};
    *tight = *loose = *in;
    relax_used = 0;
    switch (kind) {
    case RELAX_UNITS: tight->config.flags |= ESP_PLAN_NO_MERGE | ESP_PLAN_NO_SPLIT; break;
    case RELAX_COMPRESSION: tight->config.flags |= ESP_PLAN_NO_COMP; break;
    case RELAX_CODEC: return tight->n_codecs-- > 1;
    case RELAX_DEVICE:
        tight->config.devices = 1u << ESP_ON_GPU;
        return in->system.devices == (1u << ESP_ON_CPU | 1u << ESP_ON_GPU);
    case RELAX_OPTIONS: tight->config.forbid = forbid, tight->config.n_forbid = 2; break;
    case RELAX_SIZES: tight->config.min_compress_elements = 4096; break;
    case RELAX_VOLUME: tight->config.max_volume = 0.5; break;
    case RELAX_LINK: loose->system.inter.bytes_per_us *= 1.5, loose->system.inter.alpha_ns *= 0.8; break;
    case RELAX_CODEC_SPEED:
        for (uint32_t c = 0; c < loose->n_codecs; c++)
            for (int d = 0; d < 2; d++) {
                esp_plan_codec *k = &loose->codecs[c];
                relax_curve(&k->compress[d], 0.7), relax_curve(&k->decompress[d], 0.7);
                relax_curve(&k->decompress_more[d], 0.7);
                relax_curve(&k->vector_compress[d], 0.7), relax_curve(&k->vector_decompress[d], 0.7);
            }
        break;
    default: return 0;
    }
    return 1;
}

/* Returns by how much the loose problem's plan is longer, in %. Returns a negative number if it is shorter, or if the
 * tight problem has no plan within its limits. */
static double relax_longer(const relax_input *tight, const relax_input *loose) {
    double step[2];
    for (int k = 0; k < 2; k++) {
        const relax_input *in = k ? loose : tight;
        esp_plan_config config = in->config;
        esp_plan_report r = {.struct_size = sizeof r};
        esp_plan *plan;
        config.flags |= ESP_PLAN_NO_BOUND;
        if (esp_plan_make(&in->model, in->codecs, in->n_codecs, &in->system, &config, &plan)) return -100.0;
        esp_plan_report_read(plan, &r);
        esp_plan_free(plan);
        step[k] = r.iteration_ns;
    }
    return 100.0 * (step[1] / step[0] - 1.0);
}

typedef struct relax_count {
    uint32_t n, longer;
    double most;
} relax_count;
static void relax_add(relax_count *c, double longer) {
    c->n++;
    c->longer += longer > 1e-6;
    if (longer > c->most) c->most = longer;
}
#endif
