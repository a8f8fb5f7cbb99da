/* device_buffers.c: runs a collective on data in device memory, and copies the data there and back. Each rank uses the
 * device whose index is that of the rank on its machine. Must not know any device by name. */
#include "tools/check/check.h"

typedef struct check_copy {
    uint8_t *host;
    void *device, *pinned;
    uint64_t bytes;
} check_copy;
typedef struct check_device {
    const esp_device_table *table;
    void *self, *event;
    esp_stream stream;
} check_device;

static esp_status check_copy_up(const check_device *d, check_copy *c) {
    if (!c->bytes) return ESP_OK;
    esp_status s = d->table->alloc(d->self, c->bytes, ESP_MEM_DEVICE, &c->device);
    if (!s) s = d->table->alloc(d->self, c->bytes, ESP_MEM_PINNED, &c->pinned);
    if (s) return s;
    memcpy(c->pinned, c->host, (size_t)c->bytes);
    return d->table->copy(d->self, c->device, c->pinned, c->bytes, d->stream);
}
static esp_status check_copy_down(const check_device *d, const check_copy *c) {
    esp_status s = c->bytes ? d->table->copy(d->self, c->pinned, c->device, c->bytes, d->stream) : ESP_OK;
    if (!s) s = d->table->event_record(d->self, d->event, d->stream);
    if (!s) s = d->table->event_sync(d->self, d->event);
    if (!s && c->bytes) memcpy(c->host, c->pinned, (size_t)c->bytes);
    return s;
}
static void check_copy_free(const check_device *d, check_copy *c) {
    if (c->device) d->table->free_(d->self, c->device, c->bytes, ESP_MEM_DEVICE);
    if (c->pinned) d->table->free_(d->self, c->pinned, c->bytes, ESP_MEM_PINNED);
}

static esp_status check_coll_on(check_rank *r, const check_device *d, const esp_coll *like) {
    esp_coll c = *like;
    check_copy src = {c.src.ptr, NULL, NULL, c.src.ptr ? c.src.bytes : 0},
               dst = {c.dst.ptr, NULL, NULL, c.dst.ptr ? c.dst.bytes : 0};
    const int alias = src.bytes && dst.bytes && src.host < dst.host + dst.bytes && dst.host < src.host + src.bytes;
    /* if the buffers overlap, the larger one contains the other */
    check_copy *const whole = alias && src.bytes > dst.bytes ? &src : &dst;
    void *req = NULL;
    esp_status s = !alias || whole == &src ? check_copy_up(d, &src) : ESP_OK;
    if (!s && (!alias || whole == &dst)) s = check_copy_up(d, &dst);
    c.src.ptr = alias ? (uint8_t *)whole->device + (src.host - whole->host) : src.device;
    c.dst.ptr = alias ? (uint8_t *)whole->device + (dst.host - whole->host) : dst.device;
    c.src.dev = c.dst.dev = d->stream.dev;
    if (!s) s = r->t->table->start(r->comm, &c, d->stream, &req);
    if (!s) s = check_rank_wait(r, req);
    /* also done after an error, since it waits until the device no longer uses the buffers */
    const esp_status back = check_copy_down(d, whole);
    if (!s) s = back;
    check_copy_free(d, &src);
    check_copy_free(d, &dst);
    return s;
}

ESP__FN esp_status check_rank_coll(check_rank *r, const esp_coll *c) {
    const esp_stream cpu = {{ESP_CPU, 0}, NULL};
    const esp_host *h = r->t->host;
    esp_device dev = {r->t->where, 0};
    check_device d = {NULL, NULL, NULL, cpu};
    void *req = NULL;
    int32_t count = 0;
    if (!dev.kind) {
        const esp_status s = r->t->table->start(r->comm, c, cpu, &req);
        return s ? s : check_rank_wait(r, req);
    }
    esp_status s = h->device(h->user, dev, &d.table, &d.self);
    if (!s) s = d.table->probe(h, &count);
    dev.ordinal = count > 0 ? r->local % count : 0;
    if (!s) s = h->device(h->user, dev, &d.table, &d.self);
    if (!s) s = d.table->stream_create(d.self, &d.stream);
    if (s) return s;
    s = d.table->event_create(d.self, &d.event);
    if (!s) s = check_coll_on(r, &d, c);
    if (d.event) d.table->event_destroy(d.self, d.event);
    d.table->stream_destroy(d.self, d.stream);
    return s;
}
