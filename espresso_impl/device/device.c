/* device.c: opens devices on demand, once a context, and gives plugins their tables and memory. */
#include "espresso_impl/device/device.h"

ESP__FN esp__device *esp__device_at(const esp_ctx *ctx, uint32_t index) {
    return &esp__device_list_of(ctx)->open[index];
}

static int esp__device_same(esp_device a, esp_device b) { return a.kind == b.kind && a.ordinal == b.ordinal; }

/* The text of a plugin's error. */
static const char *esp__device_why(esp_status s) {
    return *esp__plugin_detail() ? esp__plugin_detail() : esp_status_text(s);
}

/* Opens `d` as the next of the context's devices. The lock is held. */
static esp_status esp__device_add(esp_ctx *ctx, esp_device d, const char *who) {
    esp__device_list *all = esp__device_list_of(ctx);
    const esp_host *host = esp__registry_of(ctx)->host;
    const esp_device_table *t = d.kind == ESP_CPU ? esp__device_cpu() : esp__registry_device(ctx, d.kind);
    int32_t count = 0;
    if (!t)
        return esp__fail(ctx, ESP_E_UNSUPPORTED,
                         "%s: there is no device of kind %u here: load the plugin that brings it (esp_plugin_load, or "
                         "esp_config.builtin)",
                         who, (unsigned)d.kind);
    if (all->n == ESP__DEVICES_MAX)
        return esp__fail(ctx, ESP_E_UNSUPPORTED, "%s: a context opens at most %d devices", who, (int)ESP__DEVICES_MAX);
    esp__plugin_detail_clear();
    esp_status s = t->probe(host, &count);
    if (s) return esp__fail(ctx, s, "%s: device '%s': probe() failed: %s", who, t->name, esp__device_why(s));
    if (d.ordinal < 0 || d.ordinal >= count)
        return esp__fail(ctx, ESP_E_UNSUPPORTED, "%s: there is no device %s:%d here: %d can be used, from 0 on", who,
                         t->name, (int)d.ordinal, (int)count);
    esp__device *o = &all->open[all->n];
    memset(o, 0, sizeof *o);
    o->id = d;
    o->table = t;
    s = t->open(host, d.ordinal, &o->self);
    if (s)
        return esp__fail(ctx, s, "%s: device %s:%d cannot be opened: %s", who, t->name, (int)d.ordinal,
                         esp__device_why(s));
    all->n++;
    return ESP_OK;
}

ESP__FN esp_status esp__device_open(esp_ctx *ctx, esp_device d, const char *who, uint32_t *index) {
    esp__device_list *all = esp__device_list_of(ctx);
    esp_status s = ESP_OK;
    if (!d.kind) d.kind = ESP_CPU; /* all zero is the CPU */
    pthread_mutex_lock(&all->lock);
    for (*index = 0; *index < all->n && !esp__device_same(all->open[*index].id, d);) ++*index;
    if (*index == all->n) s = esp__device_add(ctx, d, who);
    pthread_mutex_unlock(&all->lock);
    return s;
}

ESP__FN esp_status esp__devices_init(esp_ctx *ctx) {
    uint32_t index;
    pthread_mutex_init(&esp__device_list_of(ctx)->lock, NULL);
    return esp__device_open(ctx, (esp_device){ESP_CPU, 0}, "esp_open", &index);
}

ESP__FN void esp__devices_close(esp_ctx *ctx) {
    esp__device_list *all = esp__device_list_of(ctx);
    while (all->n > 0) {
        esp__device *d = &all->open[--all->n];
        d->table->close(d->self);
    }
    pthread_mutex_destroy(&all->lock);
}

/* ---- for plugins --------------------------------------------------------------------------------------------------------- */
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
