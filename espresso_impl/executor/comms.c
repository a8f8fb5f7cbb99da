/* comms.c: chooses backends, and opens communicators: one for all ranks, and one for each level of the network (such
 * as the ranks of a machine) or group of neighbouring levels. */
#include "espresso_impl/executor/executor.h"
#include <poll.h>
#include <sched.h>

enum { ESP__SLEEP_SHORT_US = 200 }; /* longest sleep in one backend if there are several */

/* ---- which backend ----------------------------------------------------------------------------------------------- */
static esp_status esp__backend_best(esp_ctx *ctx, const esp_backend **out) {
    int32_t best_score = 0;
    *out = NULL;
    for (uint32_t i = 0; i < ctx->registry.backends.n; i++) {
        const esp_backend *b = ctx->registry.backends.at[i].backend;
        int32_t score = 0;
        if (!b->probe(&ctx->host, &score) && score > best_score) *out = b, best_score = score;
    }
    return *out ? ESP_OK
                : esp__fail(ctx, ESP_E_NOT_FOUND,
                            "no backend can run here: name one in esp_config.backend or ESPRESSO_BACKEND");
}

/* Appends emulated links that the launcher's options ask for, such as "1gbit,50us", to the backend's parameters. */
static esp_status esp__link_params(esp_ctx *ctx, const char *params, const esp__env_links *links, char *out,
                                   size_t cap) {
    const char *link = links->inter, *comma = strchr(link, ',');
    if (strlen(link) >= ESP__SPEC_MAX || strlen(links->outer) >= ESP__SPEC_MAX || strlen(params) >= ESP__SPEC_MAX - 32)
        return esp__fail(ctx, ESP_E_ARG,
                         "a link (ESPRESSO_INTER_LINK, ESPRESSO_OUTER_LINK) or the backend's parameters are too long");
    if (!*link)
        snprintf(out, cap, "%s", params);
    else if (strchr(link, ';') || !strncmp(link, "file:", 5))
        snprintf(out, cap, "%s%slink=(%s)", params, *params ? "," : "", link);
    else if (comma)
        snprintf(out, cap, "%s%sinter=%.*s,latency=%s", params, *params ? "," : "", (int)(comma - link), link,
                 comma + 1);
    else
        snprintf(out, cap, "%s%sinter=%s", params, *params ? "," : "", link);
    size_t n = strlen(out);
    if (*links->outer) snprintf(out + n, cap - n, "%souter=(%s)", n ? "," : "", links->outer);
    return ESP_OK;
}

static esp_status esp__backend_one(esp_ctx *ctx, const char *spec, const esp__env_links *links, esp__comm_plan *out) {
    static const esp__env_links none = {"", ""};
    char name[ESP__NAME_MAX];
    const char *params = "";
    esp_status s = ESP_OK;
    if (spec && *spec) {
        s = esp__spec_split(ctx, spec, name, &params);
        if (!s) out->backend = esp__registry_backend(ctx, name);
        if (!s && !out->backend) s = ESP_E_NOT_FOUND;
    } else {
        s = esp__backend_best(ctx, &out->backend);
    }
    if (!s)
        s = esp__link_params(ctx, params, out->backend->caps & ESP_BACKEND_PACED ? links : &none, out->params,
                             sizeof out->params);
    return s;
}

/* Finds the level with the name `key`, either a standard name such as "intra" or one that the user chose. *words has
 * a bit for each standard name found so far. */
static esp_status esp__level_key(esp_ctx *ctx, const char *key, uint32_t *words, uint32_t *out) {
    uint32_t scope = 0;
    while (scope < ESP__SCOPES && strcmp(esp__scope_word(scope), key) != 0) scope++;
    if (scope < ESP__SCOPES && *words >> scope & 1u)
        return esp__fail(ctx, ESP_E_ARG, "backend 'levels': '%s' is there twice: give each level one backend", key);
    if (scope < ESP__SCOPES) *words |= 1u << scope;
    if (*words & ~1u && (scope == ESP__SCOPES || ctx->job.names.n))
        return esp__fail(ctx, ESP_E_ARG,
                         "backend 'levels': '%s' is no level: expected intra, inter, outer or flat, as in "
                         "levels:intra=(shm),inter=(mpi), or names of your own for all levels, the innermost first, as "
                         "in levels:gpu=(shm),machine=(mpi)",
                         scope == ESP__SCOPES ? key : ctx->job.names.of[1]);
    *out = scope;
    if (scope < ESP__SCOPES) return ESP_OK;
    const char *wrong = esp__level_name_add(&ctx->job.names, key);
    *out = ctx->job.names.n;
    return wrong ? esp__fail(ctx, ESP_E_ARG, "backend 'levels': '%s' cannot name a level: %s", key, wrong) : ESP_OK;
}

