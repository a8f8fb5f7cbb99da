/* registry.c: checks the function tables of plugins, and stores them. Needs no lock, because no table is added after
 * esp_start. */
#include "espresso_impl/registry/registry.h"

static const char esp__from_builtin[] = "built in";

ESP__FN const char *esp__kind_word(esp__kind kind) {
    static const char *const words[] = {"codec", "backend", "device"};
    return words[kind];
}

/* ---- required members ---- */
typedef struct esp__member {
    const char *name;
    size_t offset, bytes;
} esp__member;
#define ESP__MEMBER(type, member)                                                                                      \
    { #member, offsetof(type, member), sizeof(((type *)0)->member) }
#define ESP__IN_CODEC(member) ESP__MEMBER(esp_codec, member)
#define ESP__IN_BACKEND(member) ESP__MEMBER(esp_backend, member)
#define ESP__IN_DEVICE(member) ESP__MEMBER(esp_device_table, member)
static const esp__member esp__codec_members[] = {
    ESP__IN_CODEC(name),       ESP__IN_CODEC(dtypes), ESP__IN_CODEC(devices), ESP__IN_CODEC(n_rounds),
    ESP__IN_CODEC(open),       ESP__IN_CODEC(close),  ESP__IN_CODEC(bound),   ESP__IN_CODEC(compress),
    ESP__IN_CODEC(decompress), {NULL, 0, 0}};
static const esp__member esp__backend_members[] = {ESP__IN_BACKEND(name),
                                                   ESP__IN_BACKEND(colls),
                                                   ESP__IN_BACKEND(devices),
                                                   ESP__IN_BACKEND(dtypes),
                                                   ESP__IN_BACKEND(reduces),
                                                   ESP__IN_BACKEND(probe),
                                                   ESP__IN_BACKEND(open),
                                                   ESP__IN_BACKEND(close),
                                                   ESP__IN_BACKEND(start),
                                                   ESP__IN_BACKEND(test),
                                                   {NULL, 0, 0}};
static const esp__member esp__device_members[] = {ESP__IN_DEVICE(kind),           ESP__IN_DEVICE(name),
                                                  ESP__IN_DEVICE(probe),          ESP__IN_DEVICE(open),
                                                  ESP__IN_DEVICE(close),          ESP__IN_DEVICE(alloc),
                                                  ESP__IN_DEVICE(free_),          ESP__IN_DEVICE(stream_create),
                                                  ESP__IN_DEVICE(stream_destroy), ESP__IN_DEVICE(event_create),
                                                  ESP__IN_DEVICE(event_destroy),  ESP__IN_DEVICE(event_record),
                                                  ESP__IN_DEVICE(event_wait),     ESP__IN_DEVICE(event_query),
                                                  ESP__IN_DEVICE(event_sync),     ESP__IN_DEVICE(copy),
                                                  ESP__IN_DEVICE(copy2d),         ESP__IN_DEVICE(fill),
                                                  ESP__IN_DEVICE(convert),        {NULL, 0, 0}};
static const esp__member *const esp__members[] = {esp__codec_members, esp__backend_members, esp__device_members};

/* True if the table is long enough to have the member, and the member is not 0 or NULL. */
static bool esp__member_set(const void *table, const esp__member *m) {
    static const uint8_t zeros[sizeof(uint64_t)];
    uint32_t struct_size;
    memcpy(&struct_size, table, sizeof struct_size);
    return struct_size >= m->offset + m->bytes && memcmp((const uint8_t *)table + m->offset, zeros, m->bytes) != 0;
}

/* ---- a plugin's tables ---- */
typedef struct esp__entry {
    esp__kind kind;
    esp__registered its;
    const char *missing;
} esp__entry;

static uint32_t esp__plugin_entries(const esp_plugin *p) {
    return p->n_codecs + p->n_backends + (ESP_HAS(esp_plugin, p, devices) ? p->n_devices : 0);
}

/* Returns table i of a plugin: codecs come first, then backends, then devices. */
static esp__entry esp__entry_at(const esp_plugin *p, uint32_t i) {
    const uint32_t n_both = p->n_codecs + p->n_backends;
    esp__entry e = {i < p->n_codecs ? ESP__CODEC : i < n_both ? ESP__BACKEND : ESP__DEVICE, {{NULL}, NULL, NULL}, NULL};
    if (e.kind == ESP__CODEC)
        e.its.codec = p->codecs[i];
    else if (e.kind == ESP__BACKEND)
        e.its.backend = p->backends[i - p->n_codecs];
    else
        e.its.device = p->devices[i - n_both];
    if (!e.its.table) {
        e.missing = "struct_size";
        return e;
    }
    for (const esp__member *m = esp__members[e.kind]; m->name; m++) {
        const bool set = esp__member_set(e.its.table, m);
        if (!set && !e.missing) e.missing = m->name;
        if (set && !strcmp(m->name, "name"))
            memcpy(&e.its.name, (const uint8_t *)e.its.table + m->offset, sizeof e.its.name);
    }
    return e;
}

/* True if only one of two tables may be registered. Codecs of the same name may serve different devices. */
static bool esp__tables_clash(esp__kind kind, const esp__registered *a, const esp__registered *b) {
    const bool same_name = !strcmp(a->name, b->name);
    if (kind == ESP__CODEC) return same_name && a->codec->devices & b->codec->devices;
    return same_name || (kind == ESP__DEVICE && a->device->kind == b->device->kind);
}

static uint32_t esp__registry_clash(const esp__registry *r, const esp__entry *e, uint32_t i) {
    const esp__registered_list *all = &r->of[e->kind];
    while (i < all->n && !esp__tables_clash(e->kind, &all->at[i], &e->its)) i++;
    return i;
}

/* Checks one table. If it is too short or lacks required members, the plugin was built for another ABI. */
static esp_status esp__entry_check(esp_ctx *ctx, const esp__entry *e, const char *from) {
    const char *name = e->its.name, *p = name, *word = esp__kind_word(e->kind);
    if (e->missing)
        return esp__fail(ctx, ESP_E_ABI,
                         "%s: %s \"%s\" lacks the required member %s: set struct_size and fill the table, or rebuild "
                         "the plugin with this library's espresso.h",
                         from, word, p ? p : "?", e->missing);
    while (esp__spec_name_char(*p)) p++;
    if (*p || p == name || p - name >= ESP__NAME_MAX)
        return esp__fail(ctx, ESP_E_ARG,
                         "%s: \"%.*s\" cannot be a %s's name: use 1 to %d letters, digits, '_', '-', '.'", from,
                         ESP__NAME_MAX, name, word, ESP__NAME_MAX - 1);
    return e->kind == ESP__CODEC     ? esp__codec_validate(ctx, e->its.codec, from)
           : e->kind == ESP__BACKEND ? esp__backend_validate(ctx, e->its.backend, from)
                                     : esp__device_validate(ctx, e->its.device, from);
}

static esp_status esp__entry_tables(esp_ctx *ctx, const esp_plugin *p, uint32_t at, const char *from) {
    const esp__registered_list *all = &esp__registry_of(ctx)->codecs;
    const esp__entry e = esp__entry_at(p, at);
    esp_status s = ESP_OK;
    if (e.kind != ESP__CODEC) return ESP_OK;
    for (uint32_t i = 0; i < all->n && !s; i++) {
        const esp__registered *x = &all->at[i];
        if (!strcmp(x->name, e.its.name) && !(x->codec->devices & e.its.codec->devices))
            s = esp__tables_validate(ctx, e.its.codec, from, x->codec, x->from);
    }
    for (uint32_t j = 0; j < at && !s; j++) {
        const esp__entry other = esp__entry_at(p, j);
        if (other.kind == ESP__CODEC && !strcmp(other.its.name, e.its.name))
            s = esp__tables_validate(ctx, e.its.codec, from, other.its.codec, from);
    }
    return s;
}

/* Refuses a codec, backend or device whose name is taken, unless ESP_ALLOW_OVERRIDE or `replaces` allows it. */
static esp_status esp__entry_unique(esp_ctx *ctx, const esp_plugin *p, uint32_t at, const char *from, bool replaces) {
    const esp__registry *r = esp__registry_of(ctx);
    const esp__entry e = esp__entry_at(p, at);
    const esp__registered_list *all = &r->of[e.kind];
    const char *before = NULL, *name = e.its.name;
    for (uint32_t j = 0; j < at; j++) {
        const esp__entry other = esp__entry_at(p, j);
        if (other.kind == e.kind && esp__tables_clash(e.kind, &other.its, &e.its)) before = from, name = other.its.name;
    }
    for (uint32_t i = esp__registry_clash(r, &e, 0); !before && i < all->n; i = esp__registry_clash(r, &e, i + 1)) {
        const esp__registered *x = &all->at[i];
        if (x->table != e.its.table && !r->may_override && !(replaces && !strcmp(x->from, esp__from_builtin)))
            before = x->from, name = x->name;
    }
    if (!before) return ESP_OK;
    if (strcmp(name, e.its.name))
        return esp__fail(
            ctx, ESP_E_ARG,
            "device \"%s\" of %s has kind %u, as \"%s\" of %s has: give one of them another kind, %d to 31", e.its.name,
            from, (unsigned)e.its.device->kind, name, before, (int)ESP_DEVKIND_OWN);
    return esp__fail(ctx, ESP_E_ARG,
                     "%s \"%s\" is there twice: first %s, now %s; rename one, or set ESP_ALLOW_OVERRIDE in "
                     "esp_config.flags to use the later one",
                     esp__kind_word(e.kind), e.its.name, before, from);
}

/* ---- the registry ---- */
static esp_status esp__registry_put(esp_ctx *ctx, const esp__entry *e, const char *from) {
    esp__registered_list *all = &esp__registry_of(ctx)->of[e->kind];
    const uint32_t i = esp__registry_clash(esp__registry_of(ctx), e, 0);
    char *copy = esp__strdup(ctx, from);
    esp__registered *grown = copy ? esp__grow(ctx, all->at, &all->cap_bytes, (i + 1ull) * sizeof *grown) : NULL;
    if (!grown) {
        esp__free(ctx, copy);
        return esp__fail(ctx, ESP_E_NOMEM, "out of memory while adding %s", from);
    }
    all->at = grown;
    if (i < all->n) {
        esp__log(ctx, ESP_LOG_INFO, "plugins", "%s \"%s\" of %s replaces the one of %s", esp__kind_word(e->kind),
                 e->its.name, from, grown[i].from);
        esp__free(ctx, grown[i].from);
    }
    grown[i] = e->its;
    grown[i].from = copy;
    all->n += i == all->n;
    return ESP_OK;
}

ESP__FN esp_status esp__registry_add_from(esp_ctx *ctx, const esp_plugin *p, const char *from, bool replaces) {
    const size_t needed = offsetof(esp_plugin, backends) + sizeof p->backends;
    esp_status s = ESP_OK;
    if (esp__registry_of(ctx)->frozen)
        return esp__fail(ctx, ESP_E_STATE, "%s: plugins must be loaded before esp_start", from);
    if (!p || p->struct_size < needed || (p->n_codecs && !p->codecs) || (p->n_backends && !p->backends) ||
        (p->n_devices && !ESP_HAS(esp_plugin, p, devices)))
        return esp__fail(ctx, ESP_E_ABI,
                         "%s: its esp_plugin table is incomplete: struct_size is %u, at least %zu are needed, and "
                         "codecs, backends and devices must be set where they are counted",
                         from, p ? (unsigned)p->struct_size : 0u, needed);
    const uint32_t n = esp__plugin_entries(p);
    for (uint32_t i = 0; i < n && s == ESP_OK; i++) {
        const esp__entry e = esp__entry_at(p, i);
        s = esp__entry_check(ctx, &e, from);
        if (s == ESP_OK) s = esp__entry_unique(ctx, p, i, from, replaces);
        if (s == ESP_OK) s = esp__entry_tables(ctx, p, i, from);
    }
    for (uint32_t i = 0; i < n && s == ESP_OK; i++) {
        const esp__entry e = esp__entry_at(p, i);
        s = esp__registry_put(ctx, &e, from);
    }
    return s;
}

ESP__FN esp_status esp__registry_add(esp_ctx *ctx, const esp_plugin *plugin, const char *from) {
    return esp__registry_add_from(ctx, plugin, from, false);
}

ESP__FN void esp__registry_free(esp_ctx *ctx) {
    esp__registry *r = esp__registry_of(ctx);
    for (uint32_t kind = 0; kind < ESP__KINDS; kind++) {
        for (uint32_t i = 0; i < r->of[kind].n; i++) esp__free(ctx, r->of[kind].at[i].from);
        esp__free(ctx, r->of[kind].at);
    }
    memset(r, 0, sizeof *r);
}
