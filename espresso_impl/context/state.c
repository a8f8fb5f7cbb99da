/* state.c: saves and loads what must survive a restart: step, seed, strategy, residuals and codec states. Loading
 * changes the context only after all ranks have read and checked their states. */
#include "espresso_impl/base/file.h"
#include "espresso_impl/base/limits.h"
#include "espresso_impl/context/context.h"
#include "espresso_impl/context/state.h"
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>

static esp__state_comp esp__state_comp_of(const esp__feedback *f) {
    esp__state_comp x;
    memset(&x, 0, sizeof x);
    x.place = f->place;
    x.codec = f->codec, x.option = f->option;
    x.comp_index = f->comp_index, x.n_ranges = f->n_ranges;
    x.raw = f->raw, x.owner_replica = f->owner_replica;
    x.offset = f->offset, x.count = f->count, x.state_bytes = f->state_bytes;
    x.has = (f->residual ? (uint32_t)ESP__STATE_RESIDUAL : 0u) | (f->state ? (uint32_t)ESP__STATE_CODEC : 0u);
    return x;
}

/* ---- writing ---- */
typedef struct esp__state_out {
    esp_io_fn write; /* NULL to count the bytes only */
    void *user;
    uint64_t bytes, sum;
    esp_status status;
} esp__state_out;

static void esp__state_put(esp__state_out *o, const void *data, uint64_t n) {
    char zeros[8] = {0};
    uint64_t padding = esp__state_padded(n) - n;
    o->bytes += n + padding;
    if (!o->write || o->status != ESP_OK || !n) return;
    o->sum = esp__state_sum(o->sum, data, n);
    o->status = o->write(o->user, (void *)(uintptr_t)data, n);
    if (o->status == ESP_OK && padding) o->status = o->write(o->user, zeros, padding);
}

static void esp__state_put_on(const esp_ctx *ctx, esp__state_out *o, uint32_t device, const void *data, uint64_t n) {
    uint8_t some[1 << 15]; /* a multiple of 8 bytes needs no padding */
    if (device == ESP__CPU_INDEX || !o->write) {
        esp__state_put(o, data, n);
        return;
    }
    for (uint64_t at = 0, m; at < n && o->status == ESP_OK; at += m) {
        m = n - at < sizeof some ? n - at : sizeof some;
        o->status = esp__device_copy(ctx, ESP__CPU_INDEX, some, device, (const uint8_t *)data + at, m);
        esp__state_put(o, some, m);
    }
}

static void esp__state_put_outer(const esp_ctx *ctx, void *user, uint32_t device, const void *data, uint64_t n) {
    esp__state_put_on(ctx, user, device, data, n);
}

static void esp__state_put_body(const esp_ctx *ctx, esp__state_out *o) {
    esp__state_put(o, ctx->active.strategy.text, strlen(ctx->active.strategy.text));
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        const esp__tensor *t = &ctx->model.tensors[i];
        esp__state_tensor x = {t->count, (uint32_t)strlen(t->name), t->pending_residual != NULL};
        esp__state_put(o, &x, sizeof x);
        esp__state_put(o, t->name, x.name_bytes);
        if (t->pending_residual) esp__state_put_on(ctx, o, t->device, t->pending_residual, t->count * sizeof(float));
    }
    for (uint32_t i = 0; i < ctx->active.n_feedback; i++) {
        const esp__feedback *f = &ctx->active.feedback[i];
        esp__state_comp x = esp__state_comp_of(f);
        esp__state_put(o, &x, sizeof x);
        if (f->residual) esp__state_put_on(ctx, o, f->device, f->residual, f->count * sizeof(float));
        if (f->state) esp__state_put_on(ctx, o, f->device, f->state, f->state_bytes);
    }
    esp__outer_save(ctx, esp__state_put_outer, o);
}

static esp__state_head esp__state_head_of(const esp_ctx *ctx) {
    esp__state_out count = {NULL, NULL, 0, 0, ESP_OK};
    esp__state_head h;
    memset(&h, 0, sizeof h);
    esp__state_put_body(ctx, &count);
    memcpy(h.magic, esp__state_magic, sizeof h.magic);
    h.version = ESP__STATE_VERSION;
    h.rank = ctx->job.rank;
    h.size = ctx->job.size;
    h.n_tensors = ctx->model.n_tensors;
    h.n_feedback = ctx->active.n_feedback;
    h.text_bytes = (uint32_t)strlen(ctx->active.strategy.text);
    h.step = ctx->steps.step;
    h.seed = ctx->config.seed;
    h.strategy_hash = ctx->active.strategy.hash;
    h.body_bytes = count.bytes;
    h.head_sum = esp__state_sum(0, &h, offsetof(esp__state_head, head_sum));
    return h;
}

