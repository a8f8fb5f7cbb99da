/* fake.c is a device without hardware. The library crashes or gets wrong sums on it if it treats device memory as host
 * memory, or relies on the host's order: the host cannot access device memory (PROT_NONE), which is mapped a second
 * time for the device's thread; that thread runs copies and kernels late, in each stream's order, but streams in random
 * order; copies fail if the host's memory is not pinned. */
#ifndef TEST_FAKE_C
#define TEST_FAKE_C
#include "tests/lib/test.h"
#include <sys/syscall.h>

enum { FAKE_KIND = ESP_DEVKIND_OWN, FAKE_ORDINALS = 2 };

/* ---- memory, shared by the whole process as that of a real device ------------------------------------------------ */
typedef struct fake_block {
    /* Address for the host, and address for the device's thread. They are equal for pinned memory. */
    uint8_t *seen, *own;
    uint64_t bytes;
    int pinned;
} fake_block;
static fake_block **fake_blocks; /* sorted by `seen` */
static uint32_t fake_n_blocks, fake_cap_blocks;
static pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER; /* protects the blocks and the counters */
static int fake_live;                                         /* blocks, streams and events that are not freed */
static int fake_refused;
static uint64_t fake_left = UINT64_MAX; /* bytes that can still be allocated */
static bool fake_punctual;              /* work does not wait at random: for measurements */
static int fake_broken;                 /* nonzero: kernels fail */
static int fake_at_once;

