/* codec.h: helpers for the CUDA implementations of codecs. Each implementation includes the .c file of the CPU
 * codec, whose parameters, payload sizes and formulas it uses, and adds kernels. Calls neither wait for the device
 * nor allocate memory, so CUDA graphs can capture them. Results do not depend on the number of blocks. */
#ifndef ESP_CUDA_CODEC_H
#define ESP_CUDA_CODEC_H
#include "espresso.h"
#undef ESPRESSO_PLUGIN_ENTRY
#define ESPRESSO_PLUGIN_ENTRY(id) static inline const esp_plugin *espresso_plugin_of_##id(const esp_host *h)
#include "codecs/common/params.h"
#include "codecs/cuda/common/memory.h"
#include "codecs/cuda/device.h"

/* ---- one call ---------------------------------------------------------------------------------------------------- */
enum { CUDA_THREADS = 256, CUDA_BLOCKS_PER_SM = 8, CUDA_PARTS = 32, CUDA_SOURCES = 96, CUDA_FLAGS = 64 };

typedef struct cuda_call {
    const char *codec;
    const cuda_device *device;
    cudaStream_t stream;
    esp_status status; /* the call's first error */
} cuda_call;

static inline esp_status cuda_begin(cuda_call *c, const esp_host *h, const char *codec, const esp_codec_args *a) {
    const esp_device_table *table = NULL;
    void *self = NULL;
    const esp_status s = h->device(h->user, a->stream.dev, &table, &self);
    memset(c, 0, sizeof *c);
    if (s != ESP_OK) return s;
    if (table != &cuda_device_table || !a->stream.native)
        return esp_codec_fail(h, codec, ESP_E_ARG, "the stream is not one of a CUDA device of this plugin");
    c->codec = codec;
    c->device = (const cuda_device *)self;
    c->stream = (cudaStream_t)a->stream.native;
    return ESP_OK;
}
static inline esp_status cuda_check(cuda_call *c, const char *what, cudaError_t e) {
    if (e != cudaSuccess && c->status == ESP_OK) c->status = cuda_failed(c->device->host, what, e);
    return c->status;
}

/* Returns a grid for `parts` tensors, of which the largest has `items` items. A block processes `per_block` items at a
 * time. The grid has at most CUDA_BLOCKS_PER_SM blocks for each SM that codecs may use, so kernels must loop. Blocks of
 * kernels with more than 32 registers a thread do not all run at once. */
static inline dim3 cuda_grid(const cuda_call *c, uint64_t items, uint64_t per_block, uint32_t parts) {
    const uint64_t want = items / per_block + (items % per_block != 0);
    uint64_t most = (uint64_t)c->device->sms * CUDA_BLOCKS_PER_SM / (parts ? parts : 1);
    if (most == 0) most = 1;
    return dim3((unsigned)(want == 0 ? 1 : want < most ? want : most), parts ? parts : 1);
}
/* Blocks of a launch are shared evenly between its tensors. So a tensor that can occupy all of them gets a launch of
 * its own. */
static inline bool cuda_alone(const cuda_call *c, uint64_t count) {
    return count >= (uint64_t)c->device->sms * CUDA_BLOCKS_PER_SM * CUDA_THREADS * 4;
}
/* Launches a kernel with CUDA_THREADS threads per block, unless an earlier launch of this call failed. */
template <typename... P, typename... A>
static void cuda_launch(cuda_call *c, const char *what, void (*kernel)(P...), dim3 grid, A &&...arguments) {
    cudaLaunchConfig_t config;
    if (c->status != ESP_OK) return;
    memset((void *)&config, 0, sizeof config);
    config.gridDim = grid;
    config.blockDim = dim3(CUDA_THREADS);
    config.stream = c->stream;
    cuda_check(c, what, cudaLaunchKernelEx(&config, kernel, static_cast<A &&>(arguments)...));
}

