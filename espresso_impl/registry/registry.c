/* registry.c: the codecs, backends and devices of one context, by name. Must not know where plugins come from.
 * Needs no lock: it is filled before esp_start and only read afterwards. */
#include "espresso_impl/registry/registry.h"

static const char esp__from_builtin[] = "built in";

/* A codec, backend or device of a plugin, with all that the checks and look-ups below use. */
typedef enum esp__kind { ESP__CODEC = 0, ESP__BACKEND = 1, ESP__DEVICE = 2 } esp__kind;
static const char *const esp__kind_word[] = {"codec", "backend", "device"};
typedef struct esp__entry {
    esp__kind kind;
    const void *table;
    const char *name;    /* or NULL                                          */
    const char *missing; /* the first required member that is absent, or NULL */
} esp__entry;

static const char *esp__codec_missing(const esp_codec *c) {
    if (!ESP_HAS(esp_codec, c, name)) return "name";
    if (!ESP_HAS(esp_codec, c, dtypes)) return "dtypes";
    if (!ESP_HAS(esp_codec, c, devices)) return "devices";
    if (!ESP_HAS(esp_codec, c, n_rounds)) return "n_rounds";
    if (!ESP_HAS(esp_codec, c, open)) return "open";
    if (!ESP_HAS(esp_codec, c, close)) return "close";
    if (!ESP_HAS(esp_codec, c, bound)) return "bound";
    if (!ESP_HAS(esp_codec, c, compress)) return "compress";
    if (!ESP_HAS(esp_codec, c, decompress)) return "decompress";
    return NULL;
}

static const char *esp__backend_missing(const esp_backend *b) {
    if (!ESP_HAS(esp_backend, b, name)) return "name";
    if (!ESP_HAS(esp_backend, b, colls)) return "colls";
    if (!ESP_HAS(esp_backend, b, devices)) return "devices";
    if (!ESP_HAS(esp_backend, b, dtypes)) return "dtypes";
    if (!ESP_HAS(esp_backend, b, reduces)) return "reduces";
    if (!ESP_HAS(esp_backend, b, probe)) return "probe";
    if (!ESP_HAS(esp_backend, b, open)) return "open";
    if (!ESP_HAS(esp_backend, b, close)) return "close";
    if (!ESP_HAS(esp_backend, b, start)) return "start";
    if (!ESP_HAS(esp_backend, b, test)) return "test";
    return NULL;
}

static const char *esp__device_missing(const esp_device_table *d) {
    if (!ESP_HAS(esp_device_table, d, kind)) return "kind";
    if (!ESP_HAS(esp_device_table, d, name)) return "name";
    if (!ESP_HAS(esp_device_table, d, probe)) return "probe";
    if (!ESP_HAS(esp_device_table, d, open)) return "open";
    if (!ESP_HAS(esp_device_table, d, close)) return "close";
    if (!ESP_HAS(esp_device_table, d, alloc)) return "alloc";
    if (!ESP_HAS(esp_device_table, d, free_)) return "free_";
    if (!ESP_HAS(esp_device_table, d, stream_create)) return "stream_create";
    if (!ESP_HAS(esp_device_table, d, stream_destroy)) return "stream_destroy";
    if (!ESP_HAS(esp_device_table, d, event_create)) return "event_create";
    if (!ESP_HAS(esp_device_table, d, event_destroy)) return "event_destroy";
    if (!ESP_HAS(esp_device_table, d, event_record)) return "event_record";
    if (!ESP_HAS(esp_device_table, d, event_wait)) return "event_wait";
    if (!ESP_HAS(esp_device_table, d, event_query)) return "event_query";
    if (!ESP_HAS(esp_device_table, d, event_sync)) return "event_sync";
    if (!ESP_HAS(esp_device_table, d, copy)) return "copy";
    if (!ESP_HAS(esp_device_table, d, copy2d)) return "copy2d";
    if (!ESP_HAS(esp_device_table, d, fill)) return "fill";
    if (!ESP_HAS(esp_device_table, d, convert)) return "convert";
    return NULL;
}

