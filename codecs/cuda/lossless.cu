/* lossless.cu: codec "lossless" on CUDA; its formulas are in codecs/lossless.c. A block processes a chunk at a time. To
 * compress, a first kernel chooses each chunk's form and code; its last block of threads computes where the chunks
 * begin, and a second kernel writes them. To decompress, all threads read parts of a chunk's streams. */
#include "codecs/cuda/common/block.h"
#include "codecs/lossless.c"

static_assert(CUDA_THREADS == 256, "a thread has an exponent");
enum { LOSSLESS_EACH = (int)CUDA_THREADS / (int)LOSSLESS_STREAMS /* threads of a stream */ };
enum { LOSSLESS_SHARED = (int)CUDA_WARPS + (int)LOSSLESS_STREAMS /* words for lossless_stream_before() */ };

/* ---- compress ---------------------------------------------------------------------------------------------------- */
/* How a chunk will be written: in scratch memory after the flags */
typedef struct lossless_form {
    uint64_t at; /* its size, then where in the body it begins */
    uint32_t kept, bytes[LOSSLESS_STREAMS];
    uint8_t length[256];
} lossless_form;
static __device__ __forceinline__ lossless_form *lossless_form_of(const cuda_part *p, uint64_t chunk) {
    return (lossless_form *)(void *)(p->scratch + CUDA_FLAGS) + chunk;
}
static __device__ __forceinline__ uint32_t lossless_len(uint64_t count, uint64_t chunk) {
    return (uint32_t)min(count - chunk * LOSSLESS_CHUNK, (uint64_t)LOSSLESS_CHUNK);
}

/* Returns the length of the code word of this thread's exponent, which `held` elements have. All threads call it. */
static __device__ __forceinline__ uint32_t lossless_length(uint32_t held, lossless_nodes *t, uint32_t key[256]) {
    __shared__ uint32_t longest;
    const uint32_t leaves = (uint32_t)__syncthreads_count(held != 0);
    uint32_t at = 0;
    for (uint32_t shift = 0, again = 1; again; shift++) {
        key[threadIdx.x] = lossless_key(held, shift, threadIdx.x);
        __syncthreads();
        if (held) at = lossless_leaf(t, key, 256, key[threadIdx.x]);
        __syncthreads();
        if (threadIdx.x == 0) longest = lossless_depths(t, leaves);
        __syncthreads();
        again = longest > LOSSLESS_LONGEST;
    }
    return held ? t->weight[at] : 0;
}
static __global__ void __launch_bounds__(CUDA_THREADS) lossless_plan_kernel(cuda_parts all, uint32_t codec) {
    __shared__ lossless_nodes tree;
    __shared__ uint32_t count[LOSSLESS_STREAMS * 256], key[256], any;
    __shared__ uint64_t warps[CUDA_WARPS];
    const cuda_part *p = &all.part[blockIdx.y];
    const uint64_t chunks = lossless_chunks(p->count);
    int bad = 0;
    for (uint64_t c = blockIdx.x; c < chunks && !bad; c += gridDim.x) {
        const uint32_t n = lossless_len(p->count, c), quarter = (uint32_t)lossless_begin(n, 1);
        lossless_form *f = lossless_form_of(p, c);
        uint32_t mine = 0, held = 0;
        if (threadIdx.x == 0) any = 0;
        cuda_hist_clear<LOSSLESS_STREAMS * 256>(count);
        CUDA_UNROLL_BY(8)
        for (uint32_t at = 0; at < n; at += CUDA_THREADS) {
            const uint32_t i = at + threadIdx.x, stream = (i >= quarter) + (i >= 2 * quarter) + (i >= 3 * quarter);
            const uint32_t x = i < n ? float_bits(cuda_phi(&all, p, c * LOSSLESS_CHUNK + i)) : 0;
            mine |= x;
            cuda_hist_count(count, stream * 256 + (x >> 23 & 255), i < n);
        }
        mine = cuda_warp_all(mine, [](uint32_t a, uint32_t b) { return a | b; });
        if (cuda_lane() == 0) atomicOr(&any, mine);
        __syncthreads();
        for (uint32_t k = 0; k < LOSSLESS_STREAMS; k++) held += count[k * 256 + threadIdx.x];
        bad = __syncthreads_or(threadIdx.x == 255 && held); /* NaN or Inf */
        if (bad) break;
        const uint32_t length = lossless_length(held, &tree, key);
        uint64_t sum = 0, total; /* the streams' bits, 16 for each: a stream has 45056 at most */
        for (uint32_t k = 0; k < LOSSLESS_STREAMS; k++)
            sum |= (uint64_t)(count[k * 256 + threadIdx.x] * length) << 16 * k;
        (void)cuda_block_before(sum, warps, &total);
        cuda_put(&f->length[threadIdx.x], (uint8_t)length);
        if (threadIdx.x) continue;
        uint64_t bits = 0, bytes = 0;
        for (uint32_t k = 0; k < LOSSLESS_STREAMS; k++) {
            const uint32_t own = (uint32_t)(total >> 16 * k) & 0xFFFF;
            cuda_put(&f->bytes[k], (own + 7) / 8);
            bits += own, bytes += (own + 7) / 8;
        }
        const uint32_t kept = lossless_kept(any, bits, n);
        cuda_put(&f->kept, kept);
        cuda_put(&f->at, kept == LOSSLESS_RAW ? 1 + 4 * (uint64_t)n
                                              : LOSSLESS_HEAD + n + lossless_lower_bytes(kept, n) + bytes);
    }
    if (bad) atomicOr(&cuda_flags_of(p)->bad, 1u);
    if (!cuda_last_block(p)) return;
    bad = cuda_fresh(&cuda_flags_of(p)->bad) != 0;
    uint64_t before = 4 * chunks, total = 0;
    for (uint64_t first = 0; first < chunks && !bad; first += CUDA_THREADS, before += total) {
        const uint64_t c = first + threadIdx.x, size = c < chunks ? cuda_fresh(&lossless_form_of(p, c)->at) : 0;
        const uint64_t at = before + cuda_block_before(size, warps, &total);
        if (c < chunks) cuda_put((uint32_t *)(void *)cuda_body(p) + c, (uint32_t)size);
        if (c < chunks) cuda_put(&lossless_form_of(p, c)->at, at);
        __syncthreads(); /* before `warps` changes */
    }
    if (threadIdx.x == 0) cuda_write_header_if(p, codec, 1, bad, before, 0);
}

