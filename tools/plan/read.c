/* read.c: reads the model, codecs and system from files, or takes built-in ones. */
#include "tools/plan/plan.h"
#include "espresso_impl/base/file.h"
#include "espresso_impl/context/context.h"
#include "espresso_impl/strategy/strategy.h"
#include <errno.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <unistd.h>

/* Returns the value of the first --shard whose pattern matches tensor i's name, or NULL. */
static const char *plan_shard_of(const plan_inputs *in, uint32_t i) {
    for (uint32_t k = 0; k < in->n_shard; k++) {
        char glob[ESP__SPEC_MAX];
        const char *equals = strchr(in->shard[k], '=');
        snprintf(glob, sizeof glob, "%.*s", (int)strcspn(in->shard[k], "="), in->shard[k]);
        if (fnmatch(glob, in->model.tensors[i].name, 0) == 0) return equals ? equals + 1 : ESP__SHARD_ANY;
    }
    return NULL;
}

static void plan_shard(plan_inputs *in) {
    if (!in->n_shard) return;
    in->sharded = tool_realloc(NULL, in->model.n_tensors * sizeof *in->sharded);
    memcpy(in->sharded, in->model.tensors, in->model.n_tensors * sizeof *in->sharded);
    for (uint32_t i = 0; i < in->model.n_tensors; i++) {
        const char *cuts = plan_shard_of(in, i);
        if (cuts) in->sharded[i].shard = cuts;
    }
    in->model.tensors = in->sharded;
}

static int plan_read_costs(plan_inputs *in) {
    esp__costs_file *f = &in->costs_file;
    if (!in->costs_name) return TOOL_OK;
    const esp__files_log silent = {files_silent, NULL};
    if (esp__costs_read(in->costs_name, f, in->quiet ? &silent : NULL) != ESP_OK)
        return tool_fail(in->command, "%s", esp_last_error(NULL));
    if (!in->model_name && !f->has_model)
        tool_usage(in->command, "--costs %s: it has no model: add --model", in->costs_name);
    if (!in->system_name && !f->has_system)
        tool_usage(in->command,
                   "--costs %s: it has no links: measure them by espresso profile, or give espresso plan a --system",
                   in->costs_name);
    if (!in->n_codecs && !f->n_codecs) tool_usage(in->command, "--costs %s: it has no codec: add --gc", in->costs_name);
    if (!in->system_name) in->system_name = in->costs_name, in->system_file = f->system;
    if (!in->model_name) in->model_name = in->costs_name, in->model_file = f->model;
    for (uint32_t i = 0, all = !in->n_codecs; all && i < f->n_codecs; i++)
        in->gc[in->n_codecs++] = f->codecs[i].codec.spec;
    return TOOL_OK;
}

ESP__FN const esp__gc_file *plan_costs_codec(const plan_inputs *in, const char *spec) {
    for (uint32_t i = 0; i < in->costs_file.n_codecs; i++)
        if (strcmp(in->costs_file.codecs[i].codec.spec, spec) == 0) return &in->costs_file.codecs[i];
    return NULL;
}

ESP__FN int plan_read_model(plan_inputs *in) {
    char path[PATH_MAX + 512];
    if (in->model_name != in->costs_name) {
        if (!plan_find_model(in->command, in->model_name, path, sizeof path)) return TOOL_FAILED;
        if (esp__model_read(path, &in->model_file, NULL) != ESP_OK)
            return tool_fail(in->command, "%s", esp_last_error(NULL));
    }
    in->model = in->model_file.model;
    plan_shard(in);
    return TOOL_OK;
}

static int plan_read_system(plan_inputs *in) {
    const bool read = in->system_name == in->costs_name; /* as part of a costs file, or by espresso advise */
    const esp_plan_system *built = read || plan_is_path(in->system_name) ? NULL : esp__builtin_system(in->system_name);
    if (read) {
        in->system = in->system_file.system;
    } else if (built) {
        in->system = *built;
    } else if (plan_is_path(in->system_name) || access(in->system_name, F_OK) == 0) {
        if (esp__system_read(in->system_name, &in->system_file, NULL) != ESP_OK)
            return tool_fail(in->command, "%s", esp_last_error(NULL));
        in->system = in->system_file.system;
    } else {
        esp__text names = {NULL, 0, 0, 0, NULL};
        for (uint32_t i = 0; esp__known_system_at(i); i++)
            esp__text_add(&names, " %s", esp__known_system_at(i)->system.name);
        tool_fail(in->command, "no system '%s'. There are:%s; a file of your own: --system ./%s.json", in->system_name,
                  names.data ? names.data : "", in->system_name);
        esp__text_free(&names);
        return TOOL_FAILED;
    }
    if (in->machines) in->system.machines = (uint32_t)in->machines;
    return TOOL_OK;
}

