/* codec.c: what every codec must do, for any codec that the registry can open. The rules are those of espresso.h, section 4. Each
 * message says what was expected, what came, and where to look. Knows no codec by name. */

static const uint64_t check_sizes[] = {0, 1, 7, 8, 9, 31, 32, 33, 4095, 4096, 4097, 100003};
enum { CHECK_SIZES = sizeof check_sizes / sizeof *check_sizes };
typedef unsigned long long check_u;

/* The rows of a part of this size: a codec of matrices also gets matrices, as near to square as the size allows. */
static uint64_t check_rows(const esp__codec *c, uint64_t count, int matrix) {
    uint64_t rows = 1;
    if (!matrix || !(c->traits.caps & ESP_CODEC_NEEDS_MATRIX) || !count) return 0;
    for (uint64_t r = 1; r * r <= count; r++)
        if (count % r == 0) rows = r;
    return count / rows;
}
static int check_shapes(const esp__codec *c) { return c->traits.caps & ESP_CODEC_NEEDS_MATRIX ? 2 : 1; }

static esp_payload_header check_header(check_part *p) {
    esp_payload_header h;
    memcpy(&h, check_payload(p), sizeof h);
    return h;
}

static void check_good_header(check_part *p, const char *kind) {
    const esp_payload_header h = check_header(p);
    const uint64_t used = check_used(p);
    if (h.count != p->count)
        check_fail("%s input, %llu elements: the header's count is %llu", kind, (check_u)p->count, (check_u)h.count);
    if (!h.wire_version) check_fail("the header's wire_version is 0: use the table's");
    if (used != ESP_PAYLOAD_HEADER + h.body_bytes)
        check_fail(
            "%s input, %llu elements: *used is %llu, but header and body have %llu bytes: call esp_payload_begin "
            "with the right body_bytes",
            kind, (check_u)p->count, (check_u)used, (check_u)(ESP_PAYLOAD_HEADER + h.body_bytes));
    if (used > p->bound[check_last(p)].payload_bytes)
        check_fail("%s input, %llu elements: %llu bytes written, bound() said %llu", kind, (check_u)p->count,
                   (check_u)used, (check_u)p->bound[check_last(p)].payload_bytes);
}

static void check_bad_input(check_part *p, const char *kind, const float *before) {
    const esp_payload_header h = check_header(p);
    if (!(h.flags & ESP_PAYLOAD_NONFINITE))
        check_fail("%s input, %llu elements: the header lacks ESP_PAYLOAD_NONFINITE: look for NaN and Inf before you "
                   "encode",
                   kind, (check_u)p->count);
    if (memcmp(p->e, before, (size_t)p->count * 4))
        check_fail("%s input, %llu elements: the residual changed: leave it as it was", kind, (check_u)p->count);
    if (check_decode(p, check_payload(p), check_used(p)) != ESP_OK)
        check_fail("%s input: the payload with ESP_PAYLOAD_NONFINITE was refused: decode it to NaN", kind);
    for (uint64_t i = 0; i < p->count; i++)
        if (!isnan(p->o[i]))
            check_fail("%s input: element %llu decodes to %g, not NaN", kind, (check_u)i, (double)p->o[i]);
}

/* decode + residual must be what went in: beta * residual + gamma * gradient. */
static void check_conserved(check_part *p, const char *kind, const float *before) {
    if (check_decode(p, check_payload(p), check_used(p)) != ESP_OK)
        check_fail("%s input, %llu elements: decompress refused the codec's own payload", kind, (check_u)p->count);
    for (uint64_t i = 0; i < p->count; i++) {
        const float a = p->beta * before[i], b = p->gamma * p->g[i];
        const double phi = (double)(a + b), back = (double)p->o[i] + (double)p->e[i];
        const double allowed = (fabs((double)p->e[i]) + fabs((double)p->o[i])) * (check_last(p) ? 1e-5 : 0x1p-22);
        if (!(fabs(back - phi) <= allowed))
            check_fail("%s input, %llu elements: element %llu: decoded %g + residual %g is %g, but %g went in: the "
                       "residual must be what the payload does not carry",
                       kind, (check_u)p->count, (check_u)i, (double)p->o[i], (double)p->e[i], back, phi);
    }
}

