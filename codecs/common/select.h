/* select.h: for codecs topk and dgc, finds exactly the k numbers of largest magnitude, ties to the lower index, in
 * little more than one pass over memory. It guesses a threshold a little too low from a sample (guess), copies the
 * numbers that reach it to a list (keep), and finds the exact threshold in the list (trim). If the guess was too
 * high, or so low that the list overflowed, it computes the threshold from histograms of all numbers (edge). If the
 * list cannot hold all numbers equal to the threshold, often zeros, it adds those in order at the end (ties). */
#ifndef ESP_SELECT_H
#define ESP_SELECT_H
#include "espresso.h"
#include "codecs/common/params.h"
#include "codecs/common/simd.h"

enum {
    SELECT_BLOCK = 4096, /* numbers in a block, fits the first-level cache */
    SELECT_SPAN = 65536, /* numbers per worker task, indexed with 16 bits */
    SELECT_ROOM = 16384,
    SELECT_SAMPLE = 65536
};
#define SELECT_INF 0x7f800000u
#define SELECT_ABS 0x7fffffffu

ESP_ELEMENT uint32_t select_bits(float x) { return float_bits(x) & SELECT_ABS; }

/* ---- keep ---- */
/* Copies each x[i] with |x[i]| >= lo to val, and base + i to idx; both have room for n + 16. Returns their number
 * in the lower half, and the bits of the largest |x| in the upper half. */
static uint64_t select_keep_scalar(const float *x, uint64_t n, uint32_t lo, uint32_t base, float *val, uint16_t *idx) {
    uint64_t m = 0;
    uint32_t top = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t a = select_bits(x[i]);
        top = a > top ? a : top;
        val[m] = x[i];
        idx[m] = (uint16_t)(base + i);
        m += a >= lo;
    }
    return m | (uint64_t)top << 32;
}

#ifdef ESP_SIMD_X86
/* AVX2 has no compress instruction, so this loops over the set bits of a mask of 32 numbers. */
ESP_TARGET_AVX2 static uint64_t select_keep_avx2(const float *x, uint64_t n, uint32_t lo, uint32_t base, float *val,
                                                 uint16_t *idx) {
    const __m256i abs8 = _mm256_set1_epi32((int)SELECT_ABS), low = _mm256_set1_epi32((int)lo - 1);
    __m256i top8 = _mm256_setzero_si256();
    uint64_t m = 0, i = 0;
    for (; i + 32 <= n; i += 32) {
        uint32_t mask = 0;
        for (int j = 0; j < 4; j++) {
            __m256i a = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(const void *)(x + i + 8 * j)), abs8);
            __m256i ge = _mm256_cmpgt_epi32(a, low); /* signed compare: all are below 2^31 */
            top8 = _mm256_max_epu32(top8, a);
            mask |= (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(ge)) << (8 * j);
        }
        for (; mask; mask &= mask - 1) {
            uint64_t at = i + (uint64_t)__builtin_ctz(mask);
            val[m] = x[at];
            idx[m++] = (uint16_t)(base + at);
        }
    }
    uint32_t tops[8], top = 0;
    _mm256_storeu_si256((__m256i *)(void *)tops, top8);
    for (int j = 0; j < 8; j++) top = tops[j] > top ? tops[j] : top;
    ESP_LEAVE_WIDE();
    uint64_t rest = select_keep_scalar(x + i, n - i, lo, base + (uint32_t)i, val + m, idx + m);
    if (rest >> 32 > top) top = (uint32_t)(rest >> 32);
    return (m + (uint32_t)rest) | (uint64_t)top << 32;
}

/* First lists the vectors that have a number to keep, without an unpredictable branch, and then compresses those.
 * It compresses to a register, since vpcompressd to memory is slow on some processors. n <= SELECT_BLOCK. */
