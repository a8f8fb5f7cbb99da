/* on_cpu.cc is a test plugin that registers the CUDA codecs under the names of the CPU's, so that `espresso plugins
 * --check` runs all its rules on them. A call copies its arguments to the emulator's device, runs there, and copies the
 * results back. */
#include "espresso.h"
#include <cuda_runtime.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

extern "C" const esp_plugin *espresso_plugin_v1_cuda(const esp_host *h);
static const esp_plugin *cuda_plugin;

/* ---- one opened codec -------------------------------------------------------------------------------------------- */
struct opened {
    esp_host host;
    const esp_host *real;
    const esp_codec *device_codec;
    void *self, *device;
    esp_stream stream;
};
static esp_status find_device(void *user, esp_device, const esp_device_table **table, void **self);
static void *of_alloc(void *user, esp_device d, uint64_t bytes, uint64_t align) {
    const opened *o = (const opened *)user;
    return o->real->alloc(o->real->user, d, bytes, align);
}
static void of_free(void *user, esp_device d, void *p, uint64_t bytes) {
    const opened *o = (const opened *)user;
    o->real->free_(o->real->user, d, p, bytes);
}
static void of_log(void *user, const esp_log_event *ev) {
    const opened *o = (const opened *)user;
    o->real->log(o->real->user, ev);
}
static esp_status of_codec_open(void *user, const char *spec, const esp_codec **table, void **self) {
    const opened *o = (const opened *)user;
    return o->real->codec_open(o->real->user, spec, table, self);
}
static void of_codec_close(void *user, const esp_codec *table, void *self) {
    const opened *o = (const opened *)user;
    o->real->codec_close(o->real->user, table, self);
}
static esp_status find_device(void *user, esp_device, const esp_device_table **table, void **self) {
    *table = cuda_plugin->devices[0];
    *self = ((const opened *)user)->device;
    return ESP_OK;
}

static esp_status open_device_codec(const esp_codec *device_codec, const esp_host *h, const char *params, void **self) {
    const esp_device_table *d = cuda_plugin->devices[0];
    opened *o = new opened();
    o->real = h;
    o->device_codec = device_codec;
    memset(&o->host, 0, sizeof o->host);
    o->host.struct_size = sizeof o->host;
    o->host.abi_major = h->abi_major, o->host.abi_minor = h->abi_minor;
    o->host.user = o;
    o->host.alloc = of_alloc, o->host.free_ = of_free, o->host.log = of_log;
    o->host.codec_open = of_codec_open, o->host.codec_close = of_codec_close;
    o->host.device = find_device;
    esp_status s = d->open(&o->host, 0, &o->device);
    if (s == ESP_OK) s = d->stream_create(o->device, &o->stream);
    if (s == ESP_OK) s = device_codec->open(&o->host, params, &o->self);
    if (s == ESP_OK)
        *self = o;
    else
        delete o;
    return s;
}
static void close_device_codec(void *self) {
    opened *o = (opened *)self;
    const esp_device_table *d = cuda_plugin->devices[0];
    o->device_codec->close(o->self);
    d->stream_destroy(o->device, o->stream);
    d->close(o->device);
    delete o;
}

