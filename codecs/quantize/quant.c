/* quant.c: codecs "int8" and "int4", which send each element as an integer of 8 or 4 bits (its level) times a scale
 * (the unit), with error feedback. unit = max |x| / most and level = x / unit rounded, where x is gradient plus
 * residual, and most is 127 or 7. With block=N each N elements have a unit of their own. With int8:shared=1 all
 * ranks first agree on one unit for the whole tensor, so that collectives can then sum levels. */
#include "codecs/common/quant.h"

/* A tensor of at most QUANT_CACHED elements stays in the second-level cache, where a second pass is quick. */
enum { QUANT_WIRE = 1, INT8_RANKS_16 = 258, QUANT_CACHED = 2 * DENSE_GRAIN };
#define INT8_MOST 127.0f
#define INT4_MOST 7.0f

/* ---- two levels in a byte ---------------------------------------------------------------------------------------- */
ESP_INLINE uint64_t int4_pack_body(unsigned char *restrict out, const int8_t *restrict in, uint64_t n) {
    ESP_SIMD
    for (uint64_t i = 0; i < n / 2; i++) {
        uint16_t pair; /* the second level is in the upper byte */
        memcpy(&pair, in + 2 * i, sizeof pair);
        out[i] = (unsigned char)((pair & 0x0Fu) | (pair >> 4 & 0xF0u));
    }
    if (n % 2) out[n / 2] = (unsigned char)((uint32_t)in[n - 1] & 0x0Fu);
    return 0;
}
ESP_KERNEL(int4_pack, (unsigned char *restrict out, const int8_t *restrict in, uint64_t n), (out, in, n))

/* Returns the signed level in the lower half of a byte, or in the upper half if `high` is 1. */
ESP_ELEMENT int32_t int4_level(uint32_t byte, uint32_t high) {
    const int32_t half = (int32_t)(byte >> (high * 4) & 0x0Fu);
    return (half ^ 8) - 8;
}
/* Adds unit * level to out, or overwrites out if `set` is 1. Reads each byte once, for both of its levels. */
ESP_TARGET_SCALAR static uint64_t int4_add_scalar(float *restrict out, const int8_t *restrict in, float unit, int set,
                                                  uint64_t n) {
    for (uint64_t i = 0; i < n; i += 2) {
        const uint32_t byte = (unsigned char)in[i / 2];
        const float x = unit * (float)int4_level(byte, 0), y = unit * (float)int4_level(byte, 1);
        out[i] = set ? x : out[i] + x;
        if (i + 1 < n) out[i + 1] = set ? y : out[i + 1] + y;
    }
    return 0;
}
#ifdef ESP_SIMD_X86
/* Unpacks the 16 four-bit levels in 8 bytes to one byte each, without their sign: 0 to 15. */
ESP_TARGET_AVX2 static inline __m128i int4_sixteen(const int8_t *in) {
    const __m128i x = _mm_loadl_epi64((const __m128i *)(const void *)in), low = _mm_set1_epi8(0x0F);
    return _mm_unpacklo_epi8(_mm_and_si128(x, low), _mm_and_si128(_mm_srli_epi16(x, 4), low));
}
ESP_TARGET_AVX2 static uint64_t int4_add_avx2(float *restrict out, const int8_t *restrict in, float unit, int set,
                                              uint64_t n) {
    const __m128i value = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    const __m256 u = _mm256_set1_ps(unit);
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m128i level = _mm_shuffle_epi8(value, int4_sixteen(in + i / 2));
        const __m256 x = _mm256_mul_ps(u, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(level)));
        const __m256 y = _mm256_mul_ps(u, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(level, 8))));
        dense_put16(out + i, x, y, set);
    }
    ESP_LEAVE_WIDE();
    return int4_add_scalar(out + i, in + i / 2, unit, set, n - i);
}
ESP_TARGET_AVX512 static uint64_t int4_add_avx512(float *restrict out, const int8_t *restrict in, float unit, int set,
                                                  uint64_t n) {
    const __m512 value =
        _mm512_mul_ps(_mm512_set1_ps(unit), _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1));
    uint64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m512 x = _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(int4_sixteen(in + i / 2)), value);
        _mm512_storeu_ps(out + i, set ? x : _mm512_add_ps(_mm512_loadu_ps(out + i), x));
    }
    ESP_LEAVE_WIDE();
    return int4_add_scalar(out + i, in + i / 2, unit, set, n - i);
}
#endif
ESP_KERNEL_PICK(int4_add)