/* Chooses a backend for each level, from "levels:intra=(shm),inter=(gloo:iface=eth0)". */
static esp_status esp__backend_levels(esp_ctx *ctx, const char *params, const esp__env_links *links,
                                      esp__comm_plan plans[ESP__SCOPES]) {
    char key[ESP__NAME_MAX], spec[ESP__SPEC_MAX];
    uint32_t words = 0;
    int more;
    while ((more = esp_params_next(&params, key, sizeof key, spec, sizeof spec)) > 0) {
        size_t n = strlen(spec);
        uint32_t scope = 0;
        esp_status s = esp__level_key(ctx, key, &words, &scope);
        if (s) return s;
        if (n < 3 || spec[0] != '(' || spec[n - 1] != ')')
            return esp__fail(ctx, ESP_E_ARG,
                             "backend 'levels': %s=%s: write the level's backend in parentheses: %s=(%s)", key, spec,
                             key, n ? spec : "shm");
        spec[n - 1] = 0;
        if ((s = esp__backend_one(ctx, spec + 1, links, &plans[scope])) != ESP_OK) return s;
    }
    if (more < 0)
        return esp__fail(ctx, ESP_E_ARG,
                         "backend 'levels' is malformed: write levels:intra=(shm),inter=(mpi:key=value)");
    return ESP_OK;
}

/* Returns the default backends for a job on several hosts. NULL if the job is on one host, or a plugin is missing. */
static const char *esp__backend_default(esp_ctx *ctx, const esp__where *w) {
#define ESP__BETWEEN(name)                                                                                             \
    { NULL, NULL, "levels:intra=(shm),inter=(" name ")", "levels:intra=(shm),inter=(" name "),outer=(" name ")" }
    static const char *const by_levels[2][ESP__LEVELS + 1] = {ESP__BETWEEN("gloo"), ESP__BETWEEN("mpi")};
#undef ESP__BETWEEN
    if (!w->several_hosts || w->n_levels > ESP__LEVELS) return NULL;
    if (esp__registry_backend(ctx, w->by_mpi ? "mpi" : "gloo")) return by_levels[w->by_mpi][w->n_levels];
    if (!w->rank)
        esp__log(ctx, ESP_LOG_WARN, "context",
                 "the ranks are on several hosts, and backend %s is not there: %s. Build it (make plugins, with %s), "
                 "or name a backend in ESPRESSO_BACKEND",
                 w->by_mpi ? "mpi" : "gloo", esp_last_error(ctx),
                 w->by_mpi ? "an MPI compiler mpicc" : "the library gloo, Debian's libgloo-dev");
    return NULL;
}

ESP__FN esp_status esp__backends_choose(esp_ctx *ctx, const char **text, const esp__where *w,
                                        const esp__env_links *links, esp__comm_plan plans[ESP__SCOPES]) {
    int paced = 0, n = 0;
    esp_status s;
    const char *spec = *text && **text ? *text : esp__backend_default(ctx, w);
    *text = spec;
    memset(plans, 0, ESP__SCOPES * sizeof *plans);
    if (spec && !strncmp(spec, "levels:", 7))
        s = esp__backend_levels(ctx, spec + 7, links, plans);
    else
        s = esp__backend_one(ctx, spec, links, &plans[ESP__FLAT]);
    for (uint32_t k = 0; k < ESP__SCOPES && !s; k++)
        if (plans[k].backend) paced |= (plans[k].backend->caps & ESP_BACKEND_PACED) != 0, n++;
    if (!s && (*links->inter || *links->outer) && !paced)
        return esp__fail(ctx, ESP_E_UNSUPPORTED, "backend '%s' has no emulated link: leave %s out, or use shm",
                         n == 1 && plans[0].backend ? plans[0].backend->name : "levels",
                         *links->inter ? "--inter" : "--outer");
    return s;
}

