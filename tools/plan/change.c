/* change.c: changes a plan's inputs by texts such as "inter=2x": links or codecs faster or slower, more or fewer
 * machines. Must not know what the changed inputs are for. */

enum {
    CHANGE_INTER,
    CHANGE_INTRA,
    CHANGE_LATENCY,
    CHANGE_HOST,
    CHANGE_MACHINES,
    CHANGE_RANKS,
    CHANGE_CODEC,
    CHANGE_COMPUTE
};
static const char *const change_names[] = {"inter", "intra", "latency", "host", "machines",
                                           "ranks", "codec", "compute", NULL};
static const char change_help[] =
    "inter (or nic), intra, latency, host, codec and compute take a factor: 2x is twice as fast, 0.5x half;\n"
    "inter, intra and host a bandwidth as well: 25gbit, 12.5GB/s; machines and ranks (of a machine) a number or a "
    "factor";

/* Changed inputs. Owns the memory of the copied parts; the rest belongs to the original inputs. */
typedef struct plan_changed {
    plan_inputs in;
    esp_plan_tensor *tensors;
    esp_cost_point *points; /* points of all copied curves, one curve after the other */
    size_t n_points, room;
} plan_changed;

/* Copies the curve, `factor` times as fast. */
static void change_curve(plan_changed *c, esp_cost_curve *curve, double factor) {
    esp_cost_point *to = c->points + c->n_points;
    for (uint32_t i = 0; i < curve->n; i++)
        to[i] = (esp_cost_point){curve->points[i].size, curve->points[i].ns / factor};
    c->n_points += curve->n;
    curve->points = curve->n ? to : NULL;
}

/* Takes memory for copies of every curve, once for each of `changes`. */
static void change_room(plan_changed *c, size_t changes) {
    size_t n = 1;
    const esp_plan_link *links[] = {&c->in.system.intra, &c->in.system.inter, &c->in.system.flat};
    for (int l = 0; l < 3; l++)
        for (int k = 0; k < ESP_PLAN_COLLS; k++) n += links[l]->table[k].n;
    for (uint32_t i = 0; i < c->in.n_codecs; i++)
        for (int d = 0; d < 2; d++) n += c->in.codecs[i].compress[d].n + c->in.codecs[i].decompress[d].n;
    c->points = tool_realloc(NULL, n * changes * sizeof *c->points);
    c->tensors = tool_realloc(NULL, c->in.model.n_tensors * sizeof *c->tensors);
    memcpy(c->tensors, c->in.model.tensors, c->in.model.n_tensors * sizeof *c->tensors);
    c->in.model.tensors = c->tensors;
}

/* A table's times include both latency and bandwidth, which cannot be separated: all of the time is scaled. */
static void change_tables(plan_changed *c, esp_plan_link *l, double factor) {
    for (int k = 0; k < ESP_PLAN_COLLS; k++) change_curve(c, &l->table[k], factor);
}

static void change_apply(plan_changed *c, int what, double factor) {
    esp_plan_system *s = &c->in.system;
    switch (what) {
    case CHANGE_INTER:
        s->inter.bytes_per_us *= factor;
        change_tables(c, &s->inter, factor);
        if (s->machines > 1) change_tables(c, &s->flat, factor); /* flat collectives are bound by the NIC */
        break;
    case CHANGE_INTRA:
        s->intra.bytes_per_us *= factor;
        change_tables(c, &s->intra, factor);
        if (s->machines == 1) change_tables(c, &s->flat, factor);
        break;
    case CHANGE_LATENCY: s->intra.alpha_ns /= factor, s->inter.alpha_ns /= factor; break;
    case CHANGE_HOST: s->host_bytes_per_us *= factor; break;
    case CHANGE_CODEC:
        for (uint32_t i = 0; i < c->in.n_codecs; i++)
            for (int d = 0; d < 2; d++) {
                change_curve(c, &c->in.codecs[i].compress[d], factor);
                change_curve(c, &c->in.codecs[i].decompress[d], factor);
            }
        break;
    case CHANGE_COMPUTE:
        for (uint32_t i = 0; i < c->in.model.n_tensors; i++) c->tensors[i].compute_ns /= factor;
        c->in.model.forward_ns /= factor;
        c->in.model.update_ns /= factor;
        break;
    default: break;
    }
}

/* Reads machines=16 or machines=2x. The result is a whole number of at least 1. */
static int change_number(plan_changed *c, int what, const char *value) {
    uint32_t *n = what == CHANGE_MACHINES ? &c->in.system.machines : &c->in.system.ranks_per_machine;
    double factor;
    long whole;
    if (tool_number(value, 1, 1 << 20, &whole)) {
        *n = (uint32_t)whole;
        return 1;
    }
    if (!tool_factor(value, &factor) || factor * *n < 1 || factor * *n > 1 << 20 || floor(factor * *n) != factor * *n)
        return 0;
    *n = (uint32_t)(factor * *n);
    return 1;
}

static int change_one(plan_changed *c, int what, const char *value) {
    const esp_plan_system *s = &c->in.system;
    const double now = what == CHANGE_INTER   ? s->inter.bytes_per_us
                       : what == CHANGE_INTRA ? s->intra.bytes_per_us
                       : what == CHANGE_HOST  ? s->host_bytes_per_us
                                              : 0;
    double factor, bandwidth;
    if (what == CHANGE_MACHINES || what == CHANGE_RANKS) return change_number(c, what, value);
    if (!tool_factor(value, &factor)) {
        if (!(now > 0) || !tool_quantity(value, tool_bandwidths, &bandwidth)) return 0;
        factor = bandwidth / now;
    }
    change_apply(c, what, factor);
    return 1;
}

/* Fills `out` with `from`, changed by a text such as "inter=2x,machines=16". Returns TOOL_USAGE after a message. The
 * caller calls change_free either way. */
static int change_make(const plan_inputs *from, const char *flag, const char *text, plan_changed *out) {
    size_t changes = 1;
    memset(out, 0, sizeof *out);
    out->in = *from;
    for (const char *at = text; *at; at++) changes += *at == ',';
    change_room(out, changes);
    for (const char *at = text;;) {
        char one[80] = {0};
        const size_t n = strcspn(at, ","), name = strcspn(at, "=,");
        const char *word = one;
        snprintf(one, sizeof one, "%.*s", (int)(n < 64 ? n : 0), at);
        one[n < 64 ? name : 0] = 0;
        const int what = strcmp(one, "nic") == 0 ? CHANGE_INTER : plan_listed(&word, change_names);
        if (what < 0 || !change_one(out, what, one + strlen(one) + 1))
            return tool_usage(from->command, "%s %.*s: expected NAME=CHANGE, such as inter=2x or machines=16.\n%s",
                              flag, (int)n, at, change_help);
        if (!at[n]) return TOOL_OK;
        at += n + 1;
    }
}

static void change_free(plan_changed *c) {
    free(c->points);
    free(c->tensors);
    memset(c, 0, sizeof *c);
}