/* ---- open -------------------------------------------------------------------------------------------------------- */
typedef struct quant_format {
    const char *name;
    float most;
    uint32_t block;   /* default of parameter block */
    uint32_t halving; /* log2 of the number of levels in a byte */
} quant_format;
/* An int8 payload with a unit per 256 elements is less than 2% larger than one with a single unit. For normally
 * distributed numbers int4 loses 1.2% of |x|^2 with a block of 128, 0.8% with 32 and 1.7% with 1024. */
static const quant_format int8_format = {"int8", INT8_MOST, 256, 0}, int4_format = {"int4", INT4_MOST, 128, 1};

typedef struct quant_self {
    dense_self dense; /* must be the first member */
    const quant_format *format;
    uint64_t block; /* 0 with shared=1 */
    quant_top_fn top;
    quant_encode_fn encode;
    int4_pack_fn pack; /* NULL for int8 */
    quant_add8_fn add;
} quant_self;

static const char int8_params[] = "block=256,shared=0", int4_params[] = "block=128";

static esp_status quant_open(const quant_format *f, const esp_host *h, const char *params, void **self) {
    static const char takes[] = "a power of two from 32 to 1024";
    const bool is_int8 = !f->halving;
    double block = 0, shared = 0;
    esp_param p[] = {{"block", &block, QUANT_BLOCK_MIN, DENSE_BLOCK, 0, ESP_PARAM_POWER_OF_TWO, takes},
                     {"shared", &shared, 0, 1, 0, ESP_PARAM_WHOLE, "0 or 1"}};
    const esp_status st = dense_open(h, f->name, params, p, is_int8 ? 2 : 1, is_int8 ? int8_params : int4_params,
                                     sizeof(quant_self), self);
    if (st != ESP_OK) return st;
    quant_self *s = (quant_self *)*self;
    if (shared > 0 && block > 0) {
        esp_codec_self_free(s);
        return esp_codec_fail(h, f->name, ESP_E_ARG,
                              "int8: shared=1 has one range for a whole part: leave block= out, or set shared=0");
    }
    const int level = s->dense.level;
    s->format = f;
    s->block = shared > 0 ? 0 : block > 0 ? (uint64_t)block : f->block;
    s->top = quant_top_for(level);
    s->encode = quant_encode_for(level);
    s->pack = is_int8 ? NULL : int4_pack_for(level);
    s->add = is_int8 ? quant_add8_for(level) : int4_add_for(level);
    return ESP_OK;
}
static esp_status int8_open(const esp_host *h, const char *params, void **self) {
    return quant_open(&int8_format, h, params, self);
}
static esp_status int4_open(const esp_host *h, const char *params, void **self) {
    return quant_open(&int4_format, h, params, self);
}

/* ---- traits and sizes -------------------------------------------------------------------------------------------- */
static const esp_round int8_rounds[] = {{ESP_REDUCE_MAX, ESP_F32, 0, 0}, {ESP_REDUCE_SUM, ESP_I8, 0, 0}};
static const char quant_gathers[] = "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather";

static esp_status int8_traits(void *self, esp_traits *out) {
    if (!((const quant_self *)self)->block) return ESP_OK;
    out->caps &= ~(uint64_t)ESP_CODEC_REDUCIBLE;
    out->n_rounds = 1;
    out->rounds = NULL;
    out->default_option = quant_gathers;
    return ESP_OK;
}

/* Returns how many bytes a level needs, so that a sum of n_reduced ranks' levels cannot overflow. */
static uint64_t int8_width(uint32_t n_reduced) { return n_reduced < 2 ? 1 : n_reduced <= INT8_RANKS_16 ? 2 : 4; }

static uint64_t quant_body(const quant_self *s, uint64_t count, uint32_t n_reduced) {
    if (!s->block) return count * int8_width(n_reduced);
    return quant_units(count, s->block) * sizeof(float) + ((count + s->format->halving) >> s->format->halving);
}