static void check_inputs_run(void *target) {
    const esp__codec *c = target;
    for (int shape = 0; shape < check_shapes(c); shape++)
        for (int z = 0; z < CHECK_SIZES; z++)
            for (int kind = 0; kind < IN_KINDS; kind++) {
                check_part p = check_part_make(c, check_sizes[z], check_rows(c, check_sizes[z], shape), 1);
                float *before = malloc((size_t)p.count * 4 + 4);
                p.beta = kind % 2 ? 0.5f : 1.0f;
                check_say("compressing %llu elements, %s", (check_u)p.count, check_inputs[kind]);
                check_fill(p.g, p.count, kind);
                check_fill(p.e, p.count, IN_NORMAL);
                memcpy(before, p.e, (size_t)p.count * 4);
                memset(p.o, 0xFF, (size_t)p.count * 4); /* NaN: SET must write everything */
                if (check_compress(&p) != ESP_OK)
                    check_fail("%s input, %llu elements: compress failed: %s", check_inputs[kind], (check_u)p.count,
                               *esp__plugin_detail() ? esp__plugin_detail() : "it gave no reason");
                check_good_header(&p, check_inputs[kind]);
                if (p.count && (kind == IN_NAN || kind == IN_INF))
                    check_bad_input(&p, check_inputs[kind], before);
                else
                    check_conserved(&p, check_inputs[kind], before);
                free(before);
                check_part_free(&p);
            }
}

static void check_bound_run(void *target) {
    const esp__codec *c = target;
    for (uint32_t r = 0; r < c->traits.n_rounds; r++) {
        esp_bound b;
        uint64_t last = 0;
        for (uint64_t n = 0; n < 1u << 20; n += 1 + n / 100, last = b.payload_bytes) {
            if (check_bound(c, n, 0, 0, r, 1, &b) != ESP_OK) check_fail("bound() failed for %llu elements", (check_u)n);
            if (b.payload_bytes < last)
                check_fail("bound() falls to %llu bytes at %llu elements: slots are sized by the largest part",
                           (check_u)b.payload_bytes, (check_u)n);
        }
        esp_tensor like = {sizeof like, ESP_F32, 7, 1000, {NULL, 0, {0, 0}}, 0, 0};
        memset(&b, 0x12, sizeof b); /* a caller whose struct ends before state_bytes */
        b.struct_size = offsetof(esp_bound, state_bytes);
        if (c->table->bound(c->self, &like, r, 1, &b) != ESP_OK)
            check_fail("bound() failed for an older caller's struct");
        if (b.state_bytes != 0x1212121212121212ull)
            check_fail("bound() wrote behind struct_size: fill members only up to the caller's struct_size");
    }
}

static void check_small_run(void *target) {
    const esp__codec *c = target;
    for (int z = 0; z < CHECK_SIZES; z++) {
        check_part p = check_part_make(c, check_sizes[z], check_rows(c, check_sizes[z], 1), 1);
        const uint32_t last = check_last(&p);
        check_fill(p.g, p.count, IN_NORMAL);
        if (check_compress(&p) != ESP_OK) check_fail("compress failed for %llu elements", (check_u)p.count);
        const uint64_t need = p.used[last], tries[] = {0, 1, ESP_PAYLOAD_HEADER - 1, need - 1};
        float *before = malloc((size_t)p.count * 4 + 4);
        memcpy(before, p.e, (size_t)p.count * 4);
        for (int t = 0; t < 4; t++) {
            check_fenced small = check_fence(tries[t], 1);
            memset(small.data, 0x5A, (size_t)tries[t]);
            check_say("compressing %llu elements into %llu bytes", (check_u)p.count, (check_u)tries[t]);
            if (check_round(&p, last, small.data, tries[t]) != ESP_E_TOO_SMALL)
                check_fail(
                    "%llu elements need %llu bytes; with a capacity of %llu compress must return ESP_E_TOO_SMALL",
                    (check_u)p.count, (check_u)need, (check_u)tries[t]);
            for (uint64_t i = 0; i < tries[t]; i++)
                if (small.data[i] != 0x5A)
                    check_fail("a capacity of %llu bytes is too small, but byte %llu was written: look at the capacity "
                               "first",
                               (check_u)tries[t], (check_u)i);
            if (memcmp(p.e, before, (size_t)p.count * 4))
                check_fail("compress returned ESP_E_TOO_SMALL, but changed the residual");
            check_unfence(&small);
        }
        p.used[last] = need;
        free(before);
        check_part_free(&p);
    }
}

