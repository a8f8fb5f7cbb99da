/* decode.h has the fuzz target that decodes arbitrary bytes with every built-in codec. Decoders must return ESP_OK
 * or ESP_E_CORRUPT, access no memory outside the payload and the output, write nothing after an error, and give the
 * same bits with all SIMD instruction sets. Include tests/lib/library.h first. */
#ifndef ESPRESSO_TESTS_FUZZ_DECODE_H
#define ESPRESSO_TESTS_FUZZ_DECODE_H
#include "tests/lib/specs.h"
#include "check.h"
#include "espresso_impl/executor/executor.h"
#include "codecs/common/simd.h"
#include "guard.h"

/* Every built-in codec, with the parameters that change the format of its payloads. */
static const char *const decode_specs[] = {"none",
                                           "fp16",
                                           "bf16",
                                           "efsignsgd",
                                           "twobit",
                                           "twobit:threshold=0.1,relative=1",
                                           "int8",
                                           "int8:block=32",
                                           "int8:shared=1",
                                           "int4",
                                           "int4:block=1024",
                                           "topk:ratio=0.01",
                                           "topk:ratio=0.5",
                                           "chunktopk",
                                           "chunktopk:chunk=64,k=5",
                                           "randomk:ratio=0.1",
                                           "randomk:ratio=1,unbiased=1,feedback=none",
                                           "dgc:ratio=0.01",
                                           "dgc:ratio=0.1,warmup=100",
                                           "powersgd",
                                           "powersgd:rank=3,start=cold",
                                           "fp16:of=(topk:ratio=0.02)",
                                           "bf16:of=(randomk:ratio=0.3)",
                                           "bf16:of=(dgc:ratio=0.05)",
                                           "warmup:steps=2,of=(topk:ratio=0.1)",
                                           "warmup:steps=2,of=(int4)",
                                           "warmup:steps=2,of=(fp16:of=(topk:ratio=0.1))",
                                           CODEC_SPECS,
                                           "maxmin:bits=7"};
enum { DECODE_SPECS = sizeof decode_specs / sizeof *decode_specs, DECODE_LEVELS = 3, DECODE_COUNTS = 16 };
static const uint32_t decode_counts[DECODE_COUNTS] = {0,   1,   2,    31,   32,   33,   64,    65,
                                                      200, 255, 1000, 1025, 2048, 4097, 65536, 66000};
enum { DECODE_N_REDUCED = 3, DECODE_PARTS = 2 };
static const uint32_t decode_n_reduced[DECODE_N_REDUCED] = {1, 2, 300};

static esp_ctx *decode_ctx;
static esp__codec *decode_codec[DECODE_LEVELS][DECODE_SPECS];
static int decode_levels;

/* Opens all codecs at all SIMD levels, and checks that decode_specs has every built-in codec. */
static inline void decode_open(void) {
    static const char *const levels[DECODE_LEVELS] = {"scalar", "avx2", "avx512"};
    if (decode_ctx) return;
    fuzz_check(esp__open_alone(&decode_ctx) == ESP_OK, "a context cannot be opened");
    decode_levels = 1 + esp_simd_best();
    for (int level = 0; level < decode_levels; level++) {
        setenv("ESPRESSO_SIMD", levels[level], 1);
        for (int i = 0; i < DECODE_SPECS; i++)
            fuzz_check(esp__codec_make(decode_ctx, decode_specs[i], NULL, &decode_codec[level][i]) == ESP_OK,
                       decode_specs[i]);
    }
    unsetenv("ESPRESSO_SIMD");
    for (uint32_t c = 0; c < decode_ctx->registry.codecs.n; c++) {
        int there = 0;
        for (int i = 0; i < DECODE_SPECS; i++)
            there |= decode_codec[0][i]->table == decode_ctx->registry.codecs.at[c].codec;
        fuzz_check(there, decode_ctx->registry.codecs.at[c].codec->name);
    }
}