static esp_status quant_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    const quant_self *s = (const quant_self *)self;
    const uint64_t width = int8_width(n_reduced);
    if (!s->block && !round) return esp_bound_fill(out, sizeof(float), 0, 0);
    const esp_status st = esp_bound_fill(out, quant_body(s, like->count, n_reduced), 0, 0);
    if (!s->block) out->dtype = width == 1 ? ESP_I8 : width == 2 ? ESP_I16 : ESP_I32;
    return st;
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */
static bool quant_valid(const void *self, const esp_payload_header *h, const unsigned char *body) {
    const quant_self *s = (const quant_self *)self;
    const uint64_t units = quant_units(h->count, s->block);
    if (h->aux != 0 || !quant_units_ok(body, units)) return 0;
    return !s->pack || h->count % 2 == 0 || body[units * sizeof(float) + h->count / 2] <= 0x0F;
}
static void quant_add(const void *self, const dense_block *b) {
    const quant_self *s = (const quant_self *)self;
    const uint64_t block = s->block;
    const uint32_t halving = s->format->halving;
    const dense_f32 *units = (const dense_f32 *)(const void *)b->body + b->at / block;
    const int8_t *levels =
        (const int8_t *)b->body + quant_units(b->header->count, block) * sizeof(float) + (b->at >> halving);
    for (uint64_t i = 0; i < b->n; i += block)
        s->add(b->out + i, levels + (i >> halving), units[i / block] * b->scale, b->set,
               b->n - i < block ? b->n - i : block);
}

static esp_payload_header quant_header(const quant_self *s, const esp_codec_args *a, uint64_t body, uint32_t aux) {
    return esp_payload_header_of(esp_name_hash(s->format->name), QUANT_WIRE, 0, a->tensor[0]->count, body, aux);
}

typedef struct quant_job {
    const quant_self *self;
    const esp_codec_args *args;
    dense_f32 *units; /* NULL with shared=1 */
    unsigned char *levels;
    uint64_t width;
    uint32_t top; /* atomic: bits of the largest |phi| */
} quant_job;

static uint32_t quant_top_at(const quant_job *j, uint64_t at, uint64_t n) {
    const float *e = esp_residual_of(j->args, 0);
    return (uint32_t)j->self->top(dense_in(j->args) + at, e ? e + at : NULL, j->args->beta, j->args->gamma, n);
}
/* First stores the largest |phi| of each block where quant_levels_piece will put the block's unit.
 * `begin` is a multiple of the block's size. */
static void quant_tops_piece(void *arg, uint64_t begin, uint64_t end) {
    quant_job *j = (quant_job *)arg;
    const uint64_t block = j->self->block;
    dense_f32 *unit = j->units + begin / block;
    uint32_t largest = 0;
    for (uint64_t at = begin; at < end; at += block) {
        const uint32_t top = quant_top_at(j, at, end - at < block ? end - at : block);
        *unit++ = bits_float(top);
        largest = top > largest ? top : largest;
    }
    esp_codec_raise(&j->top, largest);
}
/* Replaces the largest |phi| of each block by the block's unit, and writes the levels. With shared=1 all elements have
 * one unit, which is computed from j->top. Units come first: the processor then overlaps their divisions. */
static void quant_levels_piece(void *arg, uint64_t begin, uint64_t end) {
    const quant_job *j = (const quant_job *)arg;
    const esp_codec_args *a = j->args;
    const quant_self *s = j->self;
    const uint64_t block = s->block ? s->block : DENSE_BLOCK;
    const quant_widen_fn widen = quant_widen_for(s->dense.level);
    dense_f32 *unit = s->block ? j->units + begin / block : NULL;
    quant_range ranges[DENSE_BLOCK / (int)QUANT_BLOCK_MIN] = {quant_range_of(s->block ? 0 : j->top, s->format->most)};
    float *e = esp_residual_of(a, 0);
    int8_t tmp[DENSE_BLOCK];
    for (uint64_t at = begin, k = 0; at < end; at += block, k++) {
        const uint64_t n = end - at < block ? end - at : block;
        int8_t *to = s->pack || j->width > 1 ? tmp : (int8_t *)j->levels + at;
        if (unit && k % (DENSE_BLOCK / block) == 0) {
            k = 0;
            for (uint64_t i = at; i < end && i < at + DENSE_BLOCK; i += block, unit++) {
                ranges[(i - at) / block] = quant_range_of(float_bits(*unit), s->format->most);
                *unit = ranges[(i - at) / block].unit;
            }
        }
        const quant_range r = ranges[unit ? k : 0];
        s->encode(to, e ? e + at : NULL, dense_in(a) + at, a->beta, a->gamma, r, n);
        if (s->pack) s->pack(j->levels + at / 2, tmp, n);
        if (j->width > 1) widen(j->levels + at * j->width, tmp, j->width, n);
    }
}
/* Makes a payload block by block, in the cache. A block with NaN or Inf gets no levels and keeps its residual. */
static void quant_both_piece(void *arg, uint64_t begin, uint64_t end) {
    quant_job *all = (quant_job *)arg;
    for (uint64_t at = begin; at < end; at += DENSE_BLOCK) {
        const uint64_t stop = end - at < DENSE_BLOCK ? end : at + DENSE_BLOCK;
        quant_job one = *all;
        one.top = 0;
        quant_tops_piece(&one, at, stop);
        if (one.top < QUANT_INF)
            quant_levels_piece(&one, at, stop);
        else
            esp_codec_raise(&all->top, one.top);
    }
}