static int plan_open_registry(plan_inputs *in) {
    if (in->registry || esp__open_alone(&in->registry) == ESP_OK) return TOOL_OK;
    return tool_fail(in->command, "%s", esp_last_error(NULL));
}

/* Opens a codec of a costs file. Only codecs whose payload size depends on the matrix's shape need this. */
static int plan_open_codec(plan_inputs *in, const char *path, esp_plan_codec *out) {
    esp__codec *c;
    if (out->n_rounds < 2 && !(out->caps & ESP_CODEC_NEEDS_MATRIX)) return TOOL_OK;
    if (plan_open_registry(in) != TOOL_OK) return TOOL_FAILED;
    if (esp__codec_get(in->registry, out->spec, &c) != ESP_OK)
        return tool_fail(in->command,
                         "%s: codec '%s' has several rounds or is one of matrices, so that planning with it needs the "
                         "codec itself: %s",
                         path, out->spec, esp_last_error(in->registry));
    out->vector_error = c->model.error >= 0.0 ? c->model.error : out->error;
    esp__plan_codec_rounds(out, c->table, &c->traits, c->self);
    return TOOL_OK;
}

static int plan_read_codec(plan_inputs *in, uint32_t i) {
    const char *name = in->gc[i];
    plan_codec *c = &in->codec_files[i];
    const esp__gc_file *measured = plan_costs_codec(in, name);
    if (measured || plan_is_path(name) || (!strchr(name, ':') && access(name, F_OK) == 0)) {
        if (!measured && esp__gc_read(name, &c->file, NULL) != ESP_OK)
            return tool_fail(in->command, "%s", esp_last_error(NULL));
        if (measured) c->file = *measured, c->file.arena = (esp__arena){0};
        in->codecs[i] = c->file.codec;
        if (plan_open_codec(in, measured ? in->costs_name : name, &in->codecs[i]) != TOOL_OK) return TOOL_FAILED;
    } else {
        if (plan_open_registry(in) != TOOL_OK) return TOOL_FAILED;
        const esp__system_file *f = &in->system_file;
        const bool known = f->cpu_workers && (f->accelerator || !(f->system.devices & 1u << ESP_ON_GPU));
        if (known ? esp__builtin_costs_for(in->registry, name, f->accelerator, f->cpu_workers,
                                           f->accelerator ? 0 : f->system.pack_bytes_per_us, &c->costs)
                  : esp__builtin_costs(in->registry, name, &in->system, f->accelerator, &c->costs))
            return tool_fail(in->command, "--gc %s: %s", name, esp_last_error(in->registry));
        in->codecs[i] = c->costs.codec;
    }
    const size_t len = strlen(in->codec_text);
    snprintf(in->codec_text + len, sizeof in->codec_text - len, "%s%s", i ? ", " : "", in->codecs[i].spec);
    return TOOL_OK;
}

static void plan_check_globs(const plan_inputs *in, const char *flag, const char *const *globs, uint32_t n) {
    for (uint32_t k = 0; k < n; k++) {
        char glob[ESP__SPEC_MAX];
        uint32_t t = 0;
        snprintf(glob, sizeof glob, "%.*s", (int)strcspn(globs[k], "="), globs[k]);
        while (t < in->model.n_tensors && fnmatch(glob, in->model.tensors[t].name, 0) != 0) t++;
        if (t == in->model.n_tensors)
            fprintf(stderr, "espresso %s: warning: %s %s: no tensor of model '%s' has such a name\n", in->command->name,
                    flag, globs[k], in->model.name);
    }
}

