/* explain.h: explains in one line why a planned training step takes longer than the planner's lower bound: how busy
 * links and cores are, how long they work while no backward runs, and which operation ends last. */

static const char *const lane_names[4] = {"compute", "cpu", "intra", "inter"};

typedef struct lane_use {
    double busy, idle; /* both in ms; idle: between its first and its last operation */
} lane_use;

static lane_use lane_of_plan(const esp_plan *plan, uint32_t lane) {
    uint32_t n;
    const esp_plan_event *e = esp_plan_events(plan, &n);
    uint64_t first = UINT64_MAX, last = 0, busy = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!(e[i].lanes >> lane & 1u)) continue;
        if (e[i].start_ns < first) first = e[i].start_ns;
        if (e[i].end_ns > last) last = e[i].end_ns;
        busy += e[i].end_ns - e[i].start_ns;
    }
    if (first == UINT64_MAX) return (lane_use){0, 0};
    return (lane_use){(double)busy / 1e6, (double)(last - first - busy) / 1e6};
}

static uint32_t last_unit(const esp_plan *plan) {
    uint32_t n, best = 0;
    const esp_plan_event *e = esp_plan_events(plan, &n);
    for (uint32_t i = 0; i < n; i++)
        if (e[i].kind != ESP_PLAN_BACKWARD && (e[best].kind == ESP_PLAN_BACKWARD || e[i].end_ns > e[best].end_ns))
            best = i;
    return e[best].unit;
}

/* Returns the ms from the end of backward for these tensors to the end of their synchronization. */
static double chain_ms(const esp_plan *plan, uint32_t unit) {
    uint32_t n, n_units;
    const esp_plan_event *e = esp_plan_events(plan, &n);
    const esp_plan_unit *u = esp_plan_units(plan, &n_units) + unit;
    uint64_t ready = 0, end = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (e[i].kind == ESP_PLAN_BACKWARD && e[i].unit == u->first + u->n_tensors - 1) ready = e[i].end_ns;
        if (e[i].kind != ESP_PLAN_BACKWARD && e[i].unit == unit && e[i].end_ns > end) end = e[i].end_ns;
    }
    return (double)(end - ready) / 1e6;
}

/* Sets *sum to the total of all backward times, and *end to the end of the last one, in ms. */
static void backward_of(const esp_plan *plan, double *sum, double *end) {
    uint32_t n;
    const esp_plan_event *e = esp_plan_events(plan, &n);
    *sum = *end = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        if (e[i].kind != ESP_PLAN_BACKWARD) continue;
        *sum += (double)(e[i].end_ns - e[i].start_ns) / 1e6;
        if ((double)e[i].end_ns / 1e6 > *end) *end = (double)e[i].end_ns / 1e6;
    }
}

static void explain(char *out, size_t room, const bench_model *m, const esp_plan *plan, const esp_plan_report *r) {
    uint32_t n_units, last = last_unit(plan);
    const esp_plan_unit *u = esp_plan_units(plan, &n_units) + last;
    double backward, ends;
    size_t n = 0;
    backward_of(plan, &backward, &ends);
    n += (size_t)snprintf(out, room, "%.2f ms above %.2f.", (r->iteration_ns - r->bound_ns) / 1e6, r->bound_ns / 1e6);
    n += (size_t)snprintf(out + n, room - n,
                          " Backward takes %.2f and ends at %.2f of %.2f; while none runs: links busy %.2f, "
                          "only compression %.2f. Lanes (busy, idle in between):",
                          backward, ends, (r->iteration_ns - m->model.forward_ns - m->model.update_ns) / 1e6,
                          r->exposed_communication_ns / 1e6, r->exposed_compression_ns / 1e6);
    for (uint32_t k = 0; k < 4; k++) {
        lane_use use = lane_of_plan(plan, k);
        if (use.busy > 0.0)
            n += (size_t)snprintf(out + n, room - n, " %s %.2f, %.2f;", lane_names[k], use.busy, use.idle);
    }
    snprintf(out + n, room - n, " last op: %s%s, %llu elements, %.2f after it is ready: %s",
             m->model.tensors[u->first].name, u->n_tensors > 1 ? " and neighbours" : "",
             (unsigned long long)u->elements, chain_ms(plan, last), u->option);
}