static esp_status esp__state_write(esp_ctx *ctx, esp_io_fn write, void *user) {
    esp__state_out o = {write, user, 0, 0, ESP_OK};
    esp__state_head h = esp__state_head_of(ctx);
    uint64_t sum;
    esp__state_put(&o, &h, sizeof h);
    esp__state_put_body(ctx, &o);
    sum = o.sum;
    esp__state_put(&o, &sum, sizeof sum);
    if (o.status == ESP_OK) return ESP_OK;
    return esp__fail(ctx, o.status < 0 ? o.status : ESP_E_DEVICE, "the state could not be written: %s",
                     esp_status_text(o.status));
}

/* ---- reading ---- */
typedef struct esp__state_in {
    esp__state_head head;
    uint8_t *body;
    uint64_t bytes; /* bytes of `body`, with its checksum */
    uint64_t at;    /* offset in `body` of the next read */
    char *text;
    float **pending_residual; /* [n_tensors]; NULL for tensors without one */
    esp__feedback *feedback;  /* [head.n_feedback]; their arrays are in `body` */
    bool same;                /* active and saved strategy compress at the same stages */
} esp__state_in;

/* What a rank loads: its state, or if another number of ranks saved, the states of ranks `rank`, `rank + job.size` and
 * so on. A rank that the saving job did not have reads another rank's state, for step, seed and strategy only. */
typedef struct esp__state_set {
    esp__state_in *in;
    uint32_t n;
    int32_t size; /* number of ranks that saved */
} esp__state_set;

static bool esp__state_resized(const esp_ctx *ctx, const esp__state_set *set) { return set->size != ctx->job.size; }

/* A rank's residual enters the mean over n ranks divided by n. So that the residuals of all ranks, added up, enter the
 * mean of this job as they would have entered that of the job that saved them, they are multiplied by this factor. */
static double esp__state_ratio(const esp_ctx *ctx, const esp__state_set *set) {
    return (double)ctx->job.size / set->size;
}

static const void *esp__state_take(esp__state_in *in, uint64_t n) {
    const uint8_t *p = in->body + in->at;
    if (n > in->head.body_bytes || esp__state_padded(n) > in->head.body_bytes - in->at) return NULL;
    in->at += esp__state_padded(n);
    return p;
}

static void esp__state_pending_free(esp_ctx *ctx, esp__state_in *in) {
    for (uint32_t i = 0; in->pending_residual && i < ctx->model.n_tensors; i++) {
        esp__device_give(ctx, ctx->model.tensors[i].device, in->pending_residual[i],
                         ctx->model.tensors[i].count * sizeof(float), ESP_MEM_DEVICE);
        in->pending_residual[i] = NULL;
    }
}

static void esp__state_in_free(esp_ctx *ctx, esp__state_in *in) {
    esp__state_pending_free(ctx, in);
    esp__free(ctx, in->pending_residual);
    esp__free(ctx, in->body);
    esp__free(ctx, in->feedback);
    esp__free(ctx, in->text);
}

static esp_status esp__state_corrupt(const esp_ctx *ctx, const char *what) {
    return esp__fail(ctx, ESP_E_CORRUPT, "%s: use a state that was saved whole", what);
}

static esp_status esp__state_head_check(const esp_ctx *ctx, const esp__state_head *h, int32_t rank, int32_t size) {
    if (memcmp(h->magic, esp__state_magic, sizeof h->magic) != 0)
        return esp__state_corrupt(ctx, "this is no espresso state (its first bytes are wrong)");
    if (h->version != ESP__STATE_VERSION)
        return esp__fail(ctx, ESP_E_MISMATCH, "the state has format version %u, this library reads version %d",
                         (unsigned)h->version, (int)ESP__STATE_VERSION);
    if (h->head_sum != esp__state_sum(0, h, offsetof(esp__state_head, head_sum)))
        return esp__state_corrupt(ctx, "the state is damaged (the checksum of its head is wrong)");
    if (h->size != size || h->rank != rank)
        return esp__fail(ctx, ESP_E_MISMATCH,
                         "the state is of rank %d of %d, expected that of rank %d of %d (only esp_state_load takes "
                         "states of another number of ranks)",
                         (int)h->rank, (int)h->size, (int)rank, (int)size);
    return ESP_OK;
}

