/* topology.c: finds each rank's machine and rack, and from these the groups of ranks that collectives use. */
#include "espresso_impl/base/machine.h"
#include "espresso_impl/job/peers.h"

/* Returns the lowest rank on r's machine (level 1), in r's rack (2) or in the job (last level). */
static int32_t esp__place_unit(const esp__topology *p, uint32_t level, int32_t r) {
    return level == 0             ? r
           : level >= p->n_levels ? 0
                                  : p->unit_of[(uint64_t)(level - 1) * (uint64_t)p->size + (uint64_t)r];
}

/* Returns the number of ranks on r's machine (level 1) or of machines in r's rack (level 2). It counts only those whose
 * lowest rank is less than `below`. */
static int32_t esp__units_below(const esp__topology *p, uint32_t level, int32_t r, int32_t below) {
    int32_t n = 0, whole = esp__place_unit(p, level, r);
    for (int32_t q = whole; q < below; q++)
        n += esp__place_unit(p, level - 1, q) == q && esp__place_unit(p, level, q) == whole;
    return n;
}

/* Returns the first level at which machines (1) or racks (2) differ in size, or 0 if none does. */
static uint32_t esp__places_fill(esp__topology *p, uint32_t n_levels) {
    uint32_t unequal = 0;
    p->n_levels = n_levels;
    for (uint32_t level = 1; level <= n_levels; level++) {
        p->level_size[level] = esp__units_below(p, level, 0, p->size);
        for (int32_t r = 0; r < p->size; r++) {
            p->place[(uint64_t)r * ESP__LEVELS + level - 1] =
                esp__units_below(p, level, r, esp__place_unit(p, level - 1, r));
            if (esp__place_unit(p, level, r) == r && esp__units_below(p, level, r, p->size) != p->level_size[level] &&
                !unequal)
                unequal = level;
        }
    }
    return unequal;
}

/* Orders ranks by rack, then by machine, then by their index on it. */
static bool esp__place_before(const esp__topology *p, int32_t a, int32_t b) {
    for (uint32_t level = p->n_levels; level >= 1; level--) {
        int32_t x = esp__place_at(p, a, level), y = esp__place_at(p, b, level);
        if (x != y) return x < y;
    }
    return a < b;
}

ESP__FN uint32_t esp__topology_make(esp__topology *p, uint32_t n_levels) {
    uint32_t unequal = esp__places_fill(p, n_levels), dropped = 0;
    if (unequal && n_levels > 2) dropped = unequal, unequal = esp__places_fill(p, 2);
    p->n_machines = 0;
    for (int32_t r = 0; r < p->size; r++) {
        int32_t first = esp__place_unit(p, 1, r);
        p->machine_of[r] = first == r ? p->n_machines++ : p->machine_of[first];
        p->local_of[r] = esp__place_at(p, r, 1);
    }
    for (int32_t r = 0; r < p->size; r++) { /* insertion sort, because ranks are mostly in this order already */
        int32_t at = r;
        for (; at > 0 && esp__place_before(p, r, p->ranks[at - 1]); at--) p->ranks[at] = p->ranks[at - 1];
        p->ranks[at] = r;
    }
    p->n_local = unequal ? 0 : p->level_size[1];
    p->machine = p->machine_of[p->rank];
    p->local = p->local_of[p->rank];
    return dropped ? dropped : unequal;
}

ESP__FN void esp__topology_keep(esp__topology *p, const int32_t *was, int32_t n, int32_t rank, uint32_t n_levels) {
    int32_t *row = p->place; /* temporary memory, which esp__topology_make fills later */
    for (uint32_t level = 0; level + 1 < n_levels; level++) {
        const int32_t *unit = p->unit_of + (uint64_t)level * (uint64_t)p->size;
        for (int32_t i = 0; i < n; i++)
            for (row[i] = 0; unit[was[row[i]]] != unit[was[i]]; row[i]++) {
            }
        memmove(p->unit_of + (uint64_t)level * (uint64_t)n, row, (uint64_t)n * sizeof *row);
    }
    p->size = n;
    p->rank = rank;
    esp__topology_make(p, n_levels);
}

ESP__FN int32_t esp__place_at(const esp__topology *p, int32_t rank, uint32_t level) {
    return p->place[(uint64_t)rank * ESP__LEVELS + level - 1];
}

ESP__FN bool esp__group_same(const esp__topology *p, uint8_t scope, int32_t a, int32_t b) {
    uint32_t first, last;
    esp__scope_levels(scope, p->n_levels, &first, &last);
    for (uint32_t level = 1; level <= p->n_levels && scope != ESP__FLAT; level++)
        if ((level < first || level > last) && esp__place_at(p, a, level) != esp__place_at(p, b, level)) return false;
    return true;
}