ESP_TARGET_AVX512 static uint64_t select_keep_avx512(const float *x, uint64_t n, uint32_t lo, uint32_t base, float *val,
                                                     uint16_t *idx) {
    const __m512i abs16 = _mm512_set1_epi32((int)SELECT_ABS), low = _mm512_set1_epi32((int)lo);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i top = _mm512_setzero_si512();
    uint16_t hit[SELECT_BLOCK / 16], mask[SELECT_BLOCK / 16];
    uint64_t m = 0, hits = 0;
    for (uint64_t i = 0; i < n; i += 16) {
        __mmask16 in = n - i >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << (n - i)) - 1);
        __m512i a = _mm512_and_si512(_mm512_maskz_loadu_epi32(in, x + i), abs16);
        __mmask16 ge = _mm512_mask_cmpge_epu32_mask(in, a, low);
        top = _mm512_max_epu32(top, a);
        hit[hits] = (uint16_t)i;
        mask[hits] = ge;
        hits += ge != 0;
    }
    for (uint64_t h = 0; h < hits; h++) {
        const __mmask16 ge = mask[h];
        __m512i v = _mm512_maskz_loadu_epi32(ge, x + hit[h]);
        __m512i at = _mm512_add_epi32(_mm512_set1_epi32((int)(base + hit[h])), lane);
        _mm512_storeu_si512(val + m, _mm512_maskz_compress_epi32(ge, v));
        _mm256_storeu_si256((__m256i *)(void *)(idx + m), _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(ge, at)));
        m += (uint64_t)__builtin_popcount(ge);
    }
    return m | (uint64_t)_mm512_reduce_max_epu32(top) << 32;
}
#endif

ESP_KERNEL_PICK(select_keep)

/* ---- trim ---- */
/* Keeps, in place, numbers above t and the first *quota ones equal to t, lowers *quota, returns how many it kept. */
ESP_TARGET_SCALAR static uint64_t select_trim_scalar(float *val, uint16_t *idx, uint64_t n, uint32_t t,
                                                     uint64_t *quota) {
    uint64_t m = 0, left = *quota;
    for (uint64_t i = 0; i < n; i++) {
        uint32_t a = select_bits(val[i]), tie = (uint32_t)(a == t) & (uint32_t)(left > 0);
        val[m] = val[i];
        idx[m] = idx[i];
        m += (uint32_t)(a > t) | tie;
        left -= tie;
    }
    *quota = left;
    return m;
}

#ifdef ESP_SIMD_X86
#define select_trim_avx2 select_trim_scalar /* AVX2 has no compress instruction */
/* Stores are masked, so that they do not overwrite the next block's numbers in the list. */
ESP_TARGET_AVX512 static uint64_t select_trim_avx512(float *val, uint16_t *idx, uint64_t n, uint32_t t,
                                                     uint64_t *quota) {
    const __m512i abs16 = _mm512_set1_epi32((int)SELECT_ABS), limit = _mm512_set1_epi32((int)t);
    uint64_t m = 0;
    for (uint64_t i = 0; i < n; i += 16) {
        __mmask16 in = n - i >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << (n - i)) - 1);
        __m512i v = _mm512_maskz_loadu_epi32(in, val + i), a = _mm512_and_si512(v, abs16);
        __m512i at = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(in, idx + i));
        __mmask16 take = _mm512_mask_cmpgt_epu32_mask(in, a, limit);
        for (uint32_t tie = _mm512_mask_cmpeq_epu32_mask(in, a, limit); tie && *quota; tie &= tie - 1, --*quota)
            take |= (__mmask16)(tie & -tie);
        _mm512_mask_storeu_epi32(val + m, in, _mm512_maskz_compress_epi32(take, v));
        _mm256_mask_storeu_epi16(idx + m, in, _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(take, at)));
        m += (uint64_t)__builtin_popcount(take);
    }
    return m;
}
#endif

ESP_KERNEL_PICK(select_trim)

/* The numbers that were kept from one block are elements [at, at + n) of the list. */
typedef struct select_block {
    uint64_t at, n;
} select_block;

