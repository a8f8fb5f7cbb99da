/* device.h: the devices that a context uses: opened when the first tensor or plugin asks for one, closed with the
 * context. Every device, the CPU too, is used through its table. Knows nothing of tensors and ops. */
#ifndef ESP__DEVICE_H
#define ESP__DEVICE_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/job/levels.h"
#include "espresso_impl/registry/registry.h"

/* The streams of a device, by what runs on them, so that copies overlap with kernels and with each other. From LINKS on
 * two for each link lane: one for its collectives, one for what follows these if their backend is stream-ordered. */
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
    bool async; /* work may go on after the call that enqueues it; else the device has no events */
    /* made by esp__device_use */
    esp_stream stream[ESP__ON_STREAMS];
    void *settled; /* an event */
    void *bounce;  /* ESP__BOUNCE_BYTES of pinned memory, for copies from and to any memory of the host */
    int used;      /* streams in use */
} esp__device;
enum { ESP__BOUNCE_BYTES = 1 << 20, ESP__PIECE_BYTES = 1 << 20 };

/* A context's list of devices begins with the CPU. Devices whose memory the host may access are used as the CPU, too.
 */
enum { ESP__DEVICES_MAX = 16, ESP__CPU_INDEX = 0 };
typedef struct esp__device_list {
    pthread_mutex_t lock; /* any thread of a plugin may ask for a device */
    uint32_t n;
    uint64_t piece_bytes; /* the smallest piece of a copy between host and device that is cut; tests set it */
    bool warned;          /* that Comps and Decomps meant for a GPU run on the CPU */
    esp__device open[ESP__DEVICES_MAX];
} esp__device_list;
static inline esp__device_list *esp__device_list_of(const esp_ctx *ctx) { return esp__base_of(ctx)->devices; }

/* ---- device.c ---------------------------------------------------------------------------------------------------- */
ESP__FN esp_status esp__devices_init(esp_ctx *ctx); /* opens the CPU */
ESP__FN void esp__devices_close(esp_ctx *ctx);
/* *index: of the device, which is opened if nobody did before. `who` begins the error's text. */
ESP__FN esp_status esp__device_open(esp_ctx *ctx, esp_device d, const char *who, uint32_t *index);
ESP__FN esp__device *esp__device_at(const esp_ctx *ctx, uint32_t index);
/* Makes the streams of a device that has tensors, in a job with `levels` levels. */
ESP__FN esp_status esp__device_use(esp_ctx *ctx, uint32_t index, uint32_t levels, const char *who);
/* Memory, zeroed; NULL: none left. where: ESP_MEM_*. Give takes the same bytes. */
ESP__FN void *esp__device_take(esp_ctx *ctx, uint32_t index, uint64_t bytes, uint32_t where);
ESP__FN void esp__device_give(esp_ctx *ctx, uint32_t index, void *p, uint64_t bytes, uint32_t where);
/* The error of a device's call that failed. */
ESP__FN esp_status esp__device_failed(const esp_ctx *ctx, uint32_t index, esp_status s, const char *what);
/* Events. NULL stands for work that is done, as on a device that is not async; recording it does nothing. */
ESP__FN esp_status esp__device_event(const esp__device *d, void **event); /* a new one, or NULL */
ESP__FN void esp__device_event_free(const esp__device *d, void *event);
/* *events: n new ones, in memory of esp__alloc; NULL where the device needs none. On an error some of them may be NULL.
 */
ESP__FN esp_status esp__device_events_take(esp_ctx *ctx, uint32_t index, uint32_t n, void ***events);
ESP__FN void esp__device_events_give(esp_ctx *ctx, uint32_t index, uint32_t n, void **events);
static inline esp_status esp__device_record(const esp__device *d, void *event, esp_stream s) {
    return event ? d->table->event_record(d->self, event, s) : ESP_OK;
}
/* Later work on `s` waits for the event. */
static inline esp_status esp__device_follow(const esp__device *d, void *event, esp_stream s) {
    return event ? d->table->event_wait(d->self, event, s) : ESP_OK;
}
static inline esp_status esp__device_wait(const esp__device *d, void *event) { /* blocks */
    return event ? d->table->event_sync(d->self, event) : ESP_OK;
}
static inline esp_status esp__device_passed(const esp__device *d, void *event) { /* ESP_OK or ESP_PENDING */
    return event ? d->table->event_query(d->self, event) : ESP_OK;
}
static inline bool esp__device_has_times(const esp__device *d) {
    return d->async && ESP_HAS(esp_device_table, d->table, elapsed);
}
/* May work be under way on the trainer's stream `s` when it calls? Else what the call names is there. */
static inline bool esp__stream_async(esp_stream s) { return s.dev.kind > ESP_CPU; }
/* Has the context opened a device that is async? */
static inline bool esp__devices_any(const esp_ctx *ctx) { return esp__device_list_of(ctx)->n > 1; }

/* What comes after this on the compute stream follows what is on `stream` now. */
ESP__FN esp_status esp__device_join(const esp_ctx *ctx, uint32_t index, int stream);
/* Blocks until all that was enqueued on the streams above is done. */
ESP__FN esp_status esp__device_settle(const esp_ctx *ctx, uint32_t index);
ESP__FN esp_status esp__device_drain(const esp_ctx *ctx, uint32_t index, int stream); /* on one of them */
/* These block until they are done. From one thread at a time; `to` and `from` are devices, 0 any memory of the host. */
ESP__FN esp_status esp__device_copy(const esp_ctx *ctx, uint32_t to, void *dst, uint32_t from, const void *src,
                                    uint64_t bytes);
/* dst := (sum: dst) + scale * src; both on device `on`, f32 */
ESP__FN esp_status esp__device_add(const esp_ctx *ctx, uint32_t on, float *dst, const float *src, float scale, int sum,
                                   uint64_t count);
ESP__FN esp_status esp__device_zero(const esp_ctx *ctx, uint32_t on, void *dst, uint64_t bytes);
/* The host's services for plugins. */
ESP__FN esp_status esp__host_device(void *user, esp_device d, const esp_device_table **table, void **self);
ESP__FN void *esp__host_alloc_on(void *user, esp_device d, uint64_t bytes, uint64_t align);
ESP__FN void esp__host_free_on(void *user, esp_device d, void *p, uint64_t bytes);

/* ---- device_cpu.c ------------------------------------------------------------------------------------------------ */
ESP__FN const esp_device_table *esp__device_cpu(void);
#endif