static inline void decode_close(void) {
    for (int level = 0; level < decode_levels; level++)
        for (int i = 0; i < DECODE_SPECS; i++) esp__codec_free(decode_ctx, decode_codec[level][i]);
    esp_close(decode_ctx);
    decode_ctx = NULL;
}

/* ---- what a fuzz input selects: codec, sizes, and how its bytes become a payload --------------------------------- */
enum { DECODE_PATCH, DECODE_BODY, DECODE_BYTES, DECODE_KINDS };
enum { DECODE_DECOMPRESS, DECODE_LAST_ROUND, DECODE_HANDLE, DECODE_OPS };
enum {
    DECODE_SUM = 1,
    DECODE_FEEDBACK = 2,
    DECODE_HIT_REDUCED = 4,
    DECODE_TWO = 8,
    DECODE_STATE = 16,
    DECODE_LIST = 32
};

typedef struct decode_case {
    int codec, kind, op;
    uint32_t flags, n_reduced;
    uint32_t misaligned; /* address of the payload modulo 64 */
    uint64_t count, rows, cols, step;
    const uint8_t *data;
    size_t bytes;
} decode_case;

enum { DECODE_HEAD = 7 };
static inline int decode_case_of(const uint8_t *data, size_t size, decode_case *c) {
    if (size < DECODE_HEAD) return 0;
    memset(c, 0, sizeof *c);
    c->codec = data[0] % DECODE_SPECS;
    c->count = data[1] & 128 ? data[1] & 127u : decode_counts[data[1] % DECODE_COUNTS];
    c->rows = data[2] % 32;
    c->flags = data[3];
    c->kind = data[4] % DECODE_KINDS;
    c->op = data[4] / DECODE_KINDS % DECODE_OPS;
    c->n_reduced = decode_n_reduced[data[5] % DECODE_N_REDUCED];
    c->step = data[5] / DECODE_N_REDUCED % 4;
    c->misaligned = data[6] % 64;
    c->data = data + DECODE_HEAD;
    c->bytes = size - DECODE_HEAD;
    const uint64_t caps = decode_codec[0][c->codec]->traits.caps;
    if (c->rows && c->count >= c->rows && caps & ESP_CODEC_NEEDS_MATRIX) {
        c->cols = c->count / c->rows;
        c->count = c->rows * c->cols;
    } else {
        c->rows = 0;
    }
    if (!(caps & ESP_CODEC_REDUCIBLE)) c->n_reduced = 1;
    if (c->op == DECODE_LAST_ROUND && decode_codec[0][c->codec]->traits.n_rounds < 2) c->op = DECODE_DECOMPRESS;
    if (c->op == DECODE_HANDLE) c->n_reduced = 1, c->step = 0;
    if (c->op == DECODE_LAST_ROUND) c->flags |= DECODE_HIT_REDUCED;
    return 1;
}

/* ---- the valid payloads that an input changes ---- */
typedef struct decode_sizes {
    uint32_t first, last;
    esp_bound bound[ESP_ROUNDS_MAX];
    uint64_t scratch;
} decode_sizes;

static inline uint32_t decode_reduced_over(const decode_case *c, const decode_sizes *z, uint32_t round) {
    return round < z->last ? (c->n_reduced > 1 ? c->n_reduced : 2) : c->n_reduced;
}

static inline decode_sizes decode_sizes_of(const decode_case *c) {
    const esp__codec *codec = decode_codec[0][c->codec];
    const esp_tensor like = esp__codec_like(c->count, c->rows, c->cols);
    decode_sizes z;
    memset(&z, 0, sizeof z);
    z.last = codec->traits.n_rounds - 1;
    for (uint32_t r = 0; r <= z.last; r++) {
        fuzz_check(esp__codec_bound_of(decode_ctx, codec, &like, r, decode_reduced_over(c, &z, r), &z.bound[r]) ==
                       ESP_OK,
                   "bound failed");
        if (!z.bound[r].payload_bytes && r == z.first && r < z.last) z.first++;
        if (z.bound[r].scratch_bytes > z.scratch) z.scratch = z.bound[r].scratch_bytes;
    }
    return z;
}