/* ---- compress: up to CUDA_PARTS tensors of a list per launch ----------------------------------------------------- */
/* Kernel arguments for one tensor, or for a contiguous part of it. Blocks with blockIdx.y == y process part[y]. */
typedef struct cuda_part {
    const float *g;
    float *e; /* residual, or NULL */
    float *state;
    const unsigned char *reduced;
    unsigned char *payload;
    unsigned char *scratch; /* begins with cuda_flags */
    uint64_t *used;
    uint64_t count, capacity;
    uint64_t first; /* index of the first element in the whole tensor */
    uint64_t key;   /* the tensor's key */
} cuda_part;
typedef struct cuda_parts {
    uint32_t n, at;
    float beta, gamma;
    cuda_part part[CUDA_PARTS];
} cuda_parts;
/* State of a part that the kernels of one compress share. It is zero when the first kernel begins. */
typedef struct cuda_flags {
    uint32_t bad; /* phi has a NaN or Inf */
    uint32_t own[15];
} cuda_flags;

static __device__ __forceinline__ cuda_flags *cuda_flags_of(const cuda_part *p) {
    return (cuda_flags *)(void *)p->scratch;
}

/* Called once by each block that works on a part. Returns nonzero in all threads of the block that calls last; that
 * block then sees what the other blocks wrote to global memory. */
static __device__ __forceinline__ int cuda_last(uint32_t *done) {
    int last = 0;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(done, 1u) == gridDim.x - 1;
    last = __syncthreads_or(last);
    if (last) __threadfence();
    return last;
}
static __device__ __forceinline__ int cuda_last_block(const cuda_part *p) {
    return cuda_last(&cuda_flags_of(p)->own[0]);
}

/* Returns the gradient plus, with error feedback, the residual. The result has the same bits as on the CPU. */
static __device__ __forceinline__ float cuda_phi(const cuda_parts *all, const cuda_part *p, uint64_t i) {
    const float g = cuda_get(p->g + i);
    return p->e ? all->beta * cuda_get(p->e + i) + all->gamma * g : g;
}

/* Zeroes the first `bytes` of n scratch memories. */
static inline void cuda_clear(cuda_call *c, unsigned char *scratch, uint64_t stride, uint64_t bytes, uint32_t n) {
    if (stride <= CUDA_PITCH_MAX)
        cuda_check(c, "cudaMemset2DAsync", cudaMemset2DAsync(scratch, stride, 0, bytes, n, c->stream));
    else
        for (uint32_t i = 0; i < n; i++)
            cuda_check(c, "cudaMemsetAsync", cudaMemsetAsync(scratch + i * stride, 0, bytes, c->stream));
}

static inline unsigned char *cuda_scratch_of(const esp_codec_args *a, uint32_t t, uint64_t *stride) {
    *stride = a->scratch ? a->scratch->bytes / a->n_tensors / 64 * 64 : 0;
    return a->scratch ? (unsigned char *)a->scratch->ptr + t * *stride : NULL;
}

/* Returns how many tensors of the list, from tensor t on, share a launch. */
static inline uint32_t cuda_parts_from(const cuda_call *c, const esp_codec_args *a, uint32_t t) {
    uint32_t n = 1;
    if (cuda_alone(c, a->tensor[t]->count)) return 1;
    while (n < (uint32_t)CUDA_PARTS && t + n < a->n_tensors && !cuda_alone(c, a->tensor[t + n]->count)) n++;
    return n;
}
/* Compresses the list of tensors in `a`. For up to CUDA_PARTS tensors at a time it calls launch(call, parts, longest),
 * where `longest` is the number of elements of the largest of them, after setting the first `zero` bytes of each
 * tensor's scratch memory to zero. Fails if a payload buffer cannot hold a header and most(count) bytes. */