/* Returns the code word of this thread's exponent. */
static __device__ __forceinline__ uint32_t lossless_word_of(const uint8_t length[256]) {
    const uint32_t own = length[threadIdx.x];
    uint32_t before = 0;
    CUDA_UNROLL_BY(8)
    for (uint32_t i = 0; i < 256; i++)
        if (length[i] < own + (i < threadIdx.x)) before += lossless_share(length[i]);
    return lossless_code(before, own);
}
/* Returns the sum of x over this stream's threads with lower numbers. All threads call it. */
static __device__ __forceinline__ uint32_t lossless_stream_before(uint32_t x, uint32_t shared[LOSSLESS_SHARED]) {
    uint32_t total, *warps = shared, *first = shared + CUDA_WARPS;
    const uint32_t before = cuda_block_before(x, warps, &total);
    if (threadIdx.x % LOSSLESS_EACH == 0) first[threadIdx.x / LOSSLESS_EACH] = before;
    __syncthreads();
    return before - first[threadIdx.x / LOSSLESS_EACH];
}
static __device__ __forceinline__ void lossless_put(unsigned char *to, uint32_t x, uint32_t bytes) {
    for (uint32_t b = 0; b < bytes; b++) cuda_put(to + b, (unsigned char)(x >> 8 * b));
}
/* Writes signs and mantissas of 32 elements in sequence; this thread has element i. All threads of a warp call it. */
static __device__ __forceinline__ void lossless_put_rest(unsigned char *high, uint32_t kept, uint32_t x, uint32_t i,
                                                         uint32_t n) {
    unsigned char *lower = high + n;
    const uint32_t first = cuda_lane() * 8 / 3, byte = 3 * (i / 32 * 32) / 8 + cuda_lane();
    uint32_t bits = 0;
    if (i < n) cuda_put(high + i, (unsigned char)((x >> 16 & 0x7F) | (x >> 31 << 7)));
    if (kept == LOSSLESS_F32 && i < n) lossless_put(lower + 2 * i, x, 2);
    if (kept != LOSSLESS_F16) return;
    for (uint32_t k = 0; k < 4; k++) bits |= __shfl_sync(0xFFFFFFFFu, x >> 13 & 7, (int)(first + k) % 32) << 3 * k;
    if (cuda_lane() < 12 && byte < (3 * n + 7) / 8)
        cuda_put(lower + byte, (unsigned char)(bits >> cuda_lane() * 8 % 3));
}

