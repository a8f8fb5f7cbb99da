/* int8.c: whole levels from -127 to 127 of a unit, 8 bits an element. Rounded to nearest; no random numbers.
 *
 *     unit = max |phi| / 127;   level = phi / unit, rounded;   decoded: unit * level;   e = phi - unit * level, exactly (quant.h)
 *
 * block=N (the default): each block of N elements has its own unit; one round, and payloads are decoded before they are summed. Others
 * take 32 (QuickReduce, with half units), 128 (QSGD's buckets), 256 (FP8 of QuickReduce), 1024 (CGX), or one unit for a whole share
 * (Bagua's MinMaxUInt8; groups of ZeRO++). 256 is the smallest whose f32 units cost less than 2% more bytes: 8.125 bits an element.
 * Unlike Bagua's and ZeRO++'s formats, level 0 is 0 and the largest number is not cut.
 * shared=1: one unit for a part, which all ranks share, so that levels are summed undecoded: two rounds.
 *     round 0   max |phi| of the rank's part              the maximum over all ranks
 *     round 1   levels of the common unit                 summed
 * Levels have 8 bits where no collective sums them, 16 where it sums up to 258 ranks' (258 * 127 < 2^15), and else 32: sums never
 * overflow. The common unit costs accuracy where parts or ranks differ in size (grace issue 14, with TernGrad on BERT): hence not
 * the default.
 *
 * Wire, block=N: f32 unit[ceil(d / N)], i8 level[d]; aux 0. shared=1, round 0: f32, the largest |phi|; round 1: i8, i16 or i32
 * level[d]; aux of both: the bits of the largest |phi|, in round 0 the rank's own, in round 1 that of all ranks. A part without elements:
 * header alone. Input with NaN or Inf: header flag, in round 0 a body of NaN, in round 1 a body of zeros; the residual stays. */
#include "codecs/common/quant.h"

enum { INT8_WIRE = 1, INT8_BLOCK = 256, INT8_RANKS_16 = 258 };
#define INT8_MOST 127.0f

typedef struct int8_self {
    dense_self dense; /* first */
    uint64_t block;   /* 0: shared */
    quant_top_fn top;
    quant_encode_fn encode;
    quant_widen_fn widen;
    quant_add8_fn add8;
    quant_add16_fn add16;
    quant_add32_fn add32;
} int8_self;

static const char int8_params[] = "block=256,shared=0";

static esp_status int8_open(const esp_host *h, const char *params, void **self) {
    double block = 0, shared = 0;
    esp_param p[] = {{"block", &block, 1, 1e9, 0, 1, "a power of two from 32 to 1024"},
                     {"shared", &shared, 0, 1, 0, 1, "0 or 1"}};
    esp_status st = esp_params_parse(h, "int8", params, p, 2, int8_params);
    if (st == ESP_OK && shared > 0 && block > 0)
        st = esp_codec_fail(h, "int8", ESP_E_ARG,
                            "int8: shared=1 has one range for a whole part: leave block= out, or take shared=0");
    if (st == ESP_OK && block > 0) st = quant_block_check(h, "int8", (uint64_t)block);
    if (st != ESP_OK) return st;
    int8_self *s = (int8_self *)esp_codec_self(h, sizeof *s);
    if (!s) return ESP_E_NOMEM;
    dense_open(&s->dense, h);
    const int level = s->dense.level;
    s->block = shared > 0 ? 0 : block > 0 ? (uint64_t)block : INT8_BLOCK;
    s->top = quant_top_for(level);
    s->encode = quant_encode_for(level);
    s->widen = quant_widen_for(level);
    s->add8 = quant_add8_for(level);
    s->add16 = quant_add16_for(level);
    s->add32 = quant_add32_for(level);
    *self = s;
    return ESP_OK;
}
static void int8_close(void *self) { esp_codec_self_free(((int8_self *)self)->dense.host, self, sizeof(int8_self)); }

/* ---- what an instance is ---------------------------------------------------------------------------------------------- */
static const esp_round int8_rounds[] = {{ESP_REDUCE_MAX, ESP_F32, 0, 0}, {ESP_REDUCE_SUM, ESP_I8, 0, 0}};
static const char int8_gathers[] = "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather";