static esp_status esp__state_take_text(esp_ctx *ctx, esp__state_in *in) {
    const uint64_t n = in->head.text_bytes;
    const void *text = esp__state_take(in, n);
    if (!text) return esp__state_corrupt(ctx, "the state ends too early");
    if (memchr(text, 0, n) || esp__hash64(ESP__HASH0, text, n) != in->head.strategy_hash)
        return esp__state_corrupt(ctx, "the state's strategy is not the one that its head names");
    in->text = (char *)esp__alloc(ctx, n + 1); /* esp__alloc zeroes, so the text ends with NUL */
    if (!in->text) return esp__fail(ctx, ESP_E_NOMEM, "no memory for the state's strategy");
    memcpy(in->text, text, n);
    return ESP_OK;
}

/* Checks that the saved tensors are the context's, in the same order. Allocates memory for
 * their residuals, which stay there until all of the state has been checked. */
static esp_status esp__state_match_tensors(esp_ctx *ctx, esp__state_in *in) {
    if (in->head.n_tensors != ctx->model.n_tensors)
        return esp__fail(ctx, ESP_E_MISMATCH, "the state was saved for another model: it has %u tensors, this one %u",
                         (unsigned)in->head.n_tensors, (unsigned)ctx->model.n_tensors);
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        const esp__tensor *t = &ctx->model.tensors[i];
        const void *p = esp__state_take(in, sizeof(esp__state_tensor)), *pending = NULL;
        const char *name;
        esp__state_tensor x;
        if (!p) return esp__state_corrupt(ctx, "the state ends too early");
        memcpy(&x, p, sizeof x);
        name = (const char *)esp__state_take(in, x.name_bytes);
        if (!name) return esp__state_corrupt(ctx, "the state ends too early");
        if (x.count != t->count || x.name_bytes != strlen(t->name) || memcmp(name, t->name, x.name_bytes) != 0)
            return esp__fail(
                ctx, ESP_E_MISMATCH,
                "the state was saved for another model: tensor %u is %.*s with %llu elements there, %s with %llu here",
                (unsigned)i, x.name_bytes < 200 ? (int)x.name_bytes : 200, name, (unsigned long long)x.count, t->name,
                (unsigned long long)t->count);
        if (!x.has_pending) continue;
        pending = esp__state_take(in, t->count * sizeof(float));
        if (!pending) return esp__state_corrupt(ctx, "the state ends too early");
        in->pending_residual[i] = (float *)esp__device_take(ctx, t->device, t->count * sizeof(float), ESP_MEM_DEVICE);
        if (!in->pending_residual[i]) return esp__fail(ctx, ESP_E_NOMEM, "no memory for the state of %s", t->name);
        const esp_status s = esp__device_copy(ctx, t->device, in->pending_residual[i], ESP__CPU_INDEX, pending,
                                              t->count * sizeof(float));
        if (s) return s;
    }
    return ESP_OK;
}

/* Reads what error feedback keeps for one compress stage. Checks it against the tensors, not against the active
 * strategy. */
static esp_status esp__state_take_comp(const esp_ctx *ctx, esp__state_in *in, esp__feedback *f) {
    const void *p = esp__state_take(in, sizeof(esp__state_comp));
    esp__state_comp x;
    uint64_t room = 0;
    if (!p) return esp__state_corrupt(ctx, "the state ends too early");
    memcpy(&x, p, sizeof x);
    if (x.place.n == 0 || x.place.first >= ctx->model.n_tensors || x.place.n > ctx->model.n_tensors - x.place.first)
        return esp__state_corrupt(ctx, "the state has a Comp of no tensor");
    for (uint32_t k = 0; k < x.place.n; k++) room += ctx->model.tensors[x.place.first + k].count;
    if (x.place.begin > room || x.place.elements > room - x.place.begin ||
        (x.place.n > 1 && x.place.elements != room) || x.offset > x.place.elements ||
        x.count > x.place.elements - x.offset)
        return esp__state_corrupt(ctx, "the state has a Comp beyond its tensor's elements");
    f->place = x.place;
    f->codec = x.codec, f->option = x.option;
    f->comp_index = x.comp_index, f->n_ranges = x.n_ranges;
    f->raw = x.raw, f->owner_replica = x.owner_replica;
    f->offset = x.offset, f->count = x.count, f->state_bytes = x.state_bytes;
    const void *residual = x.has & ESP__STATE_RESIDUAL ? esp__state_take(in, f->count * sizeof(float)) : NULL;
    const void *state = x.has & ESP__STATE_CODEC ? esp__state_take(in, f->state_bytes) : NULL;
    if ((x.has & ESP__STATE_RESIDUAL && !residual) || (x.has & ESP__STATE_CODEC && !state))
        return esp__state_corrupt(ctx, "the state ends too early");
    memcpy(&f->residual, &residual, sizeof residual); /* memcpy casts const away; nobody writes through it */
    memcpy(&f->state, &state, sizeof state);
    return ESP_OK;
}

