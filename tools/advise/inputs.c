/* inputs.c: makes the planner's inputs from traces: the model with its times, the machines and their links, the codecs
 * and the optimizer. */
#include "tools/advise/advise.h"
#include "espresso_impl/base/json.h"
#include "espresso_impl/base/quantile.h"
#include "espresso_impl/context/context.h"
#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <sys/stat.h>

/* ---- model ------------------------------------------------------------------------------------------------------- */
/* Adds a tensor. A trace has no names, so the name is the gradient's number and shape, such as "3.512x256". */
static void advise_print_tensor(esp__text *to, const advise_trace *t, size_t i) {
    const json_t *dims = NULL;
    const double n = advise_elements(&t->of[ADVISE_GRAD].at[t->first_grad + i], &dims);
    const double rows = json_number_value(json_array_get(dims, 0));
    esp__text_add(to, "%s\n    {\"name\": \"%zu", i ? "," : "", i);
    for (size_t d = 0; d < json_array_size(dims); d++)
        esp__text_add(to, "%s%.0f", d ? "x" : ".", json_number_value(json_array_get(dims, d)));
    esp__text_add(to, "\", \"elements\": %.0f, \"compute_us\": ", n);
    esp__json_us(to, t->grad[i] > 0 ? t->grad[i] * 1000 : 0);
    if (json_array_size(dims) > 1) esp__text_add(to, ", \"rows\": %.0f, \"cols\": %.0f", rows, n / rows);
    esp__text_add(to, "}");
}

/* Writes the model of a trace as a model file. */
static void advise_print_model(esp__text *to, const advise_trace *t) {
    const char *slash = strrchr(t->path, '/'), *name = slash ? slash + 1 : t->path;
    esp__text_add(to, "{\n  \"espresso\": 1,\n  \"model\": ");
    esp__json_string(to, name);
    esp__text_add(to, ",\n  \"source\": \"espresso advise\",\n  \"steps\": %zu,\n  \"forward_us\": ", t->n_steps);
    esp__json_us(to, t->forward * 1000);
    esp__text_add(to, ",\n  \"update_us\": ");
    esp__json_us(to, t->update * 1000);
    esp__text_add(to, ",%s\n  \"tensors\": [", t->noisy ? "\n  \"noisy\": true," : "");
    for (size_t i = 0; i < t->n_grads; i++) advise_print_tensor(to, t, i);
    esp__text_add(to, "\n  ]\n}\n");
}

/* ---- links ------------------------------------------------------------------------------------------------------- */
/* Returns the all-reduces of the slowest rank. Those that other ranks recorded too take the shortest time of all, which
 * is that of the rank that came last: the others waited for it. */
static advise_burst *advise_collect(const advise_job *j, size_t n) {
    const size_t bytes = n * sizeof(advise_burst);
    advise_burst *all = memcpy(tool_realloc(NULL, bytes), j->slowest->bursts, bytes);
    for (uint32_t f = 0; f < j->n_traces; f++) {
        const advise_trace *t = &j->traces[f];
        bool same = t->n_bursts == n;
        for (size_t i = 0; same && i < n; i++) same = t->bursts[i].bytes == all[i].bytes;
        for (size_t i = 0; same && i < n; i++) all[i].time = fmin(all[i].time, t->bursts[i].time);
    }
    return all;
}

/* Replaces all-reduces of one size by one with a quantile of their times. Returns the number of sizes. */
static size_t advise_by_size(advise_burst *b, size_t n, double part) {
    double *v = tool_realloc(NULL, n * sizeof *v);
    size_t sizes = 0;
    qsort(b, n, sizeof *b, advise_ascending);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i; end < n && b[end].bytes == b[i].bytes; end++) v[end - i] = b[end].time;
        esp__sort(v, end - i);
        b[sizes++] = (advise_burst){b[i].bytes, esp__quantile(v, end - i, part)};
    }
    free(v);
    return sizes;
}

/* Fits latency and rate to all-reduces of n sizes, as the planner computes their time: latency + 2 (ranks - 1) / ranks
 * bytes / rate. Minimizes the squares of relative errors. The latency cannot be told if all sizes are alike: then it is
 * assumed to be `least`, or a tenth of the shortest all-reduce if that is less. Too low a latency would make small
 * messages look too cheap. */