/* A plugin built before there were devices has a shorter table. */
static uint32_t esp__plugin_devices(const esp_plugin *p) { return ESP_HAS(esp_plugin, p, devices) ? p->n_devices : 0; }
static uint32_t esp__plugin_entries(const esp_plugin *p) {
    return p->n_codecs + p->n_backends + esp__plugin_devices(p);
}

/* Entry i of a plugin. Entries are its codecs, then its backends, then its devices. */
static esp__entry esp__entry_at(const esp_plugin *p, uint32_t i) {
    esp__entry e = {ESP__CODEC, NULL, NULL, "struct_size"};
    if (i < p->n_codecs) {
        const esp_codec *c = p->codecs[i];
        e.table = c;
        if (ESP_HAS(esp_codec, c, name)) e.name = c->name;
        if (c) e.missing = esp__codec_missing(c);
    } else if (i < p->n_codecs + p->n_backends) {
        const esp_backend *b = p->backends[i - p->n_codecs];
        e.kind = ESP__BACKEND;
        e.table = b;
        if (ESP_HAS(esp_backend, b, name)) e.name = b->name;
        if (b) e.missing = esp__backend_missing(b);
    } else {
        const esp_device_table *d = p->devices[i - p->n_codecs - p->n_backends];
        e.kind = ESP__DEVICE;
        e.table = d;
        if (ESP_HAS(esp_device_table, d, name)) e.name = d->name;
        if (d) e.missing = esp__device_missing(d);
    }
    return e;
}

/* Can only one of two entries be in the registry? Codecs of one name may serve different devices. */
static int esp__entries_clash(const esp__entry *a, const esp__entry *b) {
    const int same_name = !strcmp(a->name, b->name);
    if (a->kind != b->kind) return 0;
    if (a->kind == ESP__CODEC)
        return same_name && ((const esp_codec *)a->table)->devices & ((const esp_codec *)b->table)->devices;
    if (a->kind == ESP__DEVICE)
        return same_name || ((const esp_device_table *)a->table)->kind == ((const esp_device_table *)b->table)->kind;
    return same_name;
}

static uint32_t esp__registry_count(const esp__registry *r, esp__kind kind) {
    return kind == ESP__CODEC ? r->n_codecs : kind == ESP__BACKEND ? r->n_backends : r->n_devices;
}

/* Entry i of one kind. */
static esp__entry esp__registry_entry(const esp__registry *r, esp__kind kind, uint32_t i) {
    esp__entry e = {kind, NULL, NULL, NULL};
    if (kind == ESP__CODEC)
        e.table = r->codecs[i], e.name = r->codecs[i]->name;
    else if (kind == ESP__BACKEND)
        e.table = r->backends[i], e.name = r->backends[i]->name;
    else
        e.table = r->devices[i], e.name = r->devices[i]->name;
    return e;
}

static char **esp__registry_from(const esp__registry *r, esp__kind kind, uint32_t i) {
    return kind == ESP__CODEC ? &r->codec_from[i] : kind == ESP__BACKEND ? &r->backend_from[i] : &r->device_from[i];
}

/* The first entry of that name; the number of entries if there is none. */
static uint32_t esp__registry_find(const esp__registry *r, esp__kind kind, const char *name) {
    uint32_t i = 0, n = esp__registry_count(r, kind);
    while (i < n && strcmp(esp__registry_entry(r, kind, i).name, name)) i++;
    return i;
}

/* The first entry from `i` on that clashes with `e`; the number of entries if there is none. */
static uint32_t esp__registry_clash(const esp__registry *r, const esp__entry *e, uint32_t i) {
    const uint32_t n = esp__registry_count(r, e->kind);
    for (; i < n; i++) {
        const esp__entry other = esp__registry_entry(r, e->kind, i);
        if (esp__entries_clash(&other, e)) break;
    }
    return i;
}

