/* threelc.cu: codec "threelc" on CUDA; its formulas are in codecs/hybrid/threelc.c. After the largest magnitude, a
 * kernel computes the bytes of each block of 1280 elements, thread i byte i, and their number without runs of zeros;
 * the next one writes them without these. */
#include "codecs/cuda/common/dense.h"
#include "codecs/cuda/common/serial.h"
#include "codecs/hybrid/threelc.c"

static_assert((int)THREELC_BYTES == (int)CUDA_THREADS, "a thread has a byte of a block");
enum { THREELC_OWN_TOP = 1 /* index in cuda_flags.own of the largest |phi|, as bits */ };

typedef struct threelc_cuda {
    enum { BLOCK = THREELC_BLOCK, ROOM = (int)THREELC_BYTES * (int)SERIAL_SEGMENT };
    uint32_t codec;
    float factor;
    __device__ uint64_t first(uint64_t count) const { return threelc_first(count); }
    __device__ float m(const unsigned char *body, uint64_t count) const {
        return cuda_get_same((const float *)(const void *)(body + threelc_first(count) - THREELC_HEAD));
    }
    __device__ int head_ok(const cuda_segment &s) const { return float_bits(m(s.body, s.count)) < QUANT_INF; }
    __device__ int ok(const cuda_segment &s, uint32_t *shared) const {
        uint64_t sum = 0;
        for (uint64_t i = s.begin + threadIdx.x; i < s.end; i += CUDA_THREADS) sum += threelc_run(cuda_get(s.body + i));
        (void)cuda_block_before(sum, (uint64_t *)(void *)shared, &sum);
        return sum == threelc_all(s.n);
    }
    __device__ void add(const cuda_segment &s, float *out, float scale, int set, uint32_t *shared) const {
        uint8_t *bytes = (uint8_t *)shared;
        uint32_t *warps = shared + ROOM / 4, before = 0, total;
        for (uint32_t i = threadIdx.x; i < ROOM; i += CUDA_THREADS)
            bytes[i] = THREELC_ZEROS; /* cuda_block_before() has a barrier */
        for (uint64_t at = s.begin; at < s.end; at += CUDA_THREADS, before += total) {
            const uint64_t i = at + threadIdx.x;
            const uint8_t byte = i < s.end ? cuda_get(s.body + i) : (uint8_t)THREELC_ZEROS;
            const uint32_t to = before + cuda_block_before(i < s.end ? threelc_run(byte) : 0, warps, &total);
            if (byte < THREELC_RUN && byte != THREELC_ZEROS) bytes[to] = byte;
            __syncthreads(); /* before `warps` changes */
        }
        const float v = m(s.body, s.count) * scale;
        for (uint64_t at = 0; at < s.n; at += THREELC_BLOCK) {
            const uint32_t len = (uint32_t)min(s.n - at, (uint64_t)THREELC_BLOCK), fifth = (uint32_t)threelc_len(len);
            const uint32_t byte = bytes[at / 5 + threadIdx.x];
            uint32_t weight = 81;
            CUDA_UNROLL
            for (uint32_t k = 0, i = threadIdx.x; k < 5; k++, i += fifth, weight /= 3)
                if (threadIdx.x < fifth && i < len)
                    cuda_serial_put(out + at + i, (float)((int32_t)(byte / weight % 3) - 1) * v, set);
        }
    }
} threelc_cuda;