/* Several payloads in one call, one of them empty, against one after the other. */
static void check_many_run(void *target) {
    enum { M = 4, N = 9001 };
    const esp__codec *c = target;
    check_part p = check_part_make(c, N, 0, 1);
    esp_payload all[M];
    float *expect = malloc(N * 4), *start = malloc(N * 4);
    if (check_last(&p) || esp__codec_round(c, 0).flags & ESP_ROUND_ALLREDUCE)
        check_skip("payloads of a codec of several rounds are reduced, not collected");
    p.feedback = 0;
    memset(all, 0, sizeof all);
    for (int m = 0; m < M; m++) {
        check_fill(p.g, N, IN_NORMAL);
        if (check_compress(&p) != ESP_OK) check_fail("compress failed");
        all[m].data.ptr = malloc((size_t)p.used[0]);
        all[m].data.bytes = p.used[0];
        memcpy(all[m].data.ptr, p.payload[0].data, (size_t)p.used[0]);
    }
    esp_payload_header h;
    memcpy(&h, all[2].data.ptr, sizeof h);
    h.flags = ESP_PAYLOAD_EMPTY, h.body_bytes = 0;
    memcpy(all[2].data.ptr, &h, sizeof h);
    if (check_decompress(&p, all, 1, ESP_OUT_SET, 1.0f) != ESP_OK) check_fail("a payload was refused");
    memcpy(expect, p.o, N * 4);
    if (check_decompress(&p, all, 1, ESP_OUT_SET, 0.25f) != ESP_OK) check_fail("a payload was refused");
    for (int i = 0; i < N; i++)
        if (!(p.o[i] == 0.25f * expect[i]))
            check_fail("element %d decodes to %g, and with scale 0.25 to %g: multiply by scale", i, (double)expect[i],
                       (double)p.o[i]);
    check_fill(start, N, IN_NORMAL);
    for (uint32_t mode = ESP_OUT_SET; mode <= ESP_OUT_SUM; mode++)
        for (int scaled = 0; scaled < 2; scaled++) {
            const float scale = scaled ? 0.25f : 1.0f;
            memcpy(p.o, start, N * 4);
            for (uint32_t m = 0; m < M; m++)
                if (check_decompress(&p, all + m, 1, m || mode ? ESP_OUT_SUM : ESP_OUT_SET, scale) != ESP_OK)
                    check_fail("a payload%s was refused", m == 2 ? " with ESP_PAYLOAD_EMPTY" : "");
            memcpy(expect, p.o, N * 4);
            memcpy(p.o, start, N * 4);
            if (check_decompress(&p, all, M, mode, scale) != ESP_OK) check_fail("%d payloads were refused", (int)M);
            for (int i = 0; i < N; i++)
                if (!(p.o[i] == expect[i]))
                    check_fail("element %d: %d payloads in one call give %g, one after the other %g: add them in the "
                               "order given, each times scale",
                               i, (int)M, (double)p.o[i], (double)expect[i]);
        }
}

static void check_refused(check_part *p, const uint8_t *data, uint64_t bytes, const char *what) {
    check_fenced f = check_fence(bytes, 1);
    memcpy(f.data, data, (size_t)bytes);
    for (uint64_t i = 0; i < p->count; i++) p->o[i] = 77.0f;
    check_say("decoding %s", what);
    const esp_status s = check_decode(p, f.data, bytes);
    if (s != ESP_E_CORRUPT)
        check_fail("%s: status %d, expected ESP_E_CORRUPT: call esp_payload_read and check the body's size", what,
                   (int)s);
    for (uint64_t i = 0; i < p->count; i++)
        if (!(p->o[i] == 77.0f))
            check_fail("%s: refused, but element %llu was written before: check all payloads first", what, (check_u)i);
    check_unfence(&f);
}

