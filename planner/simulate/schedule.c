/* schedule.c: creates, copies and compares schedules. */
#include "planner/simulate/schedule.h"
#include <math.h>

ESP__FN void esp__schedule_set_units(esp__problem *p, esp__schedule *d, const esp__extent *units, uint32_t n) {
    if (n > d->room_units) {
        d->room_units = n + n / 4;
        d->units = esp__arena_get(p->arena, d->room_units * sizeof *d->units);
        d->paths = esp__arena_get(p->arena, d->room_units * sizeof *d->paths);
    }
    if (n) {
        memmove(d->units, units, n * sizeof *units);
        memset((void *)d->paths, 0, n * sizeof *d->paths);
    }
    d->n_units = n;
    d->n_sequence = 0;
    d->makespan = UINT64_MAX;
}

ESP__FN void esp__schedule_tensors(esp__problem *p, esp__schedule *d) {
    if (!p->whole) {
        esp__extent *units = esp__arena_get(p->arena, p->n_tensors * sizeof *units);
        for (uint32_t i = 0; i < p->n_tensors; i++) {
            units[i].first = i;
            units[i].n = 1;
            units[i].elements = p->model->tensors[i].elements;
        }
        p->whole = units;
    }
    esp__schedule_set_units(p, d, p->whole, (uint32_t)p->n_tensors);
}

ESP__FN void esp__schedule_copy(esp__problem *p, esp__schedule *to, const esp__schedule *from) {
    esp__schedule_set_units(p, to, from->units, from->n_units);
    if (from->n_units) memcpy((void *)to->paths, (const void *)from->paths, from->n_units * sizeof *from->paths);
    if (from->n_sequence > to->room_sequence) {
        to->room_sequence = from->n_sequence + from->n_sequence / 4;
        to->sequence = esp__arena_get(p->arena, to->room_sequence * sizeof *to->sequence);
    }
    if (from->n_sequence) memcpy(to->sequence, from->sequence, from->n_sequence * sizeof *from->sequence);
    to->n_sequence = from->n_sequence;
    to->makespan = from->makespan;
}

ESP__FN int esp__schedule_keep_better(esp__problem *p, esp__schedule *to, const esp__schedule *from) {
    if (to->n_units && to->makespan <= from->makespan) return 0;
    esp__schedule_copy(p, to, from);
    return 1;
}

/* Writes what the configuration allows of each limited quantity. Returns whether any is limited. */
ESP__FN bool esp__may_use(const esp__problem *p, double may[ESP__LIMITS]) {
    const esp_plan_config *c = &p->config;
    double elements = 0.0;
    for (uint64_t t = 0; t < p->n_tensors; t++) elements += (double)p->model->tensors[t].elements;
    may[ESP__MEMORY] = c->max_memory_bytes ? (double)c->max_memory_bytes : INFINITY;
    may[ESP__VOLUME] = c->max_volume > 0.0 ? c->max_volume * 4.0 * elements : INFINITY;
    may[ESP__ERROR] = c->max_error > 0.0 ? c->max_error * elements : INFINITY;
    return c->max_memory_bytes || c->max_volume > 0.0 || c->max_error > 0.0;
}

ESP__FN void esp__uses_add(const esp__path *path, double times, double used[ESP__LIMITS]) {
    used[ESP__MEMORY] += times * (double)path->memory;
    used[ESP__VOLUME] += times * (double)path->volume;
    used[ESP__ERROR] += times * path->error;
}

ESP__FN int esp__schedule_allowed(const esp__problem *p, const esp__schedule *d) {
    double may[ESP__LIMITS], used[ESP__LIMITS] = {0.0};
    if (!esp__may_use(p, may)) return 1;
    for (uint32_t u = 0; u < d->n_units; u++) esp__uses_add(d->paths[u], 1.0, used);
    return used[ESP__MEMORY] <= may[ESP__MEMORY] && used[ESP__VOLUME] <= may[ESP__VOLUME] &&
           used[ESP__ERROR] <= may[ESP__ERROR];
}

/* Copies `from` to `to` if it is better: it has the shorter makespan, or it alone is within the configured limits. */
ESP__FN void esp__keep_better_allowed(esp__problem *p, esp__schedule *to, const esp__schedule *from) {
    int before = to->n_units && esp__schedule_allowed(p, to), after = esp__schedule_allowed(p, from);
    if (before == after)
        esp__schedule_keep_better(p, to, from);
    else if (after)
        esp__schedule_copy(p, to, from);
}

ESP__FN uint32_t esp__devices(const esp__problem *p) {
    return p->config.devices ? p->config.devices & p->system.devices : p->system.devices;
}

ESP__FN int esp__out_of_time(const esp__problem *p) {
    if (p->work_end && p->work >= p->work_end) return 1;
    return p->deadline_ns && esp__now_ns() >= p->deadline_ns;
}

ESP__FN void esp__schedule_room_units(esp__problem *p, esp__schedule *d, uint32_t n) {
    if (n <= d->room_units) return;
    d->room_units = n + n / 2;
    d->units = esp__arena_grow(p->arena, d->units, d->n_units * sizeof *d->units, d->room_units * sizeof *d->units);
    d->paths = esp__arena_grow(p->arena, (const void *)d->paths, d->n_units * sizeof *d->paths,
                               d->room_units * sizeof *d->paths);
}