static uint32_t fake_blocks_to(const void *p) {
    uint32_t low = 0, high = fake_n_blocks;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (fake_blocks[middle]->seen <= (const uint8_t *)p)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static uint64_t fake_round(uint64_t bytes) { return (bytes + 4095u) / 4096u * 4096u; }

static void *fake_take(uint64_t bytes, int pinned) {
    fake_block *b = calloc(1, sizeof *b);
    const uint64_t size = fake_round(bytes + 1);
    b->bytes = bytes;
    b->pinned = pinned;
    if (pinned) {
        b->seen = b->own = aligned_alloc(4096, size);
        memset(b->own, 0, size);
    } else {
        const int fd = (int)syscall(SYS_memfd_create, "fake", 0u);
        if (fd < 0 || ftruncate(fd, (off_t)size)) abort();
        b->own = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        b->seen = mmap(NULL, size, PROT_NONE, MAP_SHARED, fd, 0);
        if (b->own == MAP_FAILED || b->seen == MAP_FAILED) abort();
        close(fd);
    }
    pthread_mutex_lock(&fake_lock);
    if (fake_n_blocks == fake_cap_blocks) {
        fake_cap_blocks = 2 * fake_cap_blocks + 64;
        fake_blocks = realloc(fake_blocks, fake_cap_blocks * sizeof b);
    }
    const uint32_t at = fake_blocks_to(b->seen);
    memmove(fake_blocks + at + 1, fake_blocks + at, (fake_n_blocks++ - at) * sizeof b);
    fake_blocks[at] = b;
    fake_live++;
    pthread_mutex_unlock(&fake_lock);
    return b->seen;
}

static void fake_give(void *p) {
    if (!p) return;
    pthread_mutex_lock(&fake_lock);
    const uint32_t end = fake_blocks_to(p);
    fake_block *b = end ? fake_blocks[end - 1] : NULL;
    if (!b || b->seen != p) abort();
    memmove(fake_blocks + end - 1, fake_blocks + end, (fake_n_blocks-- - end) * sizeof b);
    if (!fake_n_blocks) free(fake_blocks), fake_blocks = NULL, fake_cap_blocks = 0;
    fake_live--;
    pthread_mutex_unlock(&fake_lock);
    if (b->pinned) {
        free(b->own);
    } else {
        munmap(b->own, fake_round(b->bytes + 1));
        munmap(b->seen, fake_round(b->bytes + 1));
    }
    free(b);
}

/* Returns the address at which the device's thread accesses `p`, or NULL if the device cannot access these bytes. */
static void *fake_own(const void *p, uint64_t bytes) {
    const uint8_t *at = p;
    void *own = NULL;
    pthread_mutex_lock(&fake_lock);
    const uint32_t end = fake_blocks_to(at);
    const fake_block *b = end ? fake_blocks[end - 1] : NULL;
    if (b && bytes <= b->bytes && at - b->seen <= (int64_t)(b->bytes - bytes)) own = b->own + (at - b->seen);
    fake_refused += !own;
    pthread_mutex_unlock(&fake_lock);
    return own;
}

/* Let a test access device memory at once, without waiting for any stream. */
static ESP__UNUSED void fake_put(void *device, const void *from, uint64_t bytes) {
    memcpy(fake_own(device, bytes), from, bytes);
}
static ESP__UNUSED void fake_get(void *to, const void *device, uint64_t bytes) {
    memcpy(to, fake_own(device, bytes), bytes);
}

/* ---- streams and events ------------------------------------------------------------------------------------------ */
typedef struct fake_event {
    uint64_t recorded, passed;
    uint64_t ns;
    int untimed;
} fake_event;

typedef struct fake_item {
    struct fake_item *next;
    fake_event *wait, *signal; /* event to wait for or signal; both NULL: a kernel */
    uint64_t number;
    uint64_t order;
    int (*ready)(void *arg); /* whether the kernel can run now; NULL: always */
    esp_status (*run)(void *arg);
    void *arg;
} fake_item;

typedef struct fake_stream {
    struct fake_device *device;
    struct fake_stream *next;
    fake_item *first, **last;
} fake_stream;

typedef struct fake_device {
    esp_ctx *ctx; /* the context that opened it, or NULL */
    int32_t ordinal;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, passed;
    fake_stream *streams;
    uint64_t given;
    int quit;
    unsigned random;
    esp_status error; /* error of the first kernel that failed; it stays set */
} fake_device;

static int fake_held;
static ESP__UNUSED void fake_hold(int held) { __atomic_store_n(&fake_held, held, __ATOMIC_SEQ_CST); }

/* If not 0, all streams share one hardware queue. Then work also waits if earlier work of another stream waits for an
 * event. */
static int fake_one_queue;

/* If streams share a queue, returns the position of the first work that waits for an event. No work after it may
 * run. */
static uint64_t fake_barrier(const fake_device *d) {
    uint64_t least = UINT64_MAX;
    for (const fake_stream *s = d->streams; s && fake_one_queue; s = s->next) {
        const fake_item *i = s->first;
        if (i && i->wait && i->wait->passed < i->number && i->order < least) least = i->order;
    }
    return least;
}

static unsigned fake_random(fake_device *d) { return (d->random = d->random * 1664525u + 1013904223u) >> 8; }

/* Returns a random stream whose next work can run, or NULL. Sets *ask if the caller must look again later, because
 * it will not be woken. */
static fake_stream *fake_runnable(fake_device *d, int *ask) {
    fake_stream *found = NULL;
    unsigned n = 0;
    *ask = __atomic_load_n(&fake_held, __ATOMIC_SEQ_CST);
    if (*ask) return NULL;
    const uint64_t barrier = fake_barrier(d);
    for (fake_stream *s = d->streams; s; s = s->next) {
        const fake_item *i = s->first;
        if (!i || i->order > barrier || (i->wait && i->wait->passed < i->number)) continue;
        if (i->ready && !i->ready(i->arg)) {
            *ask = 1;
            continue;
        }
        if (fake_random(d) % ++n == 0) found = s;
    }
    return found;
}

static void *fake_main(void *arg) {
    fake_device *d = arg;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        int ask;
        fake_stream *s = fake_runnable(d, &ask);
        if (!s && d->quit) break;
        if (!s && ask) {
            pthread_mutex_unlock(&d->lock);
            fake_punctual ? (void)sched_yield() : (void)usleep(50);
            pthread_mutex_lock(&d->lock);
            continue;
        }
        if (!s) {
            pthread_cond_wait(&d->more, &d->lock);
            continue;
        }
        fake_item *i = s->first;
        const unsigned late = fake_punctual || fake_random(d) % 4 ? 0 : fake_random(d) % 100;
        pthread_mutex_unlock(&d->lock);
        if (late) usleep(late);
        const int broken = __atomic_load_n(&fake_broken, __ATOMIC_SEQ_CST);
        const esp_status st = !i->run ? ESP_OK : broken ? ESP_E_DEVICE : i->run(i->arg);
        pthread_mutex_lock(&d->lock);
        if (st && !d->error) d->error = st;
        if (i->signal && i->signal->passed < i->number) i->signal->passed = i->number, i->signal->ns = esp__now_ns();
        s->first = i->next;
        if (!s->first) s->last = &s->first;
        free(i->arg);
        free(i);
        pthread_cond_broadcast(&d->passed);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

static void fake_enqueue(fake_stream *s, fake_item i) {
    fake_item *copy = malloc(sizeof i);
    *copy = i;
    copy->order = s->device->given++;
    *s->last = copy;
    s->last = &copy->next;
    pthread_cond_signal(&s->device->more);
}

/* Enqueues a kernel with a copy of its arguments. */
static esp_status fake_launch_when(esp_stream to, int (*ready)(void *arg), esp_status (*run)(void *arg),
                                   const void *arg, size_t bytes) {
    fake_stream *s = to.native;
    fake_item i = {0};
    if (!s || to.dev.kind != FAKE_KIND) return ESP_E_ARG;
    i.ready = ready;
    i.run = run;
    i.arg = malloc(bytes);
    memcpy(i.arg, arg, bytes);
    pthread_mutex_lock(&s->device->lock);
    fake_enqueue(s, i);
    const esp_status st = s->device->error;
    pthread_mutex_unlock(&s->device->lock);
    return st;
}

static esp_status fake_launch(esp_stream to, esp_status (*run)(void *arg), const void *arg, size_t bytes) {
    return fake_launch_when(to, NULL, run, arg, bytes);
}

static void fake_count(int n) {
    pthread_mutex_lock(&fake_lock);
    fake_live += n;
    pthread_mutex_unlock(&fake_lock);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */
static esp_status fake_probe(const esp_host *h, int32_t *count) { return (void)h, *count = FAKE_ORDINALS, ESP_OK; }
static esp_status fake_open(const esp_host *h, int32_t ordinal, void **self) {
    fake_device *d = calloc(1, sizeof *d);
    d->ctx = h && h->own_thread == esp__host_own_thread ? h->user : NULL;
    d->ordinal = ordinal;
    d->random = (unsigned)(uintptr_t)d ^ (unsigned)getpid();
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->more, NULL);
    pthread_cond_init(&d->passed, NULL);
    if (pthread_create(&d->thread, NULL, fake_main, d)) abort();
    fake_count(1);
    *self = d;
    return ESP_OK;
}
static void fake_close(void *self) {
    fake_device *d = self;
    pthread_mutex_lock(&d->lock);
    d->quit = 1;
    pthread_cond_signal(&d->more);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->thread, NULL);
    if (d->streams) abort();
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->more);
    pthread_cond_destroy(&d->passed);
    free(d);
    fake_count(-1);
}

