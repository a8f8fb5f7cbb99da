/* part.c: makes input and buffers for checks of a codec, and calls it as the executor does. A protected page follows
 * each buffer, so that access after its end crashes. Must not know any codec. */
#include "tools/check/check.h"
#include <errno.h>
#include <math.h>
#include <sys/mman.h>

/* Allocates a buffer. A protected page follows, as closely as `align` allows. */
ESP__FN check_fenced check_fence(uint64_t bytes, uint64_t align) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (size_t)((bytes + align - 1) / align * align);
    check_fenced f;
    f.mapped = (room + page - 1) / page * page + page;
    f.map = mmap(NULL, f.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (f.map == MAP_FAILED || mprotect(f.map + f.mapped - page, page, PROT_NONE))
        check_fail("no memory for the check: %s", strerror(errno));
    f.data = f.map + f.mapped - page - room;
    return f;
}
ESP__FN void check_unfence(check_fenced *f) { munmap(f->map, f->mapped); }

/* ---- inputs ------------------------------------------------------------------------------------------------------ */
__thread uint64_t check_seed = 1;
ESP__FN uint32_t check_random(void) {
    check_seed = check_seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(check_seed >> 32);
}
/* Returns a random number of a roughly normal distribution with mean 0 and standard deviation 0.6. */
ESP__FN float check_normal(void) {
    double s = 0;
    for (int i = 0; i < 4; i++) s += (double)check_random() / 4294967296.0 - 0.5;
    return (float)s;
}
const char *const check_inputs[IN_KINDS] = {"normal",           "zero",         "-0",    "denormal",
                                            "all equal",        "all negative", "spike", "up to 1e30",
                                            "of all exponents", "few values",   "NaN",   "Inf"};
ESP__FN void check_fill(float *x, uint64_t n, int kind) {
    for (uint64_t i = 0; i < n; i++) {
        const float z = check_normal();
        x[i] = kind == IN_ZERO || kind == IN_SPIKE ? 0.0f
               : kind == IN_MINUS_ZERO             ? -0.0f
               : kind == IN_DENORMAL               ? ldexpf(z, -140)
               : kind == IN_EQUAL                  ? 0.375f
               : kind == IN_NEGATIVE               ? -fabsf(z) - 1e-3f
               : kind == IN_LARGE                  ? z * 1e30f
               : kind == IN_WIDE                   ? ldexpf(z, (int)(check_random() % 120) - 90)
               : kind == IN_FEW                    ? 0.25f * (float)((int)(check_random() % 7) - 3)
                                                   : z;
    }
    if (!n) return;
    if (kind == IN_SPIKE) x[n / 2] = 1e6f;
    if (kind == IN_NAN) x[n - 1] = NAN;
    if (kind == IN_INF) x[n / 3] = -INFINITY;
}

/* ---- calls of a codec ------------------------------------------------------------------------------------------ */
ESP__FN uint32_t check_last(const check_part *p) { return p->codec->traits.n_rounds - 1; }
ESP__FN uint8_t *check_payload(check_part *p) { return p->payload[check_last(p)].data; }
ESP__FN uint64_t check_used(const check_part *p) { return p->used[check_last(p)]; }

ESP__FN esp_status check_bound(const esp__codec *c, uint64_t count, uint64_t rows, uint64_t cols, uint32_t round,
                               uint32_t n_reduced, esp_bound *b) {
    esp_tensor like;
    memset(&like, 0, sizeof like);
    memset(b, 0, sizeof *b);
    like.struct_size = sizeof like, like.dtype = ESP_F32, like.key = 7;
    like.count = count, like.rows = rows, like.cols = cols;
    b->struct_size = sizeof *b;
    return c->table->bound(c->self, &like, round, n_reduced, b);
}

/* Returns whether the codec uses error feedback, which the parameter feedback=none turns off. */
ESP__FN bool check_feedback(const esp__codec *c) { return !strstr(c->spec, "feedback=none"); }

