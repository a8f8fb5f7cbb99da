/* device.h: the devices that a context uses. Each is opened when the first tensor or plugin needs it, and used through
 * a table of functions, the CPU too. Async devices, such as GPUs, run work after the call that enqueues it. */
#ifndef ESP__DEVICE_H
#define ESP__DEVICE_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/job/levels.h"
#include "espresso_impl/registry/registry.h"

/* The streams of a device. Different kinds of work have different streams, so that copies overlap with kernels. Each
 * level of the network has two: one for collectives on the device, and one for work that waits for such a
 * collective. */
enum {
    ESP__ON_COMPUTE = 0,
    ESP__ON_DOWN,
    ESP__ON_UP,
    ESP__ON_PUSH,
    ESP__ON_LINKS,
    ESP__ON_STREAMS = ESP__ON_LINKS + 2 * ESP__LEVELS
};
static inline int esp__on_link(int lane) { return ESP__ON_LINKS + 2 * lane; }
static inline int esp__on_behind(int lane) { return ESP__ON_LINKS + 2 * lane + 1; }

typedef struct esp__device {
    esp_device id;
    const esp_device_table *table;
    void *self;
    bool async; /* calls return before their work is done, so it has events */
    /* the members below are set by esp__device_use */
    esp_stream stream[ESP__ON_STREAMS];
    void *settled;
    void *bounce; /* ESP__BOUNCE_BYTES of pinned memory, to copy through */
    int used;
} esp__device;
enum { ESP__BOUNCE_BYTES = 1 << 20, ESP__PIECE_BYTES = 1 << 20 };

/* A context's devices; the first is the CPU. A device whose memory the host can access is treated as the CPU. */
enum { ESP__DEVICES_MAX = 16, ESP__CPU_INDEX = 0 };
typedef struct esp__device_list {
    pthread_mutex_t lock; /* a plugin may open a device from any thread */
    uint32_t n;
    uint64_t piece_bytes; /* copies are cut into pieces of at least this size */
    bool warned;          /* the user was told that GPU compression runs on the CPU */
    esp__device open[ESP__DEVICES_MAX];
} esp__device_list;
static inline esp__device_list *esp__device_list_of(const esp_ctx *ctx) { return esp__base_of(ctx)->devices; }

/* ---- device.c ---------------------------------------------------------------------------------------------------- */
ESP__FN esp_status esp__devices_init(esp_ctx *ctx); /* opens the CPU */
ESP__FN void esp__devices_close(esp_ctx *ctx);
/* Sets *index to the device, and opens it if it is not open. `who` begins the error's text. */
ESP__FN esp_status esp__device_open(esp_ctx *ctx, esp_device d, const char *who, uint32_t *index);
ESP__FN esp__device *esp__device_at(const esp_ctx *ctx, uint32_t index);
/* Creates the streams of a device, two of them for each of `levels` levels of the network. */
ESP__FN esp_status esp__device_use(esp_ctx *ctx, uint32_t index, uint32_t levels, const char *who);
/* Allocates zeroed memory (`where` is ESP_MEM_*), or returns NULL. _give frees it and needs the same `bytes`. */
ESP__FN void *esp__device_take(esp_ctx *ctx, uint32_t index, uint64_t bytes, uint32_t where);
ESP__FN void esp__device_give(esp_ctx *ctx, uint32_t index, void *p, uint64_t bytes, uint32_t where);
ESP__FN esp_status esp__device_failed(const esp_ctx *ctx, uint32_t index, esp_status s, const char *what);
/* An event may be NULL, on devices whose calls return when their work is done. Then recording it or waiting for it
 * does nothing. */
ESP__FN esp_status esp__device_event(const esp__device *d, bool timed, void **event); /* makes an event */
ESP__FN void esp__device_event_free(const esp__device *d, void *event);
/* Makes an array of n events, of which every third is not timed (ESP__EVENT_AFTER), or NULL if the device needs none.
 * After an error some events may be NULL. */
enum { ESP__EVENT_AFTER, ESP__EVENT_BEGIN, ESP__EVENT_END, ESP__EVENTS };
ESP__FN esp_status esp__device_events_take(esp_ctx *ctx, uint32_t index, uint32_t n, void ***events);
ESP__FN void esp__device_events_give(esp_ctx *ctx, uint32_t index, uint32_t n, void **events);
static inline esp_status esp__device_record(const esp__device *d, void *event, esp_stream s) {
    return event ? d->table->event_record(d->self, event, s) : ESP_OK;
}
/* Makes later work on stream `s` wait for the event. */
static inline esp_status esp__device_follow(const esp__device *d, void *event, esp_stream s) {
    return event ? d->table->event_wait(d->self, event, s) : ESP_OK;
}
static inline esp_status esp__device_wait(const esp__device *d, void *event) { /* blocks */
    return event ? d->table->event_sync(d->self, event) : ESP_OK;
}
static inline esp_status esp__device_passed(const esp__device *d, void *event) {
    return event ? d->table->event_query(d->self, event) : ESP_OK;
}
static inline bool esp__device_has_times(const esp__device *d) {
    return d->async && ESP_HAS(esp_device_table, d->table, elapsed);
}
/* True if work may still run on the program's stream `s`. */
static inline bool esp__stream_async(esp_stream s) { return s.dev.kind > ESP_CPU; }
static inline bool esp__devices_any(const esp_ctx *ctx) { return esp__device_list_of(ctx)->n > 1; }

/* esp__device_join makes later work on the compute stream wait for the work that `stream` has now. _settle blocks until
 * the work of all streams is done, _drain for one stream. */
ESP__FN esp_status esp__device_join(const esp_ctx *ctx, uint32_t index, int stream);
ESP__FN esp_status esp__device_settle(const esp_ctx *ctx, uint32_t index);
ESP__FN esp_status esp__device_drain(const esp_ctx *ctx, uint32_t index, int stream);
/* These block until done. Only one thread at a time may call them. `to`, `from` and `on` are device indices, where 0 is
 * any host memory. */
ESP__FN esp_status esp__device_copy(const esp_ctx *ctx, uint32_t to, void *dst, uint32_t from, const void *src,
                                    uint64_t bytes);
/* dst = scale * src, or with `sum` dst += scale * src; both on device `on`, or in memory that is pinned for it. If they
 * are the same, the dtypes are, too. */
ESP__FN esp_status esp__device_convert(const esp_ctx *ctx, uint32_t on, void *dst, esp_dtype to, const void *src,
                                       esp_dtype from, float scale, bool sum, uint64_t count);
/* The same for f32. */
ESP__FN esp_status esp__device_add(const esp_ctx *ctx, uint32_t on, float *dst, const float *src, float scale, int sum,
                                   uint64_t count);
ESP__FN esp_status esp__device_zero(const esp_ctx *ctx, uint32_t on, void *dst, uint64_t bytes);
ESP__FN esp_status esp__host_device(void *user, esp_device d, const esp_device_table **table, void **self);
ESP__FN void *esp__host_alloc_on(void *user, esp_device d, uint64_t bytes, uint64_t align);
ESP__FN void esp__host_free_on(void *user, esp_device d, void *p, uint64_t bytes);

/* ---- device_cpu.c ------------------------------------------------------------------------------------------------ */
ESP__FN const esp_device_table *esp__device_cpu(void);
#endif