/* Fails if the active strategy has another codec for the saved elements. Other options, chunks and groups are
 * allowed. */
static esp_status esp__state_match_codec(const esp_ctx *ctx, const esp__state_in *in, const esp__feedback *was) {
    for (uint32_t i = 0; i < ctx->active.n_feedback; i++) {
        const esp__feedback *now = &ctx->active.feedback[i];
        if (now->codec == was->codec || now->place.first >= was->place.first + was->place.n ||
            was->place.first >= now->place.first + now->place.n)
            continue;
        if (now->place.n == 1 && was->place.n == 1 && /* skips other chunks of the tensor */
            (now->place.begin >= was->place.begin + was->place.elements ||
             was->place.begin >= now->place.begin + now->place.elements))
            continue;
        return esp__fail(
            ctx, ESP_E_MISMATCH,
            "the state was saved under another strategy (%016llx, here %016llx), with another codec for tensor '%s': "
            "start with the codec that it was saved with; esp_strategy_set may change it afterwards",
            (unsigned long long)in->head.strategy_hash, (unsigned long long)ctx->active.strategy.hash,
            ctx->model.tensors[now->place.first].name);
    }
    return ESP_OK;
}

static esp_status esp__state_take_comps(esp_ctx *ctx, esp__state_in *in) {
    esp_status s = ESP_OK;
    if (in->head.n_feedback > in->head.body_bytes / sizeof(esp__state_comp))
        return esp__state_corrupt(ctx, "the state ends too early");
    in->feedback = (esp__feedback *)esp__alloc(ctx, (uint64_t)in->head.n_feedback * sizeof *in->feedback + 1);
    if (!in->feedback) return esp__fail(ctx, ESP_E_NOMEM, "no memory for the state's %u Comps", in->head.n_feedback);
    for (uint32_t i = 0; i < in->head.n_feedback && s == ESP_OK; i++)
        s = esp__state_take_comp(ctx, in, &in->feedback[i]);
    return s == ESP_OK ? esp__outer_check(ctx, in->body + in->at, in->head.body_bytes - in->at) : s;
}

/* A saved residual that the active strategy has no place for becomes pending: the next push adds it. */
static esp_status esp__state_match_comps(esp_ctx *ctx, esp__state_in *in, bool resized, float **pending) {
    esp_status s = ESP_OK;
    in->same = !resized && in->head.n_feedback == ctx->active.n_feedback;
    for (uint32_t i = 0; i < in->head.n_feedback && in->same; i++) {
        esp__state_comp there = esp__state_comp_of(&in->feedback[i]),
                        here = esp__state_comp_of(&ctx->active.feedback[i]);
        in->same = !memcmp(&there, &here, sizeof here);
    }
    if (in->same) return ESP_OK;
    for (uint32_t i = 0; i < in->head.n_feedback && s == ESP_OK; i++)
        s = esp__state_match_codec(ctx, in, &in->feedback[i]);
    return s == ESP_OK ? esp__feedback_pending_take(ctx, &ctx->active, in->feedback, in->head.n_feedback, pending) : s;
}

/* Adds the pending residuals of all states to those of the first. */
static esp_status esp__state_merge_pending(const esp_ctx *ctx, const esp__state_set *set) {
    esp_status s = ESP_OK;
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        const esp__tensor *t = &ctx->model.tensors[i];
        const float factor = t->flags & ESP_SUM ? 1.0f : (float)esp__state_ratio(ctx, set);
        float **to = &set->in->pending_residual[i];
        for (uint32_t k = 0; k < set->n && !s; k++) {
            float *from = set->in[k].pending_residual[i];
            const int sum = k && *to;
            if (!from) continue;
            if (k && !sum) *to = from, set->in[k].pending_residual[i] = NULL;
            s = esp__device_add(ctx, t->device, *to, from, factor, sum, t->count);
        }
    }
    return s;
}