template <typename Most, typename Launch>
static esp_status cuda_each_part(const esp_host *h, const char *codec, const esp_codec_args *a, Most most,
                                 Launch launch, uint64_t zero = CUDA_FLAGS) {
    cuda_call call, *c = &call;
    const esp_status s = cuda_begin(c, h, codec, a);
    if (s != ESP_OK) return s;
    const cuda_on on(c->device);
    uint64_t stride = 0;
    for (uint32_t t = 0; t < a->n_tensors; t++) {
        const esp_payload *p = &a->payload[t];
        if (p->data.bytes < ESP_PAYLOAD_HEADER || p->data.bytes - ESP_PAYLOAD_HEADER < most(a->tensor[t]->count))
            return ESP_E_TOO_SMALL;
        if ((uintptr_t)p->data.ptr % 16 || ((uintptr_t)p->used) % 8 || (uintptr_t)a->tensor[t]->data.ptr % 4)
            return esp_codec_fail(h, c->codec, ESP_E_ARG,
                                  "a payload on a CUDA device must begin at a multiple of 16 bytes, a tensor of 4");
    }
    for (uint32_t t = 0, n; t < a->n_tensors && c->status == ESP_OK; t += n) {
        cuda_parts parts;
        uint64_t longest = 0;
        memset(&parts, 0, sizeof parts);
        n = cuda_parts_from(c, a, t);
        parts.n = n, parts.at = t, parts.beta = a->beta, parts.gamma = a->gamma;
        for (uint32_t k = 0; k < parts.n; k++) {
            cuda_part *p = &parts.part[k];
            const esp_tensor *x = a->tensor[t + k];
            p->g = (const float *)x->data.ptr;
            p->e = a->residual && a->residual[t + k].bytes ? (float *)a->residual[t + k].ptr : NULL;
            p->state = a->state && a->state[t + k].bytes ? (float *)a->state[t + k].ptr : NULL;
            p->reduced = a->reduced ? (const unsigned char *)a->reduced[t + k].data.ptr : NULL;
            p->payload = (unsigned char *)a->payload[t + k].data.ptr;
            p->capacity = a->payload[t + k].data.bytes;
            p->used = a->payload[t + k].used;
            p->count = x->count;
            p->key = x->key;
            p->first = a->offset ? a->offset[t + k] : 0;
            p->scratch = cuda_scratch_of(a, t + k, &stride);
            longest = x->count > longest ? x->count : longest;
        }
        if (stride < zero)
            return esp_codec_fail(h, c->codec, ESP_E_ARG, "scratch memory is less than bound() requires");
        if (zero) cuda_clear(c, parts.part[0].scratch, stride, zero, parts.n);
        if (c->status == ESP_OK) launch(c, parts, longest);
    }
    return c->status;
}

/* ---- headers ----------------------------------------------------------------------------------------------------- */
/* Writes the payload's header and size, as esp_payload_begin() does on the CPU. One thread calls it. */
static __device__ __forceinline__ void cuda_write_header(const cuda_part *p, uint32_t codec, uint32_t wire,
                                                         uint32_t flags, uint64_t body, uint64_t aux) {
    uint64_t *w = (uint64_t *)(void *)p->payload;
    cuda_put(w + 0, (uint64_t)codec | (uint64_t)(wire & 0xFFFFu) << 32 | (uint64_t)flags << 48);
    cuda_put(w + 1, p->count);
    cuda_put(w + 2, body);
    cuda_put(w + 3, aux);
    for (int i = 4; i < 8; i++) cuda_put(w + i, (uint64_t)0);
    if (p->used) cuda_put(p->used, (uint64_t)ESP_PAYLOAD_HEADER + body);
}
/* Writes a payload's header. If `bad`, since an element is NaN or Inf, the payload consists of the header alone. */
static __device__ __forceinline__ void cuda_write_header_if(const cuda_part *p, uint32_t codec, uint32_t wire, int bad,
                                                            uint64_t body, uint64_t aux) {
    cuda_write_header(p, codec, wire, bad ? ESP_PAYLOAD_NONFINITE : 0, bad ? 0 : body, bad ? 0 : aux);
}
static __device__ __forceinline__ unsigned char *cuda_body(const cuda_part *p) {
    return p->payload + ESP_PAYLOAD_HEADER;
}

/* ---- decompress: the payloads of a list of tensors --------------------------------------------------------------- */
typedef struct cuda_source {
    const unsigned char *payload;
    uint64_t bytes;
} cuda_source;
typedef struct cuda_sum {
    float *out;
    const unsigned char *reduced; /* as in cuda_part */
    uint64_t count;
    uint64_t body;
    uint32_t *decision;
    uint32_t first, n;
} cuda_sum;
typedef struct cuda_sums {
    uint32_t n, set;
    float scale;
    uint32_t at;
    cuda_finding *finding;
    cuda_sum part[CUDA_PARTS];
    cuda_source source[CUDA_SOURCES];
} cuda_sums;
enum { CUDA_NAN = 1, CUDA_CORRUPT = 2 };
static __device__ __forceinline__ void cuda_fill(const cuda_sum *d, float x) {
    for (uint64_t i = cuda_thread(); i < d->count; i += cuda_threads()) cuda_put(d->out + i, x);
}