static inline float decode_number(uint64_t i) {
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9ull;
    return (float)((int32_t)(x >> 32) >> 8) * 0x1p-23f;
}
static inline const float *decode_numbers(void) {
    static float numbers[66000];
    if (numbers[1] == 0)
        for (uint64_t i = 0; i < sizeof numbers / sizeof *numbers; i++) numbers[i] = decode_number(i);
    return numbers;
}

/* The memory that a call reads has its exact size, so that the address sanitizer reports a read beyond. What it writes
 * lies between guard zones. */
typedef struct decode_room {
    guarded out, residual, payload;
    uint8_t *scratch, *state;
} decode_room;

static inline void decode_begin(const decode_case *c, const decode_sizes *z, const esp__codec *codec, const float *data,
                                decode_room *m, esp__codec_call *call) {
    esp__call_begin(call, codec, esp__host_stream(), data, c->count);
    call->part.key = 7;
    call->part.rows = c->rows, call->part.cols = c->cols;
    call->args.step = c->step;
    call->args.seed = 42;
    esp__call_scratch(call, m->scratch, z->scratch);
    esp__call_state(call, m->state, z->bound[0].state_bytes);
}

static inline uint8_t *decode_bytes(uint64_t n) {
    uint8_t *p = calloc(1, n ? n : 1);
    fuzz_check(p != NULL, "no memory");
    return p;
}

typedef struct decode_payload {
    uint8_t *data;
    uint64_t bytes;
} decode_payload;

/* Makes valid payloads by compressing decode_numbers(): one for each of the codec's compressions of a step. */
static inline void decode_real(const decode_case *c, const decode_sizes *z, decode_payload p[ESP_ROUNDS_MAX]) {
    const esp__codec *codec = decode_codec[0][c->codec];
    decode_room m;
    memset(&m, 0, sizeof m);
    m.scratch = decode_bytes(z->scratch);
    m.state = decode_bytes(z->bound[0].state_bytes);
    for (uint32_t r = z->first; r <= z->last; r++) {
        esp__codec_call call;
        uint64_t used = 0;
        p[r].data = decode_bytes(z->bound[r].payload_bytes);
        decode_begin(c, z, codec, decode_numbers(), &m, &call);
        call.args.round = r;
        call.args.n_reduced = decode_reduced_over(c, z, r);
        esp__call_payload(&call, p[r].data, z->bound[r].payload_bytes, &used);
        if (r > z->first) esp__call_reduced(&call, p[r - 1].data, p[r - 1].bytes);
        fuzz_check(esp__call_compress(&call, NULL, NULL) == ESP_OK, "compress failed");
        p[r].bytes = used;
    }
    free(m.scratch);
    free(m.state);
}

