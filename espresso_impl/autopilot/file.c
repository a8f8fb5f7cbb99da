/* file.c: saves the chosen strategy in a file, with the model, machines and codecs that it was made for, and reads it back if these
 * still fit. Rank 0 reads and writes. Must not know how the strategy was found. */
#include "espresso_impl/autopilot/autopilot.h"
#include "espresso_impl/base/file.h"
#include <errno.h>
#include <unistd.h>

/* What a saved strategy was made for. Each part is compared on its own, so that a message can name the one that differs. */
typedef struct esp__auto_tie {
    unsigned long long tensors, machines, links;
    int ranks;
    char codecs[ESP__SPEC_MAX * ESP__SURVEY_CODECS], backend[ESP__NAME_MAX], optimizer[ESP__NAME_MAX];
} esp__auto_tie;

static void esp__auto_tie_make(const esp_ctx *ctx, esp__auto_tie *t) {
    const esp__auto_options *o = &esp__autopilot_of(ctx)->opt;
    uint64_t h = ESP__HASH0;
    size_t n = 0;
    memset(t, 0, sizeof *t);
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        const esp__tensor *x = &ctx->model.tensors[i];
        h = esp__hash64(h, x->name, strlen(x->name) + 1);
        h = esp__hash64(h, &x->count, sizeof x->count);
        h = esp__hash64(h, &x->dtype, sizeof x->dtype);
        h = esp__hash64(h, &x->flags, sizeof x->flags);
    }
    t->tensors = h;
    t->machines =
        esp__hash64(ESP__HASH0, ctx->job.topo.machine_of, (uint64_t)ctx->job.size * sizeof *ctx->job.topo.machine_of);
    t->links = ctx->job.links;
    t->ranks = ctx->job.size;
    snprintf(t->codecs, sizeof t->codecs, "%s", ESP__CODEC_NONE);
    for (uint32_t i = 0; i < o->n_codecs && n < sizeof t->codecs; i++)
        n += (size_t)snprintf(t->codecs + n, sizeof t->codecs - n, "%s%s", i ? ";" : "", o->codecs[i]);
    snprintf(t->backend, sizeof t->backend, "%s", ctx->job.backend->name);
    esp__safety_optimizer(ctx, t->optimizer, sizeof t->optimizer);
}

static const char esp__auto_mark[] = "# autopilot: made for ";

ESP__FN void esp__auto_save(esp_ctx *ctx) {
    const esp__autopilot *a = esp__autopilot_of(ctx);
    const char *path = a->opt.file, *text = ctx->in_force.strategy.text, *rest = strchr(text, '\n');
    esp__text out = {.ctx = ctx};
    esp__auto_tie t;
    esp__auto_tie_make(ctx, &t);
    esp__text_add(&out,
                  "%.*s\n%stensors=%016llx ranks=%d machines=%016llx backend=%s links=%016llx optimizer=%s codecs=%s\n"
                  "# measured %.3f us a step\n%s",
                  (int)(rest - text), text, esp__auto_mark, t.tensors, t.ranks, t.machines, t.backend, t.links,
                  t.optimizer, t.codecs, a->reference_ns / 1e3, rest + 1);
    int error = out.failed ? ENOMEM : esp__file_replace(path, out.data, out.len);
    esp__text_free(&out);
    if (error)
        esp__log(ctx, ESP_LOG_WARN, "autopilot", "the strategy could not be written to '%s': %s; training goes on",
                 path, strerror(error));
}