static esp_status esp__state_match(esp_ctx *ctx, const esp__state_set *set) {
    const bool resized = esp__state_resized(ctx, set);
    esp_status s = resized ? esp__state_merge_pending(ctx, set) : ESP_OK;
    for (uint32_t k = 0; k < set->n && !s; k++)
        s = esp__state_match_comps(ctx, &set->in[k], resized, set->in->pending_residual);
    return s;
}

static esp_status esp__state_apply_comp(const esp_ctx *ctx, const esp__feedback *f, const esp__feedback *was) {
    const uint64_t bytes = f->count * sizeof(float);
    esp_status s = ESP_OK;
    if (f->residual)
        s = was ? esp__device_copy(ctx, f->device, f->residual, ESP__CPU_INDEX, was->residual, bytes)
                : esp__device_zero(ctx, f->device, f->residual, bytes);
    if (f->state && !s)
        s = was ? esp__device_copy(ctx, f->device, f->state, ESP__CPU_INDEX, was->state, f->state_bytes)
                : esp__device_zero(ctx, f->device, f->state, f->state_bytes);
    return s;
}

/* With more ranks than saved, codecs' states start from zero on all ranks, because PowerSGD needs the same on all. */
static esp_status esp__state_apply_comps(esp_ctx *ctx, const esp__state_set *set) {
    const esp__state_in *in = set->in;
    esp_status s = ESP_OK;
    for (uint32_t i = 0; i < ctx->active.n_feedback && !s; i++)
        s = esp__state_apply_comp(ctx, &ctx->active.feedback[i], in->same ? &in->feedback[i] : NULL);
    for (uint32_t k = 0; k < set->n && !s; k++)
        s = esp__feedback_move(ctx, &ctx->active, in[k].feedback, in->same ? 0 : in[k].head.n_feedback,
                               in->pending_residual, esp__state_ratio(ctx, set), !k && ctx->job.size <= set->size);
    return s;
}

/* Allocates as data arrives, since a damaged head may claim any size. */
enum { ESP__STATE_AT_ONCE = 64 << 20 };
static esp_status esp__state_fetch_body(esp_ctx *ctx, esp_io_fn read, void *user, esp__state_in *in) {
    for (uint64_t have = 0, room; have < in->bytes; have = room) {
        room = have ? 2 * have : ESP__STATE_AT_ONCE;
        if (room > in->bytes) room = in->bytes;
        uint8_t *body = (uint8_t *)esp__alloc(ctx, room);
        if (!body)
            return esp__fail(ctx, ESP_E_NOMEM, "no memory to read a state of %llu bytes",
                             (unsigned long long)in->bytes);
        if (have) memcpy(body, in->body, have);
        esp__free(ctx, in->body);
        in->body = body;
        if (read(user, body + have, room - have) != ESP_OK)
            return esp__state_corrupt(ctx, "the state cannot be read, or ends too early");
    }
    return ESP_OK;
}

static esp_status esp__state_fetch(esp_ctx *ctx, esp_io_fn read, void *user, int32_t rank, int32_t size,
                                   esp__state_in *in) {
    uint64_t sum, stored;
    esp_status s;
    if (read(user, &in->head, sizeof in->head) != ESP_OK)
        return esp__state_corrupt(ctx, "the state cannot be read, or ends too early");
    if ((s = esp__state_head_check(ctx, &in->head, rank, size)) != ESP_OK) return s;
    if (in->head.body_bytes > UINT64_MAX - 64) return esp__state_corrupt(ctx, "the state has an impossible size");
    in->bytes = in->head.body_bytes + sizeof stored;
    in->pending_residual = (float **)esp__alloc(ctx, ctx->model.n_tensors * sizeof *in->pending_residual + 1);
    if (!in->pending_residual) return esp__fail(ctx, ESP_E_NOMEM, "no memory to read a state");
    if ((s = esp__state_fetch_body(ctx, read, user, in)) != ESP_OK) return s;
    sum = esp__state_sum(esp__state_sum(0, &in->head, sizeof in->head), in->body, in->head.body_bytes);
    memcpy(&stored, in->body + in->head.body_bytes, sizeof stored);
    if (sum != stored) return esp__state_corrupt(ctx, "the state is damaged (its checksum is wrong)");
    if ((s = esp__state_take_text(ctx, in)) != ESP_OK) return s;
    if ((s = esp__state_match_tensors(ctx, in)) != ESP_OK) return s;
    return esp__state_take_comps(ctx, in);
}

typedef struct esp__state_vote {
    esp_status status;
    uint32_t reserved0;
    uint64_t step, seed, strategy;
} esp__state_vote;
_Static_assert(sizeof(esp__state_vote) <= ESP__JOB_ROOM, "a vote must fit into the room of a rank");