/* Makes the payload under test from the input and a valid payload. */
static inline guarded decode_hostile(const decode_case *c, const decode_payload *real) {
    uint64_t n = c->kind == DECODE_BYTES ? c->bytes : real->bytes;
    const uint8_t *in = c->data;
    guarded g = guard_new(n, c->misaligned);
    if (c->kind == DECODE_BYTES) {
        if (n) memcpy(g.data, in, (size_t)n);
    } else if (c->kind == DECODE_BODY) { /* content of the right size, by repeating the input */
        memcpy(g.data, real->data, ESP_PAYLOAD_HEADER);
        for (uint64_t i = ESP_PAYLOAD_HEADER; i < n && c->bytes; i++)
            g.data[i] = in[(i - ESP_PAYLOAD_HEADER) % c->bytes];
    } else {
        /* Each change has three bytes that say where, and the new byte. Half of the changes hit the header. */
        memcpy(g.data, real->data, (size_t)n);
        for (size_t i = 0; i + 4 <= c->bytes; i += 4) {
            const uint64_t at = (uint64_t)in[i + 1] | (uint64_t)in[i + 2] << 8 | (uint64_t)(in[i] >> 1) << 16;
            if (in[i] & 1)
                g.data[at % ESP_PAYLOAD_HEADER] = in[i + 3];
            else
                g.data[at % n] = in[i + 3];
        }
    }
    return g;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */
typedef struct decode_result {
    esp_status status;
    uint64_t used;
    guarded out;
} decode_result;

enum { DECODE_FILL = 0x4d };

static inline esp_status decode_call(const decode_case *c, const decode_sizes *z, int level, const guarded *bad,
                                     const decode_payload *real, decode_room *m, uint64_t *used) {
    const esp__codec *codec = decode_codec[level][c->codec];
    const int lists = (codec->traits.caps & ESP_CODEC_LISTS) != 0 && c->flags & DECODE_LIST;
    const decode_payload hit = {bad->data, bad->bytes};
    const decode_payload *last = c->flags & DECODE_HIT_REDUCED && z->first < z->last ? &real[z->last] : &hit;
    esp__codec_call call;
    decode_begin(c, z, codec, c->op == DECODE_DECOMPRESS ? (float *)(void *)m->out.data : decode_numbers(), m, &call);
    if (!(c->flags & DECODE_STATE) && c->op == DECODE_DECOMPRESS) call.args.state = NULL;
    call.args.n_reduced = c->n_reduced;
    if (z->first < z->last) {
        const decode_payload *before = last == &hit ? &real[z->last - 1] : &hit;
        esp__call_reduced(&call, before->data, before->bytes);
    }
    if (c->op != DECODE_DECOMPRESS) {
        call.args.round = z->last;
        if (c->flags & DECODE_FEEDBACK) esp__call_residual(&call, (float *)(void *)m->residual.data);
        esp__call_payload(&call, m->payload.data, m->payload.bytes, used);
        return esp__call_compress(&call, NULL, NULL);
    }
    esp_payload all[3];
    memset(all, 0, sizeof all);
    call.args.mode = c->flags & DECODE_SUM ? ESP_OUT_SUM : ESP_OUT_SET;
    call.args.scale = 0.5f;
    call.args.n_payloads = c->flags & DECODE_TWO ? 2 : 1;
    for (uint32_t p = 0; p < 2; p++) {
        const decode_payload *x = p + 1 == call.args.n_payloads ? last : &real[z->last];
        all[p].data.ptr = x->data, all[p].data.bytes = x->bytes;
    }
    call.args.payload = all;
    if (!lists) return esp__call_decompress(&call);
    /* The call has two tensors, the first with valid payloads, the second with the payload under test. */
    esp_tensor parts[DECODE_PARTS], *list[DECODE_PARTS] = {&parts[0], &parts[1]};
    const uint64_t offset[DECODE_PARTS] = {0, c->count};
    esp_payload both[2 * DECODE_PARTS], reduced[DECODE_PARTS];
    guarded first = guard_new(c->count * 4, 0);
    esp_buf state[DECODE_PARTS], scratch = {NULL, DECODE_PARTS * ((z->scratch + 63) / 64 * 64), {ESP_CPU, 0}};
    uint8_t *room = aligned_alloc(64, scratch.bytes + 64), *other = decode_bytes(z->bound[0].state_bytes);
    memset(both, 0, sizeof both);
    memset(state, 0, sizeof state);
    parts[0] = parts[1] = call.part;
    parts[0].data.ptr = first.data;
    state[0] = state[1] = call.state;
    state[0].ptr = other;
    if (call.args.reduced) {
        reduced[1] = *call.args.reduced;
        reduced[0] = reduced[1];
        reduced[0].data.ptr = real[z->last - 1].data, reduced[0].data.bytes = real[z->last - 1].bytes;
        call.args.reduced = reduced;
    }
    for (uint32_t p = 0; p < call.args.n_payloads; p++) {
        both[p].data.ptr = real[z->last].data, both[p].data.bytes = real[z->last].bytes;
        both[call.args.n_payloads + p] = all[p];
    }
    scratch.ptr = room;
    call.args.n_tensors = DECODE_PARTS;
    call.args.tensor = list;
    call.args.offset = offset;
    call.args.payload = both;
    if (call.args.state) call.args.state = state;
    if (call.args.scratch) call.args.scratch = &scratch;
    const esp_status s = esp__call_decompress(&call);
    guard_free(&first, "the output of a list's first part");
    free(room);
    free(other);
    return s;
}

/* Calls esp_decompress with the payloads of all exchanges, one after the other. */
static inline esp_status decode_handle(const decode_case *c, const decode_sizes *z, int level, const guarded *bad,
                                       const decode_payload *real, decode_room *m) {
    static const char *const levels[DECODE_LEVELS] = {"scalar", "avx2", "avx512"};
    const char *spec = decode_specs[c->codec];
    esp_codec_handle *h = NULL;
    uint64_t at = 0, all = 0;
    setenv("ESPRESSO_SIMD", levels[level], 1);
    esp_status s = c->rows ? esp_codec_open_matrix(decode_ctx, spec, c->rows, c->cols, NULL, &h)
                           : esp_codec_open(decode_ctx, spec, c->count, NULL, &h);
    unsetenv("ESPRESSO_SIMD");
    fuzz_check(s == ESP_OK, "a codec handle cannot be opened");
    for (uint32_t r = z->first; r <= z->last; r++) all += (real[r].bytes + 31) / 32 * 32 + bad->bytes;
    uint8_t *room = decode_bytes(all);
    for (uint32_t r = z->first; r <= z->last && c->kind != DECODE_BYTES; r++) {
        const int hit = r == (c->flags & DECODE_HIT_REDUCED && z->first < z->last ? z->last - 1 : z->last);
        at = (at + 31) / 32 * 32;
        memcpy(room + at, hit ? bad->data : real[r].data, (size_t)(hit ? bad->bytes : real[r].bytes));
        at += hit ? bad->bytes : real[r].bytes;
    }
    if (c->kind == DECODE_BYTES && bad->bytes) memcpy(room, bad->data, (size_t)(at = bad->bytes));
    guarded in = guard_new(at, c->misaligned);
    memcpy(in.data, room, (size_t)at);
    s = esp_decompress(h, in.data, at, (float *)(void *)m->out.data, c->count,
                       c->flags & DECODE_SUM ? ESP_OUT_SUM : ESP_OUT_SET);
    fuzz_check(s == ESP_OK || *esp_last_error(decode_ctx), "an error without a text");
    guard_free(&in, "the payload that was decoded");
    free(room);
    esp_codec_close(h);
    return s;
}

static inline int decode_same(const guarded *g, uint8_t byte) {
    for (uint64_t i = 0; i < g->bytes; i++)
        if (g->data[i] != byte) return 0;
    return 1;
}

static inline decode_result decode_at(const decode_case *c, const decode_sizes *z, int level, const decode_payload *hit,
                                      const decode_payload *real) {
    const esp__codec *codec = decode_codec[level][c->codec];
    const uint64_t numbers = c->count * 4, payload = z->bound[z->last].payload_bytes;
    decode_result r;
    decode_room m;
    memset(&r, 0, sizeof r);
    guarded bad = decode_hostile(c, hit);
    uint8_t *before = decode_bytes(bad.bytes);
    if (bad.bytes) memcpy(before, bad.data, (size_t)bad.bytes);
    m.out = guard_new(numbers, 0);
    m.residual = guard_new(numbers, 0);
    m.payload = guard_new(payload, 0);
    memset(m.out.data, DECODE_FILL, (size_t)numbers);
    memset(m.residual.data, 0, (size_t)numbers);
    memset(m.payload.data, DECODE_FILL, (size_t)payload);
    m.scratch = aligned_alloc(64, (z->scratch + 127) / 64 * 64);
    memset(m.scratch, 0xC3, (size_t)z->scratch); /* codecs may not rely on its content */
    m.state = decode_bytes(z->bound[0].state_bytes);
    r.status = c->op == DECODE_HANDLE ? decode_handle(c, z, level, &bad, real, &m)
                                      : decode_call(c, z, level, &bad, real, &m, &r.used);
    fuzz_check(r.status == ESP_OK || r.status == ESP_E_CORRUPT, "neither ESP_OK nor ESP_E_CORRUPT");
    fuzz_check(!bad.bytes || !memcmp(before, bad.data, (size_t)bad.bytes), "the payload was changed");
    if (r.status != ESP_OK && !(codec->traits.caps & ESP_CODEC_WRAPPER && c->flags & DECODE_TWO))
        fuzz_check(decode_same(&m.out, DECODE_FILL), "refused, but the output was written");
    if (r.status != ESP_OK) fuzz_check(decode_same(&m.residual, 0), "refused, but the residual was written");
    if (r.status == ESP_OK && c->op != DECODE_DECOMPRESS && c->op != DECODE_HANDLE)
        fuzz_check(r.used >= ESP_PAYLOAD_HEADER && r.used <= payload, "a payload's size beyond its bound");
    if (r.status == ESP_OK)
        for (uint64_t i = 0; i + 4 <= z->bound[0].state_bytes && c->op == DECODE_DECOMPRESS; i += 4) {
            uint32_t word;
            memcpy(&word, m.state + i, sizeof word);
            fuzz_check((word & 0x7f800000u) != 0x7f800000u, "NaN or Inf went into the codec's state");
        }
    r.out = guard_new(numbers + r.used + (c->op == DECODE_DECOMPRESS ? z->bound[0].state_bytes : 0), 0);
    memcpy(r.out.data, c->op == DECODE_DECOMPRESS || c->op == DECODE_HANDLE ? m.out.data : m.residual.data,
           (size_t)numbers);
    if (r.status == ESP_OK && r.used) memcpy(r.out.data + numbers, m.payload.data, (size_t)r.used);
    if (c->op == DECODE_DECOMPRESS && z->bound[0].state_bytes)
        memcpy(r.out.data + numbers + r.used, m.state, (size_t)z->bound[0].state_bytes);
    guard_free(&bad, "the payload that was decoded");
    guard_free(&m.out, "the output");
    guard_free(&m.residual, "the residual");
    guard_free(&m.payload, "the payload that was written");
    free(m.scratch);
    free(m.state);
    free(before);
    return r;
}

/* Returns 1 if the payload was decoded, or 0 if it was refused or the input is too short. */
static inline int fuzz_decode(const uint8_t *data, size_t size) {
    decode_case c;
    decode_payload real[ESP_ROUNDS_MAX];
    decode_open();
    if (!decode_case_of(data, size, &c)) return 0;
    const decode_sizes z = decode_sizes_of(&c);
    if (z.first == z.last && c.op == DECODE_LAST_ROUND) return 0;
    memset(real, 0, sizeof real);
    decode_real(&c, &z, real);
    const int before = c.flags & DECODE_HIT_REDUCED && z.first < z.last;
    decode_result r[DECODE_LEVELS];
    for (int level = 0; level < decode_levels; level++)
        r[level] = decode_at(&c, &z, level, &real[before ? z.last - 1 : z.last], real);
    for (int level = 1; level < decode_levels; level++) {
        fuzz_check(r[level].status == r[0].status, "SIMD levels disagree on whether the payload is valid");
        if (c.op == DECODE_LAST_ROUND) continue;
        fuzz_check(r[level].out.bytes == r[0].out.bytes &&
                       !memcmp(r[level].out.data, r[0].out.data, (size_t)r[0].out.bytes),
                   "SIMD levels give different bits");
    }
    const int decoded = r[0].status == ESP_OK;
    for (int level = 0; level < decode_levels; level++) guard_free(&r[level].out, "a result");
    for (uint32_t k = 0; k < ESP_ROUNDS_MAX; k++) free(real[k].data);
    return decoded;
}
#endif