/* Ends the process if this thread holds the context's lock: no call may wait for a device with it, since the link
 * thread needs the lock to enqueue what other ranks' devices wait for. */
static void fake_may_wait(const fake_device *d, const char *call) {
#ifdef __GLIBC__
    if (!d->ctx || __atomic_load_n(&d->ctx->lanes.lock.__data.__owner, __ATOMIC_RELAXED) != syscall(SYS_gettid)) return;
    fprintf(stderr, "%s is called with the context's lock held\n", call);
    abort();
#endif
}
static esp_status fake_alloc(void *self, uint64_t bytes, uint32_t where, void **out) {
    fake_may_wait(self, "alloc()");
    pthread_mutex_lock(&fake_lock);
    const int fits = bytes <= fake_left;
    if (fits && fake_left != UINT64_MAX) fake_left -= bytes;
    pthread_mutex_unlock(&fake_lock);
    *out = fits ? fake_take(bytes, where == ESP_MEM_PINNED) : NULL;
    return fits ? ESP_OK : ESP_E_NOMEM;
}
/* Waits for all work of the device, as cudaFree does. */
static void fake_free(void *self, void *p, uint64_t bytes, uint32_t where) {
    fake_device *d = self;
    fake_may_wait(d, "free_()");
    pthread_mutex_lock(&d->lock);
    for (const fake_stream *s = d->streams; s;) {
        const int busy = s->first != NULL;
        if (busy) pthread_cond_wait(&d->passed, &d->lock);
        s = busy ? d->streams : s->next;
    }
    pthread_mutex_unlock(&d->lock);
    fake_give(p);
}

