/* powersgd.cu: codec "powersgd" on CUDA. Its formulas are in codecs/lowrank/powersgd.c, its matrix products in
 * codecs/cuda/common/lowrank.h. The codec compresses twice in each step: first to P = phi Q, then, from the sum of P
 * over all ranks, to Q. */
#include "codecs/cuda/common/dense.h"
#include "codecs/cuda/common/lowrank.h"
#include "codecs/lowrank/powersgd.c"

struct powersgd_part : cuda_part {
    uint64_t m, n;
    uint32_t r, warm; /* warm: the state holds Q of the last step */
};
typedef struct powersgd_parts {
    uint32_t n, codec;
    float beta, gamma;
    cuda_finding *finding;
    powersgd_part part[CUDA_PARTS];
} powersgd_parts;
typedef struct powersgd_shapes {
    uint32_t codec;
    struct {
        float *state; /* receives Q for the next step, or is NULL */
        uint64_t n;
        uint32_t r;
    } part[CUDA_PARTS];
} powersgd_shapes;
static_assert(sizeof(cuda_sums) + sizeof(powersgd_shapes) <= 4096 && sizeof(powersgd_parts) <= 4096,
              "arguments of a kernel have at most 4096 bytes");

/* Indices in cuda_flags.own: the number of finished blocks, and whether the sum of P is corrupt. */
enum { POWERSGD_DONE, POWERSGD_CORRUPT, POWERSGD_BAD_Q };

static __device__ __forceinline__ const float *powersgd_numbers(const unsigned char *payload) {
    return (const float *)(const void *)(payload + ESP_PAYLOAD_HEADER);
}
static __device__ __forceinline__ cuda_lowrank powersgd_matrix(const powersgd_parts *all, const powersgd_part *p) {
    const cuda_lowrank x = {p->g, p->e, all->beta, all->gamma, p->m, p->n, p->r};
    return x;
}
static __device__ __forceinline__ int powersgd_sum_ok(const cuda_header *h, uint32_t codec, uint64_t count,
                                                      uint64_t numbers) {
    return h->codec == codec && h->wire == 1 && h->count == count && h->flags <= 3 && h->body == numbers * 4;
}

/* ---- compress ---------------------------------------------------------------------------------------------------- */
static __global__ void __launch_bounds__(CUDA_THREADS) powersgd_start_kernel(powersgd_parts all) {
    const powersgd_part *p = &all.part[blockIdx.y];
    for (uint64_t k = blockIdx.x; k < p->r; k += gridDim.x) {
        float *q = p->state + k * p->n;
        int any = 0;
        for (uint64_t top = 0; p->warm && !any && top < p->n; top += CUDA_THREADS) {
            const uint64_t j = top + threadIdx.x;
            any = __syncthreads_or(j < p->n && float_bits(cuda_get(q + j)) << 1 != 0);
        }
        for (uint64_t b = threadIdx.x; !any && b < (p->n + 3) / 4; b += CUDA_THREADS)
            powersgd_draw_four(p->key, p->first, k, b, q, p->n);
    }
}

/* Writes the payload's header and, if `bad`, fills the payload with `numbers` NaNs. This is thread i of n. */
static __device__ __forceinline__ void powersgd_finish(const powersgd_parts *all, const powersgd_part *p, uint32_t bad,
                                                       uint64_t numbers, uint64_t i, uint64_t n) {
    if (i == 0) cuda_write_header(p, all->codec, 1, bad ? ESP_PAYLOAD_NONFINITE : 0, numbers * 4, p->r);
    for (; bad && i < numbers; i += n) cuda_put((float *)(void *)cuda_body(p) + i, bits_float(0x7FC00000u));
}

