/* page_data.h makes up plans for tests of the pages, of any size, with realistic options and times. It does not use the
 * planner, which would be slow. */
#ifndef ESPRESSO_TESTS_PAGE_DATA_H
#define ESPRESSO_TESTS_PAGE_DATA_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAKE_STEPS = 9 };
typedef struct fake_op {
    uint8_t kind, lanes, step;
    uint64_t ns, bytes;
} fake_op;
typedef struct fake_unit {
    fake_op ops[FAKE_STEPS];
    uint32_t n, next;
    uint64_t ready;
} fake_unit;
typedef struct fake_plan {
    esp_plan_model model;
    esp_plan_tensor *tensors;
    char (*names)[48];
    esp_plan_unit *units;
    esp_plan_event *events;
    page_plan page;
} fake_plan;

static inline uint32_t fake_random(uint32_t *state) { return (*state = *state * 1664525u + 1013904223u) >> 8; }

static inline void fake_model(fake_plan *f, uint32_t n, const char *first_name) {
    uint32_t random = 7;
    f->tensors = calloc(n, sizeof *f->tensors);
    f->names = calloc(n, sizeof *f->names);
    if (!f->tensors || !f->names) abort();
    for (uint32_t i = 0; i < n; i++) {
        static const char *const parts[] = {"attention.query.weight", "attention.query.bias", "output.dense.weight",
                                            "norm.bias"};
        snprintf(f->names[i], sizeof f->names[i], "encoder.layer.%u.%s", (n - i) / 4, parts[i % 4]);
        if (i >= 4 && strcmp(f->names[i], f->names[i - 4]) == 0)
            snprintf(f->names[i], sizeof f->names[i], "tensor.%u", i);
        uint64_t elements = i % 4 == 0 ? 589824 : i % 4 == 2 ? 1 + fake_random(&random) % 2400000 : 768;
        f->tensors[i] =
            (esp_plan_tensor){.name = f->names[i], .elements = elements, .compute_ns = 20e3 + (double)elements * 0.12};
        f->model.forward_ns += f->tensors[i].compute_ns / 2;
    }
    if (first_name) snprintf(f->names[0], sizeof f->names[0], "%s", first_name);
    f->model.struct_size = sizeof f->model;
    f->model.n_tensors = n;
    f->model.name = "made-up";
    f->model.tensors = f->tensors;
    f->model.forward_ns = (double)(uint64_t)f->model.forward_ns;
    f->model.update_ns = 500e3;
}

static int fake_racks; /* nonzero: jobs have racks */
static int fake_cores;

static inline uint64_t fake_kept(const esp_plan_event *e, int lane) {
    return lane < 2 || lane == ESP_PLAN_LANES - 1 ? e->core_ns : e->link_ns;
}

/* Returns a bit for each link that a collective uses. */
static inline uint8_t fake_lanes(const char *step) {
    static const char *const levels[] = {"intra", "inter", "outer"};
    uint8_t lanes = 0;
    for (int k = 0; k < 3; k++) {
        const char *at = strstr(step, levels[k]);
        if (at && at < strchr(step, '.')) lanes |= (uint8_t)(4 << k);
    }
    return lanes ? lanes : fake_racks ? 28 : 12;
}

static inline void fake_ops(fake_unit *u, const char *option, uint64_t elements, int group) {
    double bytes = 4.0 * (double)elements;
    uint8_t step = 0;
    char text[256], *save = NULL;
    snprintf(text, sizeof text, "%s", option);
    if (group) u->ops[u->n++] = (fake_op){ESP_PLAN_PACK, 1, 0, 6000 + (uint64_t)(bytes / 600), (uint64_t)bytes};
    for (char *s = strtok_r(text, " >", &save); s; s = strtok_r(NULL, " >", &save), step++) {
        fake_op op = {.step = step};
        int cpu = strstr(s, "cpu") != NULL;
        if (strncmp(s, "comp", 4) == 0) {
            op.kind = ESP_PLAN_COMPRESS, op.lanes = cpu ? 2 : 1;
            op.ns = 6000 + (uint64_t)((double)elements * (cpu ? 0.4 : 0.02));
        } else if (strncmp(s, "decomp", 6) == 0) {
            op.kind = ESP_PLAN_DECOMPRESS, op.lanes = cpu ? 2 : 1;
            op.ns = 4000 + (uint64_t)((double)elements * (cpu ? 0.3 : 0.01));
        } else {
            op.kind = ESP_PLAN_COLLECTIVE, op.lanes = fake_lanes(s);
            op.ns = 20000 + (uint64_t)(bytes / (op.lanes == 4 ? 60 : 2.2));
            if (fake_cores) op.lanes |= 1 << (ESP_PLAN_LANES - 1);
        }
        op.bytes = (uint64_t)bytes;
        if (cpu && op.kind == ESP_PLAN_COMPRESS)
            u->ops[u->n++] = (fake_op){ESP_PLAN_COPY, 4, step, 8000 + (uint64_t)(bytes / 12), (uint64_t)bytes};
        u->ops[u->n++] = op;
        if (op.kind == ESP_PLAN_COMPRESS) bytes *= 0.04;
        if (op.kind == ESP_PLAN_DECOMPRESS) bytes *= 25;
        if (strstr(s, "reduce_scatter") || strstr(s, "alltoall")) bytes /= 8;
    }
}