/* Checks an entry. A table that is too short or lacks required members was built for another ABI. No spec could have a bad name. */
static esp_status esp__entry_check(esp_ctx *ctx, const esp__entry *e, const char *from) {
    const char *p = e->name;
    if (e->missing)
        return esp__fail(ctx, ESP_E_ABI,
                         "%s: %s \"%s\" lacks the required member %s: set struct_size and fill the table, or rebuild "
                         "the plugin with this library's espresso.h",
                         from, esp__kind_word[e->kind], p ? p : "?", e->missing);
    while (esp__spec_name_char(*p)) p++;
    if (*p || p == e->name || p - e->name >= ESP__NAME_MAX)
        return esp__fail(ctx, ESP_E_ARG,
                         "%s: \"%.*s\" cannot be a %s's name: use 1 to %d letters, digits, '_', '-', '.'", from,
                         ESP__NAME_MAX, e->name, esp__kind_word[e->kind], ESP__NAME_MAX - 1);
    return e->kind == ESP__CODEC     ? esp__codec_refuse(ctx, e->table, from)
           : e->kind == ESP__BACKEND ? esp__backend_refuse(ctx, e->table, from)
                                     : esp__device_refuse(ctx, e->table, from);
}

/* A codec with tables for several devices is one codec: refuses a table that disagrees with an earlier one of its name. */
static esp_status esp__entry_twins(esp_ctx *ctx, const esp_plugin *p, uint32_t at, const char *from) {
    const esp__registry *r = esp__registry_of(ctx);
    const esp__entry e = esp__entry_at(p, at);
    esp_status s = ESP_OK;
    if (e.kind != ESP__CODEC) return ESP_OK;
    for (uint32_t i = 0; i < r->n_codecs && !s; i++)
        if (!strcmp(r->codecs[i]->name, e.name) && !(r->codecs[i]->devices & ((const esp_codec *)e.table)->devices))
            s = esp__twins_refuse(ctx, e.table, from, r->codecs[i], r->codec_from[i]);
    for (uint32_t j = 0; j < at && !s; j++) {
        const esp__entry other = esp__entry_at(p, j);
        if (other.kind == ESP__CODEC && !strcmp(other.name, e.name))
            s = esp__twins_refuse(ctx, e.table, from, other.table, from);
    }
    return s;
}

/* Refuses a second codec, backend or device of one name, unless ESP_ALLOW_OVERRIDE or `replaces` allows it. */
static esp_status esp__entry_unique(esp_ctx *ctx, const esp_plugin *p, uint32_t at, const char *from, int replaces) {
    const esp__registry *r = esp__registry_of(ctx);
    const esp__entry e = esp__entry_at(p, at);
    const char *before = NULL, *name = e.name;
    for (uint32_t j = 0; j < at; j++) {
        const esp__entry other = esp__entry_at(p, j);
        if (esp__entries_clash(&other, &e)) before = from, name = other.name;
    }
    for (uint32_t i = esp__registry_clash(r, &e, 0); !before && i < esp__registry_count(r, e.kind);
         i = esp__registry_clash(r, &e, i + 1)) {
        const esp__entry other = esp__registry_entry(r, e.kind, i);
        const char *its = *esp__registry_from(r, e.kind, i);
        if (other.table != e.table && !r->may_override && !(replaces && !strcmp(its, esp__from_builtin)))
            before = its, name = other.name;
    }
    if (!before) return ESP_OK;
    if (strcmp(name, e.name))
        return esp__fail(
            ctx, ESP_E_ARG,
            "device \"%s\" of %s has kind %u, as \"%s\" of %s has: give one of them another kind, %d to 31", e.name,
            from, (unsigned)((const esp_device_table *)e.table)->kind, name, before, (int)ESP_DEVKIND_OWN);
    return esp__fail(ctx, ESP_E_ARG,
                     "%s \"%s\" is there twice: first %s, now %s; rename one, or set ESP_ALLOW_OVERRIDE in "
                     "esp_config.flags to use the later one",
                     esp__kind_word[e.kind], e.name, before, from);
}