static esp_status quant_write_blocks(const quant_self *s, const esp_codec_args *a) {
    const uint64_t n = a->tensor[0]->count;
    esp_payload_header h = quant_header(s, a, quant_body(s, n, 1), 0);
    const esp_status st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK) return st;
    unsigned char *body = (unsigned char *)esp_payload_body(a->payload);
    quant_job j = {s, a, (dense_f32 *)(void *)body, body + quant_units(n, s->block) * sizeof(float), 1, 0};
    const bool two_passes = a->residual && n > DENSE_BLOCK && n <= QUANT_CACHED;
    if (!two_passes && !dense_safe(&s->dense, a)) return dense_send_nan(a->payload, &h, 0);
    dense_run(&s->dense, n, two_passes ? quant_tops_piece : quant_both_piece, &j);
    if (j.top >= QUANT_INF) return dense_send_nan(a->payload, &h, 0);
    if (two_passes) dense_run(&s->dense, n, quant_levels_piece, &j);
    return ESP_OK;
}

/* ---- int8:shared=1 ----------------------------------------------------------------------------------------------- */
static void int8_top_piece(void *arg, uint64_t begin, uint64_t end) {
    quant_job *j = (quant_job *)arg;
    esp_codec_raise(&j->top, quant_top_at(j, begin, end - begin));
}

static esp_status int8_round0(const quant_self *s, const esp_codec_args *a) {
    const uint64_t n = a->tensor[0]->count;
    quant_job j = {s, a, NULL, NULL, 0, 0};
    esp_payload_header h = quant_header(s, a, n ? sizeof(float) : 0, 0);
    esp_status st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK || !n) return st;
    dense_run(&s->dense, n, int8_top_piece, &j);
    if (j.top >= QUANT_INF) return dense_send_nan(a->payload, &h, sizeof(float));
    h.aux = j.top;
    memcpy(esp_payload_body(a->payload), &j.top, sizeof j.top);
    return esp_payload_begin(a->payload, &h);
}

/* Reads the largest |gradient plus residual| of all ranks, which the collective stored in a->reduced. Sets *nan if
 * it is NaN or Inf. */
static esp_status int8_shared(const esp_codec_args *a, uint32_t *top, bool *nan) {
    esp_payload_header h;
    *top = 0;
    *nan = false;
    if (!a->tensor[0]->count) return ESP_OK;
    if (!a->reduced || esp_payload_read(a->reduced, esp_name_hash("int8"), QUANT_WIRE, a->tensor[0]->count, &h) ||
        h.body_bytes != sizeof *top)
        return ESP_E_CORRUPT;
    memcpy(top, esp_payload_body(a->reduced), sizeof *top);
    *nan = (h.flags & ESP_PAYLOAD_NONFINITE) || *top >= QUANT_INF;
    return ESP_OK;
}

static esp_status int8_round1(const quant_self *s, const esp_codec_args *a) {
    const uint64_t n = a->tensor[0]->count;
    bool nan;
    quant_job j = {s, a, NULL, (unsigned char *)esp_payload_body(a->payload), int8_width(a->n_reduced), 0};
    esp_status st = int8_shared(a, &j.top, &nan);
    if (st != ESP_OK) return st;
    esp_payload_header h = quant_header(s, a, n * j.width, nan ? 0 : j.top);
    if (nan) h.flags = ESP_PAYLOAD_NONFINITE;
    st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK) return st;
    if (nan)
        memset(j.levels, 0, n * j.width);
    else
        dense_run(&s->dense, n, quant_levels_piece, &j);
    return ESP_OK;
}

static void int8_add_shared(const void *self, const dense_block *b) {
    const quant_self *s = (const quant_self *)self;
    const uint64_t width = b->header->body_bytes / b->header->count;
    const float unit = quant_range_of((uint32_t)b->header->aux, INT8_MOST).unit * b->scale;
    const void *in = b->body + b->at * width;
    if (width == 1)
        s->add(b->out, (const int8_t *)in, unit, b->set, b->n);
    else if (width == 2)
        quant_add16_for(s->dense.level)(b->out, (const quant_i16 *)in, unit, b->set, b->n);
    else
        quant_add32_for(s->dense.level)(b->out, (const quant_i32 *)in, unit, b->set, b->n);
}
static const dense_format int8_shared_format = {"int8", QUANT_WIRE, 1, NULL, int8_add_shared};

