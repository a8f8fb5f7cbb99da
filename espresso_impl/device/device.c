/* device.c: opens each device when a context first needs it, and gives plugins the device's functions and memory. */
#include "espresso_impl/device/device.h"

ESP__FN esp__device *esp__device_at(const esp_ctx *ctx, uint32_t index) {
    return &esp__device_list_of(ctx)->open[index];
}

static bool esp__device_same(esp_device a, esp_device b) { return a.kind == b.kind && a.ordinal == b.ordinal; }

/* Opens `d` and appends it to the context's devices. The caller holds the lock. */
static esp_status esp__device_open_next(esp_ctx *ctx, esp_device d, const char *who) {
    esp__device_list *all = esp__device_list_of(ctx);
    const esp_host *host = esp__registry_of(ctx)->host;
    const esp_device_table *t = d.kind == ESP_CPU ? esp__device_cpu() : esp__registry_device(ctx, d.kind);
    int32_t count = 0;
    if (!t && d.kind == ESP_CUDA) {
        char why[ESP__ERROR_MAX];
        snprintf(why, sizeof why, "%s", esp_last_error(ctx));
        return esp__fail(
            ctx, ESP_E_UNSUPPORTED,
            "%s: there are no CUDA devices here: %s (the plugin is built where nvcc is found, by make plugins)", who,
            why);
    }
    if (!t)
        return esp__fail(ctx, ESP_E_UNSUPPORTED,
                         "%s: there is no device of kind %u here: load the plugin that brings it (esp_plugin_load, or "
                         "esp_config.builtin)",
                         who, (unsigned)d.kind);
    if (all->n == ESP__DEVICES_MAX)
        return esp__fail(ctx, ESP_E_UNSUPPORTED, "%s: a context opens at most %d devices", who, (int)ESP__DEVICES_MAX);
    esp__plugin_detail_clear();
    esp_status s = t->probe(host, &count);
    if (s) return esp__fail(ctx, s, "%s: device '%s': probe() failed: %s", who, t->name, esp__plugin_why(s));
    if (count <= 0)
        return esp__fail(ctx, ESP_E_UNSUPPORTED,
                         "%s: no device of plugin '%s' can be used here: see its driver, and which devices this "
                         "process may see (ESPRESSO_LOG=info says what the driver answers)",
                         who, t->name);
    if (d.ordinal < 0 || d.ordinal >= count)
        return esp__fail(ctx, ESP_E_UNSUPPORTED, "%s: there is no device %s:%d here: %d can be used, from 0 on", who,
                         t->name, (int)d.ordinal, (int)count);
    esp__device *o = &all->open[all->n];
    memset(o, 0, sizeof *o);
    o->id = d;
    o->table = t;
    o->async = d.kind != ESP_CPU;
    s = t->open(host, d.ordinal, &o->self);
    if (s)
        return esp__fail(ctx, s, "%s: device %s:%d cannot be opened: %s", who, t->name, (int)d.ordinal,
                         esp__plugin_why(s));
    all->n++;
    return ESP_OK;
}

ESP__FN esp_status esp__device_open(esp_ctx *ctx, esp_device d, const char *who, uint32_t *index) {
    esp__device_list *all = esp__device_list_of(ctx);
    esp_status s = ESP_OK;
    if (!d.kind) d.kind = ESP_CPU; /* an all-zero esp_device means the CPU */
    pthread_mutex_lock(&all->lock);
    for (*index = 0; *index < all->n && !esp__device_same(all->open[*index].id, d);) ++*index;
    if (*index == all->n) s = esp__device_open_next(ctx, d, who);
    pthread_mutex_unlock(&all->lock);
    return s;
}

ESP__FN esp_status esp__device_failed(const esp_ctx *ctx, uint32_t index, esp_status s, const char *what) {
    const esp__device *d = esp__device_at(ctx, index);
    return esp__fail(ctx, s, "device %s:%d: %s failed: %s", d->table->name, (int)d->id.ordinal, what,
                     esp__plugin_why(s));
}

/* ---- events ------------------------------------------------------------------------------------------------------ */
ESP__FN esp_status esp__device_event(const esp__device *d, bool timed, void **event) {
    *event = NULL;
    if (!d->async) return ESP_OK;
    return !timed && ESP_HAS(esp_device_table, d->table, event_create_untimed)
               ? d->table->event_create_untimed(d->self, event)
               : d->table->event_create(d->self, event);
}

ESP__FN void esp__device_event_free(const esp__device *d, void *event) {
    if (event) d->table->event_destroy(d->self, event);
}