static advise_link advise_fit(const advise_burst *b, size_t n, double ranks, double least) {
    double s = 0, sx = 0, sxx = 0, st = 0, sxt = 0;
    advise_link l = {.latency = 0};
    for (size_t i = 0; i < n; i++) {
        const double x = 2 * (ranks - 1) / ranks * b[i].bytes, t = b[i].time, w = 1 / (t * t);
        s += w, sx += w * x, sxx += w * x * x, st += w * t, sxt += w * x * t;
        least = fmin(least, t / 10);
    }
    if (b[n - 1].bytes >= 1.5 * b[0].bytes) {
        const double slope = (s * sxt - sx * st) / (s * sxx - sx * sx);
        l.latency = (st - slope * sx) / s;
        l.latency_measured = slope > 0 && l.latency >= least;
    }
    if (!l.latency_measured) l.latency = least;
    l.bytes_per_us = sxx / (sxt - l.latency * sx);
    return l;
}

/* ---- machines ---------------------------------------------------------------------------------------------------- */
/* Returns the number of machines: as the user says, or as many as hosts if all ranks' traces are there, else one for
 * each rank. */
static uint32_t advise_machines(advise_job *j, uint32_t world) {
    uint32_t hosts = 0;
    if (j->in.machines) return (uint32_t)j->in.machines;
    j->system_note = ", each rank taken to be on its own machine (--machines N says otherwise)";
    for (uint32_t i = 0; i < j->n_traces; i++) {
        uint32_t k = 0;
        if (!j->traces[i].host) return world;
        while (k < i && strcmp(j->traces[k].host, j->traces[i].host) != 0) k++;
        hosts += k == i;
    }
    if (j->n_traces < world || world % hosts) return world;
    j->system_note = "";
    return hosts;
}

/* Returns the accelerator of the codecs' costs whose name is in the GPU's name, such as "RTX3090" in "NVIDIA GeForce
 * RTX 3090", or NULL. */
static const char *advise_accelerator(const char *gpu) {
    const char *name, *found = NULL;
    for (uint32_t i = 0; (name = esp__known_accelerator_at(i)) != NULL; i++)
        for (const char *at = gpu; *at; at++) {
            const char *p = at, *q = name;
            for (; *p && *q; p++)
                if (*p == *q)
                    q++;
                else if (*p != ' ' || q == name)
                    break;
            if (!*q && !isalnum((unsigned char)*p) && (at == gpu || !isalnum((unsigned char)at[-1]))) found = name;
        }
    return found;
}

/* Sets how long collectives between machines keep a core of each rank busy. Over TCP, that grows with their number,
 * with their bytes, which are summed and copied before they are sent on, so that this time adds to the link's, and with
 * the time in which bytes arrive little by little. The numbers are processor times of backend gloo at 100 Mbit/s and 1
 * Gbit/s, between two hosts of two busy cores. */
static void advise_set_cores(esp_cost_point (*points)[ESP_PLAN_COLLS][2][2], esp_plan_system *s) {
    static const double fixed_ns = 200e3, ns_per_byte = 2.2, of_time = 0.22;
    static const uint8_t scopes[] = {ESP__FLAT, ESP__INTER};
    static const double sizes[] = {1024, 1 << 30};
    esp_plan_link *const links[] = {&s->flat, &s->inter};
    for (uint32_t coll = 0; coll < 2 * ESP_PLAN_COLLS; coll++) links[coll % 2]->table[coll / 2].n = 0;
    const esp_plan_system formula = *s;
    for (uint32_t k = 0; k < 2; k++)
        for (uint32_t coll = 1; coll < ESP_PLAN_COLLS; coll++) {
            esp_cost_point *time = points[k][coll][0], *core = points[k][coll][1];
            const double ranks = k ? s->machines : s->machines * s->ranks_per_machine;
            for (uint32_t i = 0; i < 2; i++) {
                const double sent = esp__traffic(coll, ranks, sizes[i], sizes[i] / ranks);
                const double ns = ns_per_byte * sent + esp__collective_ns(&formula, scopes[k], coll, sizes[i],
                                                                          sizes[i] / ranks, s->ranks_per_machine);
                time[i] = (esp_cost_point){sizes[i], ns};
                core[i] = (esp_cost_point){sizes[i], fmin(ns, fixed_ns + ns_per_byte * sent + of_time * ns)};
            }
            links[k]->table[coll] = (esp_cost_curve){time, 2, 0};
            links[k]->core[coll] = (esp_cost_curve){core, 2, 0};
        }
}
static void advise_set_cores_again(esp_plan_system *changed) {
    static esp_cost_point points[2][ESP_PLAN_COLLS][2][2];
    advise_set_cores(points, changed);
}