typedef struct cuda_header {
    uint64_t count, body, aux;
    uint32_t codec, wire, flags;
} cuda_header;
static __device__ __forceinline__ cuda_header cuda_read_header(const cuda_source *s) {
    const uint64_t *w = (const uint64_t *)(const void *)s->payload;
    const uint64_t id = cuda_get(w);
    cuda_header h;
    h.codec = (uint32_t)id, h.wire = (uint32_t)(id >> 32) & 0xFFFFu, h.flags = (uint32_t)(id >> 48);
    h.count = cuda_get(w + 1), h.body = cuda_get(w + 2), h.aux = cuda_get(w + 3);
    return h;
}
/* Is this a valid header of the codec for `count` elements, and does the payload fit the buffer? */
static __device__ __forceinline__ int cuda_header_ok(const cuda_header *h, const cuda_source *s, uint32_t codec,
                                                     uint32_t wire, uint64_t count) {
    return h->codec == codec && h->wire == wire && h->count == count && h->body <= s->bytes - ESP_PAYLOAD_HEADER &&
           h->flags < 3u;
}
static __device__ __forceinline__ void cuda_found(volatile cuda_finding *f, uint32_t codec) {
    f->codec = codec;
    __threadfence_system();
    f->corrupt = 1;
}
static __device__ __forceinline__ void cuda_found_corrupt(const cuda_sums *all, const cuda_sum *d, uint32_t codec) {
    atomicOr(d->decision, (uint32_t)CUDA_CORRUPT);
    cuda_found(all->finding, codec);
}

/* Checks the payloads of a tensor: all threads call valid() for each, and one that finds it corrupt returns false. */
template <typename F>
static __device__ __forceinline__ void cuda_check_payloads(const cuda_sums &all, uint32_t codec, F valid) {
    const cuda_sum *d = &all.part[blockIdx.y];
    for (uint32_t k = 0; k < d->n; k++) {
        const cuda_source *s = &all.source[d->first + k];
        const cuda_header h = cuda_read_header(s);
        const bool ok = valid(d, s, h);
        if (!ok) cuda_found_corrupt(&all, d, codec);
        if (ok && h.flags & ESP_PAYLOAD_NONFINITE && cuda_thread() == 0) atomicOr(d->decision, (uint32_t)CUDA_NAN);
    }
}
/* NaN and empty are valid together, as on the CPU. */
static __device__ __forceinline__ uint32_t cuda_nan_or_empty(uint32_t flags) {
    return flags == (ESP_PAYLOAD_NONFINITE | ESP_PAYLOAD_EMPTY) ? (uint32_t)ESP_PAYLOAD_NONFINITE : flags;
}

static inline esp_status cuda_begin_sums(cuda_call *c, const esp_codec_args *a, bool clear) {
    const esp_host *h = c->device->host;
    uint64_t stride = 0;
    unsigned char *scratch = cuda_scratch_of(a, 0, &stride);
    if (stride < CUDA_FLAGS)
        return c->status = esp_codec_fail(h, c->codec, ESP_E_ARG, "scratch memory is less than bound() requires");
    for (uint64_t p = 0; p < (uint64_t)a->n_tensors * a->n_payloads; p++) {
        if (a->payload[p].data.bytes < ESP_PAYLOAD_HEADER)
            return c->status = esp_codec_fail(h, c->codec, ESP_E_CORRUPT, "a payload is shorter than its header");
        if ((uintptr_t)a->payload[p].data.ptr % 16)
            return c->status = esp_codec_fail(h, c->codec, ESP_E_ARG,
                                              "a payload on a CUDA device must begin at a multiple of 16 bytes");
    }
    if (!clear) return ESP_OK;
    const cuda_on on(c->device);
    cuda_clear(c, scratch, stride, CUDA_FLAGS, a->n_tensors);
    return c->status;
}

/* Decompresses the payloads in `a`. With `checks` it first calls check(call, sums, longest) for all payloads, then
 * in any case add(call, sums, longest) for all payloads in order. One call gets at most CUDA_SOURCES payloads.
 * full(count) is the size of a payload's body, stored as cuda_sum.body. */