ESP__FN esp_status esp__device_events_take(esp_ctx *ctx, uint32_t index, uint32_t n, void ***events) {
    const esp__device *d = esp__device_at(ctx, index);
    esp_status s = ESP_OK;
    *events = d->async ? esp__alloc(ctx, (uint64_t)n * sizeof **events + 1) : NULL;
    if (d->async && !*events)
        return esp__fail(ctx, ESP_E_NOMEM, "out of memory for the events of %u ops", n / ESP__EVENTS);
    for (uint32_t i = 0; i < n && *events && !s; i++)
        s = esp__device_event(d, i % ESP__EVENTS != ESP__EVENT_AFTER, &(*events)[i]);
    return s ? esp__device_failed(ctx, index, s, "event_create") : ESP_OK;
}

ESP__FN void esp__device_events_give(esp_ctx *ctx, uint32_t index, uint32_t n, void **events) {
    for (uint32_t i = 0; i < n && events; i++) esp__device_event_free(esp__device_at(ctx, index), events[i]);
    esp__free(ctx, events);
}

/* ---- streams, memory and waiting --------------------------------------------------------------------------------- */
static void esp__device_unuse(esp__device *d) {
    for (int k = 0; k < d->used; k++) d->table->stream_destroy(d->self, d->stream[k]);
    esp__device_event_free(d, d->settled);
    if (d->bounce) d->table->free_(d->self, d->bounce, ESP__BOUNCE_BYTES, ESP_MEM_PINNED);
    d->used = 0;
    d->settled = d->bounce = NULL;
}

ESP__FN esp_status esp__device_use(esp_ctx *ctx, uint32_t index, uint32_t levels, const char *who) {
    esp__device *d = esp__device_at(ctx, index);
    const int streams = ESP__ON_LINKS + 2 * (int)levels;
    esp_status s = ESP_OK;
    if (d->used) return ESP_OK;
    esp__plugin_detail_clear();
    for (; d->used < streams && !s; d->used += !s) s = d->table->stream_create(d->self, &d->stream[d->used]);
    if (!s) s = esp__device_event(d, true, &d->settled);
    if (!s && d->async) s = d->table->alloc(d->self, ESP__BOUNCE_BYTES, ESP_MEM_PINNED, &d->bounce);
    if (!s) return ESP_OK;
    esp__device_unuse(d);
    return esp__fail(ctx, s, "%s: device %s:%d gives no streams, event or pinned memory: %s", who, d->table->name,
                     (int)d->id.ordinal, esp__plugin_why(s));
}

ESP__FN void *esp__device_take(esp_ctx *ctx, uint32_t index, uint64_t bytes, uint32_t where) {
    const esp__device *d = esp__device_at(ctx, index);
    void *p = NULL;
    if (!bytes) return NULL;
    if (index == ESP__CPU_INDEX) return esp__alloc(ctx, bytes);
    return d->table->alloc(d->self, bytes, where, &p) ? NULL : p;
}

ESP__FN void esp__device_give(esp_ctx *ctx, uint32_t index, void *p, uint64_t bytes, uint32_t where) {
    const esp__device *d = esp__device_at(ctx, index);
    if (index == ESP__CPU_INDEX)
        esp__free(ctx, p);
    else if (p)
        d->table->free_(d->self, p, bytes, where);
}

ESP__FN esp_status esp__device_drain(const esp_ctx *ctx, uint32_t index, int stream) {
    const esp__device *d = esp__device_at(ctx, index);
    esp__plugin_detail_clear();
    esp_status s = esp__device_record(d, d->settled, d->stream[stream]);
    const esp_status after = esp__device_wait(d, d->settled); /* wait even if recording failed */
    if (!s) s = after;
    return s ? esp__device_failed(ctx, index, s, "work") : ESP_OK;
}

ESP__FN esp_status esp__device_join(const esp_ctx *ctx, uint32_t index, int stream) {
    const esp__device *d = esp__device_at(ctx, index);
    esp_status s = esp__device_record(d, d->settled, d->stream[stream]);
    if (!s) s = esp__device_follow(d, d->settled, d->stream[ESP__ON_COMPUTE]);
    return s ? esp__device_failed(ctx, index, s, "work") : ESP_OK;
}

ESP__FN esp_status esp__device_settle(const esp_ctx *ctx, uint32_t index) {
    esp_status first = ESP_OK;
    for (int k = 0; k < esp__device_at(ctx, index)->used; k++) {
        const esp_status s = esp__device_drain(ctx, index, k);
        if (s && !first) first = s;
    }
    return first;
}

static esp_status esp__device_copy_some(const esp_ctx *ctx, uint32_t on, void *dst, const void *src, uint64_t bytes) {
    const esp__device *d = esp__device_at(ctx, on);
    const esp_status s = d->table->copy(d->self, dst, src, bytes, d->stream[ESP__ON_COMPUTE]);
    return s ? esp__device_failed(ctx, on, s, "copy") : esp__device_drain(ctx, on, ESP__ON_COMPUTE);
}