template <int K> __global__ void __launch_bounds__(CUDA_THREADS) powersgd_p_kernel(powersgd_parts all) {
    __shared__ float tile[CUDA_LOWRANK_TILE];
    const powersgd_part *p = &all.part[blockIdx.y];
    const cuda_lowrank x = powersgd_matrix(&all, p);
    cuda_flags *flags = cuda_flags_of(p);
    uint32_t any = 0;
    if (p->r) any = cuda_lowrank_p<K>(&x, p->state, (float *)(void *)cuda_body(p), tile);
    if (any >> 31) atomicOr(&flags->bad, 1u);
    if (!cuda_last(&flags->own[POWERSGD_DONE])) return;
    const uint32_t bad = *(const volatile uint32_t *)&flags->bad;
    powersgd_finish(&all, p, bad, p->m * p->r, threadIdx.x, CUDA_THREADS);
}

static __global__ void __launch_bounds__(CUDA_THREADS) powersgd_basis_kernel(powersgd_parts all) {
    __shared__ double room[CUDA_LOWRANK_ROOM];
    const powersgd_part *p = &all.part[blockIdx.y];
    cuda_flags *flags = cuda_flags_of(p);
    uint32_t any = 0;
    if (!p->r) {
        const cuda_lowrank x = powersgd_matrix(&all, p);
        for (uint64_t i = cuda_thread(); p->e && i < p->count; i += cuda_threads())
            any |= dense_nonfinite(cuda_lowrank_phi(&x, i));
        if (any >> 31) atomicOr(&flags->bad, 1u);
        return;
    }
    if (blockIdx.x) return;
    const cuda_source from = {p->reduced, 0};
    const cuda_header h = cuda_read_header(&from);
    const float *sum = powersgd_numbers(p->reduced);
    if (!powersgd_sum_ok(&h, all.codec, p->count, p->m * p->r)) {
        if (threadIdx.x == 0) flags->own[POWERSGD_CORRUPT] = 1, cuda_found(all.finding, all.codec);
        return;
    }
    for (uint64_t i = threadIdx.x; i < p->m * p->r; i += CUDA_THREADS) any |= dense_nonfinite(cuda_get(sum + i));
    if (__syncthreads_or((h.flags & ESP_PAYLOAD_NONFINITE) || any >> 31)) {
        if (threadIdx.x == 0) flags->bad = 1;
        return;
    }
    const powersgd_room at = powersgd_room_of(p->scratch + CUDA_FLAGS, p->m, p->n, p->r);
    cuda_lowrank_orthonormal(sum, p->m, p->r, at.columns, at.p, room);
}