typedef struct select_job {
    const esp_host *host;
    int simd;
    /* Returns numbers [at, at + n), computed into `buf` (room for a block) or where they are stored already. */
    const float *(*load)(const void *arg, uint64_t at, uint64_t n, float *buf);
    const void *arg;
    uint64_t count, k;
    uint64_t n_sample, sample_from; /* sample size, and a random number for its start */
    /* Results: k numbers, block by block, by ascending index within a block. */
    select_block *block;
    float *val;
    uint16_t *idx;
    select_keep_fn keep;
    select_trim_fn trim;
    uint64_t cap, used;
    uint32_t lo, top, overflow;
    uint64_t *hist;
    uint32_t shift, bits, prefix;
} select_job;

/* ---- radix select in memory -------------------------------------------------------------------------------------- */
/* Returns the digit of the k-th largest number, which is at most d. `hist` counts the numbers with each digit. Adds the
 * count of numbers with higher digits to *above. */
static inline uint32_t select_digit(const uint64_t *hist, uint32_t d, uint64_t k, uint64_t *above) {
    for (; d > 0 && *above + hist[d] < k; d--) *above += hist[d];
    return d;
}

/* Returns the bits of the k-th largest of n magnitudes, all within [lo, hi]. *above receives how many are larger. */
static inline uint32_t select_kth(const float *x, uint64_t n, uint64_t k, uint32_t lo, uint32_t hi, uint64_t *above) {
    enum { FEW = 1024 };
    uint64_t hist[2048];
    float few[FEW];
    *above = 0;
    while (lo < hi) {
        /* A larger histogram takes longer to clear and scan, which pays only for many numbers. */
        const uint32_t span = hi - lo, bits = n < 4096 ? 8 : 11, wide = 32 - (uint32_t)__builtin_clz(span);
        const uint32_t shift = wide > bits ? wide - bits : 0;
        memset(hist, 0, sizeof *hist * ((span >> shift) + 1));
        for (uint64_t i = 0; i < n; i++) {
            uint32_t d = select_bits(x[i]) - lo;
            if (d <= span) hist[d >> shift]++;
        }
        const uint32_t digit = select_digit(hist, span >> shift, k, above);
        lo += digit << shift;
        if (hi - lo > (1u << shift) - 1) hi = lo + (1u << shift) - 1;
        if (x == few || hist[digit] > FEW) continue;
        uint64_t m = 0;
        for (uint64_t i = 0; i < n; i++)
            if (select_bits(x[i]) - lo <= hi - lo) few[m++] = x[i];
        x = few;
        n = m;
    }
    return lo;
}

/* ---- passes over all numbers ------------------------------------------------------------------------------------- */
static inline uint32_t select_keep_block(select_job *s, uint64_t b) {
    float buf[SELECT_BLOCK], val[SELECT_BLOCK + 16];
    uint16_t idx[SELECT_BLOCK + 16];
    uint64_t from = b * SELECT_BLOCK, len = s->count - from < SELECT_BLOCK ? s->count - from : SELECT_BLOCK;
    uint64_t r = s->keep(s->load(s->arg, from, len, buf), len, s->lo, (uint32_t)(from % SELECT_SPAN), val, idx);
    uint64_t n = (uint32_t)r, at = n ? __atomic_fetch_add(&s->used, n, __ATOMIC_RELAXED) : 0;
    if (at + n > s->cap) {
        __atomic_store_n(&s->overflow, 1u, __ATOMIC_RELAXED);
        n = 0;
    }
    memcpy(s->val + at * (n > 0), val, n * sizeof *val);
    memcpy(s->idx + at * (n > 0), idx, n * sizeof *idx);
    s->block[b].at = at;
    s->block[b].n = n;
    return (uint32_t)(r >> 32);
}

static inline void select_keep_body(void *arg, uint64_t begin, uint64_t end) {
    select_job *s = ESP__CAST(select_job *, arg);
    uint32_t top = 0;
    for (uint64_t b = begin / SELECT_BLOCK; b * SELECT_BLOCK < end; b++) {
        uint32_t t = select_keep_block(s, b);
        top = t > top ? t : top;
    }
    esp_codec_raise(&s->top, top);
}

