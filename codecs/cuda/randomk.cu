/* randomk.cu: codec "randomk" on CUDA. Its formulas are in codecs/sparsify/randomk.c. With error feedback,
 * randomk_draw_kernel marks each sent element by a NaN in the residual, so that randomk_keep_kernel need not compute
 * the random permutation again. If all payloads of a tensor have the same permutation, a thread adds the same
 * element of all of them; otherwise it searches every payload for its element by the inverse permutation. */
#include "codecs/cuda/common/dense.h"
#include "codecs/sparsify/randomk.c"

/* RANDOMK_MIXED is a bit of cuda_sum.decision: the payloads of a tensor have different permutations. */
enum { RANDOMK_EACH = 4, RANDOMK_MIXED = 4 };

/* ---- permutation ------------------------------------------------------------------------------------------------- */
static __device__ __forceinline__ uint64_t randomk_once(const randomk_perm *p, uint32_t *left, uint32_t *right) {
    CUDA_UNROLL
    for (int r = 0; r < RANDOMK_ROUNDS; r += 2) randomk_two(p->a, p->b, p->key[r], p->key[r + 1], left, right);
    return (uint64_t)*left * p->b + *right;
}
static __device__ __forceinline__ void randomk_split(const randomk_perm *p, uint64_t j, uint32_t *left,
                                                     uint32_t *right) {
    *left = j >> 32 ? (uint32_t)(j / p->b) : (uint32_t)j / p->b; /* 32-bit division is much faster */
    *right = (uint32_t)(j - (uint64_t)*left * p->b);
}
/* Returns P(j), where P is the random permutation. */
static __device__ __forceinline__ uint64_t randomk_at(const randomk_perm *p, uint64_t j) {
    uint32_t left, right;
    randomk_split(p, j, &left, &right);
    do j = randomk_once(p, &left, &right);
    while (j >= p->count);
    return j;
}
/* Returns the j with P(j) = i, where P is the random permutation. */
static __device__ __forceinline__ uint64_t randomk_place(const randomk_perm *p, uint64_t i) {
    const uint32_t a = p->a, b = p->b;
    uint32_t left, right;
    randomk_split(p, i, &left, &right);
    do {
        CUDA_UNROLL
        for (int r = RANDOMK_ROUNDS - 2; r >= 0; r -= 2) {
            const uint32_t y = randomk_mix(left, p->key[r + 1], b);
            right = right >= y ? right - y : right + (b - y);
            const uint32_t x = randomk_mix(right, p->key[r], a);
            left = left >= x ? left - x : left + (a - x);
        }
        i = (uint64_t)left * b + right;
    } while (i >= p->count);
    return i;
}

/* ---- compress ---------------------------------------------------------------------------------------------------- */
/* The keys and permutations of the tensors of a list. */
typedef struct randomk_draws {
    uint32_t keeps;
    uint32_t codec;
    struct {
        uint64_t draw, k;
        uint32_t a, b;
        float factor;
    } part[CUDA_PARTS];
} randomk_draws;