ESP__FN int32_t esp__group_members(const esp__topology *p, uint8_t scope, int32_t *members, int32_t *index) {
    int32_t n = 0;
    *index = 0;
    for (int32_t k = 0; k < p->size; k++) {
        int32_t r = scope == ESP__FLAT ? k : p->ranks[k];
        if (!esp__group_same(p, scope, r, p->rank)) continue;
        if (r == p->rank) *index = n;
        members[n++] = r;
    }
    return n;
}

ESP__FN int32_t esp__group_rank(const esp_ctx *ctx, uint8_t scope, int32_t i) {
    const esp__topology *p = &esp__job_of(ctx)->topo;
    int32_t n = 0;
    for (int32_t k = 0; k < p->size && i >= 0; k++) {
        int32_t r = scope == ESP__FLAT ? k : p->ranks[k];
        if (esp__group_same(p, scope, r, p->rank) && n++ == i) return r;
    }
    return -1;
}

ESP__FN int32_t esp__group_size(const esp__topology *p, uint8_t scope) {
    uint32_t first, last;
    int32_t n = 1;
    if (scope == ESP__FLAT) return p->size;
    if (!p->n_local || !esp__scope_exists(scope, p->n_levels)) return 0;
    esp__scope_levels(scope, p->n_levels, &first, &last);
    for (uint32_t level = first; level <= last; level++) n *= p->level_size[level];
    return n;
}

ESP__FN int32_t esp__group_index(const esp__topology *p, uint8_t scope) {
    uint32_t first, last;
    int32_t index = 0;
    if (scope == ESP__FLAT) return p->rank;
    if (!esp__group_size(p, scope)) return 0;
    esp__scope_levels(scope, p->n_levels, &first, &last);
    for (uint32_t level = last; level >= first; level--)
        index = index * p->level_size[level] + esp__place_at(p, p->rank, level);
    return index;
}

ESP__FN const esp_backend *esp__backend_of(const esp__job *j, uint8_t scope) {
    return j->comms[scope].backend ? j->comms[scope].backend : j->backend;
}

ESP__FN int32_t esp__rank_at(const esp__topology *p, const int32_t *place) {
    int32_t k = 0;
    for (uint32_t level = p->n_levels; level >= 1; level--) k = k * p->level_size[level] + place[level - 1];
    return p->ranks[k];
}

/* ---- ranks exchange where they run ---- */
/* What each rank sends to all others. It has hashes instead of names, which have no fixed size. */
typedef struct esp__intro {
    uint64_t unit[ESP__LEVELS - 1]; /* [level - 1], hash of the names of the machine or rack */
    uint64_t host, network;
    uint64_t number; /* random; rank 0's is used */
    uint32_t n_levels, cores;
} esp__intro;

static esp__intro esp__intro_own(const esp__where *w) {
    esp__intro mine = {.host = esp__env_host(), .network = esp__network_id(), .n_levels = w->n_levels};
    const size_t length = strlen(w->machine);
    uint32_t level = w->n_levels - 1;
    mine.number = w->rank ? 0 : esp__random64();
    mine.cores = (uint32_t)esp__cores();
    for (size_t n = 1; n < length && level > 1; n++)
        if (w->machine[n] == '/') mine.unit[--level] = esp__hash64(ESP__HASH0, w->machine, n);
    mine.unit[0] = esp__hash64(ESP__HASH0, w->machine, length);
    return mine;
}

/* Returns the number of levels that all ranks have, or 2 if it differs. */
static uint32_t esp__intro_levels(esp_ctx *ctx, const esp__intro *all, int32_t size, int32_t rank) {
    for (int32_t r = 1; r < size; r++)
        if (all[r].n_levels != all[0].n_levels) {
            if (!rank)
                esp__log(ctx, ESP_LOG_WARN, "context",
                         "the place of rank 0 has %u parts, that of rank %d %u: the job has two levels, ranks and "
                         "machines",
                         all[0].n_levels - 1, r, all[r].n_levels - 1);
            return 2;
        }
    return all[0].n_levels;
}

/* Returns the lowest rank on r's machine (level 1) or rack (2), which is mostly that of rank r - 1. */
static int32_t esp__intro_first(const esp__intro *all, const int32_t *unit_of, int32_t r, uint32_t level) {
    const uint64_t unit = all[r].unit[level - 1];
    int32_t k = r && all[r - 1].unit[level - 1] == unit ? unit_of[r - 1] : 0;
    while (all[k].unit[level - 1] != unit) k++;
    return k;
}