enum { LOSSLESS_ROOM = LOSSLESS_LONGEST * LOSSLESS_CHUNK / 32 + 1 /* words of all streams */ };
typedef struct lossless_room {
    uint32_t word[256], streams[LOSSLESS_ROOM], shared[LOSSLESS_SHARED];
    uint8_t exponent[LOSSLESS_CHUNK + LOSSLESS_CHUNK / 16], length[256];
} lossless_room;
/* Where the exponent of element i is: with a gap after 64 of them, so that threads read from different banks */
static __device__ __forceinline__ uint32_t lossless_place(uint32_t i) { return i + i / 64 * 4; }

/* Writes the streams of a chunk. */
static __device__ __forceinline__ void lossless_put_streams(lossless_room *r, const lossless_form *f, unsigned char *to,
                                                            uint32_t n) {
    const uint32_t stream = threadIdx.x / LOSSLESS_EACH, end = (uint32_t)lossless_begin(n, stream + 1);
    const uint32_t each = ((uint32_t)lossless_begin(n, 1) + LOSSLESS_EACH - 1) / LOSSLESS_EACH;
    const uint32_t from = min(end, (uint32_t)lossless_begin(n, stream) + threadIdx.x % LOSSLESS_EACH * each);
    const uint32_t until = min(end, from + each);
    uint32_t bits = 0, all = 0, own = 0;
    for (uint32_t k = 0; k < LOSSLESS_STREAMS; k++) {
        if (k == stream) own = all;
        all += cuda_get_same(&f->bytes[k]);
    }
    r->word[threadIdx.x] = r->length[threadIdx.x] << 16 | lossless_word_of(r->length);
    for (uint32_t i = threadIdx.x; i < LOSSLESS_ROOM; i += CUDA_THREADS) r->streams[i] = 0;
    __syncthreads();
    for (uint32_t i = from; i < until; i++) bits += r->word[r->exponent[lossless_place(i)]] >> 16;
    const uint32_t at = 8 * own + lossless_stream_before(bits, r->shared);
    uint32_t used = at % 32, *word = r->streams + at / 32;
    uint64_t hold = 0;
    for (uint32_t i = from; i < until; i++) {
        const uint32_t w = r->word[r->exponent[lossless_place(i)]];
        hold |= (uint64_t)(w & 0xFFFF) << used;
        used += w >> 16;
        if (used >= 32) atomicOr(word++, (uint32_t)hold), hold >>= 32, used -= 32;
    }
    if (hold) atomicOr(word, (uint32_t)hold);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < all; i += CUDA_THREADS)
        cuda_put(to + i, (unsigned char)(r->streams[i / 4] >> i % 4 * 8));
}
static __global__ void __launch_bounds__(CUDA_THREADS) lossless_write_kernel(cuda_parts all) {
    __shared__ lossless_room room;
    const cuda_part *p = &all.part[blockIdx.y];
    if (cuda_get_same(&cuda_flags_of(p)->bad)) return;
    for (uint64_t c = blockIdx.x; c < lossless_chunks(p->count); c += gridDim.x) {
        const lossless_form *f = lossless_form_of(p, c);
        const uint32_t n = lossless_len(p->count, c), kept = cuda_get_same(&f->kept);
        const uint32_t length = cuda_get(&f->length[threadIdx.x]), next = __shfl_down_sync(0xFFFFFFFFu, length, 1);
        unsigned char *to = cuda_body(p) + cuda_get_same(&f->at), *high = to + LOSSLESS_HEAD;
        room.length[threadIdx.x] = (uint8_t)length;
        CUDA_UNROLL_BY(4)
        for (uint32_t i = threadIdx.x; i - threadIdx.x < n; i += CUDA_THREADS) {
            const uint64_t e = c * LOSSLESS_CHUNK + i;
            const uint32_t x = i < n ? float_bits(cuda_phi(&all, p, e)) : 0;
            if (p->e && i < n) cuda_put(p->e + e, 0.0f);
            room.exponent[lossless_place(i)] = (uint8_t)(x >> 23);
            if (kept != LOSSLESS_RAW)
                lossless_put_rest(high, kept, x, i, n);
            else if (i < n)
                lossless_put(to + 1 + 4 * i, x, 4);
        }
        if (threadIdx.x == 0) cuda_put(to, (unsigned char)kept);
        if (kept == LOSSLESS_RAW) continue;
        if (threadIdx.x % 2 == 0) cuda_put(to + 1 + threadIdx.x / 2, (unsigned char)(length | next << 4));
        if (threadIdx.x < LOSSLESS_STREAMS)
            lossless_put(to + LOSSLESS_SIZES + 4 * threadIdx.x, cuda_get(&f->bytes[threadIdx.x]), 4);
        __syncthreads();
        lossless_put_streams(&room, f, high + n + lossless_lower_bytes(kept, n), n);
    }
}