template <int K> __global__ void __launch_bounds__(CUDA_THREADS) powersgd_q_kernel(powersgd_parts all) {
    __shared__ float tile[CUDA_LOWRANK_SIDE * CUDA_LOWRANK_SIDE], ps[CUDA_LOWRANK_SIDE * CUDA_LOWRANK_SIDE];
    const powersgd_part *p = &all.part[blockIdx.y];
    const cuda_lowrank x = powersgd_matrix(&all, p);
    cuda_flags *flags = cuda_flags_of(p);
    /* Nothing has checked an uncompressed tensor without error feedback before, so this kernel does. If it finds a
     * NaN or Inf, powersgd_rest_kernel overwrites the payload. */
    if ((p->r || p->e) && (cuda_get(&flags->bad) || cuda_get(&flags->own[POWERSGD_CORRUPT]))) return;
    if (p->r) {
        const powersgd_room at = powersgd_room_of(p->scratch + CUDA_FLAGS, p->m, p->n, p->r);
        cuda_lowrank_qt<K>(&x, at.p, at.q, tile, ps);
        return;
    }
    uint32_t any = 0;
    for (uint64_t i = cuda_thread(); i < p->count; i += cuda_threads()) {
        const float phi = cuda_lowrank_phi(&x, i);
        any |= dense_nonfinite(phi);
        cuda_put((float *)(void *)cuda_body(p) + i, phi);
        if (p->e) cuda_put(p->e + i, 0.0f);
    }
    if (any >> 31) atomicOr(&flags->bad, 1u);
}
static __global__ void __launch_bounds__(CUDA_THREADS) powersgd_combine_kernel(powersgd_parts all) {
    const powersgd_part *p = &all.part[blockIdx.y];
    cuda_flags *flags = cuda_flags_of(p);
    if (!p->r || cuda_get(&flags->bad) || cuda_get(&flags->own[POWERSGD_CORRUPT])) return;
    const powersgd_room at = powersgd_room_of(p->scratch + CUDA_FLAGS, p->m, p->n, p->r);
    const uint32_t any = cuda_lowrank_combine(at.q, p->m, p->n, p->r, (float *)(void *)cuda_body(p));
    if (any >> 31) atomicOr(&flags->own[POWERSGD_BAD_Q], 1u); /* not `bad`, which other blocks read */
}
/* Writes the payload's header and, if the tensor was compressed as a matrix, the new residual. */
static __global__ void __launch_bounds__(CUDA_THREADS) powersgd_rest_kernel(powersgd_parts all) {
    __shared__ float ps[CUDA_LOWRANK_SIDE * CUDA_LOWRANK_ROWS];
    const powersgd_part *p = &all.part[blockIdx.y];
    const uint32_t bad = cuda_get(&cuda_flags_of(p)->bad) | cuda_get(&cuda_flags_of(p)->own[POWERSGD_BAD_Q]);
    if (cuda_get(&cuda_flags_of(p)->own[POWERSGD_CORRUPT])) return;
    powersgd_finish(&all, p, bad, p->r ? p->n * p->r : p->count, cuda_thread(), cuda_threads());
    if (bad || !p->r || !p->e) return;
    const cuda_lowrank x = powersgd_matrix(&all, p);
    const powersgd_room at = powersgd_room_of(p->scratch + CUDA_FLAGS, p->m, p->n, p->r);
    const float *q = powersgd_numbers(p->payload);
    cuda_lowrank_tiles(p->m, p->n, p->r, at.p, ps, [&](uint64_t row, uint64_t column, uint32_t rows, const float *own) {
        const uint64_t first = row * p->n + column;
        float phi[8], y[8];
        cuda_lowrank_rows_of(own, q + column, p->n, p->r, y);
        CUDA_UNROLL
        for (uint32_t i = 0; i < 8; i++) phi[i] = i < rows ? cuda_lowrank_phi(&x, first + i * p->n) : 0;
        CUDA_UNROLL
        for (uint32_t i = 0; i < 8; i++)
            if (i < rows) cuda_put(p->e + first + i * p->n, phi[i] - y[i]);
    });
}

typedef struct powersgd_most {
    uint64_t plain, r, p_tiles, q_tiles, q_numbers, tiles;
} powersgd_most;
static void powersgd_raise(uint64_t *most, uint64_t x) { *most = x > *most ? x : *most; }
static void powersgd_most_of(powersgd_most *w, uint64_t count, uint64_t m, uint64_t n, uint64_t r) {
    if (!r) powersgd_raise(&w->plain, count);
    if (!r) return;
    const uint64_t wide = (n + 63) / 64, rows = cuda_lowrank_rows(n);
    powersgd_raise(&w->r, r);
    powersgd_raise(&w->p_tiles, (m + rows - 1) / rows);
    powersgd_raise(&w->q_tiles, lowrank_n_sums(m) * wide);
    powersgd_raise(&w->q_numbers, n * r);
    powersgd_raise(&w->tiles, wide * ((m + CUDA_LOWRANK_ROWS - 1) / CUDA_LOWRANK_ROWS));
}
static dim3 powersgd_grid(const cuda_call *c, uint64_t tiles, uint64_t numbers, uint32_t parts) {
    const uint64_t more = (numbers + CUDA_DENSE_EACH - 1) / CUDA_DENSE_EACH;
    return cuda_grid(c, tiles > more ? tiles : more, 1, parts);
}