ESP__FN esp_status esp__device_copy(const esp_ctx *ctx, uint32_t to, void *dst, uint32_t from, const void *src,
                                    uint64_t bytes) {
    uint8_t *bounce = esp__device_at(ctx, to ? to : from)->bounce;
    esp_status s = ESP_OK;
    if (!bytes) return ESP_OK;
    if (to == from) return esp__device_copy_some(ctx, to, dst, src, bytes);
    for (uint64_t at = 0, n; at < bytes && !s; at += n) {
        uint8_t *out = (uint8_t *)dst + at;
        const uint8_t *in = (const uint8_t *)src + at;
        n = bytes - at < ESP__BOUNCE_BYTES ? bytes - at : ESP__BOUNCE_BYTES;
        if (from)
            s = esp__device_copy_some(ctx, from, bounce, in, n);
        else
            memcpy(bounce, in, n);
        if (!s && to)
            s = esp__device_copy_some(ctx, to, out, bounce, n);
        else if (!s)
            memcpy(out, bounce, n);
    }
    return s;
}

ESP__FN esp_status esp__device_convert(const esp_ctx *ctx, uint32_t on, void *dst, esp_dtype to, const void *src,
                                       esp_dtype from, float scale, bool sum, uint64_t count) {
    const esp__device *d = esp__device_at(ctx, on);
    if (!count) return ESP_OK;
    const esp_status s = d->table->convert(d->self, dst, to, src, from, scale, sum, count, d->stream[ESP__ON_COMPUTE]);
    return s ? esp__device_failed(ctx, on, s, "convert") : esp__device_drain(ctx, on, ESP__ON_COMPUTE);
}

ESP__FN esp_status esp__device_add(const esp_ctx *ctx, uint32_t on, float *dst, const float *src, float scale, int sum,
                                   uint64_t count) {
    return esp__device_convert(ctx, on, dst, ESP_F32, src, ESP_F32, scale, sum != 0, count);
}

ESP__FN esp_status esp__device_zero(const esp_ctx *ctx, uint32_t on, void *dst, uint64_t bytes) {
    const esp__device *d = esp__device_at(ctx, on);
    if (!bytes) return ESP_OK;
    const esp_status s = d->table->fill(d->self, dst, 0, bytes, d->stream[ESP__ON_COMPUTE]);
    return s ? esp__device_failed(ctx, on, s, "fill") : esp__device_drain(ctx, on, ESP__ON_COMPUTE);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */
ESP__FN esp_status esp__devices_init(esp_ctx *ctx) {
    uint32_t index;
    pthread_mutex_init(&esp__device_list_of(ctx)->lock, NULL);
    esp__device_list_of(ctx)->piece_bytes = ESP__PIECE_BYTES;
    const esp_status s = esp__device_open(ctx, (esp_device){ESP_CPU, 0}, "esp_open", &index);
    return s ? s : esp__device_use(ctx, index, ESP__LEVELS, "esp_open");
}

ESP__FN void esp__devices_close(esp_ctx *ctx) {
    esp__device_list *all = esp__device_list_of(ctx);
    while (all->n > 0) {
        esp__device *d = &all->open[--all->n];
        esp__device_unuse(d);
        d->table->close(d->self);
    }
    pthread_mutex_destroy(&all->lock);
}

/* ---- for plugins ------------------------------------------------------------------------------------------------- */
ESP__FN esp_status esp__host_device(void *user, esp_device d, const esp_device_table **table, void **self) {
    esp_ctx *ctx = user;
    uint32_t index;
    esp_status s = esp__device_open(ctx, d, "esp_host.device", &index);
    *table = s ? NULL : esp__device_at(ctx, index)->table;
    *self = s ? NULL : esp__device_at(ctx, index)->self;
    return s;
}

ESP__FN void *esp__host_alloc_on(void *user, esp_device d, uint64_t bytes, uint64_t align) {
    const esp_device_table *t;
    void *self, *p;
    if (d.kind <= ESP_CPU) return esp__host_alloc(user, d, bytes, align);
    if ((align & (align - 1)) || align > 256 || esp__host_device(user, d, &t, &self)) return NULL;
    return t->alloc(self, bytes, ESP_MEM_DEVICE, &p) ? NULL : p;
}

ESP__FN void esp__host_free_on(void *user, esp_device d, void *p, uint64_t bytes) {
    const esp_device_table *t;
    void *self;
    if (d.kind <= ESP_CPU)
        esp__host_free(user, d, p, bytes);
    else if (p && !esp__host_device(user, d, &t, &self))
        t->free_(self, p, bytes, ESP_MEM_DEVICE);
}