/* Keeps all numbers that are at least lo, and returns their number. Sets s->overflow if the list is too small. */
static inline uint64_t select_keep_all(select_job *s, uint32_t lo) {
    s->lo = lo;
    s->used = 0;
    s->top = s->overflow = 0;
    esp_codec_parallel(s->host, s->count, SELECT_SPAN, select_keep_body, s);
    return s->used;
}

static inline void select_hist_body(void *arg, uint64_t begin, uint64_t end) {
    select_job *s = ESP__CAST(select_job *, arg);
    float buf[SELECT_BLOCK];
    uint32_t own[2048], mask = (1u << s->bits) - 1, over = s->shift + s->bits;
    while (begin < end) {
        uint64_t stop = end - begin > (1u << 30) ? begin + (1u << 30) : end; /* 32-bit counters must not wrap */
        memset(own, 0, sizeof own);
        while (begin < stop) {
            uint64_t n = stop - begin < SELECT_BLOCK ? stop - begin : SELECT_BLOCK;
            const float *x = s->load(s->arg, begin, n, buf);
            for (uint64_t i = 0; i < n; i++) {
                uint32_t a = select_bits(x[i]);
                own[a >> s->shift & mask] += a >> over == s->prefix;
            }
            begin += n;
        }
        for (uint32_t d = 0; d <= mask; d++)
            if (own[d]) __atomic_fetch_add(&s->hist[d], own[d], __ATOMIC_RELAXED);
    }
}

/* Returns a threshold that at least k numbers reach, but no more than fit the list unless too many are equal.
 * *reach receives how many numbers reach it. */
static inline uint32_t select_edge(select_job *s, uint64_t *reach) {
    static const uint8_t digit[] = {11, 11, 9};
    uint64_t hist[2048], above = 0;
    uint32_t d;
    s->hist = hist;
    s->prefix = 0;
    s->shift = 31;
    for (int i = 0; i < 3; i++) {
        s->bits = digit[i];
        s->shift -= s->bits;
        memset(hist, 0, sizeof hist);
        esp_codec_parallel(s->host, s->count, SELECT_SPAN, select_hist_body, s);
        d = select_digit(hist, (1u << s->bits) - 1, s->k, &above);
        *reach = above + hist[d];
        s->prefix = s->prefix << s->bits | d;
        if (*reach <= s->cap) break;
    }
    s->hist = NULL;
    return s->prefix << s->shift;
}

/* Guesses from a sample a threshold that the k largest numbers probably reach, and few others. Returns 1, the least
 * positive threshold, if the tensor is too small for a sample or nearly all numbers are wanted. */
static inline uint32_t select_guess(select_job *s) {
    uint64_t lines = (s->n_sample < s->cap ? s->n_sample : s->cap) / 16, all = s->count / 16, above;
    float buf[16];
    if (lines < 64 || lines * 4 > all) return 1;
    uint64_t stride = all / lines, n = lines * 16, first = s->sample_from % stride;
    for (uint64_t i = 0; i < lines; i++)
        memcpy(s->val + 16 * i, s->load(s->arg, (first + i * stride) * 16, 16, buf), 16 * sizeof(float));
    /* The threshold's rank in the sample is the expected one plus at least four standard deviations, so that k
     * numbers very probably reach it. An integer root has the same bits on every machine. */
    uint64_t rank = (uint64_t)((double)s->k / (double)s->count * (double)n) + 1, root = 1;
    while (root * root < rank) root++;
    rank += 4 * root + 8;
    if (rank >= n) return 1;
    uint32_t lo = select_kth(s->val, n, rank, 0, SELECT_ABS, &above);
    return lo ? lo : 1;
}