/* ---- decompress -------------------------------------------------------------------------------------------------- */
/* Calls use(chunk's number, where it begins in the body, its size) for each chunk of this block's share, until that
 * returns false. Returns whether it never did. All threads call it. */
template <typename Use>
static __device__ __forceinline__ int lossless_each(const unsigned char *body, uint64_t chunks, uint64_t *warps,
                                                    Use use) {
    const uint64_t each = (chunks + gridDim.x - 1) / gridDim.x, first = blockIdx.x * each;
    const uint32_t *size = (const uint32_t *)(const void *)body;
    uint64_t at = 0, before;
    int ok = 1;
    for (uint64_t c = threadIdx.x; c < min(first, chunks); c += CUDA_THREADS) at += cuda_get(size + c);
    (void)cuda_block_before(at, warps, &before);
    at = 4 * chunks + before;
    for (uint64_t c = first; c < min(first + each, chunks) && ok; at += cuda_get_same(size + c++))
        ok = use(c, at, (uint64_t)cuda_get_same(size + c));
    __syncthreads(); /* before `warps` changes */
    return ok;
}
/* lanes: as for cuda_get_same() */
static __device__ __forceinline__ uint32_t lossless_get(const unsigned char *from, uint32_t bytes, uint32_t lanes = 1) {
    uint32_t x = 0;
    for (uint32_t b = 0; b < bytes; b++) x |= (uint32_t)cuda_get_same(from + b, lanes) << 8 * b;
    return x;
}
static __device__ __forceinline__ uint32_t lossless_length_at(const unsigned char *chunk) {
    return cuda_get_same(chunk + 1 + threadIdx.x / 2, 2) >> threadIdx.x % 2 * 4 & 15;
}
/* As lossless_chunk_valid(). All threads call it. */
static __device__ __forceinline__ int lossless_chunk_ok(const unsigned char *chunk, uint64_t size, uint32_t n,
                                                        uint32_t *warps) {
    const uint32_t kept = size ? cuda_get_same(chunk) : 1u;
    if (kept == LOSSLESS_RAW) {
        int bad = size != 1 + 4 * (uint64_t)n;
        for (uint32_t i = threadIdx.x; i < n && !bad; i += CUDA_THREADS)
            bad = dense_bad(bits_float(lossless_get(chunk + 1 + 4 * i + 2, 2) << 16));
        return !__syncthreads_or(bad);
    }
    if (!lossless_kept_known(kept) || size < LOSSLESS_HEAD) return 0;
    const uint32_t length = lossless_length_at(chunk);
    const int known = __syncthreads_count(length != 0);
    const int bad = __syncthreads_or(length > (threadIdx.x == 255 ? 0u : (uint32_t)LOSSLESS_LONGEST));
    uint64_t bytes = LOSSLESS_HEAD + n + lossless_lower_bytes(kept, n);
    uint32_t share;
    (void)cuda_block_before(lossless_share(length), warps, &share);
    for (uint32_t k = 0; k < LOSSLESS_STREAMS; k++) bytes += lossless_get(chunk + LOSSLESS_SIZES + 4 * k, 4, 32);
    return !bad && lossless_complete(share, (uint32_t)known) && bytes == size;
}
static __global__ void __launch_bounds__(CUDA_THREADS) lossless_check_kernel(cuda_sums all, uint32_t codec) {
    __shared__ uint64_t warps[CUDA_WARPS];
    __shared__ uint32_t shares[CUDA_WARPS];
    cuda_check_payloads(all, codec, [&](const cuda_sum *d, const cuda_source *s, cuda_header h) {
        h.flags = cuda_nan_or_empty(h.flags);
        const unsigned char *body = s->payload + ESP_PAYLOAD_HEADER;
        const uint64_t chunks = lossless_chunks(d->count);
        if (!cuda_header_ok(&h, s, codec, 1, d->count) || h.aux) return false;
        if (h.flags || !chunks) return h.body == 0;
        if (h.body < 4 * chunks) return false;
        return lossless_each(body, chunks, warps, [&](uint64_t c, uint64_t at, uint64_t size) {
                   if (at > h.body || size > h.body - at || (c + 1 == chunks && at + size != h.body)) return 0;
                   return lossless_chunk_ok(body + at, size, lossless_len(d->count, c), shares);
               }) != 0;
    });
}