/* Fails on all ranks if one passes an error in `mine`, or if the `loaded` states are of different saves. Collective. */
static esp_status esp__state_agree(esp_ctx *ctx, esp_status mine, const esp__state_head *loaded, const char *verb) {
    esp__state_vote vote = {mine, 0, 0, 0, 0}, *all = ctx->job.room;
    char text[ESP__ERROR_MAX];
    esp_status s;
    if (loaded) vote.step = loaded->step, vote.seed = loaded->seed, vote.strategy = loaded->strategy_hash;
    snprintf(text, sizeof text, "%s", mine == ESP_OK ? "" : esp_last_error(ctx)); /* the exchange may overwrite it */
    s = esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, &vote, all, sizeof vote);
    if (mine != ESP_OK) s = esp__fail(ctx, mine, "%s", text);
    for (int32_t r = 0; s == ESP_OK && r < ctx->job.size; r++)
        if (all[r].status != ESP_OK)
            s = esp__fail(ctx, all[r].status, "rank %d could not %s its state (%s; see its own error): no rank did",
                          (int)r, verb, esp_status_text(all[r].status));
    for (int32_t r = 1; s == ESP_OK && r < ctx->job.size; r++)
        if (all[r].strategy != all[0].strategy)
            s = esp__fail(ctx, ESP_E_MISMATCH,
                          "rank 0's state was saved under strategy %016llx, rank %d's under %016llx: nothing was "
                          "loaded; give every rank the file of one save",
                          (unsigned long long)all[0].strategy, (int)r, (unsigned long long)all[r].strategy);
    for (int32_t r = 1; s == ESP_OK && r < ctx->job.size; r++)
        if (all[r].step != all[0].step || all[r].seed != all[0].seed)
            s = esp__fail(ctx, ESP_E_MISMATCH,
                          "rank 0's state is of step %llu and seed %llu, rank %d's of step %llu and seed %llu: nothing "
                          "was loaded; give every rank the file of one save",
                          (unsigned long long)all[0].step, (unsigned long long)all[0].seed, (int)r,
                          (unsigned long long)all[r].step, (unsigned long long)all[r].seed);
    return s;
}

static void esp__state_apply(esp_ctx *ctx, const esp__state_set *set) {
    esp__state_in *in = set->in;
    pthread_mutex_lock(&ctx->lanes.lock);
    ctx->steps.step = in->head.step;
    ctx->config.seed = in->head.seed;
    pthread_mutex_unlock(&ctx->lanes.lock);
    const esp_status s = esp__state_apply_comps(ctx, set);
    if (s) esp__fatal(ctx, s, esp_last_error(ctx));
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        esp__tensor *t = &ctx->model.tensors[i];
        esp__device_give(ctx, t->device, t->pending_residual, t->count * sizeof(float), ESP_MEM_DEVICE);
        esp__pending_before_free(ctx, t);
        t->pending_residual = in->pending_residual[i];
        in->pending_residual[i] = NULL;
    }
    const esp_status loaded = ctx->outer ? esp__outer_load(ctx, in->body + in->at) : ESP_OK;
    if (loaded) esp__fatal(ctx, loaded, esp_last_error(ctx));
}

static esp_status esp__state_allowed(esp_ctx *ctx, const char *what, bool has_argument) {
    esp_status s = esp__between_steps(ctx, what);
    if (s != ESP_OK) return s;
    if (!ctx->started) return esp__fail(ctx, ESP_E_STATE, "%s: call esp_start first", what);
    if (!has_argument) return esp__fail(ctx, ESP_E_ARG, "%s: the path or callback is NULL", what);
    return ESP_OK;
}

/* The autopilot chose the active strategy, so activate the saved one. Stores the active one's text in *before, to
 * return to it after an error. If the saved one does not fit another number of ranks, the active one stays. */
static esp_status esp__state_set_strategy(esp_ctx *ctx, const esp__state_set *set, char **before) {
    const esp__state_in *in = set->in;
    if (in->head.strategy_hash == ctx->active.strategy.hash) return ESP_OK;
    *before = esp__strdup(ctx, ctx->active.strategy.text);
    esp_status s = *before ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "no memory to change the strategy");
    s = esp__state_agree(ctx, s, NULL, "load");
    if (!s) s = esp_strategy_set(ctx, in->text);
    if (!esp__state_resized(ctx, set) || (s != ESP_E_ARG && s != ESP_E_UNSUPPORTED)) return s;
    if (!ctx->job.rank)
        esp__log(ctx, ESP_LOG_WARN, "state",
                 "the strategy that %d ranks saved does not fit these %d, so strategy auto starts again: %s", set->size,
                 ctx->job.size, esp_last_error(ctx));
    return ESP_OK;
}