static __global__ void __launch_bounds__(CUDA_THREADS) randomk_draw_kernel(cuda_parts all, randomk_draws draws) {
    const cuda_part *p = &all.part[blockIdx.y];
    const auto &own = draws.part[blockIdx.y];
    const uint64_t k = own.k, each = cuda_threads();
    const uint32_t bad = cuda_get(&cuda_flags_of(p)->bad);
    const float factor = own.factor, nan = bits_float(0x7FC00000u);
    const randomk_perm perm = randomk_perm_with(own.draw, p->count, own.a, own.b);
    float *body = (float *)(void *)cuda_body(p);
    if (cuda_thread() == 0)
        cuda_write_header(p, draws.codec, RANDOMK_WIRE, bad ? ESP_PAYLOAD_NONFINITE : 0, 4 * k, own.draw);
    for (uint64_t first = cuda_thread(); first < k; first += RANDOMK_EACH * each) {
        uint64_t at[RANDOMK_EACH];
        float x[RANDOMK_EACH];
        CUDA_UNROLL
        for (int n = 0; n < RANDOMK_EACH; n++)
            at[n] = !bad && first + (uint64_t)n * each < k ? randomk_at(&perm, first + (uint64_t)n * each) : 0;
        CUDA_UNROLL
        for (int n = 0; n < RANDOMK_EACH; n++)
            x[n] = bad ? nan : first + (uint64_t)n * each < k ? cuda_phi(&all, p, at[n]) * factor : 0;
        CUDA_UNROLL
        for (int n = 0; n < RANDOMK_EACH; n++) {
            if (first + (uint64_t)n * each >= k) continue;
            cuda_put(body + first + (uint64_t)n * each, x[n]);
            if (!bad && p->e && draws.keeps) cuda_put(p->e + at[n], nan);
        }
    }
}
static __global__ void __launch_bounds__(CUDA_THREADS) randomk_keep_kernel(cuda_parts all, randomk_draws draws) {
    const cuda_part *p = &all.part[blockIdx.y];
    if (!p->e || cuda_get(&cuda_flags_of(p)->bad)) return;
    for (uint64_t at = (uint64_t)blockIdx.x * CUDA_DENSE_EACH; at < p->count;
         at += (uint64_t)gridDim.x * CUDA_DENSE_EACH) {
        float e[4], g[4];
        CUDA_UNROLL
        for (int n = 0; n < 4; n++) {
            const uint64_t i = at + (uint64_t)n * CUDA_THREADS + threadIdx.x;
            e[n] = draws.keeps && i < p->count ? cuda_get(p->e + i) : 0;
            g[n] = draws.keeps && i < p->count ? cuda_get(p->g + i) : 0;
        }
        CUDA_UNROLL
        for (int n = 0; n < 4; n++) {
            const uint64_t i = at + (uint64_t)n * CUDA_THREADS + threadIdx.x;
            const int sent = !draws.keeps || e[n] != e[n];
            if (i < p->count) cuda_put(p->e + i, sent ? 0.0f : all.beta * e[n] + all.gamma * g[n]);
        }
    }
}
static esp_status randomk_cuda_compress(void *self, const esp_codec_args *a) {
    const randomk_self *t = (const randomk_self *)self;
    return cuda_each_part(
        t->dense.host, randomk_name, a, [&](uint64_t n) { return 4 * sparse_k(t->ratio, n); },
        [&](cuda_call *c, const cuda_parts &parts, uint64_t longest) {
            const dim3 grid = cuda_grid(c, longest, CUDA_DENSE_EACH, parts.n);
            randomk_draws d;
            memset((void *)&d, 0, sizeof d);
            d.codec = esp_name_hash(randomk_name);
            d.keeps = t->unbiased == 0;
            for (uint32_t i = 0; i < parts.n; i++) {
                const cuda_part *p = &parts.part[i];
                d.part[i].k = sparse_k(t->ratio, p->count);
                d.part[i].draw = p->count ? randomk_key(a, p->key, p->first) : 0;
                d.part[i].factor = randomk_factor(t, p->count, d.part[i].k);
                randomk_domain(p->count, &d.part[i].a, &d.part[i].b);
            }
            cuda_launch(c, "check", cuda_kernel<cuda_dense_check>, grid, parts);
            cuda_launch(c, "draw", cuda_kernel<randomk_draw_kernel>,
                        cuda_grid(c, sparse_k(t->ratio, longest), CUDA_THREADS, parts.n), parts, d);
            if (a->residual) cuda_launch(c, "keep", cuda_kernel<randomk_keep_kernel>, grid, parts, d);
        });
}

/* ---- decompress -------------------------------------------------------------------------------------------------- */
typedef struct randomk_sizes {
    struct {
        uint32_t a, b;
    } part[CUDA_PARTS];
} randomk_sizes;