typedef struct lossless_decoded {
    uint16_t table[LOSSLESS_MASK + 1]; /* a lossless_table */
    uint32_t end[CUDA_THREADS], shared[LOSSLESS_SHARED];
    uint8_t exponent[LOSSLESS_CHUNK], length[256];
} lossless_decoded;
/* Calls use(exponent) for each code word of a stream that begins at bits `at` to `end`, the first one at `at`. Returns
 * where the next one begins. */
template <typename Use>
static __device__ __forceinline__ uint32_t lossless_scan(const uint16_t *table, const unsigned char *from,
                                                         uint32_t bytes, uint32_t at, uint32_t end, Use use) {
    uint32_t next = at / 8, hold = next < bytes ? cuda_get(from + next) >> at % 8 : 0, bits = 8 - at % 8;
    for (next++; at < end;) {
        for (; bits < LOSSLESS_LONGEST && next < bytes; bits += 8) hold |= (uint32_t)cuda_get(from + next++) << bits;
        const uint32_t entry = table[hold & LOSSLESS_MASK], used = entry >> 8;
        hold >>= used, bits -= min(bits, used), at += used; /* zeros follow the end */
        use((uint8_t)entry);
    }
    return at;
}
/* Reads the exponents of a chunk: each thread a part of a stream, first from where that might begin. Most threads find
 * the true words after some wrong ones, and so where the next part begins; they repeat it until all of them have. */