static void check_corrupt_run(void *target) {
    enum { N = 1000, FLIPS = 2000 };
    const esp__codec *c = target;
    check_part p = check_part_make(c, N, check_rows(c, N, 1), 1);
    p.feedback = 0;
    check_fill(p.g, N, IN_NORMAL);
    if (check_compress(&p) != ESP_OK) check_fail("compress failed");
    const uint64_t used = check_used(&p);
    uint8_t *bad = malloc((size_t)used);
    const esp_payload_header h = check_header(&p);
    const struct {
        const char *what;
        esp_payload_header h;
    } headers[] = {
        {"a payload of another codec",
         esp_payload_header_of(h.codec ^ 1, h.wire_version, 0, h.count, h.body_bytes, h.aux)},
        {"a payload of another wire version",
         esp_payload_header_of(h.codec, (uint16_t)(h.wire_version + 1), 0, h.count, h.body_bytes, h.aux)},
        {"a payload of one element more",
         esp_payload_header_of(h.codec, h.wire_version, 0, h.count + 1, h.body_bytes, h.aux)},
        {"a payload with a body longer than its buffer",
         esp_payload_header_of(h.codec, h.wire_version, 0, h.count, h.body_bytes + 1, h.aux)},
        {"a payload with a body shorter than its count needs",
         esp_payload_header_of(h.codec, h.wire_version, 0, h.count, h.body_bytes - 1, h.aux)},
        {"a payload with a flag that does not exist",
         esp_payload_header_of(h.codec, h.wire_version, 0x4000, h.count, h.body_bytes, h.aux)},
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        memcpy(bad, check_payload(&p), (size_t)used);
        memcpy(bad, &headers[i].h, sizeof h);
        check_refused(&p, bad, used, headers[i].what);
    }
    for (uint64_t n = 0; n < used; n += 1 + n / 16)
        check_refused(&p, check_payload(&p), n, "a payload that was cut off");
    for (int k = 0; k < FLIPS; k++) { /* any result is right that neither crashes nor writes out of bounds */
        const uint32_t bit = check_random() % (uint32_t)(used * 8);
        check_fenced f = check_fence(used, 1);
        memcpy(f.data, check_payload(&p), (size_t)used);
        f.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        check_say("decoding a payload whose bit %u of byte %u was flipped", bit % 8, bit / 8);
        const esp_status s = check_decode(&p, f.data, used);
        if (s != ESP_OK && s != ESP_E_CORRUPT)
            check_fail("a damaged payload gives status %d, not ESP_E_CORRUPT", (int)s);
        check_unfence(&f);
    }
    free(bad);
}

/* Many small pieces, last first. */
static void check_backwards(void *user, uint64_t n, uint64_t grain, void (*body)(void *, uint64_t, uint64_t),
                            void *arg) {
    (void)user;
    for (uint64_t piece = (n + grain - 1) / grain; piece-- > 0;)
        body(arg, piece * grain, (piece + 1) * grain < n ? (piece + 1) * grain : n);
}

static const esp_host *check_ctx_host; /* of the context that opened the codec */
static uint64_t check_hash(uint64_t h, const void *data, uint64_t bytes) { return esp__hash64(h, data, bytes); }

static void check_same_run(void *target) {
    enum { N = 300007, TIMES = 3 };
    const esp__codec *c = target;
    esp_host *host = (esp_host *)(uintptr_t)check_ctx_host;
    void (*loop)(void *, uint64_t, uint64_t, void (*)(void *, uint64_t, uint64_t), void *) = host->parallel_for;
    uint64_t hash[TIMES];
    for (int t = 0; t < TIMES; t++) {
        check_part p = check_part_make(c, N, check_rows(c, N, 0), 1);
        host->parallel_for = t == 1 ? check_backwards : loop;
        check_seed = 5;
        hash[t] = ESP__HASH0;
        for (p.step = 0; p.step < 2; p.step++) {
            check_fill(p.g, N, IN_NORMAL);
            if (check_compress(&p) != ESP_OK) check_fail("compress failed for %d elements", (int)N);
            hash[t] = check_hash(hash[t], check_payload(&p), check_used(&p));
        }
        p.step = 1;
        if (check_decode(&p, check_payload(&p), check_used(&p)) != ESP_OK) check_fail("decompress failed");
        hash[t] = check_hash(check_hash(hash[t], p.e, N * 4), p.o, N * 4);
        check_part_free(&p);
    }
    host->parallel_for = loop;
    if (hash[2] != hash[0])
        check_fail(
            "the same input gave other bytes the second time: draw random numbers from seed, step, key and element "
            "index only, and read no memory that was not written");
    if (hash[1] != hash[0])
        check_fail("the result depends on the order in which parallel_for runs its pieces: sum in a fixed order");
}

static void check_fixed_run(void *target) {
    const esp__codec *c = target;
    if (!(c->traits.caps & ESP_CODEC_FIXED_SIZE)) check_skip("the codec does not say ESP_CODEC_FIXED_SIZE");
    for (int z = 0; z < CHECK_SIZES; z++) {
        uint64_t first = 0;
        for (int kind = 0; kind < IN_NAN; kind++) {
            check_part p = check_part_make(c, check_sizes[z], check_rows(c, check_sizes[z], 1), 1);
            check_fill(p.g, p.count, kind);
            if (check_compress(&p) != ESP_OK) check_fail("compress failed");
            if (!kind) first = check_used(&p);
            if (check_used(&p) != first)
                check_fail("%llu elements take %llu bytes for one input and %llu for another (%s): leave "
                           "ESP_CODEC_FIXED_SIZE out",
                           (check_u)p.count, (check_u)first, (check_u)check_used(&p), check_inputs[kind]);
            check_part_free(&p);
        }
    }
}