/* Frees the states, which were read unless `s` is an error. All ranks apply theirs, or none does. Collective. */
static esp_status esp__state_load(esp_ctx *ctx, esp_status s, const esp__state_set *set) {
    char *before = NULL, text[ESP__ERROR_MAX];
    const bool chosen = esp__observers_chose(ctx);
    if (chosen) s = esp__state_agree(ctx, s, set->n ? &set->in->head : NULL, "load");
    if (chosen && s == ESP_OK) s = esp__state_set_strategy(ctx, set, &before);
    const bool undecided = !chosen || s == ESP_OK; /* else all ranks have failed above */
    if (s == ESP_OK) s = esp__state_match(ctx, set);
    if (undecided) s = esp__state_agree(ctx, s, set->n ? &set->in->head : NULL, "load");
    if (s == ESP_OK) esp__state_apply(ctx, set);
    if (s == ESP_OK && chosen) esp__observers_loaded(ctx);
    snprintf(text, sizeof text, "%s", s == ESP_OK ? "" : esp_last_error(ctx));
    if (s != ESP_OK && before && undecided && !esp__alive(ctx) && esp_strategy_set(ctx, before) == ESP_OK)
        esp__fail(ctx, s, "%s", text);
    esp__free(ctx, before);
    for (uint32_t k = 0; k < set->n; k++) esp__state_in_free(ctx, &set->in[k]);
    return s;
}

ESPRESSO_API esp_status esp_state_write(esp_ctx *ctx, esp_io_fn write, void *user) {
    esp_status s = esp__state_allowed(ctx, "esp_state_write", write != NULL);
    return s != ESP_OK ? s : esp__state_agree(ctx, esp__state_write(ctx, write, user), NULL, "write");
}

ESPRESSO_API esp_status esp_state_read(esp_ctx *ctx, esp_io_fn read, void *user) {
    esp_status s = esp__state_allowed(ctx, "esp_state_read", read != NULL);
    if (s != ESP_OK) return s;
    esp__state_in in = {0};
    const esp__state_set set = {&in, 1, ctx->job.size};
    return esp__state_load(ctx, esp__state_fetch(ctx, read, user, ctx->job.rank, ctx->job.size, &in), &set);
}

/* ---- files PATH.r<rank>of<size>: all ranks replace theirs, or none does ---- */
static esp_status esp__state_file_put(void *user, void *data, uint64_t bytes) {
    esp__file *f = (esp__file *)user;
    esp__file_put(f, data, bytes);
    return f->error ? ESP_E_DEVICE : ESP_OK;
}

static esp_status esp__state_file_get(void *user, void *data, uint64_t bytes) {
    return fread(data, 1, bytes, (FILE *)user) == bytes ? ESP_OK : ESP_E_CORRUPT;
}

static esp_status esp__state_path(const esp_ctx *ctx, const char *path, int32_t rank, int32_t size, char *out,
                                  size_t cap) {
    if ((size_t)snprintf(out, cap, "%s.r%dof%d", path, (int)rank, (int)size) + 8 < cap) return ESP_OK;
    return esp__fail(ctx, ESP_E_ARG, "the state's path is too long");
}

static const char *esp__path_split(const char *path, char *dir, size_t cap) {
    const char *slash = strrchr(path, '/');
    snprintf(dir, cap, "%.*s", slash ? (int)(slash - path + 1) : 2, slash ? path : "./");
    return slash ? slash + 1 : path;
}

/* Writes the state to a temporary file, and returns when it is on the disk. */
static esp_status esp__state_file_write(esp_ctx *ctx, esp__file *f, const char *name) {
    int error = esp__file_open(f, name);
    if (error) return esp__fail(ctx, ESP_E_ARG, "cannot write the state %s: %s", name, esp__strerror(error));
    esp_status s = esp__state_write(ctx, esp__state_file_put, f);
    if (s != ESP_OK) {
        error = f->error ? f->error : EIO;
        esp__file_drop(f);
    } else {
        error = esp__file_sync(f);
    }
    if (!error) return ESP_OK;
    return esp__fail(ctx, ESP_E_DEVICE, "cannot write the state %s: %s", name, esp__strerror(error));
}