/* ---- exact finish ------------------------------------------------------------------------------------------------ */
/* Adds the first `quota` numbers equal to t to the list, which already holds all numbers above t. */
static inline void select_ties(select_job *s, uint32_t t, uint64_t quota) {
    float buf[SELECT_BLOCK], val[SELECT_BLOCK + 16];
    uint16_t idx[SELECT_BLOCK + 16];
    for (uint64_t b = 0; quota && b * SELECT_BLOCK < s->count; b++) {
        uint64_t from = b * SELECT_BLOCK, len = s->count - from < SELECT_BLOCK ? s->count - from : SELECT_BLOCK;
        uint64_t r = s->keep(s->load(s->arg, from, len, buf), len, t, (uint32_t)(from % SELECT_SPAN), val, idx);
        uint64_t n = s->trim(val, idx, (uint32_t)r, t, &quota);
        /* The ties fit, since the list then holds at most k numbers. */
        memcpy(s->val + s->used, val, n * sizeof *val);
        memcpy(s->idx + s->used, idx, n * sizeof *idx);
        s->block[b].at = s->used;
        s->block[b].n = n;
        s->used += n;
    }
}

static inline void select_trim(select_job *s, uint64_t n) {
    uint64_t above, quota;
    uint32_t t = select_kth(s->val, n, s->k, s->lo, s->top, &above);
    quota = s->k - above;
    for (uint64_t b = 0; b * SELECT_BLOCK < s->count; b++)
        s->block[b].n = s->trim(s->val + s->block[b].at, s->idx + s->block[b].at, s->block[b].n, t, &quota);
}

/* ---- for callers ------------------------------------------------------------------------------------------------- */
static inline uint64_t select_cap(uint64_t k) { return 2 * k + SELECT_ROOM; }
static inline uint64_t select_blocks(uint64_t count) { return (count + SELECT_BLOCK - 1) / SELECT_BLOCK; }

/* Returns a sample size that costs little compared with a pass over all numbers, but gives a good threshold. */
static inline uint64_t select_sample(uint64_t count) {
    uint64_t n = count / 64 < 1024 ? 1024 : count / 64;
    return n < SELECT_SAMPLE ? n : SELECT_SAMPLE;
}

static inline uint64_t select_list_bytes(uint64_t count, uint64_t cap) {
    return select_blocks(count) * sizeof(select_block) + cap * (sizeof(float) + sizeof(uint16_t)) + 64;
}
static inline uint64_t select_scratch_bytes(uint64_t count, uint64_t k) {
    return select_list_bytes(count, select_cap(k));
}

/* Prepares an empty list of at most `cap` numbers in `scratch`, which has select_list_bytes() and is aligned to 8
 * bytes. A caller that knows its threshold may then call select_keep_all() instead of select_run(). */
static inline void select_list(select_job *s, void *scratch, uint64_t cap) {
    s->keep = select_keep_for(s->simd);
    s->trim = select_trim_for(s->simd);
    s->cap = cap;
    s->block = ESP__CAST(select_block *, scratch);
    s->val = ESP__CAST(float *, (void *)(s->block + select_blocks(s->count)));
    s->idx = ESP__CAST(uint16_t *, (void *)(s->val + s->cap));
}

/* Selects k numbers, 1 <= k <= count. `scratch` is aligned to 8 bytes. Returns false if a number is NaN or Inf. */
static inline bool select_run(select_job *s, void *scratch) {
    select_list(s, scratch, select_cap(s->k));
    uint32_t lo = select_guess(s);
    uint64_t n = select_keep_all(s, lo), reach;
    if (s->top >= SELECT_INF) return false;
    if (s->overflow || (n < s->k && lo > 1)) {
        lo = select_edge(s, &reach);
        if (reach > s->cap) {
            n = select_keep_all(s, lo + 1);
            select_ties(s, lo, s->k - n);
            return true;
        }
        n = select_keep_all(s, lo ? lo : 1);
    }
    if (n < s->k)
        select_ties(s, 0, s->k - n); /* only zeros are not in the list */
    else if (n > s->k)
        select_trim(s, n);
    return true;
}
#endif