static esp_status fake_stream_create(void *self, esp_stream *out) {
    fake_device *d = self;
    fake_stream *s = calloc(1, sizeof *s);
    s->device = d;
    s->last = &s->first;
    pthread_mutex_lock(&d->lock);
    s->next = d->streams;
    d->streams = s;
    pthread_mutex_unlock(&d->lock);
    fake_count(1);
    *out = (esp_stream){{FAKE_KIND, d->ordinal}, s};
    return ESP_OK;
}
static void fake_stream_destroy(void *self, esp_stream x) {
    fake_device *d = self;
    fake_stream *s = x.native, **at = &d->streams;
    pthread_mutex_lock(&d->lock);
    if (s->first) abort();
    while (*at != s) at = &(*at)->next;
    *at = s->next;
    pthread_mutex_unlock(&d->lock);
    free(s);
    fake_count(-1);
}

static esp_status fake_event_create(void *self, void **event) {
    *event = calloc(1, sizeof(fake_event));
    fake_count(1);
    return ESP_OK;
}
static esp_status fake_event_create_untimed(void *self, void **event) {
    const esp_status s = fake_event_create(self, event);
    ((fake_event *)*event)->untimed = 1;
    return s;
}
static void fake_event_destroy(void *self, void *event) {
    free(event);
    fake_count(-1);
}
static esp_status fake_mark(fake_device *d, void *event, esp_stream x, int record) {
    fake_stream *s = x.native;
    fake_event *e = event;
    fake_item i = {0};
    if (!s || s->device != d) return ESP_E_ARG;
    pthread_mutex_lock(&d->lock);
    if (record)
        i.signal = e, i.number = ++e->recorded;
    else
        i.wait = e, i.number = e->recorded;
    fake_enqueue(s, i);
    while (record && __atomic_load_n(&fake_at_once, __ATOMIC_SEQ_CST) && e->passed < i.number)
        pthread_cond_wait(&d->passed, &d->lock);
    const esp_status st = d->error;
    pthread_mutex_unlock(&d->lock);
    return st;
}
static esp_status fake_event_record(void *self, void *event, esp_stream s) { return fake_mark(self, event, s, 1); }
static esp_status fake_event_wait(void *self, void *event, esp_stream s) { return fake_mark(self, event, s, 0); }
static esp_status fake_event_query(void *self, void *event) {
    fake_device *d = self;
    const fake_event *e = event;
    pthread_mutex_lock(&d->lock);
    const esp_status s = d->error ? d->error : e->passed < e->recorded ? ESP_PENDING : ESP_OK;
    pthread_mutex_unlock(&d->lock);
    return s;
}
static esp_status fake_event_sync(void *self, void *event) {
    fake_device *d = self;
    fake_may_wait(d, "event_sync()");
    const fake_event *e = event;
    pthread_mutex_lock(&d->lock);
    while (e->passed < e->recorded) pthread_cond_wait(&d->passed, &d->lock);
    const esp_status s = d->error;
    pthread_mutex_unlock(&d->lock);
    return s;
}

static esp_status fake_elapsed(void *self, void *from, void *to, uint64_t *ns) {
    fake_device *d = self;
    const fake_event *a = from, *b = to;
    if (a->untimed || b->untimed) abort();
    pthread_mutex_lock(&d->lock);
    const int passed = a->recorded && b->recorded && a->passed == a->recorded && b->passed == b->recorded;
    *ns = b->ns - a->ns;
    pthread_mutex_unlock(&d->lock);
    return passed && b->ns >= a->ns ? ESP_OK : ESP_E_STATE;
}