static void check_model_run(void *target) {
    const esp__codec *c = target;
    const esp_codec_model *m = &c->model;
    if (!ESP_HAS(esp_codec, c->table, model))
        check_skip("the table has no model(): the planner then measures, and auto takes the codec for lossy");
    if (m->n_times < 1 || m->n_times > ESP_MODEL_TIMES)
        check_fail("n_times is %u: give 1 to %d", m->n_times, (int)ESP_MODEL_TIMES);
    for (uint32_t i = 0; i < m->n_times; i++)
        if (!(m->times[i].compress_ns > 0) || !(m->times[i].decompress_ns > 0) ||
            (i && !(m->times[i].elements > m->times[i - 1].elements)))
            check_fail("times[%u]: times must be above 0, and elements must rise", i);
    if (c->traits.n_rounds > 1) return;
    for (uint64_t n = 10000; n <= 10000000; n *= 10) {
        esp_bound b;
        const esp_payload_size *s = &m->sent;
        const double q = s->quantum > 0 ? s->quantum : 1;
        const double says = s->fixed + q * ceil(s->per_element * (double)n / q);
        if (check_bound(c, n, 0, 0, 0, 1, &b) != ESP_OK) check_fail("bound() failed for %llu elements", (check_u)n);
        if (says > 1.01 * (double)b.payload_bytes + 64 ||
            (c->traits.caps & ESP_CODEC_FIXED_SIZE && says < 0.9 * (double)b.payload_bytes))
            check_fail(
                "model() says %.0f bytes for %llu elements, bound() says %llu: the planner would choose by a wrong "
                "size",
                says, (check_u)n, (check_u)b.payload_bytes);
    }
}

/* Without ESP_MODEL_LOSSY every number must come back as near as half precision has it. */
static void check_lossy_run(void *target) {
    enum { N = 4096 };
    const esp__codec *c = target;
    if (esp__codec_lossy(c)) check_skip("the codec says that it is lossy");
    check_part p = check_part_make(c, N, 0, 1);
    p.feedback = 0;
    check_fill(p.g, N, IN_NORMAL);
    if (check_compress(&p) != ESP_OK || check_decode(&p, check_payload(&p), check_used(&p)) != ESP_OK)
        check_fail("compress or decompress failed");
    for (int i = 0; i < N; i++)
        if (!(fabs((double)p.o[i] - (double)p.g[i]) <= fabs((double)p.g[i]) * 0x1p-8 + 0x1p-24))
            check_fail("%g comes back as %g: that is more than rounding to a shorter format: set ESP_MODEL_LOSSY in "
                       "model()",
                       (double)p.g[i], (double)p.o[i]);
}

/* Two contributions reduced undecoded must decode to about their sum. */
static void check_reduce_run(void *target) {
    enum { N = 5000 };
    const esp__codec *c = target;
    if (!(c->traits.caps & ESP_CODEC_REDUCIBLE)) check_skip("the codec does not say ESP_CODEC_REDUCIBLE");
    if (c->traits.n_rounds > 1) check_skip("a codec of several rounds needs ranks: run it with espresso run -n 2");
    check_part p = check_part_make(c, N, check_rows(c, N, 1), 2);
    const esp_round round = esp__codec_round(c, 0);
    const esp_dtype dtype = p.bound[0].dtype ? p.bound[0].dtype : round.dtype;
    uint8_t *first = malloc((size_t)p.bound[0].payload_bytes);
    double *sum = calloc(N, sizeof *sum), size = 0, off = 0;
    if (round.op != ESP_REDUCE_SUM || dtype != ESP_F32) check_skip("only sums of f32 bodies are checked");
    p.feedback = 0;
    for (int rank = 0; rank < 2; rank++) {
        check_fill(p.g, N, IN_NORMAL);
        if (check_compress(&p) != ESP_OK) check_fail("compress failed with n_reduced 2");
        if (check_decode(&p, check_payload(&p), check_used(&p)) != ESP_OK) check_fail("decompress failed");
        for (int i = 0; i < N; i++) sum[i] += (double)p.o[i];
        if (!rank) memcpy(first, check_payload(&p), (size_t)check_used(&p));
    }
    const esp_payload_header h = check_header(&p);
    for (uint64_t at = 0; at + 4 <= h.body_bytes; at += 4) {
        float a, b;
        memcpy(&a, first + ESP_PAYLOAD_HEADER + at, 4);
        memcpy(&b, check_payload(&p) + ESP_PAYLOAD_HEADER + at, 4);
        a += b;
        memcpy(check_payload(&p) + ESP_PAYLOAD_HEADER + at, &a, 4);
    }
    if (check_decode(&p, check_payload(&p), check_used(&p)) != ESP_OK) check_fail("decompress refused a reduced body");
    for (int i = 0; i < N; i++) size += sum[i] * sum[i], off += (sum[i] - (double)p.o[i]) * (sum[i] - (double)p.o[i]);
    if (!(off <= 1e-6 * size))
        check_fail(
            "the sum of two bodies decodes to something %.2g of their decoded sum away: bodies must be linear, or "
            "leave ESP_CODEC_REDUCIBLE out",
            sqrt(off / size));
}