/* Makes room for one more entry. 0: out of memory. Grows both arrays or none, so that `cap` is right for each. */
static int esp__registry_grow(esp_ctx *ctx, esp__kind kind) {
    esp__registry *r = esp__registry_of(ctx);
    uint32_t *cap = kind == ESP__CODEC ? &r->cap_codecs : kind == ESP__BACKEND ? &r->cap_backends : &r->cap_devices;
    const uint32_t n = esp__registry_count(r, kind), more = *cap ? *cap * 2 : 16;
    const uint64_t bytes = more * sizeof(void *);
    void *tables = esp__alloc(ctx, bytes), *old = kind == ESP__CODEC     ? (void *)r->codecs
                                                  : kind == ESP__BACKEND ? (void *)r->backends
                                                                         : (void *)r->devices;
    char **froms = (char **)esp__alloc(ctx, bytes), **old_froms = kind == ESP__CODEC     ? r->codec_from
                                                                  : kind == ESP__BACKEND ? r->backend_from
                                                                                         : r->device_from;
    if (!tables || !froms) {
        esp__free(ctx, tables);
        esp__free(ctx, froms);
        return 0;
    }
    if (n) memcpy(tables, old, n * sizeof(void *));
    if (n) memcpy(froms, old_froms, n * sizeof(void *));
    esp__free(ctx, old);
    esp__free(ctx, old_froms);
    *cap = more;
    if (kind == ESP__CODEC)
        r->codecs = (const esp_codec **)tables, r->codec_from = froms;
    else if (kind == ESP__BACKEND)
        r->backends = (const esp_backend **)tables, r->backend_from = froms;
    else
        r->devices = (const esp_device_table **)tables, r->device_from = froms;
    return 1;
}

static esp_status esp__registry_put(esp_ctx *ctx, const esp__entry *e, const char *from) {
    esp__registry *r = esp__registry_of(ctx);
    const uint32_t i = esp__registry_clash(r, e, 0), n = esp__registry_count(r, e->kind);
    const uint32_t cap = e->kind == ESP__CODEC     ? r->cap_codecs
                         : e->kind == ESP__BACKEND ? r->cap_backends
                                                   : r->cap_devices;
    char *copy = esp__strdup(ctx, from), **slot;
    if (!copy || (i == cap && !esp__registry_grow(ctx, e->kind))) {
        esp__strfree(ctx, copy);
        return esp__fail(ctx, ESP_E_NOMEM, "out of memory while adding %s", from);
    }
    slot = esp__registry_from(r, e->kind, i);
    if (i < n) {
        esp__log(ctx, ESP_LOG_INFO, "plugins", "%s \"%s\" of %s replaces the one of %s", esp__kind_word[e->kind],
                 e->name, from, *slot);
        esp__strfree(ctx, *slot);
    }
    *slot = copy;
    if (e->kind == ESP__CODEC)
        r->codecs[i] = (const esp_codec *)e->table, r->n_codecs += i == n;
    else if (e->kind == ESP__BACKEND)
        r->backends[i] = (const esp_backend *)e->table, r->n_backends += i == n;
    else
        r->devices[i] = (const esp_device_table *)e->table, r->n_devices += i == n;
    return ESP_OK;
}

/* Adds a plugin's entries after it has checked all of them. `replaces`: they may replace built-in ones. */
ESP__FN esp_status esp__registry_add_from(esp_ctx *ctx, const esp_plugin *p, const char *from, int replaces) {
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
        if (s == ESP_OK) s = esp__entry_twins(ctx, p, i, from);
    }
    for (uint32_t i = 0; i < n && s == ESP_OK; i++) {
        const esp__entry e = esp__entry_at(p, i);
        s = esp__registry_put(ctx, &e, from);
    }
    return s;
}

ESP__FN esp_status esp__registry_add(esp_ctx *ctx, const esp_plugin *plugin, const char *from) {
    return esp__registry_add_from(ctx, plugin, from, 0);
}

/* The error for an unknown name: lists the names that exist, and the one that was probably meant. `why`: the loader's error, or "". */
static void esp__registry_unknown(esp_ctx *ctx, esp__kind kind, const char *name, esp_status s, const char *why) {
    const esp__registry *r = esp__registry_of(ctx);
    const uint32_t n = esp__registry_count(r, kind);
    const char *near = NULL;
    esp__text all = {.ctx = ctx};
    unsigned best = 3;
    for (uint32_t i = 0; i < n; i++) {
        const char *known = esp__registry_entry(r, kind, i).name;
        if (esp__registry_find(r, kind, known) < i) continue; /* a codec with tables for several devices */
        if (esp__near(name, known, &best)) near = known;
        esp__text_add(&all, "%s%s", i ? ", " : "", known);
    }
    esp__fail(ctx, s, "there is no %s \"%s\"%s%s%s; known: %s%s%s", esp__kind_word[kind], name,
              near ? " (did you mean \"" : "", near ? near : "", near ? "\"?)" : "",
              all.data ? all.data : "none at all", why[0] ? "; " : "", why);
    esp__text_free(&all);
}