static esp_status int8_traits(void *self, esp_traits *out) {
    if (!((const int8_self *)self)->block) return ESP_OK;
    out->caps &= ~(uint64_t)ESP_CODEC_REDUCIBLE;
    out->n_rounds = 1;
    out->rounds = NULL;
    out->default_option = int8_gathers;
    return ESP_OK;
}

/* Bytes of a level where n ranks' are summed. */
static uint64_t int8_width(uint32_t n_reduced) { return n_reduced < 2 ? 1 : n_reduced <= INT8_RANKS_16 ? 2 : 4; }

static uint64_t int8_body(const int8_self *s, uint64_t count, uint32_t n_reduced) {
    if (s->block) return quant_units(count, s->block) * sizeof(float) + count;
    return count * int8_width(n_reduced);
}

static esp_status int8_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    const int8_self *s = (const int8_self *)self;
    const uint64_t width = int8_width(n_reduced);
    if (!s->block && !round) return esp_bound_fill(out, sizeof(float), 0, 0);
    const esp_status st = esp_bound_fill(out, int8_body(s, like->count, n_reduced), 0, 0);
    if (!s->block) out->dtype = width == 1 ? ESP_I8 : width == 2 ? ESP_I16 : ESP_I32;
    return st;
}

/* ---- blocks: decode --------------------------------------------------------------------------------------------------- */
static int int8_valid_blocks(const void *self, const esp_payload_header *h, const unsigned char *body) {
    return h->aux == 0 && quant_units_ok(body, quant_units(h->count, ((const int8_self *)self)->block));
}
static void int8_add_blocks(const void *self, const esp_payload_header *h, const unsigned char *body, float *out,
                            uint64_t at, uint64_t n, float scale, int set) {
    const int8_self *s = (const int8_self *)self;
    const dense_f32 *units = (const dense_f32 *)(const void *)body + at / s->block;
    const int8_t *levels = (const int8_t *)body + quant_units(h->count, s->block) * sizeof(float) + at;
    for (uint64_t i = 0; i < n; i += s->block)
        s->add8(out + i, levels + i, units[i / s->block] * scale, set, n - i < s->block ? n - i : s->block);
}
static const dense_format int8_blocks_format = {"int8", INT8_WIRE, 0, int8_valid_blocks, int8_add_blocks};

/* ---- compress: blocks -------------------------------------------------------------------------------------------------- */
static esp_payload_header int8_header(const esp_codec_args *a, uint64_t body, uint32_t aux) {
    return esp_payload_header_of(esp_name_hash("int8"), INT8_WIRE, 0, a->tensor[0]->count, body, aux);
}

static esp_status int8_write_blocks(const int8_self *s, const esp_codec_args *a) {
    const uint64_t n = a->tensor[0]->count;
    esp_payload_header h = int8_header(a, int8_body(s, n, 1), 0);
    const esp_status st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK) return st;
    unsigned char *body = (unsigned char *)esp_payload_body(a->payload);
    quant_job j = {.self = &s->dense,
                   .args = a,
                   .top = s->top,
                   .encode = s->encode,
                   .block = s->block,
                   .most = INT8_MOST,
                   .units = (dense_f32 *)(void *)body,
                   .levels = (int8_t *)(body + quant_units(n, s->block) * sizeof(float))};
    if (quant_blocks(&j)) return ESP_OK;
    h.flags = ESP_PAYLOAD_NONFINITE;
    h.body_bytes = 0;
    return esp_payload_begin(a->payload, &h);
}

/* ---- compress: a shared range ------------------------------------------------------------------------------------------ */
/* One round of a compress. */
typedef struct int8_job {
    const int8_self *self;
    const esp_codec_args *args;
    unsigned char *levels;
    uint64_t width;
    uint32_t top;
} int8_job;