static const esp__comm_plan *esp__backend_that_meets(const esp__comm_plan plans[ESP__SCOPES]) {
    for (uint32_t k = 0; k < ESP__SCOPES; k++)
        if (plans[k].backend && ESP_HAS(esp_backend, plans[k].backend, meet)) return &plans[k];
    return NULL;
}

ESP__FN esp_status esp__backends_meet(esp_ctx *ctx, const esp__comm_plan plans[ESP__SCOPES], esp__where *w,
                                      esp_config *cfg) {
    const esp__comm_plan *p = esp__backend_that_meets(plans);
    esp_meeting m;
    if (cfg->oob_allgather || (*w->root && !w->default_root)) return ESP_OK;
    if (!p) return w->no_root ? esp__env_no_root(ctx, w) : ESP_OK;
    memset(&m, 0, sizeof m);
    m.struct_size = sizeof m;
    esp__plugin_detail_clear();
    const esp_status s = p->backend->meet(&ctx->host, p->params, &m);
    if (s) return esp__fail(ctx, s, "backend '%s' cannot find the ranks: %s", p->backend->name, esp__plugin_why(s));
    if (m.size < 1 || m.rank < 0 || m.rank >= m.size || !m.oob_allgather)
        return esp__fail(ctx, ESP_E_ABI, "backend '%s': meet() gives rank %d of %d", p->backend->name, (int)m.rank,
                         (int)m.size);
    if (w->explicit_rank && (m.rank != w->rank || m.size != w->size))
        return esp__fail(ctx, ESP_E_MISMATCH,
                         "this is rank %d of %d (from %s), but rank %d of %d in backend '%s': leave one of them out",
                         (int)w->rank, (int)w->size, w->launcher, (int)m.rank, (int)m.size, p->backend->name);
    w->rank = m.rank, w->size = m.size, w->root[0] = 0, w->no_root = false;
    cfg->oob_allgather = m.oob_allgather, cfg->oob_user = m.user;
    return ESP_OK;
}

/* Chooses a backend for each range of levels for which the user named none: that of its outermost level, or the only
 * backend. */