/* Returns the variant of a kernel for r columns: by1 computes up to 4 columns, by4 up to 16, by16 up to 64. */
typedef void (*powersgd_kernel)(powersgd_parts);
static powersgd_kernel powersgd_kernel_for(uint64_t r, powersgd_kernel by1, powersgd_kernel by4, powersgd_kernel by16) {
    return r <= 4 ? by1 : r <= 16 ? by4 : by16;
}
static void powersgd_first_round(cuda_call *c, const powersgd_parts &all, const powersgd_most &w) {
    if (w.r) cuda_launch(c, "start", cuda_kernel<powersgd_start_kernel>, powersgd_grid(c, w.r, 0, all.n), all);
    cuda_launch(c, "p",
                powersgd_kernel_for(w.r, cuda_kernel<powersgd_p_kernel<1>>, cuda_kernel<powersgd_p_kernel<4>>,
                                    cuda_kernel<powersgd_p_kernel<16>>),
                powersgd_grid(c, w.p_tiles, 0, all.n), all);
}
static void powersgd_second_round(cuda_call *c, const powersgd_parts &all, const powersgd_most &w) {
    cuda_launch(c, "basis", cuda_kernel<powersgd_basis_kernel>, powersgd_grid(c, 1, w.plain, all.n), all);
    cuda_launch(c, "q",
                powersgd_kernel_for(w.r, cuda_kernel<powersgd_q_kernel<1>>, cuda_kernel<powersgd_q_kernel<4>>,
                                    cuda_kernel<powersgd_q_kernel<16>>),
                powersgd_grid(c, w.q_tiles, w.plain, all.n), all);
    if (w.r)
        cuda_launch(c, "combine", cuda_kernel<powersgd_combine_kernel>, powersgd_grid(c, 1, w.q_numbers, all.n), all);
    cuda_launch(c, "rest", cuda_kernel<powersgd_rest_kernel>, powersgd_grid(c, w.tiles, w.plain, all.n), all);
}
static bool powersgd_has_reduced(const powersgd_self *s, const esp_codec_args *a) {
    for (uint32_t t = 0; t < a->n_tensors; t++) {
        const uint64_t r = powersgd_rank(s, a->tensor[t]), bytes = ESP_PAYLOAD_HEADER + a->tensor[t]->rows * r * 4;
        if (r && (!a->reduced || !a->reduced[t].data.ptr || a->reduced[t].data.bytes < bytes)) return false;
    }
    return true;
}
static esp_status powersgd_cuda_compress(void *self, const esp_codec_args *a) {
    const powersgd_self *s = (const powersgd_self *)self;
    if (a->round && !powersgd_has_reduced(s, a)) return ESP_E_CORRUPT;
    return cuda_each_part(
        s->dense.host, "powersgd", a, [](uint64_t) { return (uint64_t)0; },
        [&](cuda_call *c, const cuda_parts &parts, uint64_t) {
            powersgd_parts all;
            powersgd_most w;
            memset((void *)&all, 0, sizeof all);
            memset((void *)&w, 0, sizeof w);
            all.n = parts.n, all.beta = a->beta, all.gamma = a->gamma;
            all.codec = esp_name_hash("powersgd");
            all.finding = c->device->finding;
            for (uint32_t i = 0; i < parts.n; i++) {
                const uint32_t t = parts.at + i;
                powersgd_part *p = &all.part[i];
                const uint64_t r = powersgd_rank(s, a->tensor[t]);
                static_cast<cuda_part &>(*p) = parts.part[i];
                p->m = a->tensor[t]->rows, p->n = a->tensor[t]->cols, p->r = (uint32_t)r;
                p->key = powersgd_key(a, p->key);
                p->state = powersgd_state(a, t), p->warm = p->state != NULL;
                if (!p->state) p->state = powersgd_room_of(p->scratch + CUDA_FLAGS, p->m, p->n, r).q;
                powersgd_most_of(&w, p->count, p->m, p->n, r);
                const uint64_t body = r ? r * (a->round ? p->n : p->m) * 4 : a->round ? p->count * 4 : 0;
                if (p->capacity - ESP_PAYLOAD_HEADER < body) c->status = ESP_E_TOO_SMALL;
            }
            if (a->round)
                powersgd_second_round(c, all, w);
            else
                powersgd_first_round(c, all, w);
        });
}