/* Fails unless all payloads were made with the same unit, since levels of different units cannot be added. */
static esp_status int8_check_range(const esp_codec_args *a, uint32_t top, bool nan) {
    for (uint32_t p = 0; p < a->n_payloads; p++) {
        esp_payload_header h;
        memset(&h, 0, sizeof h);
        if (esp_payload_read(&a->payload[p], esp_name_hash("int8"), QUANT_WIRE, a->tensor[0]->count, &h) ||
            (!h.flags && (nan || h.aux != top)))
            return ESP_E_CORRUPT;
    }
    return ESP_OK;
}

/* ---- the codecs' tables ------------------------------------------------------------------------------------------ */
static esp_status quant_compress(void *self, const esp_codec_args *a) {
    const quant_self *s = (const quant_self *)self;
    return s->block ? quant_write_blocks(s, a) : a->round ? int8_round1(s, a) : int8_round0(s, a);
}

static esp_status quant_decompress(void *self, const esp_codec_args *a) {
    const quant_self *s = (const quant_self *)self;
    const uint64_t body = quant_body(s, a->tensor[0]->count, a->n_reduced);
    const dense_format blocks = {s->format->name, QUANT_WIRE, 0, quant_valid, quant_add};
    uint32_t top;
    bool nan;
    if (s->block) return dense_decompress(&s->dense, &blocks, a, body, DENSE_BLOCK);
    esp_status st = int8_shared(a, &top, &nan);
    if (st == ESP_OK) st = int8_check_range(a, top, nan);
    return st == ESP_OK ? dense_decompress(&s->dense, &int8_shared_format, a, body, DENSE_BLOCK) : st;
}

static esp_status quant_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                              esp_codec_model *out) {
    const quant_self *s = (const quant_self *)self;
    const double part = 1 << 20, block = s->block ? (double)s->block : part;
    const double level = s->format->halving ? 0.5 : 1;
    const esp_facts f = {
        .flags = ESP_MODEL_LOSSY,
        .size = {0, 0, s->block ? level + 4 / block : level, 0, 0},
        .error = quant_error(block, (double)s->format->most),
        .ns = {esp_model_stream((s->block ? 16 : 20) + level), esp_model_stream(8 + level)},
        .launches = {2, s->block ? 2.0 : 1.0},
        .bytes = {20 + level, 8 + level},
        .small = {{s->block ? 8192.0 : 0.0, 1}},
    };
    esp_codec_model m = esp_model_of(&f, d);
    (void)like;
    if (!s->block) {
        const esp_payload_size range = {ESP_PAYLOAD_HEADER + sizeof(float), 0, 0, 0, 0};
        const esp_payload_size levels = {ESP_PAYLOAD_HEADER, 0, (double)int8_width(n_reduced), 0, 0};
        m.reduced[0] = range;
        m.reduced[1] = levels;
    }
    return esp_model_answer(out, &m);
}

static const esp_codec int8_codec = {
    ESP_CODEC_HEAD(QUANT_WIRE, ESP_CODEC_REDUCIBLE | ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL),
    .name = "int8",
    .summary =
        "levels from -127 to 127, with a unit for each block, or one that ranks share and levels that are summed",
    .params = int8_params,
    .default_option = "intra.reduce_scatter > comp@cpu > inter.allreduce > decomp@cpu > intra.allgather",
    .n_rounds = 2,
    .rounds = int8_rounds,
    ESP_CODEC_CALLS(int8_open, esp_codec_self_free, int8_traits, quant),
    .family = "quantize",
};
static const esp_codec int4_codec = {
    ESP_CODEC_HEAD(QUANT_WIRE, ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL),
    .name = "int4",
    .summary = "levels from -7 to 7 with a unit for each block, two in a byte",
    .params = int4_params,
    .default_option = quant_gathers,
    .n_rounds = 1,
    ESP_CODEC_CALLS(int4_open, esp_codec_self_free, NULL, quant),
    .family = "quantize",
    .paper = "Wang et al. (ZeRO++), 2023",
};

ESP_PLUGIN_CODEC(quant, &int8_codec, &int4_codec)