static esp_status esp__plans_spread(esp_ctx *ctx, esp__comm_plan plans[ESP__SCOPES]) {
    const uint32_t n_levels = ctx->job.topo.n_levels;
    int by_level = 0;
    const esp__level_names *names = &ctx->job.names;
    if (names->n && names->n != n_levels)
        return esp__fail(ctx, ESP_E_ARG,
                         "backend 'levels' names %u level%s, '%s'%s%s%s, but this job has %u levels: name each of them",
                         names->n, names->n == 1 ? "" : "s", names->of[1], names->n > 1 ? " to '" : "",
                         names->n > 1 ? names->of[names->n] : "", names->n > 1 ? "'" : "", n_levels);
    for (uint32_t k = 1; k < ESP__SCOPES; k++) by_level |= plans[k].backend != NULL;
    for (uint32_t level = 1; by_level && level <= ESP__LEVELS; level++) {
        if ((plans[level].backend != NULL) == (level <= n_levels)) continue;
        return esp__fail(
            ctx, ESP_E_ARG, "backend 'levels' %s '%s', but this job has %u levels: give each of them a backend",
            level <= n_levels ? "has none for level" : "has one for level", esp__scope_name(names, level), n_levels);
    }
    for (uint32_t k = 0; k < ESP__SCOPES; k++) {
        uint32_t first, last;
        esp__scope_levels(k, n_levels, &first, &last);
        if (!plans[k].backend && esp__scope_exists(k, n_levels)) plans[k] = plans[by_level ? last : ESP__FLAT];
    }
    return ESP_OK;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */
typedef struct esp__oob {
    esp_ctx *ctx;
    int32_t *members, n;
} esp__oob;
static esp_status esp__oob_allgather(void *user, const void *in, void *out, uint64_t bytes) {
    esp__oob *o = user;
    const esp_status s =
        esp__peers_allgather(o->ctx->job.peers, o->n == o->ctx->job.size ? NULL : o->members, o->n, in, out, bytes);
    if (s) esp__plugin_detail_set(esp_last_error(o->ctx));
    return s;
}

static void *esp__comm_parent(const esp_ctx *ctx, uint8_t scope, const esp_backend *b) {
    uint32_t first, last, from, to;
    esp__scope_levels(scope, ctx->job.topo.n_levels, &first, &last);
    for (uint32_t k = 0; k < ctx->job.n_parents; k++) {
        const esp__comm *c = &ctx->job.comms[ctx->job.parents[k]];
        esp__scope_levels(ctx->job.parents[k], ctx->job.topo.n_levels, &from, &to);
        if (c->backend == b && from <= first && to >= last) return c->handle;
    }
    return NULL;
}

static esp_status esp__comm_open(esp_ctx *ctx, uint8_t scope, const esp__comm_plan *plan) {
    const esp__topology *t = &ctx->job.topo;
    uint64_t bytes = (uint64_t)ctx->job.size * 4u;
    esp__oob oob = {ctx, esp__alloc(ctx, bytes), 0};
    int32_t index = 0, *machine = esp__alloc(ctx, bytes), *place = esp__alloc(ctx, t->n_levels * bytes);
    esp__comm *comm = &ctx->job.comms[scope];
    uint32_t first, last;
    esp_group g;
    esp_status s;
    memset(&g, 0, sizeof g);
    if (!oob.members || !machine || !place) {
        s = esp__fail(ctx, ESP_E_NOMEM, "backend '%s' cannot open: out of memory", plan->backend->name);
    } else {
        oob.n = esp__group_members(t, scope, oob.members, &index);
        for (int32_t i = 0; i < oob.n; i++) {
            machine[i] = t->machine_of[oob.members[i]];
            for (uint32_t level = 1; level <= t->n_levels; level++)
                place[(uint32_t)i * t->n_levels + level - 1] = esp__place_at(t, oob.members[i], level);
        }
        esp__scope_levels(scope, t->n_levels, &first, &last);
        g.struct_size = sizeof g;
        g.rank = index;
        g.size = oob.n;
        g.level = scope ? (int32_t)first : 0;
        g.last_level = (int32_t)last;
        g.n_levels = (int32_t)t->n_levels;
        g.level_name = esp__scope_name(&ctx->job.names, scope);
        g.place = place;
        g.machine = machine;
        g.parent = esp__comm_parent(ctx, scope, plan->backend);
        g.oob_allgather = esp__oob_allgather;
        g.user = &oob;
        esp__plugin_detail_clear();
        comm->backend = plan->backend;
        void *handle = NULL;
        s = plan->backend->open(&ctx->host, &g, plan->params, &handle);
        pthread_mutex_lock(&ctx->lanes.lock); /* the watch thread may abort communicators at any time */
        comm->handle = s ? NULL : handle;
        if (!s && !g.parent) ctx->job.parents[ctx->job.n_parents++] = scope;
        pthread_mutex_unlock(&ctx->lanes.lock);
        if (s) s = esp__fail(ctx, s, "backend '%s' cannot open: %s", plan->backend->name, esp__plugin_why(s));
    }
    esp__free(ctx, oob.members);
    esp__free(ctx, machine);
    esp__free(ctx, place);
    return s;
}

ESP__FN esp_status esp__comms_open(esp_ctx *ctx, esp__comm_plan plans[ESP__SCOPES]) {
    const esp__topology *t = &ctx->job.topo;
    esp_status s = esp__plans_spread(ctx, plans);
    if (!s) ctx->job.backend = plans[ESP__FLAT].backend;
    ctx->job.links = ESP__HASH0;
    for (uint32_t k = 0; k < ESP__SCOPES; k++)
        ctx->job.links = esp__hash64(ctx->job.links, plans[k].params, strlen(plans[k].params) + 1);
    if (!s) s = esp__comm_open(ctx, ESP__FLAT, &plans[ESP__FLAT]);
    /* Without an equal number of ranks on all machines (n_local is 0) there is only the communicator of all ranks.
     * Larger communicators are opened first, since smaller ones may be split off them. */
    for (uint32_t n = t->n_levels - 1; n >= 1 && t->n_local; n--)
        for (uint32_t first = 1; first + n - 1 <= t->n_levels && !s; first++) {
            uint8_t scope = esp__scope_of(first, first + n - 1, t->n_levels);
            s = esp__comm_open(ctx, scope, &plans[scope]);
        }
    return s;
}

/* Without a handle, the watch thread does not abort a communicator that closes. */
static void esp__comm_close(esp_ctx *ctx, esp__comm *c) {
    pthread_mutex_lock(&ctx->lanes.lock);
    void *handle = c->handle;
    c->handle = NULL;
    pthread_mutex_unlock(&ctx->lanes.lock);
    if (handle) c->backend->close(handle);
}

ESP__FN void esp__comms_close(esp_ctx *ctx) {
    for (uint32_t k = ESP__SCOPES; k-- > 0;) { /* first those that were split from another one */
        esp__comm *c = &ctx->job.comms[k];
        int parent = 0;
        for (uint32_t p = 0; p < ctx->job.n_parents; p++) parent |= ctx->job.parents[p] == k;
        if (!parent) esp__comm_close(ctx, c);
    }
    for (uint32_t p = ctx->job.n_parents; p-- > 0;) esp__comm_close(ctx, &ctx->job.comms[ctx->job.parents[p]]);
    ctx->job.n_parents = 0;
}

/* ---- all communicators together ---------------------------------------------------------------------------------- */
ESP__FN void esp__comms_abort(esp_ctx *ctx) {
    for (uint32_t k = 0; k < ESP__SCOPES; k++)
        if (ctx->job.comms[k].handle && ESP_HAS(esp_backend, ctx->job.comms[k].backend, abort))
            ctx->job.comms[k].backend->abort(ctx->job.comms[k].handle);
}

ESP__FN void esp__comms_wake(esp_ctx *ctx) {
    __atomic_store_n(&ctx->job.woken, 1u, __ATOMIC_SEQ_CST);
    for (uint32_t p = 0; p < ctx->job.n_parents; p++) {
        const esp__comm *c = &ctx->job.comms[ctx->job.parents[p]];
        if (ESP_HAS(esp_backend, c->backend, wake)) c->backend->wake(c->handle);
    }
}

static void esp__comm_progress(const esp__comm *c, uint64_t us) {
    if (ESP_HAS(esp_backend, c->backend, progress))
        c->backend->progress(c->handle, us);
    else
        sched_yield();
}

static int32_t esp__comm_fd(const esp__comm *c) {
    return ESP_HAS(esp_backend, c->backend, wait_fd) ? c->backend->wait_fd(c->handle) : -1;
}

ESP__FN bool esp__comms_arm(esp_ctx *ctx) {
    for (uint32_t p = 0; p < ctx->job.n_parents && ctx->job.n_parents > 1; p++) {
        const esp__comm *c = &ctx->job.comms[ctx->job.parents[p]];
        if (esp__comm_fd(c) >= 0) esp__comm_progress(c, 0);
    }
    return ctx->job.n_parents > 1;
}

/* Sleeps until a backend's file descriptor is readable. Backends without one sleep in turn, each for a short time. */
static void esp__comms_sleep_on(esp_ctx *ctx, uint64_t us) {
    struct pollfd fds[ESP__SCOPES];
    nfds_t n = 0;
    if (__atomic_exchange_n(&ctx->job.woken, 0u, __ATOMIC_SEQ_CST)) return;
    for (uint32_t p = 0; p < ctx->job.n_parents; p++) {
        const esp__comm *c = &ctx->job.comms[ctx->job.parents[p]];
        int32_t fd = esp__comm_fd(c);
        if (fd < 0)
            esp__comm_progress(c, us < ESP__SLEEP_SHORT_US ? us : ESP__SLEEP_SHORT_US);
        else
            fds[n++] = (struct pollfd){fd, POLLIN, 0};
    }
    if (n) poll(fds, n, n < ctx->job.n_parents ? 0 : us < 1000 ? 1 : (int)(us / 1000));
}

ESP__FN void esp__comms_sleep(esp_ctx *ctx, uint64_t us) {
    if (ctx->job.n_parents == 1)
        esp__comm_progress(&ctx->job.comms[ctx->job.parents[0]], us);
    else
        esp__comms_sleep_on(ctx, us);
}

ESP__FN void esp__comms_traffic(const esp_ctx *ctx, esp_stats *all) {
    for (uint32_t k = 0; k < ESP__SCOPES; k++) {
        const esp__comm *c = &ctx->job.comms[k];
        esp_traffic t;
        memset(&t, 0, sizeof t);
        t.struct_size = sizeof t;
        if (!c->handle || !ESP_HAS(esp_backend, c->backend, traffic) || c->backend->traffic(c->handle, &t)) continue;
        all->intra_bytes += t.intra_bytes;
        all->inter_bytes += t.inter_bytes;
        all->backend_bytes += t.memory_bytes;
        for (uint32_t level = 0; level < ESP__LEVELS; level++) all->level_bytes[level] += t.level_bytes[level];
    }
}