ESPRESSO_API esp_status esp_state_save(esp_ctx *ctx, const char *path) {
    char name[4096];
    esp__file f;
    esp_status s = esp__state_allowed(ctx, "esp_state_save", path != NULL), written;
    if (s != ESP_OK) return s;
    written = s = esp__state_path(ctx, path, ctx->job.rank, ctx->job.size, name, sizeof name);
    if (s == ESP_OK) written = s = esp__state_file_write(ctx, &f, name);
    s = esp__state_agree(ctx, s, NULL, "save");
    if (s != ESP_OK && written == ESP_OK) esp__file_drop(&f);
    if (s != ESP_OK) return s;
    int error = esp__file_rename(&f);
    return error ? esp__fail(ctx, ESP_E_DEVICE, "cannot write the state %s: %s", name, esp__strerror(error)) : ESP_OK;
}

/* Returns how many ranks saved the last state with this path, by the times of rank 0's files; this job's number of
 * ranks if there is none. */
static int32_t esp__state_last(const esp_ctx *ctx, const char *path) {
    char dir[4096], name[4096];
    const char *base = esp__path_split(path, dir, sizeof dir);
    const size_t n = strlen(base);
    int64_t last = 0;
    int32_t found = ctx->job.size;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        int size, end = 0;
        struct stat st;
        if (strncmp(e->d_name, base, n) != 0 || sscanf(e->d_name + n, ".r0of%d%n", &size, &end) != 1) continue;
        if (e->d_name[n + (size_t)end] || size < 1 || esp__state_path(ctx, path, 0, size, name, sizeof name)) continue;
        if (stat(name, &st) != 0) continue;
        const int64_t at = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
        if (at > last || (at == last && size == ctx->job.size)) last = at, found = size;
    }
    if (d) closedir(d);
    return found;
}

static esp_status esp__state_fetch_file(esp_ctx *ctx, const char *path, int32_t rank, int32_t size, esp__state_in *in) {
    char name[4096];
    esp_status s = esp__state_path(ctx, path, rank, size, name, sizeof name);
    FILE *f = s ? NULL : fopen(name, "re");
    if (!s && !f)
        s = errno == ENOENT ? esp__fail(ctx, ESP_E_NOT_FOUND, "there is no state %s", name)
                            : esp__fail(ctx, ESP_E_ARG, "cannot read the state %s: %s", name, strerror(errno));
    if (!s) s = esp__state_fetch(ctx, esp__state_file_get, f, rank, size, in);
    if (f) fclose(f);
    return s;
}

static esp_status esp__state_fetch_files(esp_ctx *ctx, const char *path, esp__state_set *set) {
    const int32_t first = ctx->job.rank % set->size;
    const uint32_t n = (uint32_t)((set->size - 1 - first) / ctx->job.size + 1);
    esp_status s = ESP_OK;
    set->in = esp__alloc(ctx, n * sizeof *set->in);
    if (!set->in) return esp__fail(ctx, ESP_E_NOMEM, "no memory to read %u states", n);
    for (set->n = 0; set->n < n && !s; set->n++) {
        const esp__state_head *h = &set->in[set->n].head;
        const int32_t rank = first + (int32_t)set->n * ctx->job.size;
        s = esp__state_fetch_file(ctx, path, rank, set->size, &set->in[set->n]);
        if (!s && (h->step != set->in->head.step || h->strategy_hash != set->in->head.strategy_hash))
            s = esp__fail(ctx, ESP_E_MISMATCH,
                          "the states of ranks %d and %d are of steps %llu and %llu, or of different strategies: "
                          "nothing was loaded; give all ranks the files of one save",
                          first, rank, (unsigned long long)set->in->head.step, (unsigned long long)h->step);
    }
    if (s || ctx->job.rank < set->size) return s;
    set->in->head.n_feedback = 0;
    esp__state_pending_free(ctx, set->in);
    return ESP_OK;
}

ESPRESSO_API esp_status esp_state_load(esp_ctx *ctx, const char *path) {
    esp_status s = esp__state_allowed(ctx, "esp_state_load", path != NULL);
    if (s != ESP_OK) return s;
    esp__state_set set = {NULL, 0, ctx->job.rank ? 0 : esp__state_last(ctx, path)};
    s = esp_broadcast(ctx, &set.size, sizeof set.size, 0);
    if (s == ESP_OK) s = esp__state_load(ctx, esp__state_fetch_files(ctx, path, &set), &set);
    esp__free(ctx, set.in);
    return s;
}