/* ---- one call ---------------------------------------------------------------------------------------------------- */
struct copied {
    void *host, *device;
    uint64_t bytes;
};
struct call {
    std::vector<copied> all;
    void *take(void *host, uint64_t bytes) {
        void *p = NULL;
        if (cudaMalloc(&p, bytes) != cudaSuccess) abort();
        if (host && bytes) cudaMemcpy(p, host, bytes, cudaMemcpyDefault);
        all.push_back({host, p, bytes});
        return p;
    }
    void buffer(esp_buf *b) {
        b->dev.kind = ESP_CUDA;
        if (b->bytes) b->ptr = take(b->ptr, b->bytes);
    }
    void back(int write) {
        for (const copied &c : all) {
            if (write && c.host && c.bytes) cudaMemcpy(c.host, c.device, c.bytes, cudaMemcpyDefault);
            cudaFree(c.device);
        }
    }
};
/* Results are copied back even after an error, since a codec that refuses a payload must not have written any. */
static esp_status run(void *self, const esp_codec_args *args, int compress) {
    opened *o = (opened *)self;
    const esp_device_table *d = cuda_plugin->devices[0];
    esp_codec_args a;
    call k;
    memset(&a, 0, sizeof a);
    memcpy(&a, args, args->struct_size < sizeof a ? args->struct_size : sizeof a);
    const uint32_t n = a.n_tensors, per = compress || !a.n_payloads ? 1 : a.n_payloads;
    std::vector<esp_tensor> tensor(n);
    std::vector<esp_tensor *> list(n);
    std::vector<esp_buf> residual(n), state(n);
    std::vector<esp_payload> payload((size_t)n * per), reduced(n);
    std::vector<uint64_t> offset(n);
    esp_buf scratch;
    for (uint32_t t = 0; t < n; t++) {
        tensor[t] = *a.tensor[t];
        k.buffer(&tensor[t].data);
        list[t] = &tensor[t];
        offset[t] = a.offset ? a.offset[t] : 0;
        if (a.residual) k.buffer(&(residual[t] = a.residual[t]));
        if (a.state) k.buffer(&(state[t] = a.state[t]));
        if (a.reduced) reduced[t] = a.reduced[t], k.buffer(&reduced[t].data), reduced[t].used = NULL;
        for (uint32_t p = 0; p < per; p++) {
            esp_payload *x = &payload[(size_t)t * per + p];
            *x = a.payload[(size_t)t * per + p];
            k.buffer(&x->data);
            if (x->used) x->used = (uint64_t *)k.take(x->used, sizeof(uint64_t));
        }
    }
    if (a.scratch) {
        scratch = *a.scratch;
        scratch.ptr = k.take(NULL, scratch.bytes);
        scratch.dev.kind = ESP_CUDA;
        a.scratch = &scratch;
    }
    a.struct_size = sizeof a;
    a.tensor = list.data(), a.offset = offset.data(), a.payload = payload.data();
    if (a.residual) a.residual = residual.data();
    if (a.state) a.state = state.data();
    if (a.reduced) a.reduced = reduced.data();
    a.stream = o->stream;
    if (!a.n_payloads) a.n_payloads = 1;
    esp_status s = compress ? o->device_codec->compress(o->self, &a) : o->device_codec->decompress(o->self, &a);
    void *event = NULL;
    d->event_create(o->device, &event);
    d->event_record(o->device, event, o->stream);
    const esp_status later = d->event_sync(o->device, event);
    d->event_destroy(o->device, event);
    k.back(1);
    if (later == ESP_E_CORRUPT) {
        d->stream_destroy(o->device, o->stream);
        d->close(o->device);
        if (d->open(&o->host, 0, &o->device) != ESP_OK || d->stream_create(o->device, &o->stream) != ESP_OK) abort();
    }
    return s ? s : later;
}
static esp_status compress(void *self, const esp_codec_args *a) { return run(self, a, 1); }
static esp_status decompress(void *self, const esp_codec_args *a) { return run(self, a, 0); }
static esp_status bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    const opened *o = (const opened *)self;
    return o->device_codec->bound(o->self, like, round, n_reduced, out);
}
static esp_status traits(void *self, esp_traits *out) {
    const opened *o = (const opened *)self;
    return o->device_codec->traits(o->self, out);
}
static esp_status model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d, esp_codec_model *out) {
    const opened *o = (const opened *)self;
    return o->device_codec->model(o->self, like, n_reduced, d, out);
}
static esp_status values(void *self, const esp_tensor *like, const esp_payload_header *h, esp_values *out) {
    const opened *o = (const opened *)self;
    return o->device_codec->values(o->self, like, h, out);
}

/* ---- codec tables: open() is not told the codec, so the template makes an open() for each codec --------------- */
enum { MOST = 40 };
template <int I> static esp_status open_nth(const esp_host *h, const char *params, void **self) {
    return open_device_codec(cuda_plugin->codecs[I], h, params, self);
}
template <int... I> static void fill(esp_codec *tables, std::integer_sequence<int, I...>) {
    ((tables[I].open = open_nth<I>), ...);
}
ESPRESSO_PLUGIN_ENTRY(on_cpu) {
    static esp_codec tables[MOST];
    static const esp_codec *list[MOST];
    static esp_plugin plugin;
    cuda_plugin = espresso_plugin_v1_cuda(h);
    if (cuda_plugin->n_codecs > MOST) abort();
    for (uint32_t i = 0; i < cuda_plugin->n_codecs; i++) tables[i] = *cuda_plugin->codecs[i], list[i] = &tables[i];
    fill(tables, std::make_integer_sequence<int, MOST>());
    for (uint32_t i = 0; i < cuda_plugin->n_codecs; i++) {
        esp_codec *t = &tables[i];
        t->devices = ESP_BIT(ESP_CPU);
        t->close = close_device_codec;
        t->bound = bound, t->compress = compress, t->decompress = decompress;
        if (t->traits) t->traits = traits;
        if (t->model) t->model = model;
        if (t->values) t->values = values;
    }
    plugin.struct_size = sizeof plugin;
    plugin.codecs = list, plugin.n_codecs = cuda_plugin->n_codecs;
    return &plugin;
}
