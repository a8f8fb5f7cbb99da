/* test_default_order.c checks the order of collectives that a strategy without one gets (order.c), which knows no
 * costs: with it, steps of published models must be predicted to take hardly longer than if each link and core ran what
 * is ready first. It must be started in the project's root. */
/* runs: asan-long no-tsan: it has one thread */
#include "tests/lib/test.h"
#include "espresso_impl/context/context.h"
#include "planner/builtin/builtin.h"
#include "planner/files/read.h"

static const char *const models[] = {"vgg16", "resnet50", "resnet101", "bert-base", "gpt2", "vit-b-16", "lstm"};
static const char *const systems[] = {"paper-nvlink", "paper-pcie", "cloud-h100"};
static const char *const codecs[] = {"randomk:ratio=0.01", "efsignsgd", "fp16"};
static const char *const strategies[] = {"fp32", "layerwise"};
enum { MODELS = 7, SYSTEMS = 3, CODECS = 3, SIZES = 2, CASES = MODELS * SYSTEMS * CODECS * SIZES };

/* A plan, in a context that thinks that it is rank 0 of the planned system. */
typedef struct a_plan {
    esp_ctx *ctx;
    const esp_plan_model *model;
    const esp_plan_codec *codec;
    esp_plan_system system;
    esp_plan *plan;
} a_plan;

/* Adds the default order to a plan's text, instead of the plan's own. */
static char *with_default_order(const a_plan *p) {
    esp__base *base = (esp__base *)p->ctx, saved = *base;
    esp__codec any = {.traits = {.n_rounds = 1}};
    esp__job job = *base->job;
    esp__model model = {.n_tensors = p->model->n_tensors};
    esp__strategy y = {0};
    const esp_plan_unit *units = esp_plan_units(p->plan, &y.n_units);
    const char *text = esp_plan_text(p->plan), *own = strstr(text, "\norder ");
    job.topo.n_local = (int32_t)p->system.ranks_per_machine;
    job.topo.n_machines = (int32_t)p->system.machines;
    job.topo.size = job.topo.n_local * job.topo.n_machines;
    job.topo.level_size[1] = job.topo.n_local, job.topo.level_size[2] = job.topo.n_machines;
    model.tensors = calloc(model.n_tensors, sizeof *model.tensors);
    y.units = calloc(y.n_units, sizeof *y.units);
    for (uint32_t i = 0; i < model.n_tensors; i++) model.tensors[i].count = p->model->tensors[i].elements;
    for (uint32_t i = 0; i < y.n_units; i++) {
        y.units[i].place = (esp__extent){units[i].first, units[i].n_tensors, units[i].begin, units[i].elements};
        y.units[i].codec = &any;
        CHECK(!esp__option_parse(p->ctx, units[i].option, &y.units[i].option));
    }
    base->job = &job, base->model = &model;
    CHECK(!esp__order_make(p->ctx, &y));
    *base = saved;
    const size_t room = (size_t)(own - text) + 24u * (y.n_order + 1u);
    char *out = malloc(room);
    size_t n = (size_t)snprintf(out, room, "%.*s\norder", (int)(own - text), text);
    for (uint32_t i = 0; i < y.n_order; i++)
        n += (size_t)snprintf(out + n, room - n, "%s %u:%u", i && !(i % 16) ? "\norder" : "", y.order[i] >> 8,
                              y.order[i] & 255u);
    snprintf(out + n, room - n, "\n");
    esp__free(p->ctx, y.order);
    free(y.units);
    free(model.tensors);
    return out;
}

/* Returns how much longer a step takes with the default order than if all ops run as soon as they are ready. */
static double longer(a_plan *p, const char *strategy) {
    const esp_plan_config config = {.strategy = strategy, .flags = ESP_PLAN_NO_BOUND};
    esp_plan_report ready = {.struct_size = sizeof ready}, now = ready;
    if (esp_plan_make(p->model, p->codec, 1, &p->system, &config, &p->plan)) fail_msg("%s", esp_last_error(NULL));
    esp_plan_report_read(p->plan, &ready);
    char *text = with_default_order(p);
    esp_plan_free(p->plan);
    if (esp_plan_simulate(p->model, p->codec, 1, &p->system, &config, text, &p->plan))
        fail_msg("%s of:\n%s", esp_last_error(NULL), text);
    esp_plan_report_read(p->plan, &now);
    esp_plan_free(p->plan);
    free(text);
    return now.iteration_ns / ready.iteration_ns - 1.0;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Runs the strategy in all cases. Its mean and worst step must be so little longer. */
static void check_strategy(esp_ctx *ctx, const esp__model_file files[MODELS], const char *strategy, double mean,
                           double worst) {
    double all[CASES], sum = 0.0;
    for (uint32_t i = 0; i < CASES; i++) {
        a_plan p = {.ctx = ctx, .model = &files[i % MODELS].model};
        const uint32_t system = i / MODELS % SYSTEMS, codec = i / MODELS / SYSTEMS % CODECS;
        esp__costs costs;
        p.system = *esp__builtin_system(systems[system]);
        p.system.machines = i / MODELS / SYSTEMS / CODECS ? 8 : 2;
        if (esp__builtin_costs(ctx, codecs[codec], &p.system, NULL, &costs)) fail_msg("%s", esp_last_error(ctx));
        p.codec = &costs.codec;
        sum += all[i] = longer(&p, strategy);
    }
    qsort(all, CASES, sizeof *all, ascending);
    printf("%s: steps are %.1f%% longer on average, %.1f%% in the median, at most %.1f%%\n", strategy,
           100.0 * sum / CASES, 100.0 * all[CASES / 2], 100.0 * all[CASES - 1]);
    CHECK(sum / CASES <= mean && all[CASES - 1] <= worst);
}

TEST(test_published_models) {
    esp__model_file files[MODELS];
    const esp__files_log log = {0};
    esp_ctx *ctx = NULL;
    char path[256];
    CHECK(!esp__open_alone(&ctx));
    for (uint32_t i = 0; i < MODELS; i++) {
        snprintf(path, sizeof path, "planner/models/%s.json", models[i]);
        if (esp__model_read(path, &files[i], &log)) fail_msg("%s", esp_last_error(NULL));
    }
    check_strategy(ctx, files, strategies[0], 0.025, 0.18);
    check_strategy(ctx, files, strategies[1], 0.035, 0.18);
    for (uint32_t i = 0; i < MODELS; i++) esp__model_free(&files[i]);
    esp_close(ctx);
}