/* Makes the system of the traces, in in.system_file. */
static int advise_make_system(advise_job *j) {
    const advise_trace *t = j->slowest;
    const tool_command *c = j->in.command;
    if (t->world == 1) return tool_fail(c, "%s: its job has one rank, which sends nothing", t->path);
    if (!t->world) return tool_fail(c, "%s: it does not say how many ranks there are: give --system", t->path);
    const uint32_t machines = advise_machines(j, t->world), ranks = t->world / machines;
    if (!ranks || t->world % machines) tool_usage(c, "--machines %u: the job has %u ranks", machines, t->world);
    if (!t->n_bursts)
        return tool_fail(c, "%s: it has no times of all-reduces, which would tell the links' speed: give --system",
                         t->path);
    advise_burst *b = advise_collect(j, t->n_bursts);
    /* one rank's all-reduces include waits for others: of these, short ones tell the link's time */
    const size_t sizes = advise_by_size(b, t->n_bursts, j->n_traces < t->world ? 0.25 : 0.5);
    /* gloo: as espresso profile measured between two hosts of two busy cores */
    const double hops = esp__hops(ESP_COLL_ALLREDUCE, t->world);
    j->link = advise_fit(b, sizes, t->world, t->backend && strcmp(t->backend, "gloo") == 0 ? 270 * hops : 50);
    free(b);
    esp__system_file f = {.source = "espresso advise: latency and rate fit to the all-reduces of a trace",
                          .cpu_workers = 1};
    const esp_plan_link link = {
        .alpha_ns = j->link.latency * 1000 / hops, .alpha_is = ESP_ALPHA_HOP, .bytes_per_us = j->link.bytes_per_us};
    f.system = (esp_plan_system){.name = "the-trace",
                                 .machines = machines,
                                 .ranks_per_machine = ranks,
                                 .devices = 1u << ESP_ON_CPU,
                                 .pack_ns = 1e3,
                                 .pack_bytes_per_us = t->copied > 0 ? t->copied : 4000,
                                 .cores_per_rank = 1};
    if (machines > 1) f.system.inter = link;
    if (ranks > 1) f.system.intra = link;
    if (t->of[ADVISE_KERNEL].n || t->kind) {
        const char *gpu = j->gpu ? j->gpu : t->gpu;
        f.accelerator = gpu ? advise_accelerator(gpu) : NULL;
        f.cpu_workers = 0;
        f.system.devices = 1u << ESP_ON_GPU, f.system.cores_per_rank = 0;
        f.system.pack_ns = 10e3, f.system.pack_bytes_per_us = 400000, f.system.host_bytes_per_us = 12000;
        if (!f.accelerator)
            return tool_fail(c,
                             "%s: the costs of codecs are not known for GPU '%s': give --gpu, or a --system with an "
                             "\"accelerator\"",
                             t->path, gpu ? gpu : "unknown");
    } else if (j->gpu) {
        tool_usage(c, "--gpu %s: %s is of a job on CPUs", j->gpu, t->path);
    } else if (machines > 1) {
        advise_set_cores(j->points, &f.system);
        j->in.after_change = advise_set_cores_again;
    }
    j->in.system_file = f;
    return TOOL_OK;
}

/* ---- optimizer --------------------------------------------------------------------------------------------------- */
/* Returns the name by which ESPRESSO_OPTIMIZER knows the trace's optimizer. */
static const char *advise_optimizer(const advise_trace *t) {
    static const char *const known[][2] = {
        {"Adam", "adam"}, {"RMSprop", "rmsprop"}, {"Adagrad", "adagrad"}, {"Lion", "lion"}};
    if (strcmp(t->optimizer, "SGD") == 0) return t->momentum ? "momentum" : "sgd";
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strstr(t->optimizer, known[i][0])) return known[i][1];
    return "unknown";
}

/* ---- all inputs -------------------------------------------------------------------------------------------------- */
/* Writes model.json and system.json into the folder --out, if there is one. */
static int advise_write(const advise_job *j, const esp__text *model) {
    esp__text system = {NULL, 0, 0, 0, NULL};
    esp__system_file f = j->in.system_file;
    const esp__text *const texts[] = {model, &system};
    char path[PATH_MAX];
    int failed = 0;
    if (!j->out) return TOOL_OK;
    f.system = j->in.system;
    esp__system_print(&f, &system);
    (void)mkdir(j->out, 0777); /* if this fails, the error is that of the files */
    for (int i = 0; i < 2 && !failed; i++) {
        snprintf(path, sizeof path, "%s/%s.json", j->out, i ? "system" : "model");
        failed = esp__output_write(path, texts[i]->data, texts[i]->len) != ESP_OK;
    }
    esp__text_free(&system);
    return failed ? tool_fail(j->in.command, "%s", esp_last_error(NULL)) : TOOL_OK;
}