/* Allocates the buffers for `count` elements. They form a matrix of `rows` rows or, if `rows` is 0, a vector. */
ESP__FN check_part check_part_make(const esp__codec *c, uint64_t count, uint64_t rows, uint32_t n_reduced) {
    uint64_t scratch = 0;
    check_part p;
    memset(&p, 0, sizeof p);
    p.codec = c, p.count = count, p.rows = rows, p.cols = rows ? count / rows : 0;
    p.n_reduced = n_reduced;
    p.feedback = check_feedback(c);
    p.seed = 42;
    p.beta = p.gamma = 1.0f;
    for (uint32_t r = 0; r < c->traits.n_rounds; r++) {
        const uint32_t n = r + 1 < c->traits.n_rounds ? (n_reduced > 1 ? n_reduced : 2) : n_reduced;
        if (check_bound(c, p.count, p.rows, p.cols, r, n, &p.bound[r]) != ESP_OK)
            check_fail("bound() failed for %llu elements in round %u", (unsigned long long)count, (unsigned)r);
        if (!p.bound[r].payload_bytes && r == p.first && r + 1 < c->traits.n_rounds) p.first++;
        if (p.bound[r].payload_bytes < ESP_PAYLOAD_HEADER && r >= p.first)
            check_fail(
                "bound() gives %llu payload bytes for %llu elements: a payload has at least its header, %u bytes",
                (unsigned long long)p.bound[r].payload_bytes, (unsigned long long)count, ESP_PAYLOAD_HEADER);
        p.payload[r] = check_fence(p.bound[r].payload_bytes, 1);
        if (p.bound[r].state_bytes && !(c->traits.caps & ESP_CODEC_HAS_STATE))
            check_fail("bound() asks for state in round %u, but caps lack ESP_CODEC_HAS_STATE", (unsigned)r);
        if (p.bound[r].scratch_bytes > scratch) scratch = p.bound[r].scratch_bytes;
    }
    p.bound[0].scratch_bytes = scratch;
    p.scratch = check_fence(scratch, 64);
    p.state = check_fence(p.bound[0].state_bytes, 64);
    p.in = check_fence(count * 4, 4);
    p.out = check_fence(count * 4, 4);
    p.residual = check_fence(count * 4, 4);
    p.phi = check_fence(count * 8, 4);
    p.g = (float *)(void *)p.in.data, p.o = (float *)(void *)p.out.data, p.e = (float *)(void *)p.residual.data;
    return p;
}
ESP__FN void check_part_free(check_part *p) {
    check_fenced *const all[] = {&p->scratch, &p->state, &p->in, &p->out, &p->residual, &p->phi};
    for (uint32_t r = 0; r <= check_last(p); r++) check_unfence(&p->payload[r]);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) check_unfence(all[i]);
}

ESP__FN void check_call(check_part *p, const float *data, esp__codec_call *c) {
    esp__call_begin(c, p->codec, esp__host_stream(), data, p->count);
    c->part.key = 7, c->part.rows = p->rows, c->part.cols = p->cols;
    c->args.step = p->step;
    c->args.seed = p->seed;
    c->args.beta = p->beta, c->args.gamma = p->gamma;
    /* no codec may rely on what its scratch memory contains */
    memset(p->scratch.data, 0xC3, (size_t)p->bound[0].scratch_bytes);
    esp__call_scratch(c, p->scratch.data, p->bound[0].scratch_bytes);
    esp__call_state(c, p->state.data, p->bound[0].state_bytes);
}

/* Compresses and writes the payload to `data`. `round` is 0, unless the codec compresses several times in a step. */
ESP__FN esp_status check_round(check_part *p, uint32_t round, void *data, uint64_t capacity) {
    esp__codec_call c;
    check_call(p, p->g, &c);
    c.args.round = round;
    c.args.n_reduced = round < check_last(p) ? (p->n_reduced > 1 ? p->n_reduced : 2) : p->n_reduced;
    esp__call_payload(&c, data, capacity, &p->used[round]);
    if (round > p->first) esp__call_reduced(&c, p->payload[round - 1].data, p->used[round - 1]);
    if (p->feedback) esp__call_residual(&c, p->e);
    return esp__call_compress(&c, (float *)(void *)p->phi.data, (float *)(void *)p->phi.data + p->count);
}

/* Does all compressions of a step for a single rank, whose payload is then also the sum over all ranks. */
ESP__FN esp_status check_compress(check_part *p) {
    esp_status s = ESP_OK;
    for (uint32_t r = p->first; r <= check_last(p) && !s; r++) {
        memset(p->payload[r].data, 0xA5, (size_t)p->bound[r].payload_bytes);
        s = check_round(p, r, p->payload[r].data, p->bound[r].payload_bytes);
    }
    return s;
}

ESP__FN esp_status check_decompress(check_part *p, esp_payload *payloads, uint32_t n, uint32_t mode, float scale) {
    esp__codec_call c;
    check_call(p, p->o, &c);
    c.args.mode = mode;
    c.args.scale = scale;
    c.args.n_payloads = n;
    c.args.payload = payloads;
    c.args.n_reduced = p->n_reduced;
    if (check_last(p) > p->first) esp__call_reduced(&c, p->payload[check_last(p) - 1].data, p->used[check_last(p) - 1]);
    return esp__call_decompress(&c);
}
ESP__FN esp_status check_decode(check_part *p, const void *data, uint64_t bytes) {
    esp_payload one;
    memset(&one, 0, sizeof one);
    memcpy(&one.data.ptr, &data, sizeof data);
    one.data.bytes = bytes;
    return check_decompress(p, &one, 1, ESP_OUT_SET, 1.0f);
}