/* ---- copies and arithmetic: done by the CPU, on the device's thread ---------------------------------------------- */
typedef struct fake_move {
    void *dst;
    const void *src;
    uint64_t dst_pitch, src_pitch, bytes, rows;
    esp_dtype to, from;
    float scale;
    uint32_t sum;
    uint8_t byte;
} fake_move;
static const esp_stream fake_here;

static esp_status fake_run_copy(void *arg) {
    const fake_move *m = arg;
    return esp__device_cpu()->copy2d(NULL, m->dst, m->dst_pitch, m->src, m->src_pitch, m->bytes, m->rows, fake_here);
}
static esp_status fake_copy2d(void *self, void *dst, uint64_t dst_pitch, const void *src, uint64_t src_pitch,
                              uint64_t bytes, uint64_t rows, esp_stream s) {
    fake_move m = {0};
    if (!bytes || !rows) return ESP_OK;
    m.dst = fake_own(dst, dst_pitch * (rows - 1) + bytes);
    m.src = fake_own(src, src_pitch * (rows - 1) + bytes);
    m.dst_pitch = dst_pitch, m.src_pitch = src_pitch, m.bytes = bytes, m.rows = rows;
    return m.dst && m.src ? fake_launch(s, fake_run_copy, &m, sizeof m) : ESP_E_ARG;
}
static esp_status fake_copy(void *self, void *dst, const void *src, uint64_t bytes, esp_stream s) {
    return fake_copy2d(self, dst, bytes, src, bytes, bytes, 1, s);
}

static esp_status fake_run_fill(void *arg) {
    const fake_move *m = arg;
    return memset(m->dst, m->byte, m->bytes), ESP_OK;
}
static esp_status fake_fill(void *self, void *dst, uint8_t byte, uint64_t bytes, esp_stream s) {
    fake_move m = {0};
    m.dst = fake_own(dst, bytes);
    m.byte = byte, m.bytes = bytes;
    return m.dst ? fake_launch(s, fake_run_fill, &m, sizeof m) : ESP_E_ARG;
}

static esp_status fake_run_convert(void *arg) {
    const fake_move *m = arg;
    return esp__device_cpu()->convert(NULL, m->dst, m->to, m->src, m->from, m->scale, m->sum, m->rows, fake_here);
}
static esp_status fake_convert(void *self, void *dst, esp_dtype to, const void *src, esp_dtype from, float scale,
                               uint32_t sum, uint64_t count, esp_stream s) {
    fake_move m = {0};
    m.dst = fake_own(dst, count * esp_dtype_bytes(to));
    m.src = fake_own(src, count * esp_dtype_bytes(from));
    m.to = to, m.from = from, m.scale = scale, m.sum = sum, m.rows = count;
    return m.dst && m.src ? fake_launch(s, fake_run_convert, &m, sizeof m) : ESP_E_ARG;
}

static const esp_device_table fake_table = {.struct_size = sizeof(esp_device_table),
                                            .kind = FAKE_KIND,
                                            .name = "fake",
                                            .summary = "memory that the host may not touch, and work that runs late",
                                            .probe = fake_probe,
                                            .open = fake_open,
                                            .close = fake_close,
                                            .alloc = fake_alloc,
                                            .free_ = fake_free,
                                            .stream_create = fake_stream_create,
                                            .stream_destroy = fake_stream_destroy,
                                            .event_create = fake_event_create,
                                            .event_destroy = fake_event_destroy,
                                            .event_record = fake_event_record,
                                            .event_wait = fake_event_wait,
                                            .event_query = fake_event_query,
                                            .event_sync = fake_event_sync,
                                            .copy = fake_copy,
                                            .copy2d = fake_copy2d,
                                            .fill = fake_fill,
                                            .convert = fake_convert,
                                            .elapsed = fake_elapsed,
                                            .event_create_untimed = fake_event_create_untimed};

#include "tests/device/fake_codecs.c"
#endif