static void int8_top_piece(void *arg, uint64_t begin, uint64_t end) {
    int8_job *j = (int8_job *)arg;
    const esp_codec_args *a = j->args;
    const float *e = esp_residual_of(a, 0);
    const uint32_t top =
        (uint32_t)j->self->top(dense_in(a) + begin, e ? e + begin : NULL, a->beta, a->gamma, end - begin);
    uint32_t old = __atomic_load_n(&j->top, __ATOMIC_RELAXED);
    while (old < top && !__atomic_compare_exchange_n(&j->top, &old, top, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

static esp_status int8_round0(const int8_self *s, const esp_codec_args *a) {
    const uint64_t n = a->tensor[0]->count;
    int8_job j = {s, a, NULL, 0, 0};
    esp_payload_header h = int8_header(a, n ? sizeof(float) : 0, 0);
    esp_status st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK || !n) return st;
    dense_run(&s->dense, n, int8_top_piece, &j);
    if (j.top >= 0x7F800000u) {
        j.top = 0x7FC00000u; /* one NaN for all of them */
        h.flags = ESP_PAYLOAD_NONFINITE;
    } else {
        h.aux = j.top;
    }
    memcpy(esp_payload_body(a->payload), &j.top, sizeof j.top);
    return esp_payload_begin(a->payload, &h);
}

/* Reads the bits of the largest |phi| of all ranks. *nan: it is not finite on some rank. */
static esp_status int8_shared(const esp_codec_args *a, uint32_t *top, int *nan) {
    esp_payload_header h;
    *top = 0;
    *nan = 0;
    if (!a->tensor[0]->count) return ESP_OK;
    if (!a->reduced || esp_payload_read(a->reduced, esp_name_hash("int8"), INT8_WIRE, a->tensor[0]->count, &h) ||
        h.body_bytes != sizeof *top)
        return ESP_E_CORRUPT;
    memcpy(top, esp_payload_body(a->reduced), sizeof *top);
    *nan = (h.flags & ESP_PAYLOAD_NONFINITE) || *top >= 0x7F800000u;
    return ESP_OK;
}

static void int8_shared_piece(void *arg, uint64_t begin, uint64_t end) {
    const int8_job *j = (const int8_job *)arg;
    const esp_codec_args *a = j->args;
    const quant_range r = quant_range_of(j->top, INT8_MOST);
    float *e = esp_residual_of(a, 0);
    int8_t tmp[DENSE_BLOCK];
    for (uint64_t at = begin; at < end; at += DENSE_BLOCK) {
        const uint64_t n = end - at < DENSE_BLOCK ? end - at : DENSE_BLOCK;
        int8_t *to = j->width == 1 ? (int8_t *)(j->levels + at) : tmp;
        j->self->encode(to, e ? e + at : NULL, dense_in(a) + at, a->beta, a->gamma, r, n);
        if (j->width > 1) j->self->widen(j->levels + at * j->width, tmp, j->width, n);
    }
}

/* No pass that looks for NaN and Inf comes first: the range of round 0 tells. */
static esp_status int8_round1(const int8_self *s, const esp_codec_args *a) {
    const uint64_t n = a->tensor[0]->count;
    int nan;
    int8_job j = {s, a, (unsigned char *)esp_payload_body(a->payload), int8_width(a->n_reduced), 0};
    esp_status st = int8_shared(a, &j.top, &nan);
    if (st != ESP_OK) return st;
    esp_payload_header h = int8_header(a, n * j.width, nan ? 0 : j.top);
    if (nan) h.flags = ESP_PAYLOAD_NONFINITE;
    st = esp_payload_begin(a->payload, &h);
    if (st != ESP_OK) return st;
    if (nan)
        memset(j.levels, 0, n * j.width);
    else
        dense_run(&s->dense, n, int8_shared_piece, &j);
    return ESP_OK;
}

static esp_status int8_compress(void *self, const esp_codec_args *a) {
    const int8_self *s = (const int8_self *)self;
    return s->block ? int8_write_blocks(s, a) : a->round ? int8_round1(s, a) : int8_round0(s, a);
}

/* ---- decompress ---------------------------------------------------------------------------------------------------------- */
static void int8_add_shared(const void *self, const esp_payload_header *h, const unsigned char *body, float *out,
                            uint64_t at, uint64_t n, float scale, int set) {
    const int8_self *s = (const int8_self *)self;
    const uint64_t width = h->body_bytes / h->count;
    const float unit = quant_range_of((uint32_t)h->aux, INT8_MOST).unit * scale;
    const unsigned char *in = body + at * width;
    if (width == 1)
        s->add8(out, (const int8_t *)in, unit, set, n);
    else if (width == 2)
        s->add16(out, (const quant_i16 *)(const void *)in, unit, set, n);
    else
        s->add32(out, (const quant_i32 *)(const void *)in, unit, set, n);
}
static const dense_format int8_shared_format = {"int8", INT8_WIRE, 1, NULL, int8_add_shared};

/* Every payload must have been made with the range that this rank knows. */
static esp_status int8_check_range(const esp_codec_args *a, uint32_t top, int nan) {
    for (uint32_t p = 0; p < a->n_payloads; p++) {
        esp_payload_header h;
        memset(&h, 0, sizeof h);
        if (esp_payload_read(&a->payload[p], esp_name_hash("int8"), INT8_WIRE, a->tensor[0]->count, &h) ||
            (!h.flags && (nan || h.aux != top)))
            return ESP_E_CORRUPT;
    }
    return ESP_OK;
}

static esp_status int8_decompress(void *self, const esp_codec_args *a) {
    const int8_self *s = (const int8_self *)self;
    const uint64_t body = int8_body(s, a->tensor[0]->count, a->n_reduced);
    uint32_t top;
    int nan;
    if (s->block) return dense_decompress(&s->dense, &int8_blocks_format, a, body);
    esp_status st = int8_shared(a, &top, &nan);
    if (st == ESP_OK) st = int8_check_range(a, top, nan);
    return st == ESP_OK ? dense_decompress(&s->dense, &int8_shared_format, a, body) : st;
}

/* ---- model ----------------------------------------------------------------------------------------------------------------- */
static esp_status int8_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                             esp_codec_model *out) {
    const int8_self *s = (const int8_self *)self;
    const double part = 1 << 20, block = s->block ? (double)s->block : part; /* a part's size is not known here */
    esp_facts f = {
        .flags = ESP_MODEL_LOSSY,
        .size = {0, 0, s->block ? 1 + 4 / block : 1, 0, 0},
        .error = quant_error(block, (double)INT8_MOST),
        .begin_ns = {1000, 1000},
        .ns = {esp_model_stream(21), esp_model_stream(9)},
        .launches = {2, s->block ? 2.0 : 1.0},
        .bytes = {21, 9},
    };
    esp_codec_model m;
    (void)like;
    memset(&m, 0, sizeof m);
    m.struct_size = sizeof m;
    const esp_status st = esp_model_fill(&m, &f, d);
    if (!s->block) {
        const esp_payload_size range = {ESP_PAYLOAD_HEADER + sizeof(float), 0, 0, 0, 0};
        const esp_payload_size levels = {ESP_PAYLOAD_HEADER, 0, (double)int8_width(n_reduced), 0, 0};
        m.reduced[0] = range;
        m.reduced[1] = levels;
    }
    m.struct_size = out->struct_size;
    memcpy(out, &m, out->struct_size < sizeof m ? out->struct_size : sizeof m);
    return st;
}

static const esp_codec int8_codec = {
    .struct_size = sizeof(esp_codec),
    .wire_version = INT8_WIRE,
    .caps = ESP_CODEC_REDUCIBLE | ESP_CODEC_DETERMINISTIC | ESP_CODEC_FUSED_RESIDUAL,
    .dtypes = ESP_BIT(ESP_F32),
    .devices = ESP_BIT(ESP_CPU),
    .name = "int8",
    .summary =
        "levels from -127 to 127, with a unit for each block, or one that ranks share and levels that are summed",
    .params = int8_params,
    .default_option = "intra.reduce_scatter > comp@cpu > inter.allreduce > decomp@cpu > intra.allgather",
    .n_rounds = 2,
    .rounds = int8_rounds,
    .open = int8_open,
    .close = int8_close,
    .bound = int8_bound,
    .compress = int8_compress,
    .decompress = int8_decompress,
    .traits = int8_traits,
    .model = int8_model,
};

ESP_PLUGIN_CODEC(int8, &int8_codec)