/* Makes the tensors, chunks and groups of a plan. Without `planned`, nothing is compressed, split or merged. */
static inline void fake_units(fake_plan *f, int planned) {
    const char *const none = fake_racks ? "intra-inter.reduce_scatter > outer.allreduce > intra-inter.allgather"
                                        : "intra.reduce_scatter > inter.allreduce > intra.allgather";
    const char *const gpu = fake_racks ? "intra.reduce_scatter > inter.reduce_scatter > comp@gpu > outer.allgather > "
                                         "decomp@gpu > inter.allgather > intra.allgather"
                                       : "intra.reduce_scatter > comp@gpu > inter.alltoall > decomp@gpu > comp@gpu > "
                                         "inter.allgather > decomp@gpu > intra.allgather";
    static const char *const cpu = "comp@cpu > flat.allgather > decomp@cpu";
    uint32_t n = f->model.n_tensors, k = 0;
    f->units = calloc(2 * (size_t)n, sizeof *f->units);
    if (!f->units) abort();
    for (uint32_t i = 0; i < n; i++) {
        uint64_t e = f->tensors[i].elements;
        esp_plan_unit u = {.first = i, .n_tensors = 1, .elements = e, .codec = "none", .option = none};
        if (planned && e > 100000) u.codec = "dgc:ratio=0.01", u.option = i % 8 == 4 ? cpu : gpu;
        if (planned && i % 4 == 3 && i + 4 < n && i % 16 != 15) {
            u.n_tensors = 3, u.elements += f->tensors[i + 1].elements + f->tensors[i + 2].elements, i += 2;
            u.codec = "dgc:ratio=0.01", u.option = gpu;
        } else if (planned && i % 16 == 0) {
            u.elements = e / 2;
            f->units[k++] = u;
            u.begin = e / 2, u.elements = e - e / 2;
        }
        f->units[k++] = u;
    }
    f->page.n_units = k;
}

/* Starts every op as soon as its input is ready and its cores and links are free. */
static inline void fake_schedule(fake_plan *f) {
    uint64_t lane[ESP_PLAN_LANES] = {0};
    uint32_t n_units = f->page.n_units, n_tensors = f->model.n_tensors, tensor = 0, out = 0;
    fake_unit *units = calloc(n_units, sizeof *units);
    f->events = calloc((size_t)n_units * FAKE_STEPS + n_tensors, sizeof *f->events);
    if (!units || !f->events) abort();
    for (uint32_t i = 0; i < n_units; i++) {
        fake_ops(&units[i], f->units[i].option, f->units[i].elements, f->units[i].n_tensors > 1);
        units[i].ready = UINT64_MAX;
    }
    for (;;) {
        uint64_t best = UINT64_MAX;
        uint32_t who = UINT32_MAX;
        for (uint32_t i = 0; i < n_units; i++) {
            if (units[i].ready == UINT64_MAX || units[i].next == units[i].n) continue;
            uint64_t at = units[i].ready;
            for (int l = 0; l < ESP_PLAN_LANES; l++)
                if (units[i].ops[units[i].next].lanes >> l & 1 && lane[l] > at) at = lane[l];
            if (at < best) best = at, who = i;
        }
        esp_plan_event e = {0};
        if (tensor < n_tensors && lane[0] < best) {
            e = (esp_plan_event){.unit = tensor,
                                 .lanes = 1,
                                 .start_ns = lane[0],
                                 .end_ns = lane[0] + (uint64_t)f->tensors[tensor].compute_ns};
            for (uint32_t i = 0; i < n_units; i++)
                if (f->units[i].first + f->units[i].n_tensors == tensor + 1) units[i].ready = e.end_ns;
            tensor++;
        } else if (who != UINT32_MAX) {
            const fake_op *op = &units[who].ops[units[who].next++];
            e = (esp_plan_event){.unit = who,
                                 .step = op->step,
                                 .kind = op->kind,
                                 .lanes = op->lanes,
                                 .bytes = op->bytes,
                                 .start_ns = best,
                                 .end_ns = best + op->ns};
            units[who].ready = e.end_ns;
        } else {
            break;
        }
        e.core_ns = e.link_ns = e.end_ns - e.start_ns;
        if (fake_cores && e.kind == ESP_PLAN_COLLECTIVE) e.core_ns /= 10, e.link_ns -= e.link_ns / 3;
        for (int l = 0; l < ESP_PLAN_LANES; l++)
            if (e.lanes >> l & 1) lane[l] = e.start_ns + fake_kept(&e, l);
        f->events[out++] = e;
    }
    f->page.n_events = out;
    free(units);
}