/* ---- decompress -------------------------------------------------------------------------------------------------- */
/* Returns the shape of a tensor as a matrix. Its m is 0 if the tensor is sent uncompressed. */
static __device__ __forceinline__ cuda_lowrank powersgd_shape(const powersgd_shapes *f, const cuda_sum *d) {
    const uint64_t n = f->part[blockIdx.y].n;
    const uint32_t r = f->part[blockIdx.y].r;
    const cuda_lowrank x = {NULL, NULL, 0, 0, r ? d->count / n : 0, n, r};
    return x;
}
static __device__ __forceinline__ powersgd_room powersgd_sum_room(const cuda_sum *d, const cuda_lowrank *x) {
    return powersgd_room_of((unsigned char *)(void *)d->decision + CUDA_FLAGS, x->m, x->n, x->r);
}
static __global__ void __launch_bounds__(CUDA_THREADS) powersgd_check_kernel(cuda_sums all, powersgd_shapes f) {
    const cuda_sum *d = &all.part[blockIdx.y];
    const cuda_lowrank x = powersgd_shape(&f, d);
    uint32_t any = 0, nan = 0;
    int ok = 1;
    for (uint32_t k = 0; ok && k < d->n; k++) {
        const cuda_source *s = &all.source[d->first + k];
        const cuda_header h = cuda_read_header(s);
        ok = h.flags < 2 && cuda_header_ok(&h, s, f.codec, 1, d->count) && h.body == (x.r ? x.n * x.r : d->count) * 4 &&
             h.aux == x.r;
        nan |= h.flags & ESP_PAYLOAD_NONFINITE;
    }
    if (ok && x.r) {
        const cuda_source s = {d->reduced, 0};
        const cuda_header h = cuda_read_header(&s);
        ok = powersgd_sum_ok(&h, f.codec, d->count, x.m * x.r) && h.aux == x.r;
        nan |= h.flags & ESP_PAYLOAD_NONFINITE;
        for (uint64_t i = cuda_thread(); ok && i < x.m * x.r; i += cuda_threads())
            any |= dense_nonfinite(cuda_get(powersgd_numbers(d->reduced) + i));
    }
    if (nan || any >> 31) atomicOr(d->decision, (uint32_t)CUDA_NAN);
    if (!ok && cuda_thread() == 0) cuda_found_corrupt(&all, d, f.codec);
}
static __global__ void __launch_bounds__(CUDA_THREADS) powersgd_bases_kernel(cuda_sums all, powersgd_shapes f) {
    __shared__ double room[CUDA_LOWRANK_ROOM];
    const cuda_sum *d = &all.part[blockIdx.y];
    const cuda_lowrank x = powersgd_shape(&f, d);
    float *state = f.part[blockIdx.y].state;
    if (!x.r || cuda_get(d->decision)) return;
    for (uint64_t task = blockIdx.x; task <= (state ? x.r : 0); task += gridDim.x) {
        if (task == 0) {
            const powersgd_room at = powersgd_sum_room(d, &x);
            cuda_lowrank_orthonormal(powersgd_numbers(d->reduced), x.m, x.r, at.columns, at.p, room);
            continue;
        }
        const float *q = powersgd_numbers(all.source[d->first].payload) + (task - 1) * x.n;
        float *to = state + (task - 1) * x.n;
        const double length = cuda_lowrank_length(q, x.n, room);
        for (uint64_t i = threadIdx.x; i < x.n; i += CUDA_THREADS)
            cuda_put(to + i, powersgd_unit(cuda_get(q + i), length));
    }
}
static __global__ void __launch_bounds__(CUDA_THREADS) powersgd_put_kernel(cuda_sums all, powersgd_shapes f) {
    __shared__ float ps[CUDA_LOWRANK_SIDE * CUDA_LOWRANK_ROWS];
    const cuda_sum *d = &all.part[blockIdx.y];
    const cuda_lowrank m = powersgd_shape(&f, d);
    const cuda_source *from = &all.source[d->first];
    const uint32_t decision = cuda_get(d->decision);
    if (decision & CUDA_CORRUPT) return;
    if (decision || !m.r) {
        for (uint64_t i = cuda_thread(); i < d->count; i += cuda_threads()) {
            float x = all.set || decision ? 0 : cuda_get(d->out + i);
            for (uint32_t k = 0; !decision && k < d->n; k++) {
                const float v = all.scale * cuda_get(powersgd_numbers(from[k].payload) + i);
                x = all.set && !k ? v : x + v;
            }
            cuda_put(d->out + i, decision ? bits_float(0x7FC00000u) : x);
        }
        return;
    }
    const powersgd_room at = powersgd_sum_room(d, &m);
    const uint64_t n = m.n;
    const uint32_t r = (uint32_t)m.r;
    cuda_lowrank_tiles(m.m, n, r, at.p, ps, [&](uint64_t row, uint64_t column, uint32_t rows, const float *own) {
        const uint64_t first = row * n + column;
        float x[8], y[8];
        CUDA_UNROLL
        for (uint32_t i = 0; i < 8; i++) x[i] = !all.set && i < rows ? cuda_get(d->out + first + i * n) : 0;
        for (uint32_t k = 0; k < d->n; k++) {
            cuda_lowrank_rows_of(own, powersgd_numbers(from[k].payload) + column, n, r, y);
            CUDA_UNROLL
            for (uint32_t i = 0; i < 8; i++) x[i] = all.set && !k ? all.scale * y[i] : x[i] + all.scale * y[i];
        }
        CUDA_UNROLL
        for (uint32_t i = 0; i < 8; i++)
            if (i < rows) cuda_put(d->out + first + i * n, x[i]);
    });
}