static void plan_check_keeps(const plan_inputs *in) {
    plan_check_globs(in, "--keep", in->keep, in->config.n_keep);
    plan_check_globs(in, "--shard", in->shard, in->n_shard);
}

/* Returns how an input was measured. i = 0 is the model; the codecs follow, then the system, then NULL. */
ESP__FN const esp__measured *plan_measured(const plan_inputs *in, uint32_t i, const char **name) {
    if (i > in->n_codecs + 1) return NULL;
    *name = !i ? in->model_name : i <= in->n_codecs ? in->gc[i - 1] : in->system_name;
    return !i                  ? &in->model_file.measured
           : i <= in->n_codecs ? &in->codec_files[i - 1].file.measured
                               : &in->system_file.measured;
}

/* Lists the inputs that were measured while other programs used the machine. Returns 0 if there are none. */
ESP__FN int plan_noisy(const plan_inputs *in, char *out, size_t cap) {
    const esp__measured *m;
    const char *name;
    size_t n = 0;
    out[0] = 0;
    for (uint32_t i = 0; (m = plan_measured(in, i, &name)) != NULL; i++) {
        if (!m->noisy || strstr(out, name)) continue;
        snprintf(out + n, cap - n, "%s%s", n ? ", " : "", name);
        n = strlen(out);
    }
    if (n) snprintf(out + n, cap - n, ": measured on a busy machine, so what is predicted from it may be off");
    return n > 0;
}

/* Warns if costs were measured with another number of ranks, since ranks share cores and links. */
static void plan_check_measured(const plan_inputs *in) {
    const uint32_t ranks = in->system.machines * in->system.ranks_per_machine;
    const esp__measured *m, *system = &in->system_file.measured;
    const char *name;
    for (uint32_t i = 0; (m = plan_measured(in, i, &name)) != NULL; i++) {
        const bool local = m != system && m->ranks == in->system.ranks_per_machine;
        if (m->ranks && m->ranks != ranks && !local)
            fprintf(stderr,
                    "espresso %s: warning: %s was measured with %u rank(s), and this plan is for %u, %u a machine: "
                    "measure it again with as many\n",
                    in->command->name, name, m->ranks, ranks, in->system.ranks_per_machine);
        if (m->cores && system->cores && m->cores != system->cores)
            fprintf(stderr, "espresso %s: warning: %s was measured on %u cores, %s on %u\n", in->command->name, name,
                    m->cores, in->system_name, system->cores);
    }
}

ESP__FN int plan_read(plan_inputs *in) {
    int status = plan_read_costs(in);
    /* reads the system first, since the costs of built-in codecs depend on its GPU */
    if (status == TOOL_OK) status = plan_read_system(in);
    for (uint32_t i = 0; status == TOOL_OK && i < in->n_codecs; i++) status = plan_read_codec(in, i);
    if (status == TOOL_OK) status = plan_read_model(in);
    if (status == TOOL_OK && !in->quiet) plan_check_keeps(in);
    if (status == TOOL_OK && !in->quiet) plan_check_measured(in);
    return status;
}

ESP__FN void plan_close(plan_inputs *in) {
    esp_close(in->registry);
    esp__costs_free(&in->costs_file);
    esp__model_free(&in->model_file);
    esp__system_free(&in->system_file);
    for (uint32_t i = 0; i < PLAN_CODECS_MAX; i++) esp__gc_free(&in->codec_files[i].file);
    free((void *)in->forbid);
    free((void *)in->only);
    free((void *)in->keep);
    free((void *)in->shard);
    free(in->sharded);
}

ESP__FN int plan_read_strategy(const tool_command *c, const char *path, esp__text *out) {
    struct stat st;
    errno = 0;
    char *text = NULL;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        errno = EISDIR;
    else
        (void)esp__file_text(NULL, path, &text);
    if (!text) return tool_fail(c, "%s: %s", path, errno ? strerror(errno) : esp_last_error(NULL));
    esp__text_add(out, "%s", text);
    free(text);
    if (out->len && out->data[strspn(out->data, " \t\r\n")] == '{' && artifact_read(c, path, out) != TOOL_OK)
        return TOOL_FAILED;
    return out->failed ? tool_fail(c, "out of memory") : TOOL_OK;
}