static void check_params_run(void *target) {
    const esp__codec *c = target;
    void *self = NULL;
    esp__plugin_detail_clear();
    check_say("opening with an unknown parameter");
    if (c->table->open(check_ctx_host, "no_such_parameter=1", &self) == ESP_OK)
        check_fail("open() took the unknown parameter no_such_parameter=1: return ESP_E_ARG, so that a misspelt one is "
                   "noticed");
    if (!*esp__plugin_detail()) check_fail("open() refused a parameter, but logged no reason with ESP_LOG_ERROR");
    if (c->table->open(check_ctx_host, "=", &self) == ESP_OK) check_fail("open() took the malformed parameters '='");
}

typedef struct check_thread {
    const esp__codec *codec;
    uint64_t seed, hash;
} check_thread;
static void *check_thread_main(void *arg) {
    enum { N = 20000 };
    check_thread *t = arg;
    check_part p = check_part_make(t->codec, N, 0, 1);
    for (uint64_t i = 0; i < N; i++) p.g[i] = (float)((i * 2654435761u + t->seed) % 2001) / 1000.0f - 1.0f;
    t->hash = ESP__HASH0;
    for (p.step = 0; p.step < 20; p.step++) {
        if (check_compress(&p) != ESP_OK) check_fail("compress failed");
        t->hash = check_hash(t->hash, check_payload(&p), check_used(&p));
    }
    check_part_free(&p);
    return NULL;
}
static void check_threads_run(void *target) {
    check_thread t[4] = {{target, 1, 0}, {target, 2, 0}, {target, 1, 0}, {target, 2, 0}};
    pthread_t thread[2];
    check_say("compressing two tensors at the same time");
    for (int i = 0; i < 2; i++) check_thread_main(&t[i]);
    for (int i = 0; i < 2; i++)
        if (esp__thread_start(&thread[i], check_thread_main, &t[2 + i])) check_fail("no thread could be started");
    for (int i = 0; i < 2; i++) pthread_join(thread[i], NULL);
    for (int i = 0; i < 2; i++)
        if (t[i].hash != t[2 + i].hash)
            check_fail("two tensors compressed at the same time disturb each other: self must not change in compress");
}

static const check check_codec_list[] = {
    {"parameters", "open refuses unknown and malformed parameters, and says why", check_params_run},
    {"bound", "never falls as count rises; respects the caller's struct_size", check_bound_run},
    {"inputs", "all sizes and difficult inputs: decoded + residual is what went in", check_inputs_run},
    {"small", "a short buffer gives ESP_E_TOO_SMALL and nothing is written", check_small_run},
    {"many", "many payloads in one call, SET and SUM, scaled, empty ones", check_many_run},
    {"corrupt", "damaged payloads give ESP_E_CORRUPT, and nothing is written out of bounds", check_corrupt_run},
    {"same", "the same input gives the same bytes, however the work is divided", check_same_run},
    {"threads", "two tensors at the same time", check_threads_run},
    {"fixed size", "the size follows from the count", check_fixed_run},
    {"reduce", "reduced bodies decode to the sum", check_reduce_run},
    {"model", "sizes as bound() has them, times above 0", check_model_run},
    {"lossy", "a codec that is not lossy only rounds", check_lossy_run},
};

/* Checks the opened codec. */
static void check_codec(esp_ctx *ctx, const esp__codec *c, check_report *r) {
    check_ctx_host = &ctx->host;
    check_all(r, check_codec_list, sizeof check_codec_list / sizeof *check_codec_list, (void *)(uintptr_t)c);
}