static __global__ void __launch_bounds__(CUDA_THREADS) randomk_check_kernel(cuda_sums all, uint32_t codec) {
    const cuda_sum *d = &all.part[blockIdx.y];
    uint64_t draw = 0;
    uint32_t found = 0;
    int any = 0;
    for (uint32_t s = 0; s < d->n; s++) {
        const cuda_source *from = &all.source[d->first + s];
        const cuda_header h = cuda_read_header(from);
        const float *body = (const float *)(const void *)(from->payload + ESP_PAYLOAD_HEADER);
        uint32_t bad = 0;
        int ok = cuda_header_ok(&h, from, codec, RANDOMK_WIRE, d->count);
        if (ok && h.flags & ESP_PAYLOAD_EMPTY) continue;
        ok = ok && h.body == d->body;
        if (!ok && cuda_thread() == 0) cuda_found_corrupt(&all, d, codec);
        if (!ok) return;
        if (any && h.aux != draw) found |= RANDOMK_MIXED;
        any = 1, draw = h.aux;
        if (h.flags) found |= CUDA_NAN;
        for (uint64_t i = cuda_thread(); i < d->body / 4; i += cuda_threads())
            bad |= dense_nonfinite(cuda_get(body + i));
        if (bad >> 31) found |= CUDA_NAN;
    }
    if (found & CUDA_NAN || (found && cuda_thread() == 0)) atomicOr(d->decision, found);
}
static __global__ void __launch_bounds__(CUDA_THREADS) randomk_clear_kernel(cuda_sums all) {
    const cuda_sum *d = &all.part[blockIdx.y];
    if (!cuda_get(d->decision)) cuda_fill(d, 0.0f);
}
static __device__ __forceinline__ void randomk_add_alike(const cuda_sums *all, const cuda_sum *d, uint32_t a,
                                                         uint32_t b) {
    const uint64_t k = d->body / 4, each = cuda_threads();
    uint32_t one = 0;
    for (; one < d->n && cuda_read_header(&all->source[d->first + one]).flags; one++) {
    }
    if (one == d->n) return;
    const randomk_perm perm = randomk_perm_with(cuda_read_header(&all->source[d->first + one]).aux, d->count, a, b);
    for (uint64_t first = cuda_thread(); first < k; first += RANDOMK_EACH * each) {
        uint64_t at[RANDOMK_EACH];
        float x[RANDOMK_EACH];
        CUDA_UNROLL
        for (int n = 0; n < RANDOMK_EACH; n++)
            at[n] = first + (uint64_t)n * each < k ? randomk_at(&perm, first + (uint64_t)n * each) : 0;
        CUDA_UNROLL
        for (int n = 0; n < RANDOMK_EACH; n++)
            x[n] = all->set || first + (uint64_t)n * each >= k ? 0 : cuda_get(d->out + at[n]);
        for (uint32_t s = one; s < d->n; s++) {
            const cuda_source *from = &all->source[d->first + s];
            const float *body = (const float *)(const void *)(from->payload + ESP_PAYLOAD_HEADER);
            if (cuda_read_header(from).flags) continue;
            CUDA_UNROLL
            for (int n = 0; n < RANDOMK_EACH; n++)
                if (first + (uint64_t)n * each < k) x[n] += all->scale * cuda_get(body + first + (uint64_t)n * each);
        }
        CUDA_UNROLL
        for (int n = 0; n < RANDOMK_EACH; n++)
            if (first + (uint64_t)n * each < k) cuda_put(d->out + at[n], x[n]);
    }
}
static __device__ __forceinline__ void randomk_add_mixed(const cuda_sums *all, const cuda_sum *d, uint32_t a,
                                                         uint32_t b) {
    for (uint64_t i = cuda_thread(); i < d->count; i += cuda_threads()) {
        float x = all->set ? 0 : cuda_get(d->out + i);
        for (uint32_t s = 0; s < d->n; s++) {
            const cuda_source *from = &all->source[d->first + s];
            const cuda_header h = cuda_read_header(from);
            if (h.flags) continue;
            const randomk_perm perm = randomk_perm_with(h.aux, d->count, a, b);
            const uint64_t j = randomk_place(&perm, i);
            if (j < d->body / 4)
                x += all->scale * cuda_get((const float *)(const void *)(from->payload + ESP_PAYLOAD_HEADER) + j);
        }
        cuda_put(d->out + i, x);
    }
}
static __global__ void __launch_bounds__(CUDA_THREADS) randomk_add_kernel(cuda_sums all, randomk_sizes sizes) {
    const cuda_sum *d = &all.part[blockIdx.y];
    const uint32_t decision = cuda_get(d->decision), a = sizes.part[blockIdx.y].a, b = sizes.part[blockIdx.y].b;
    if (decision & CUDA_CORRUPT) return;
    if (decision & CUDA_NAN) {
        cuda_fill(d, bits_float(0x7FC00000u));
    } else if (decision & RANDOMK_MIXED) {
        randomk_add_mixed(&all, d, a, b);
    } else {
        randomk_add_alike(&all, d, a, b);
    }
}
static esp_status randomk_cuda_decompress(void *self, const esp_codec_args *a) {
    const randomk_self *t = (const randomk_self *)self;
    return cuda_each_sum(
        t->dense.host, randomk_name, a, [&](uint64_t n) { return 4 * sparse_k(t->ratio, n); },
        [&](cuda_call *c, const cuda_sums &sums, uint64_t longest) {
            cuda_launch(c, "check payloads", cuda_kernel<randomk_check_kernel>,
                        cuda_grid(c, sparse_k(t->ratio, longest), CUDA_DENSE_EACH, sums.n), sums,
                        esp_name_hash(randomk_name));
        },
        [&](cuda_call *c, const cuda_sums &sums, uint64_t longest) {
            const dim3 grid = cuda_grid(c, longest, CUDA_DENSE_EACH, sums.n);
            randomk_sizes sizes;
            memset((void *)&sizes, 0, sizeof sizes);
            for (uint32_t i = 0; i < sums.n; i++)
                randomk_domain(sums.part[i].count, &sizes.part[i].a, &sizes.part[i].b);
            if (sums.set) cuda_launch(c, "clear", cuda_kernel<randomk_clear_kernel>, grid, sums);
            cuda_launch(c, "add", cuda_kernel<randomk_add_kernel>, grid, sums, sizes);
        });
}

CUDA_CODEC(randomk, randomk_codec, cuda_no_scratch, randomk_cuda_compress, randomk_cuda_decompress)