/* The part of the tie that does not fit; NULL: all fit. */
static const char *esp__auto_tie_differs(const esp_ctx *ctx, const char *text) {
    const char *line = strstr(text, esp__auto_mark);
    esp__auto_tie now;
    char want[sizeof now.codecs + 256];
    esp__auto_tie_make(ctx, &now);
    if (!line) return "it does not say what it was made for";
    line += sizeof esp__auto_mark - 1;
    const struct {
        const char *key, *what;
    } parts[] = {{"tensors=", "other tensors"},
                 {"ranks=", "another number of ranks"},
                 {"machines=", "other machines"},
                 {"backend=", "another backend"},
                 {"links=", "another link, or other parameters of the backend"},
                 {"optimizer=", "another optimizer"},
                 {"codecs=", "other allowed codecs"}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (i == 0) snprintf(want, sizeof want, "%016llx", now.tensors);
        if (i == 1) snprintf(want, sizeof want, "%d", now.ranks);
        if (i == 2) snprintf(want, sizeof want, "%016llx", now.machines);
        if (i == 3) snprintf(want, sizeof want, "%s", now.backend);
        if (i == 4) snprintf(want, sizeof want, "%016llx", now.links);
        if (i == 5) snprintf(want, sizeof want, "%s", now.optimizer);
        if (i == 6) snprintf(want, sizeof want, "%s", now.codecs);
        size_t key = strlen(parts[i].key), n = strcspn(line, " \n");
        if (strncmp(line, parts[i].key, key) || n - key != strlen(want) || strncmp(line + key, want, n - key))
            return parts[i].what;
        line += n + (line[n] == ' ');
    }
    return NULL;
}

/* Rank 0: the file's text if it fits; NULL: no file, or it does not fit, so measure. Freed with esp__free. */
static char *esp__auto_file_read(esp_ctx *ctx) {
    const char *path = esp__autopilot_of(ctx)->opt.file, *why;
    if (access(path, F_OK)) return NULL; /* no file yet: it is written after the choice */
    char *text;
    if (esp__file_text(ctx, path, &text)) {
        esp__auto_say(ctx, "'%s' cannot be used: %s; measuring", path, esp_last_error(ctx));
        return NULL;
    }
    why = esp__auto_tie_differs(ctx, text);
    if (!why) return text;
    esp__auto_say(ctx, "'%s' was made for something else (%s): measuring", path, why);
    esp__free(ctx, text);
    return NULL;
}

/* Collective: puts the file's strategy in force if it fits. */
ESP__FN esp_status esp__auto_reuse(esp_ctx *ctx) {
    esp__autopilot *a = esp__autopilot_of(ctx);
    char *text = ctx->job.rank == 0 ? esp__auto_file_read(ctx) : NULL, *all = NULL, *own = NULL;
    const char *us = text ? strstr(text, "# measured ") : NULL;
    a->mine.text_bytes = text ? strlen(text) + 1 : 0;
    a->mine.predicted_ns = us ? strtod(us + 11, NULL) * 1e3 : 0.0;
    esp_status s = esp__auto_exchange(ctx);
    uint64_t bytes = s ? 0 : a->all[0].text_bytes;
    if (bytes) {
        all = esp__alloc(ctx, bytes * (uint64_t)ctx->job.size), own = esp__alloc(ctx, bytes);
        if (own && text) memcpy(own, text, bytes);
        s = esp__agree_ok(ctx, all && own ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "autopilot: out of memory"));
        if (!s) s = esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, own, all, bytes);
        if (!s) {
            pthread_mutex_lock(&ctx->lanes.lock);
            ctx->started = 1; /* esp_strategy_set needs it; esp_start has not ended yet */
            pthread_mutex_unlock(&ctx->lanes.lock);
            s = esp__auto_set(ctx, all);
            pthread_mutex_lock(&ctx->lanes.lock);
            ctx->started = 0;
            pthread_mutex_unlock(&ctx->lanes.lock);
        }
        if (s && !ctx->health.fatal) {
            esp__auto_say(ctx, "'%s' cannot be used: %s; measuring", a->opt.file, esp_last_error(ctx));
            s = ESP_OK;
        } else if (!s) {
            esp__auto_say(ctx, "strategy taken from '%s', nothing is measured", a->opt.file);
            a->reference_ns = a->all[0].predicted_ns;
            a->settled_step = ctx->steps.step;
            esp__auto_enter(ctx, ESP__AUTO_WATCH);
        }
    }
    esp__free(ctx, text);
    esp__free(ctx, all);
    esp__free(ctx, own);
    return s;
}
