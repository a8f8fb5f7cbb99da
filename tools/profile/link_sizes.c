/* link_sizes.c: measures each collective at each level and several sizes, and how long ops wait before they start. */
#include "espresso_impl/executor/executor.h"
#include "tools/common/quantity.h"
#include "tools/profile/profile.h"
#include <time.h>

static const char *const links_names[ESP_PLAN_COLLS] = {
    NULL, "allreduce", "allgather", "alltoall", "reduce_scatter", "broadcast", "gather", "reduce"};
static const char *const links_levels[3] = {"flat", "intra", "inter"};

static esp_status links_measure(profile_job *j, uint32_t size, double left_ns, double took_ns, bool *complete) {
    const uint64_t bytes = j->sizes[size];
    esp_status s = ESP_OK;
    (void)took_ns;
    for (uint8_t level = ESP__FLAT; level <= ESP__INTER; level++)
        for (uint32_t coll = 1; coll < ESP_PLAN_COLLS && esp__calibration_has(j->ctx, level) && !s; coll++) {
            const double guess = esp__calibration_estimate(j->ctx, j->calibration, level, coll, bytes);
            /* every rank computes the same guess, so all skip the same collectives */
            if (size > 2 && guess * 3 > left_ns / (3.0 * ESP_PLAN_COLLS)) {
                *complete = false;
                continue;
            }
            profile_progress(j, "links: %s.%s of %s", links_levels[level], links_names[coll],
                             tool_bytes((double)bytes));
            s = esp__calibration_link(j->ctx, j->calibration, level, coll, bytes, esp__calibration_repeats(guess));
        }
    return s;
}

/* Takes as long as a layer's backward pass. Keeps a core busy meanwhile, but sleeps if a GPU would compute. */
static void links_between(const profile_job *j) {
    const uint64_t until = esp__now_ns() + 200000u;
    const struct timespec pause = {0, 200000};
    if (j->calibration->load <= 0) nanosleep(&pause, NULL);
    while (j->calibration->load > 0 && esp__now_ns() < until) {
    }
}

/* Runs steps of a small model, with and without compression, to measure how long ops wait for a thread or a core. */
static esp_status links_dispatch(profile_job *j) {
    enum { TENSORS = 16, COUNT = 16384, STEPS = 8 };
    const esp_stream cpu = ESP_ZERO;
    static float grads[TENSORS][COUNT];
    esp_status s = ESP_OK;
    for (int i = 0; i < TENSORS && !s; i++) {
        char name[16];
        esp_tensor_desc d = ESP_ZERO;
        snprintf(name, sizeof name, "t%d", i);
        d.name = name;
        d.count = COUNT;
        s = esp_tensor_add(j->ctx, &d, NULL);
    }
    if (!s) s = esp_start(j->ctx);
    for (int k = 0; k < 2 * STEPS && !s; k++) {
        if (k == STEPS) s = esp_strategy_set(j->ctx, "layerwise");
        for (uint32_t i = 0; i < TENSORS && !s; i++) {
            links_between(j);
            s = esp_push(j->ctx, i, grads[i], cpu);
        }
        if (!s) s = esp_wait_all(j->ctx);
        if (!s && k % STEPS) s = esp__calibration_step(j->ctx, j->calibration);
    }
    return s;
}

ESP__FN esp_status profile_links(profile_job *j) {
    const esp_status s = profile_rounds(j, "links", j->n_links, links_measure);
    return s ? s : links_dispatch(j);
}

ESP__FN void profile_links_print(const profile_job *j, const char *source, esp__text *out) {
    char name[96];
    const uint32_t locals = j->calibration->system.ranks_per_machine;
    const uint32_t cores = j->calibration->cores * locals / j->calibration->sharing; /* emulated machines share them */
    const char *link = getenv("ESPRESSO_INTER_LINK");
    esp__system_file f = {.system = j->calibration->system,
                          .source = source,
                          .cpu_workers = cores > locals ? cores : locals,
                          .measured = j->measured};
    snprintf(name, sizeof name, "%u x %u ranks, %.40s%s%.20s", f.system.machines, locals, j->ctx->job.backend->name,
             link ? " " : "", link ? link : "");
    f.system.name = name;
    esp__system_print(&f, out);
}

ESP__FN void profile_links_show(const profile_job *j) {
    const esp_plan_system *y = &j->calibration->system;
    const esp_plan_link *const links[] = {&y->intra, &y->inter};
    const uint32_t ranks[] = {y->ranks_per_machine, y->machines};
    printf("\nlinks: ");
    for (int k = 0; k < 2; k++)
        if (ranks[k] > 1)
            printf("%s %s a hop, %s/s, %s to start an op; ", links_levels[k + 1], tool_time(links[k]->alpha_ns),
                   tool_bytes(links[k]->bytes_per_us * 1e6), tool_time(y->dispatch_ns[k + 2]));
    printf("copying %s/s\n", tool_bytes(y->pack_bytes_per_us * 1e6));
}
