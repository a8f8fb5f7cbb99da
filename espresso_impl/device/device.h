/* device.h: the devices that a context uses: opened when the first tensor or plugin asks for one, closed with the context. Every
 * device, the CPU too, is used through its table. Knows nothing of tensors and ops. */
#ifndef ESP__DEVICE_H
#define ESP__DEVICE_H
#include "espresso_impl/base/base.h"
#include "espresso_impl/plugins/plugins.h"

/* The streams of a device, by what runs on them, so that copies overlap with kernels and with each other. */
enum { ESP__ON_COMPUTE = 0, ESP__ON_DOWN, ESP__ON_UP, ESP__ON_INTRA, ESP__ON_INTER, ESP__ON_STREAMS };

typedef struct esp__device {
    esp_device id;
    const esp_device_table *table;
    void *self;
    esp_stream stream[ESP__ON_STREAMS]; /* made by esp__device_streams; on the CPU all zero */
    void *settle;                       /* an event, for esp__device_settle                 */
    int streams;                        /* 1: `stream` and `settle` are made                */
} esp__device;

/* Device 0 is the CPU. A device that lets the host touch its memory is used as the CPU, too. */
enum { ESP__DEVICES_MAX = 16, ESP__DEVICE_CPU = 0 };
typedef struct esp__device_list {
    pthread_mutex_t lock; /* any thread of a plugin may ask for a device */
    uint32_t n;
    esp__device open[ESP__DEVICES_MAX];
} esp__device_list;
static inline esp__device_list *esp__device_list_of(const esp_ctx *ctx) { return esp__base_of(ctx)->devices; }

/* ---- device.c ---------------------------------------------------------------------------------------------------------- */
ESP__FN esp_status esp__devices_init(esp_ctx *ctx); /* opens the CPU */
ESP__FN void esp__devices_close(esp_ctx *ctx);
/* *index: of the device, which is opened if nobody did before. `who` begins the error's text. */
ESP__FN esp_status esp__device_open(esp_ctx *ctx, esp_device d, const char *who, uint32_t *index);
ESP__FN esp__device *esp__device_at(const esp_ctx *ctx, uint32_t index);
/* The host's services for plugins. */
ESP__FN esp_status esp__host_device(void *user, esp_device d, const esp_device_table **table, void **self);
ESP__FN void *esp__host_alloc_on(void *user, esp_device d, uint64_t bytes, uint64_t align);
ESP__FN void esp__host_free_on(void *user, esp_device d, void *p, uint64_t bytes);

/* ---- device_cpu.c -------------------------------------------------------------------------------------------------------- */
ESP__FN const esp_device_table *esp__device_cpu(void);
#endif