/* Computes the report's times in a simple and slow way: goes through all moments and looks which ops run. */
static inline int fake_by_time(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}
static inline void fake_exposed(fake_plan *f, esp_plan_report *r) {
    uint32_t n = f->page.n_events, from = 0;
    uint64_t *at = calloc(2 * (size_t)n, sizeof *at);
    if (!at) abort();
    for (uint32_t i = 0; i < n; i++) at[2 * i] = f->events[i].start_ns, at[2 * i + 1] = f->events[i].end_ns;
    qsort(at, 2 * (size_t)n, sizeof *at, fake_by_time);
    for (uint32_t i = 0; i + 1 < 2 * n; i++) {
        int backward = 0, link = 0, other = 0;
        while (from < n && f->events[from].end_ns <= at[i] && f->events[from].kind == ESP_PLAN_BACKWARD) from++;
        for (uint32_t k = 0; at[i] < at[i + 1] && k < n; k++) {
            const esp_plan_event *e = &f->events[k];
            if (e->start_ns > at[i] || e->end_ns <= at[i]) continue;
            if (e->kind == ESP_PLAN_BACKWARD)
                backward = 1;
            else if (e->lanes & 60)
                link = 1;
            else
                other = 1;
        }
        if (!backward && link) r->exposed_communication_ns += (double)(at[i + 1] - at[i]);
        if (!backward && !link && other) r->exposed_compression_ns += (double)(at[i + 1] - at[i]);
    }
    free(at);
}

static inline void fake_report(fake_plan *f, double fp32_ns, int exposed) {
    esp_plan_report *r = &f->page.report;
    uint64_t end = 0;
    r->n_tensors = f->model.n_tensors;
    r->n_units = f->page.n_units;
    for (uint32_t i = 0; i < f->page.n_units; i++)
        if (strcmp(f->units[i].codec, "none") != 0)
            r->compressed += f->units[i].n_tensors, r->memory_bytes += 4 * f->units[i].elements;
    for (uint32_t i = 0; i < f->page.n_events; i++) {
        const esp_plan_event *e = &f->events[i];
        if (e->end_ns > end) end = e->end_ns;
        for (int l = 0; l < ESP_PLAN_LANES; l++)
            if (e->lanes >> l & 1) r->lane_ns[l] += (double)fake_kept(e, l);
        if (e->lanes & 4) r->intra_bytes += e->bytes;
        if (e->lanes & 8) r->inter_bytes += e->bytes;
        for (int k = 0; k < ESP_LEVELS; k++)
            if (e->lanes >> k & 4) r->level_bytes[k] += e->bytes;
    }
    r->iteration_ns = f->model.forward_ns + (double)end + f->model.update_ns;
    r->fp32_ns = fp32_ns > 0 ? fp32_ns : r->iteration_ns;
    r->bound_ns = r->iteration_ns * 0.98;
    r->free_compression_ns = r->iteration_ns * 0.93;
    r->plan_ns = 4.2e6;
    if (exposed) fake_exposed(f, r);
}

static inline void fake_make(fake_plan *f, uint32_t n_tensors, int planned, double fp32_ns, const char *first_name) {
    memset(f, 0, sizeof *f);
    fake_model(f, n_tensors, first_name);
    fake_units(f, planned);
    fake_schedule(f);
    fake_report(f, fp32_ns, n_tensors <= 500);
    f->page.name = planned ? "espresso+" : "fp32";
    f->page.model = &f->model;
    f->page.units = f->units;
    f->page.events = f->events;
}

static inline void fake_free(fake_plan *f) {
    free(f->tensors);
    free(f->names);
    free(f->units);
    free(f->events);
}
#endif