template <typename Full, typename Check, typename Add>
static esp_status cuda_each_sum(const esp_host *h, const char *codec, const esp_codec_args *a, Full full, Check check,
                                Add add, int checks = 1) {
    cuda_call call, *c = &call;
    const esp_status s = cuda_begin(c, h, codec, a);
    if (s != ESP_OK) return s;
    const cuda_on on(c->device);
    const uint32_t per = a->n_payloads;
    uint64_t stride = 0;
    unsigned char *scratch = cuda_scratch_of(a, 0, &stride);
    if (cuda_begin_sums(c, a, checks) != ESP_OK) return c->status;
    for (int adds = !checks; adds < 2; adds++) {
        uint32_t t = 0, p = 0;
        while (t < a->n_tensors && c->status == ESP_OK) {
            cuda_sums sums;
            uint64_t longest = 0;
            uint32_t used = 0;
            memset(&sums, 0, sizeof sums);
            sums.at = t, sums.set = a->mode == ESP_OUT_SET && p == 0;
            sums.scale = a->scale == 0 ? 1 : a->scale;
            sums.finding = c->device->finding;
            /* A tensor with more payloads than fit one launch gets launches of its own. */
            const uint32_t most = cuda_parts_from(c, a, t);
            while (sums.n < most && (used == 0 || used + per <= (uint32_t)CUDA_SOURCES)) {
                cuda_sum *d = &sums.part[sums.n++];
                const uint32_t left = per - p, room = (uint32_t)CUDA_SOURCES;
                d->out = (float *)a->tensor[t]->data.ptr;
                d->reduced = a->reduced ? (const unsigned char *)a->reduced[t].data.ptr : NULL;
                d->count = a->tensor[t]->count;
                d->body = full(d->count);
                d->decision = (uint32_t *)(void *)(scratch + t * stride);
                d->first = used;
                d->n = left < room ? left : room;
                for (uint32_t k = 0; k < d->n; k++) {
                    const esp_payload *x = &a->payload[(uint64_t)t * per + p + k];
                    sums.source[used++] = {(const unsigned char *)x->data.ptr, x->data.bytes};
                }
                longest = d->count > longest ? d->count : longest;
                p += d->n;
                if (p < per) break;
                p = 0;
                t++;
            }
            if (adds)
                add(c, sums, longest);
            else
                check(c, sums, longest);
        }
    }
    return c->status;
}

/* ---- the codec's table ------------------------------------------------------------------------------------------- */
static inline esp_status cuda_bound(const esp_codec *cpu, void *self, const esp_tensor *like, uint32_t round,
                                    uint32_t n_reduced, uint64_t scratch, esp_bound *out) {
    const esp_status s = cpu->bound(self, like, round, n_reduced, out);
    if (s == ESP_OK && out->struct_size >= offsetof(esp_bound, scratch_bytes) + sizeof out->scratch_bytes)
        out->scratch_bytes = (CUDA_FLAGS + scratch + 63) / 64 * 64;
    return s;
}
static inline esp_codec cuda_codec_of(const esp_codec *cpu) {
    esp_codec t = *cpu;
    t.devices = ESP_BIT(ESP_CUDA);
    t.caps |= ESP_CODEC_LISTS;
    t.finalize = NULL;
    return t;
}
static inline uint64_t cuda_no_scratch(const void *self, const esp_tensor *like) { return (void)self, (void)like, 0; }
/* Defines the esp_codec of the CUDA implementation `name`. scratch(self, like) returns the bytes of scratch memory
 * that its kernels need. The optional last argument sets other members, for example t.open = my_open. */
#define CUDA_CODEC(name, cpu, scratch, compress_, decompress_, ...)                                                    \
    static esp_status cuda_bound_##name(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced,        \
                                        esp_bound *out) {                                                              \
        return cuda_bound(&cpu, self, like, round, n_reduced, scratch(self, like), out);                               \
    }                                                                                                                  \
    extern "C" const esp_codec *cuda_codec_##name(void);                                                               \
    extern "C" const esp_codec *cuda_codec_##name(void) {                                                              \
        static const esp_codec device_codec = [] {                                                                     \
            esp_codec t = cuda_codec_of(&cpu);                                                                         \
            t.bound = cuda_bound_##name;                                                                               \
            t.compress = compress_;                                                                                    \
            t.decompress = decompress_;                                                                                \
            __VA_ARGS__;                                                                                               \
            return t;                                                                                                  \
        }();                                                                                                           \
        return &device_codec;                                                                                          \
    }
#endif