static esp_status esp__introduced(esp_ctx *ctx, esp__job *job, const esp__intro *all) {
    esp__topology *p = &job->topo;
    for (int32_t r = 0; r < p->size; r++)
        if (all[r].n_levels < 2 || all[r].n_levels > ESP__LEVELS)
            return esp__fail(ctx, ESP_E_MISMATCH, "the place of rank %d has %u levels: 2 to %d are possible", (int)r,
                             all[r].n_levels, (int)ESP__LEVELS);
    job->cores = all[p->rank].cores;
    job->levels = esp__intro_levels(ctx, all, p->size, p->rank);
    for (int32_t r = 0; r < p->size; r++) job->sharing += all[r].host == all[p->rank].host;
    for (uint32_t level = 1; level < job->levels; level++) {
        int32_t *unit_of = p->unit_of + (uint64_t)(level - 1) * (uint64_t)p->size;
        for (int32_t r = 0; r < p->size; r++) unit_of[r] = esp__intro_first(all, unit_of, r, level);
    }
    const uint32_t unequal = esp__topology_make(p, job->levels);
    if (unequal && !p->rank)
        esp__log(ctx, ESP_LOG_INFO, "context", "not every group of level '%s' has as many members: the job has %s",
                 esp__scope_name(&job->names, unequal),
                 p->n_local ? "two levels, ranks and machines" : "only options over all ranks");
    return ESP_OK;
}

ESP__FN esp_status esp__job_introduce(esp_ctx *ctx, esp__job *job, const esp__where *w, const char *settings,
                                      uint64_t *number, bool *one_host) {
    esp__topology *p = &job->topo;
    const uint64_t n = (uint64_t)w->size;
    const esp__intro mine = esp__intro_own(w);
    esp__intro *all = esp__alloc(ctx, n * sizeof mine);
    esp__text lines = {.ctx = ctx};
    p->rank = w->rank;
    p->size = w->size;
    p->machine_of = esp__alloc(ctx, n * 4u);
    p->local_of = esp__alloc(ctx, n * 4u);
    p->unit_of = esp__alloc(ctx, n * 4u * (ESP__LEVELS - 1));
    p->place = esp__alloc(ctx, n * 4u * ESP__LEVELS);
    p->ranks = esp__alloc(ctx, n * 4u);
    job->room = esp__alloc(ctx, n * ESP__JOB_ROOM);
    esp_status s = all && p->machine_of && p->local_of && p->unit_of && p->place && p->ranks && job->room
                       ? ESP_OK
                       : esp__fail(ctx, ESP_E_NOMEM, "out of memory");
    esp__text_add(&lines, "%s, ABI %u.%u\n", settings, esp_abi_version() >> 16, esp_abi_version() & 65535u);
    if (job->room) s = esp__agree_lines(ctx, &lines, s);
    if (!s) s = esp__peers_allgather(job->peers, NULL, w->size, &mine, all, sizeof mine);
    if (!s) s = esp__introduced(ctx, job, all);
    *one_host = true;
    for (int32_t r = 0; r < w->size && !s; r++) *one_host &= all[r].network == all[0].network;
    if (!s) *number = all[0].number;
    esp__text_free(&lines);
    esp__free(ctx, all);
    return s;
}

ESP__FN bool esp__hierarchical(const esp_ctx *ctx) {
    const esp__topology *t = &esp__job_of(ctx)->topo;
    uint32_t n = 0;
    for (uint32_t level = 1; level <= t->n_levels && t->n_local; level++) n += t->level_size[level] > 1;
    return n > 1;
}

ESP__FN uint32_t esp__level_blocks(const esp__topology *t, uint8_t scope[ESP__LEVELS]) {
    uint32_t first = 1, n = 0, ends[ESP__LEVELS] = {0};
    for (uint32_t level = 1; level <= t->n_levels; level++)
        if (t->level_size[level] > 1) ends[n++] = level;
    ends[n - 1] = t->n_levels;
    for (uint32_t k = 0; k < n; first = ends[k++] + 1) scope[k] = esp__scope_of(first, ends[k], t->n_levels);
    return n;
}

ESP__FN uint8_t esp__two_levels(const esp_ctx *ctx, uint8_t level) {
    const esp__topology *t = &esp__job_of(ctx)->topo;
    uint8_t scope[ESP__LEVELS];
    uint32_t first, last;
    if (level == ESP__FLAT || t->n_levels == 2 || !esp__hierarchical(ctx)) return level;
    esp__level_blocks(t, scope);
    esp__scope_levels(scope[0], t->n_levels, &first, &last);
    return level == ESP__INTRA ? scope[0] : esp__scope_of(last + 1, t->n_levels, t->n_levels);
}