/* The index of that name. Loads libespresso-<name>.so if there is none. If that fails too, sets the error and returns the number of
 * entries. */
static uint32_t esp__registry_get(esp_ctx *ctx, esp__kind kind, const char *name) {
    esp__registry *r = esp__registry_of(ctx);
    esp_status s = ESP_E_NOT_FOUND;
    char why[ESP__ERROR_MAX] = "";
    uint32_t i = esp__registry_find(r, kind, name);
    if (i < esp__registry_count(r, kind)) return i;
    if (!r->frozen) {
        s = esp__plugin_load(ctx, name);
        if (s != ESP_OK)
            snprintf(why, sizeof why, "%s", esp_last_error(ctx));
        else
            snprintf(why, sizeof why, "libespresso-%s.so was found, but brings no such %s", name, esp__kind_word[kind]);
        i = esp__registry_find(r, kind, name);
    }
    if (i == esp__registry_count(r, kind))
        esp__registry_unknown(ctx, kind, name, s == ESP_OK ? ESP_E_NOT_FOUND : s, why);
    return i;
}

ESP__FN const esp_codec *esp__registry_codec_on(esp_ctx *ctx, const char *name, esp_devkind kind) {
    const esp__registry *r = esp__registry_of(ctx);
    for (uint32_t i = 0; i < r->n_codecs; i++)
        if (!strcmp(r->codecs[i]->name, name) && kind < 32 && r->codecs[i]->devices & ESP_BIT(kind))
            return r->codecs[i];
    return NULL;
}

ESP__FN const esp_codec *esp__registry_codec(esp_ctx *ctx, const char *name) {
    const esp__registry *r = esp__registry_of(ctx);
    const uint32_t i = esp__registry_get(ctx, ESP__CODEC, name);
    if (i == r->n_codecs) return NULL;
    const esp_codec *c = esp__registry_codec_on(ctx, name, ESP_CPU);
    if (!c)
        esp__fail(ctx, ESP_E_UNSUPPORTED,
                  "codec \"%s\" of %s has no table for the CPU: load the plugin that brings it, too", name,
                  r->codec_from[i]);
    return c;
}

ESP__FN const esp_backend *esp__registry_backend(esp_ctx *ctx, const char *name) {
    const uint32_t i = esp__registry_get(ctx, ESP__BACKEND, name);
    return i < esp__registry_of(ctx)->n_backends ? esp__registry_of(ctx)->backends[i] : NULL;
}

static const esp_device_table *esp__registry_device_known(const esp__registry *r, esp_devkind kind) {
    for (uint32_t i = 0; i < r->n_devices; i++)
        if (r->devices[i]->kind == kind) return r->devices[i];
    return NULL;
}
ESP__FN const esp_device_table *esp__registry_device(esp_ctx *ctx, esp_devkind kind) {
    const esp__registry *r = esp__registry_of(ctx);
    const esp_device_table *t = esp__registry_device_known(r, kind);
    if (!t && kind == ESP_CUDA && !r->frozen && esp__plugin_load(ctx, "cuda") == ESP_OK)
        t = esp__registry_device_known(r, kind);
    return t;
}

ESP__FN void esp__registry_free(esp_ctx *ctx) {
    esp__registry *r = esp__registry_of(ctx);
    for (uint32_t i = 0; i < r->n_codecs; i++) esp__strfree(ctx, r->codec_from[i]);
    for (uint32_t i = 0; i < r->n_backends; i++) esp__strfree(ctx, r->backend_from[i]);
    for (uint32_t i = 0; i < r->n_devices; i++) esp__strfree(ctx, r->device_from[i]);
    esp__free(ctx, r->codecs);
    esp__free(ctx, r->backends);
    esp__free(ctx, r->devices);
    esp__free(ctx, r->device_from);
    esp__free(ctx, r->codec_from);
    esp__free(ctx, r->backend_from);
    memset(r, 0, sizeof *r);
}