/* Makes the model of the slowest rank. */
static int advise_model(advise_job *j, esp__text *model) {
    esp__text_free(model);
    advise_print_model(model, j->slowest);
    esp__model_free(&j->in.model_file);
    if (model->failed || esp__model_parse(j->slowest->path, model->data, model->len, &j->in.model_file, NULL))
        return tool_fail(j->in.command, "%s", esp_last_error(NULL));
    j->in.model = j->in.model_file.model;
    return TOOL_OK;
}

/* Sets the times of computing that NCCL's traces lack. All-reduces are taken to follow each other until the step ends,
 * each begun as its gradients are ready. So all but the last one overlap the backward pass, and what precedes them is
 * the forward pass. In j->apart, all gradients are ready when the first ones are, and nothing overlaps. */
static int advise_overlap(advise_job *j, esp__text *model) {
    const uint32_t world = j->slowest->world, ranks = j->in.system.machines * j->in.system.ranks_per_machine;
    const size_t size = j->in.model.n_tensors * sizeof *j->apart;
    advise_trace *t = j->slowest;
    plan_made now;
    if (world && world != ranks)
        return tool_fail(j->in.command, "%s: its job has %u ranks, but the system %u", t->path, world, ranks);
    if (advise_now(j, &now) != TOOL_OK) return TOOL_FAILED;
    j->reducing = now.report.iteration_ns;
    t->forward = j->step - j->reducing / 1000;
    for (uint32_t e = 0; e < now.n_events; e++) {
        const esp_plan_event *x = &now.events[e];
        if (x->kind != ESP_PLAN_BACKWARD && x->step == 0)
            t->grad[now.units[x->unit].first] = (double)x->start_ns / 1000;
    }
    plan_free(&now);
    for (size_t i = t->n_grads; i-- > 1;) t->grad[i] -= t->grad[i - 1], t->backward += t->grad[i];
    if (t->forward < 0)
        return tool_fail(j->in.command, "%s: a step takes %s, but its all-reduces would take %s on this system",
                         t->path, tool_time(j->step * 1000), tool_time(j->reducing));
    const int status = advise_model(j, model);
    if (status != TOOL_OK) return status;
    j->apart = tool_realloc(NULL, size);
    memcpy(j->apart, j->in.model.tensors, size);
    for (uint32_t i = 0; i < j->in.model.n_tensors; i++) j->apart[i].compute_ns = 0;
    return TOOL_OK;
}

/* Reads the traces, and makes the planner's inputs of them. */
ESP__FN int advise_inputs(advise_job *j) {
    static const char *const usual[] = {"fp16", "int8", "int4", "topk:ratio=0.01", "efsignsgd", "powersgd:rank=4"};
    plan_inputs *in = &j->in;
    int status = TOOL_OK;
    esp__text model = {NULL, 0, 0, 0, NULL};
    for (uint32_t i = 0; i < j->n_traces; i++) {
        advise_trace *t = &j->traces[i], *s = j->slowest, *first = &j->traces[0];
        if ((status = advise_read(in->command, j->paths[i], t)) != TOOL_OK) return status;
        if (t->kind != first->kind)
            return tool_fail(in->command, "%s and %s were written by different tools", t->path, first->path);
        if (t->n_grads != first->n_grads || t->elements != first->elements || t->world != first->world ||
            (t->comm && strcmp(t->comm, first->comm) != 0))
            return tool_fail(in->command, "%s and %s are of different jobs", t->path, first->path);
        for (uint32_t k = 0; t->world && k < i; k++)
            if (t->rank == j->traces[k].rank)
                return tool_fail(in->command, "%s and %s are both of rank %u", t->path, j->traces[k].path, t->rank);
        j->step = fmax(j->step, t->step);
        if (!s || t->forward + t->backward + t->update > s->forward + s->backward + s->update) j->slowest = t;
    }
    if (!in->machines) in->machines = j->slowest->nodes;
    if (!in->system_name) status = advise_make_system(j);
    if (status != TOOL_OK) return status;
    for (size_t i = 0; !in->n_codecs || (i && i < sizeof usual / sizeof *usual); i++) in->gc[in->n_codecs++] = usual[i];
    setenv("ESPRESSO_OPTIMIZER", j->optimizer ? j->optimizer : advise_optimizer(j->slowest), 1);
    status = advise_model(j, &model);
    if (status == TOOL_OK && esp__open_alone(&in->registry))
        status = tool_fail(in->command, "%s", esp_last_error(NULL));
    if (status == TOOL_OK) status = plan_read(in);
    if (status == TOOL_OK && j->slowest->kind) status = advise_overlap(j, &model);
    in->model_name = j->slowest->path; /* for warnings */
    if (status == TOOL_OK) status = advise_write(j, &model);
    esp__text_free(&model);
    return status;
}
