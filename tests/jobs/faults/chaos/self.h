/* self.h is a rank of a job: its context, its gradients, and the check of their means. */
#ifndef CHAOS_SELF_H
#define CHAOS_SELF_H
#include "board.h"
#include <stdarg.h>

typedef struct self {
    board *b;
    const plan *p;
    report *me;
    int32_t rank, size; /* in the job that is open now */
    int second;
    esp_ctx *ctx;
    float *grad[TENSORS];
    int32_t ids[RANKS]; /* numbers in the first job of the ranks of the open job */
} self;

static inline int is_victim(const self *x) { return x->ids[x->rank] == x->p->victim; }

__attribute__((format(printf, 2, 3))) static inline void wrong(self *x, const char *fmt, ...) {
    va_list ap;
    if (atomic_load(&x->me->wrong)) return;
    va_start(ap, fmt);
    vsnprintf(x->me->why, sizeof x->me->why, fmt, ap);
    va_end(ap);
    atomic_store(&x->me->wrong, 1);
}

/* Gradients are small whole numbers, so that sums and means have no rounding error without compression. */
static inline float gradient(int32_t rank, uint32_t tensor, uint32_t step, uint64_t i) {
    return (float)(int32_t)((i * 7 + tensor * 3u + step * 5u) % 17) - 8.0f + (float)(rank * 4);
}

static inline void tensor_describe(const self *x, uint32_t i, char name[32], esp_tensor_desc *d) {
    const struct setup *with = plan_setup(x->p);
    const int differs = x->p->kind == CODEC && is_victim(x) && !x->second;
    memset(d, 0, sizeof *d);
    snprintf(name, 32, "layer%u.weight", (unsigned)i);
    d->name = name;
    d->count = tensor_count[i];
    d->codec = with->codec;
    d->option = with->option;
    if (differs && x->p->variant == OTHER_SIZE && i == 3) d->count--;
    if (differs && x->p->variant == OTHER_OPTION) {
        d->codec = NULL;
        d->option = setups[x->p->setup == 0].option;
    }
    if (differs && x->p->variant == OTHER_CODEC) {
        d->codec = "topk:ratio=0.2";
        d->option = setups[3].option;
    }
}

static inline esp_status job_open(self *x, const char *root, uint32_t timeout_ms) {
    const int differs = x->p->kind == CODEC && is_victim(x) && !x->second;
    char backend[160];
    esp_config cfg = ESP_ZERO;
    snprintf(backend, sizeof backend, "%s%s", x->b->backend,
             differs && x->p->variant == OTHER_BACKEND ? ":inter=10gbit" : "");
    if (!x->b->launched) {
        cfg.rank = x->rank;
        cfg.size = x->size;
        cfg.root = root;
    }
    cfg.machine = 1 + x->ids[x->rank] / 2;
    cfg.backend = backend;
    cfg.timeout_ms = timeout_ms;
    cfg.cpu_workers = 1;
    cfg.progress = x->p->caller ? "caller" : "threads";
    cfg.seed = differs && x->p->variant == OTHER_SEED ? 7 : 3;
    cfg.log_level = ESP_LOG_ERROR;
    return esp_open(&cfg, &x->ctx);
}

static inline esp_status job_start(self *x) {
    char name[32];
    uint32_t id;
    esp_status s = ESP_OK;
    for (uint32_t i = 0; i < TENSORS && !s; i++) {
        esp_tensor_desc d;
        tensor_describe(x, i, name, &d);
        /* machines with different numbers of ranks allow only options without levels */
        if (x->second && x->size != RANKS && !plan_setup(x->p)->flat)
            d.option = d.codec ? setups[3].option : setups[0].option;
        s = esp_tensor_add(x->ctx, &d, &id);
    }
    if (!s && x->p->kind == PUSH && x->p->variant == ONE_HAS_MORE && is_victim(x) && !x->second) {
        esp_tensor_desc d = {.name = "layer.extra", .count = 100};
        s = esp_tensor_add(x->ctx, &d, &id);
    }
    return s ? s : esp_start(x->ctx);
}

static inline void gradients_fill(self *x, uint32_t step) {
    for (uint32_t t = 0; t < TENSORS; t++)
        for (uint64_t i = 0; i < tensor_count[t]; i++) x->grad[t][i] = gradient(x->ids[x->rank], t, step, i);
}

/* Checks a tensor's mean. `pushed` has a bit for each rank that has pushed it. Others count as zeros. */
static inline void average_check(self *x, uint32_t t, uint32_t step, uint32_t pushed) {
    for (uint64_t i = 0; i < tensor_count[t]; i++) {
        float sum = 0;
        for (int32_t r = 0; r < x->size; r++)
            if (pushed >> x->ids[r] & 1u) sum += gradient(x->ids[r], t, step, i);
        const float mean = x->size == 3 ? sum * (1.0f / 3.0f) : sum / (float)x->size, off = x->grad[t][i] - mean;
        if (off < 1e-5f && off > -1e-5f) continue;
        wrong(x, "step %u, tensor %u, element %llu: the average is %g, not %g", (unsigned)step, (unsigned)t,
              (unsigned long long)i, (double)x->grad[t][i], (double)mean);
        return;
    }
}

/* Checks all means of a step. Only the victim has pushed tensor `except`, if that is less than TENSORS. */
static inline void averages_check(self *x, uint32_t step, uint32_t except) {
    uint64_t h = 1;
    for (uint32_t t = 0; t < TENSORS; t++) {
        const uint32_t all = t == except ? 1u << x->p->victim : (1u << RANKS) - 1u;
        if (t != except) h = hash_bytes(h, x->grad[t], tensor_count[t] * sizeof(float));
        if (plan_setup(x->p)->exact && (t != except || is_victim(x))) average_check(x, t, step, all);
    }
    if (!x->second && step < STEPS_MAX) atomic_store(&x->me->average[step], h | 1u);
}
#endif