static __device__ __forceinline__ float threelc_top(const cuda_part *p) {
    const uint32_t top = cuda_get_same(&cuda_flags_of(p)->own[THREELC_OWN_TOP]);
    return top < QUANT_LEAST ? 0 : bits_float(top);
}
static __global__ void __launch_bounds__(CUDA_THREADS) threelc_top_kernel(cuda_parts all) {
    const cuda_part *p = &all.part[blockIdx.y];
    uint32_t top = 0;
    cuda_dense_each(&all, p, [&](uint64_t, float phi) { top = max(top, float_bits(phi) & 0x7FFFFFFFu); });
    top = cuda_warp_all(top, [](uint32_t a, uint32_t b) { return max(a, b); });
    if (cuda_lane() == 0) atomicMax(&cuda_flags_of(p)->own[THREELC_OWN_TOP], top);
}
/* The bytes of all blocks without runs, in scratch memory after the sizes of blocks. */
static __device__ __forceinline__ uint8_t *threelc_bytes(const cuda_part *p) {
    return (uint8_t *)(cuda_serial_at(p) + serial_blocks(THREELC_BLOCK, p->count));
}
/* What byte `byte` of a block becomes: nothing, unless `sent`. All threads call it, with byte threadIdx.x of `len`. */
static __device__ __forceinline__ uint8_t threelc_sent(uint8_t byte, uint32_t len, uint32_t *zeros, int *sent) {
    const int zero = threadIdx.x < len && byte == THREELC_ZEROS;
    const uint32_t in = __ballot_sync(0xFFFFFFFFu, zero);
    if (cuda_lane() == 0) zeros[threadIdx.x / 32] = in;
    __syncthreads();
    uint32_t n = 1; /* of the zeros in sequence that end with this one */
    while (zero && n <= threadIdx.x && zeros[(threadIdx.x - n) / 32] >> (threadIdx.x - n) % 32 & 1u) n++;
    const uint32_t next = threadIdx.x + 1;
    const int ends = next >= len || !(zeros[next / 32] >> next % 32 & 1u) || n % THREELC_MOST == 0;
    *sent = threadIdx.x < len && (!zero || ends);
    return zero ? threelc_short((n - 1) % THREELC_MOST + 1) : byte;
}
static __global__ void __launch_bounds__(CUDA_THREADS) threelc_digits(cuda_parts all, threelc_cuda f) {
    __shared__ uint32_t zeros[CUDA_WARPS];
    const cuda_part *p = &all.part[blockIdx.y];
    const int bad = cuda_get_same(&cuda_flags_of(p)->own[THREELC_OWN_TOP]) >= QUANT_INF;
    const float m = threelc_m(threelc_top(p), f.factor), half = threelc_half(m);
    for (uint64_t b = blockIdx.x; b < serial_blocks(THREELC_BLOCK, p->count) && !bad; b += gridDim.x) {
        const uint64_t at = b * THREELC_BLOCK, left = p->count - at;
        const uint32_t len = (uint32_t)min(left, (uint64_t)THREELC_BLOCK), fifth = (uint32_t)threelc_len(len);
        uint32_t byte = 0, i = threadIdx.x;
        float phi[5];
        int sent;
        CUDA_UNROLL
        for (int k = 0; k < 5; k++)
            phi[k] = threadIdx.x < fifth && i + k * fifth < len ? cuda_phi(&all, p, at + i + k * fifth) : 0;
        CUDA_UNROLL
        for (int k = 0; k < 5; k++, i += fifth) {
            byte = byte * 3 + threelc_digit(phi[k], half);
            if (p->e && threadIdx.x < fifth && i < len) cuda_put(p->e + at + i, threelc_left(phi[k], m, half));
        }
        if (threadIdx.x < fifth) cuda_put(threelc_bytes(p) + at / 5 + threadIdx.x, (uint8_t)byte);
        (void)threelc_sent((uint8_t)byte, fifth, zeros, &sent);
        const int n = __syncthreads_count(sent);
        if (threadIdx.x == 0) cuda_put(cuda_serial_at(p) + b, (uint64_t)n);
    }
    if (cuda_thread() == 0 && p->count && !bad)
        cuda_put((float *)(void *)(cuda_body(p) + threelc_first(p->count) - THREELC_HEAD), m);
    cuda_serial_end(p, f, bad);
}
static __global__ void __launch_bounds__(CUDA_THREADS) threelc_write(cuda_parts all) {
    __shared__ uint32_t zeros[CUDA_WARPS], warps[CUDA_WARPS];
    const cuda_part *p = &all.part[blockIdx.y];
    if (cuda_get_same(&cuda_flags_of(p)->bad)) return;
    for (uint64_t b = blockIdx.x; b < serial_blocks(THREELC_BLOCK, p->count); b += gridDim.x) {
        const uint64_t at = b * THREELC_BLOCK;
        const uint32_t fifth = (uint32_t)threelc_len(min(p->count - at, (uint64_t)THREELC_BLOCK));
        const uint8_t byte = threadIdx.x < fifth ? cuda_get(threelc_bytes(p) + at / 5 + threadIdx.x) : (uint8_t)0;
        uint32_t total;
        int sent;
        const uint8_t out = threelc_sent(byte, fifth, zeros, &sent);
        const uint32_t before = cuda_block_before((uint32_t)sent, warps, &total);
        if (sent) cuda_put(cuda_body(p) + cuda_get_same(cuda_serial_at(p) + b) + before, (unsigned char)out);
    }
}

static uint64_t threelc_cuda_scratch(const void *, const esp_tensor *like) {
    return 8 * serial_blocks(THREELC_BLOCK, like->count) + threelc_all(like->count);
}
static threelc_cuda threelc_cuda_of(const void *self) {
    return {esp_name_hash("threelc"), ((const threelc_self *)self)->factor};
}
static esp_status threelc_cuda_compress(void *self, const esp_codec_args *a) {
    const threelc_cuda f = threelc_cuda_of(self);
    return cuda_serial_compress((const serial_self *)self, a,
                                [&](cuda_call *c, const cuda_parts &parts, uint64_t longest) {
                                    const dim3 blocks = cuda_grid(c, longest, THREELC_BLOCK, parts.n);
                                    cuda_launch(c, "top", cuda_kernel<threelc_top_kernel>,
                                                cuda_grid(c, longest, CUDA_DENSE_EACH, parts.n), parts);
                                    cuda_launch(c, "digits", cuda_kernel<threelc_digits>, blocks, parts, f);
                                    cuda_launch(c, "write", cuda_kernel<threelc_write>, blocks, parts);
                                });
}
static esp_status threelc_cuda_decompress(void *self, const esp_codec_args *a) {
    return cuda_serial_decompress((const serial_self *)self, a, threelc_cuda_of(self));
}
CUDA_CODEC(threelc, threelc_codec, threelc_cuda_scratch, threelc_cuda_compress, threelc_cuda_decompress)