static powersgd_shapes powersgd_shapes_of(const powersgd_self *s, const esp_codec_args *a, const cuda_sums &sums,
                                          powersgd_most *w) {
    powersgd_shapes f;
    memset((void *)&f, 0, sizeof f);
    memset((void *)w, 0, sizeof *w);
    f.codec = esp_name_hash("powersgd");
    for (uint32_t i = 0; i < sums.n; i++) {
        const esp_tensor *x = a->tensor[sums.at + i];
        f.part[i].n = x->cols;
        f.part[i].r = (uint32_t)powersgd_rank(s, x);
        f.part[i].state = a->n_payloads == 1 ? powersgd_state(a, sums.at + i) : NULL;
        powersgd_most_of(w, x->count, x->rows, x->cols, f.part[i].r);
        powersgd_raise(&w->plain, x->count);
    }
    return f;
}
static esp_status powersgd_cuda_decompress(void *self, const esp_codec_args *a) {
    const powersgd_self *s = (const powersgd_self *)self;
    if (!powersgd_has_reduced(s, a)) return ESP_E_CORRUPT;
    return cuda_each_sum(
        s->dense.host, "powersgd", a, [](uint64_t) { return (uint64_t)0; },
        [&](cuda_call *c, const cuda_sums &sums, uint64_t) {
            powersgd_most w;
            const powersgd_shapes f = powersgd_shapes_of(s, a, sums, &w);
            cuda_launch(c, "check payloads", cuda_kernel<powersgd_check_kernel>, powersgd_grid(c, w.p_tiles, 0, sums.n),
                        sums, f);
        },
        [&](cuda_call *c, const cuda_sums &sums, uint64_t) {
            powersgd_most w;
            const powersgd_shapes f = powersgd_shapes_of(s, a, sums, &w);
            if (w.r)
                cuda_launch(c, "basis", cuda_kernel<powersgd_bases_kernel>, powersgd_grid(c, 1 + w.r, 0, sums.n), sums,
                            f);
            cuda_launch(c, "put", cuda_kernel<powersgd_put_kernel>, powersgd_grid(c, w.tiles, w.plain, sums.n), sums,
                        f);
        });
}

static uint64_t powersgd_cuda_scratch(const void *self, const esp_tensor *like) {
    const uint64_t r = powersgd_rank((const powersgd_self *)self, like);
    return r ? powersgd_room_of(NULL, like->rows, like->cols, r).bytes : 0;
}
CUDA_CODEC(powersgd, powersgd_codec, powersgd_cuda_scratch, powersgd_cuda_compress, powersgd_cuda_decompress)
