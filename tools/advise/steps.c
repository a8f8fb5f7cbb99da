/* steps.c: finds the training steps in a trace, and the medians of their times; and how long all-reduces took. */
#include "tools/advise/advise.h"
#include "espresso_impl/base/quantile.h"
#include <math.h>

/* A step of the trace. A gradient is ready at ready[i]. */
typedef struct advise_step {
    size_t first, n;                             /* its gradients in of[ADVISE_GRAD] */
    double begin, backward, update, end, *ready; /* update: when what follows the all-reduces begins */
} advise_step;

/* Returns the index of the first event that begins at `time` or later. */
static size_t advise_from(const advise_spans *s, double time) {
    size_t low = 0, high = s->n;
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (s->at[mid].begin < time)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Returns when the work is complete that the CPU had done or launched at `time`. */
static double advise_done(const advise_trace *t, double time) {
    const advise_spans *kernels = &t->of[ADVISE_KERNEL];
    const size_t n = advise_from(kernels, time);
    return n && kernels->at[n - 1].end > time ? kernels->at[n - 1].end : time;
}

/* Finds the step that ends with the k-th update. Its gradients are those after its last forward pass, since others
 * are only accumulated. Returns false if the step is incomplete. */
static bool advise_step_find(const advise_trace *t, size_t k, advise_step *s) {
    const advise_spans *forwards = &t->of[ADVISE_FORWARD], *grads = &t->of[ADVISE_GRAD],
                       *updates = &t->of[ADVISE_UPDATE], *reduces = &t->of[ADVISE_REDUCE],
                       *functions = &t->of[ADVISE_BACKWARD], *buckets = &t->of[ADVISE_BUCKET];
    const advise_span *update = &updates->at[k];
    double reduced = 0;
    const double begin = k ? updates->at[k - 1].end : forwards->at[0].begin;
    const size_t last = advise_from(forwards, update->begin);
    if (!last || forwards->at[last - 1].begin < begin) return false;
    const double forward_end = forwards->at[last - 1].end;
    s->first = advise_from(grads, forward_end);
    s->n = advise_from(grads, update->begin) - s->first;
    if (!s->n) return false;
    const size_t function = advise_from(functions, forward_end);
    double from = grads->at[s->first].begin;
    if (function < functions->n && functions->at[function].begin < from) from = functions->at[function].begin;
    s->begin = k ? advise_done(t, begin) : begin;
    s->backward = advise_done(t, from);
    s->end = advise_done(t, update->end);
    s->ready = tool_realloc(NULL, s->n * sizeof *s->ready);
    for (size_t i = 0; i < s->n; i++) s->ready[i] = advise_done(t, grads->at[s->first + i].end);
    /* the last gradient is copied into its bucket; after all-reduces, gradients are copied back before the update */
    const size_t bucket = advise_from(buckets, update->begin);
    if (bucket) s->ready[s->n - 1] = fmax(s->ready[s->n - 1], advise_done(t, buckets->at[bucket - 1].begin));
    for (size_t i = advise_from(reduces, from); i < reduces->n && reduces->at[i].begin < s->end; i++)
        if (reduces->at[i].end < s->end) reduced = fmax(reduced, reduces->at[i].end);
    s->update = reduced > 0 ? fmax(reduced, s->ready[s->n - 1]) : advise_done(t, update->begin);
    return true;
}

/* Returns whether two steps have gradients of the same shapes in the same order. */
static bool advise_step_same(const advise_trace *t, const advise_step *a, const advise_step *b) {
    for (size_t i = 0; a->n == b->n && i < a->n; i++) {
        const json_t *x = NULL, *y = NULL;
        (void)advise_elements(&t->of[ADVISE_GRAD].at[a->first + i], &x);
        (void)advise_elements(&t->of[ADVISE_GRAD].at[b->first + i], &y);
        if (!json_equal(x, y)) return false;
    }
    return a->n == b->n;
}

/* Steps are noisy if their quartile distance is more than this part of their median. */
static const double advise_noise = 0.25;

ESP__FN void advise_step_times(advise_trace *t, double *v, size_t n) {
    t->n_steps = n;
    t->step = esp__median(v, n);
    t->noisy = esp__quartile_distance(v, n) > advise_noise * t->step;
}

/* Finds DDP's buckets of the last step. Gradients of a bucket leave it together, when its last one is ready: all time
 * counts before its first one. */
static void advise_buckets_find(advise_trace *t) {
    const advise_span *grads = &t->of[ADVISE_GRAD].at[t->first_grad];
    const advise_spans *buckets = &t->of[ADVISE_BUCKET];
    size_t *n = tool_zeroed(t->n_grads * sizeof *n), end = 0;
    double left = 0;
    for (size_t k = advise_from(buckets, grads->begin); left == 0 && k < buckets->n && end < t->n_grads; k++) {
        const size_t first = end;
        left = advise_elements(&buckets->at[k], NULL);
        while (left > 0 && end < t->n_grads) left -= advise_elements(&grads[end++], NULL);
        n[first] = end - first;
    }
    if (left != 0 || end < t->n_grads) {
        free(n);
        return;
    }
    t->bucket = n;
    for (size_t i = 0; i < t->n_grads; i += n[i])
        for (size_t k = i + 1; k < i + n[i]; k++) t->grad[i] += t->grad[k], t->grad[k] = 0;
}

/* Sets the medians of n steps. */
static void advise_medians(advise_trace *t, const advise_step *s, size_t n) {
    double *v = tool_realloc(NULL, n * sizeof *v);
    const size_t grads = s[0].n;
    t->grad = tool_realloc(NULL, grads * sizeof *t->grad);
    t->n_grads = grads, t->first_grad = s[0].first; /* the last step comes first */
    for (size_t k = 0; k < n; k++) v[k] = s[k].backward - s[k].begin;
    t->forward = esp__median(v, n);
    for (size_t i = 0; i < grads; i++) {
        for (size_t k = 0; k < n; k++) v[k] = s[k].ready[i] - (i ? s[k].ready[i - 1] : s[k].backward);
        t->grad[i] = esp__median(v, n);
        t->backward += t->grad[i];
        t->elements += advise_elements(&t->of[ADVISE_GRAD].at[t->first_grad + i], NULL);
    }
    for (size_t k = 0; k < n; k++) v[k] = s[k].end - s[k].update;
    t->update = esp__median(v, n);
    for (size_t k = 0; k < n; k++) v[k] = s[k].end - s[k].begin;
    advise_step_times(t, v, n);
    free(v);
    advise_buckets_find(t);
}

/* Returns how many bytes an element of a collective has. */
static double advise_width(const advise_span *s) {
    const char *type = json_string_value(json_object_get(s->args, "dtype"));
    if (!type) type = json_string_value(json_array_get(json_object_get(s->args, "Input type"), 0));
    if (type && (strstr(type, "Half") || strstr(type, "BFloat16"))) return 2;
    return type && (strcmp(type, "Double") == 0 || strcmp(type, "double") == 0) ? 8 : 4;
}

/* Sets the median speed of copies of the largest size. */
static void advise_copies(advise_trace *t) {
    const advise_spans *copies = &t->of[ADVISE_COPY];
    double *v = tool_realloc(NULL, (copies->n + 1) * sizeof *v), largest = 0;
    size_t n = 0;
    for (size_t i = 0; i < copies->n; i++) {
        const double bytes = advise_elements(&copies->at[i], NULL) * advise_width(&copies->at[i]);
        const double time = copies->at[i].end - copies->at[i].begin;
        if (bytes > largest) largest = bytes, n = 0;
        if (bytes == largest && time > 0) v[n++] = bytes / time;
    }
    esp__sort(v, n);
    if (n) t->copied = esp__median(v, n);
    free(v);
}

/* Joins all-reduces that overlap. */
static void advise_bursts(advise_trace *t) {
    const advise_spans *reduces = &t->of[ADVISE_REDUCE];
    double begin = 0, end = 0;
    t->bursts = tool_realloc(NULL, reduces->n * sizeof *t->bursts);
    for (size_t i = 0; i < reduces->n; i++) {
        const advise_span *r = &reduces->at[i];
        const double bytes = advise_elements(r, NULL) * advise_width(r);
        if (!(bytes > 0) || !(r->end > r->begin)) continue;
        if (!t->n_bursts || r->begin >= end) t->bursts[t->n_bursts++] = (advise_burst){0, 0}, begin = end = r->begin;
        if (r->end > end) end = r->end;
        t->bursts[t->n_bursts - 1].bytes += bytes;
        t->bursts[t->n_bursts - 1].time = end - begin;
    }
}

ESP__FN int advise_steps(const tool_command *c, advise_trace *t) {
    const size_t updates = t->of[ADVISE_UPDATE].n;
    advise_step *s = tool_realloc(NULL, (updates + 1) * sizeof *s), last = {0};
    size_t n = 0;
    /* the first step may have begun before the trace, so that it counts only if there is no other */
    for (size_t k = updates; k-- > (updates > 1);) {
        advise_step one = {0};
        if (!advise_step_find(t, k, &one)) continue;
        if (!n) last = one;
        if (advise_step_same(t, &one, &last))
            s[n++] = one;
        else
            free(one.ready);
    }
    if (n) advise_medians(t, s, n);
    for (size_t k = 0; k < n; k++) free(s[k].ready);
    free(s);
    if (!n) return tool_fail(c, "%s: it has no whole step: forward, backward and Optimizer.step", t->path);
    const advise_span *grad = &t->of[ADVISE_GRAD].at[t->first_grad];
    if (advise_width(grad) != 4)
        return tool_fail(c, "%s: its gradients are not float32, and the planner knows no others", t->path);
    const advise_span *update = &t->of[ADVISE_UPDATE].at[0];
    const size_t scaling = advise_from(&t->of[ADVISE_SCALING], update->begin);
    t->momentum = scaling < t->of[ADVISE_SCALING].n && t->of[ADVISE_SCALING].at[scaling].begin < update->end;
    advise_copies(t);
    advise_bursts(t);
    return TOOL_OK;
}