static __device__ __forceinline__ void lossless_get_streams(lossless_decoded *x, const unsigned char *sizes,
                                                            const unsigned char *from, uint32_t n) {
    const uint32_t stream = threadIdx.x / LOSSLESS_EACH, lane = threadIdx.x % LOSSLESS_EACH;
    const uint32_t begin = (uint32_t)lossless_begin(n, stream), count = (uint32_t)lossless_begin(n, stream + 1) - begin;
    for (uint32_t k = 0; k < stream; k++) from += lossless_get(sizes + 4 * k, 4, 32);
    const uint32_t bytes = lossless_get(sizes + 4 * stream, 4, 32);
    const uint32_t all = (uint32_t)min(8 * (uint64_t)bytes, (uint64_t)LOSSLESS_LONGEST * count);
    const uint32_t part = (all + LOSSLESS_EACH - 1) / LOSSLESS_EACH, end = min(all, (lane + 1) * part);
    uint32_t at = min(all, lane * part), words = 0, again = 1;
    do {
        if (again) {
            words = 0;
            x->end[threadIdx.x] = lossless_scan(x->table, from, bytes, at, end, [&](uint8_t) { words++; });
        }
        __syncthreads();
        const uint32_t before = lane ? x->end[threadIdx.x - 1] : 0;
        again = before != at, at = before;
    } while (__syncthreads_or(again));
    uint32_t i = lossless_stream_before(words, x->shared);
    (void)lossless_scan(x->table, from, bytes, at, end, [&](uint8_t exponent) {
        if (i < count) x->exponent[begin + i] = exponent;
        i++;
    });
    for (; lane == LOSSLESS_EACH - 1 && i < count; i++) x->exponent[begin + i] = (uint8_t)x->table[0];
}
/* Adds the elements of a chunk. All threads call it. */
static __device__ __forceinline__ void lossless_add_chunk(lossless_decoded *x, const unsigned char *chunk, float *out,
                                                          float scale, int set, uint32_t n) {
    const uint32_t kept = cuda_get_same(chunk);
    const unsigned char *high = chunk + LOSSLESS_HEAD, *lower = high + n;
    if (kept != LOSSLESS_RAW) {
        const uint32_t length = lossless_length_at(chunk);
        const int known = __syncthreads_count(length != 0);
        x->length[threadIdx.x] = (uint8_t)length;
        __syncthreads();
        for (uint32_t code = length ? lossless_word_of(x->length) : LOSSLESS_MASK + 1; code <= LOSSLESS_MASK;
             code += known == 1 ? 1 : 1u << length) /* a single exponent has all codes */
            x->table[code] = (uint16_t)(length << 8 | threadIdx.x);
        __syncthreads();
        lossless_get_streams(x, chunk + LOSSLESS_SIZES, lower + lossless_lower_bytes(kept, n), n);
        __syncthreads();
    }
    CUDA_UNROLL_BY(4)
    for (uint32_t i = threadIdx.x; i < n; i += CUDA_THREADS) {
        uint32_t bits;
        if (kept == LOSSLESS_RAW) {
            bits = lossless_get(chunk + 1 + 4 * i, 4);
        } else {
            const uint32_t top = cuda_get(high + i);
            bits = top >> 7 << 31 | (top & 0x7F) << 16 | (uint32_t)x->exponent[i] << 23;
            if (kept == LOSSLESS_F32) bits |= lossless_get(lower + 2 * i, 2);
            if (kept == LOSSLESS_F16)
                bits |= (lossless_get(lower + 3 * i / 8, 3 * i % 8 > 5 ? 2 : 1) >> 3 * i % 8 & 7) << 13;
        }
        const float v = bits_float(bits) * scale;
        cuda_put(out + i, set ? v : cuda_get(out + i) + v);
    }
}
static __global__ void __launch_bounds__(CUDA_THREADS) lossless_add_kernel(cuda_sums all) {
    __shared__ lossless_decoded decoded;
    __shared__ uint64_t warps[CUDA_WARPS];
    const cuda_sum *d = &all.part[blockIdx.y];
    const uint32_t decision = cuda_get_same(d->decision);
    int set = all.set != 0;
    if (decision & CUDA_CORRUPT) return;
    if (decision & CUDA_NAN) {
        cuda_fill(d, bits_float(0x7FC00000u));
        return;
    }
    for (uint32_t k = 0; k < d->n; k++) { /* a thread has the same elements of all payloads */
        const cuda_source *s = &all.source[d->first + k];
        const unsigned char *body = s->payload + ESP_PAYLOAD_HEADER;
        if (!cuda_read_header(s).body) continue;
        (void)lossless_each(body, lossless_chunks(d->count), warps, [&](uint64_t c, uint64_t at, uint64_t) {
            lossless_add_chunk(&decoded, body + at, d->out + c * LOSSLESS_CHUNK, all.scale, set,
                               lossless_len(d->count, c));
            return 1;
        });
        set = 0;
    }
    if (set) cuda_fill(d, 0.0f);
}

/* ---- the codec --------------------------------------------------------------------------------------------------- */
static uint64_t lossless_cuda_scratch(const void *, const esp_tensor *like) {
    return lossless_chunks(like->count) * sizeof(lossless_form);
}
static esp_status lossless_cuda_compress(void *self, const esp_codec_args *a) {
    const uint32_t codec = esp_name_hash("lossless");
    return cuda_each_part(((const dense_self *)self)->host, "lossless", a, lossless_largest,
                          [&](cuda_call *c, const cuda_parts &parts, uint64_t longest) {
                              const dim3 blocks = cuda_grid(c, longest, LOSSLESS_CHUNK, parts.n);
                              cuda_launch(c, "plan", cuda_kernel<lossless_plan_kernel>, blocks, parts, codec);
                              cuda_launch(c, "write", cuda_kernel<lossless_write_kernel>, blocks, parts);
                          });
}
static esp_status lossless_cuda_decompress(void *self, const esp_codec_args *a) {
    const uint32_t codec = esp_name_hash("lossless");
    return cuda_each_sum(((const dense_self *)self)->host, "lossless", a, [](uint64_t) { return (uint64_t)0; },
                         [&](cuda_call *c, const cuda_sums &sums, uint64_t longest) {
                             cuda_launch(c, "check payloads", cuda_kernel<lossless_check_kernel>,
                                         cuda_grid(c, longest, LOSSLESS_CHUNK, sums.n), sums, codec);
                         },
                         [&](cuda_call *c, const cuda_sums &sums, uint64_t longest) {
                             cuda_launch(c, "add", cuda_kernel<lossless_add_kernel>,
                                         cuda_grid(c, longest, LOSSLESS_CHUNK, sums.n), sums);
                         });
}
CUDA_CODEC(lossless, lossless_codec, lossless_cuda_scratch, lossless_cuda_compress, lossless_cuda_decompress)
