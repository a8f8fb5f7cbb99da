/* plugin_faulty.c has a codec and a backend that break the rule that the parameter fault= names. `espresso plugins
 * --check` must detect each (tests/cli/check/test_check.sh). Without the parameter they are correct. */
#define RAW_NAME "faulty"
#include "raw_codec.h"
#include <time.h>

static const char *const faults[] = {"none",    "unknown", "shrinks", "longer", "count", "nan",    "loses",  "capacity",
                                     "ignores", "order",   "header",  "crash",  "clock", "shared", "linear", "size",
                                     "round",   "seed",    "leak",    "lists",  "error", "params", "among",  "poor"};
enum {
    NONE,
    UNKNOWN,
    SHRINKS,
    LONGER,
    COUNT,
    NOT_A_NUMBER,
    LOSES,
    CAPACITY,
    IGNORES,
    ORDER,
    HEADER,
    CRASH,
    CLOCK,
    SHARED,
    LINEAR,
    SIZE,
    ROUND,
    SEED,
    LEAK,
    LISTS,
    ERRS,
    PARAMS,
    AMONG,
    POOR,
    FAULTS
};
static const esp_device cpu = {ESP_CPU, 0};
static int fault_of(const char *params) {
    for (int i = 0; i < FAULTS; i++)
        if (!strncmp(params, "fault=", 6) && !strcmp(params + 6, faults[i])) return i;
    return !*params ? NONE : -1;
}

/* ---- the codec --------------------------------------------------------------------------------------------------- */
static void *volatile leaked;
static int selves[FAULTS], shared_word, last_fault, calls;
static esp_status faulty_refuse(const esp_host *h, const char *params) {
    char text[128] = "these parameters are wrong: ";
    const esp_log_event ev = {sizeof ev, ESP_LOG_ERROR, ESP_E_ARG, __LINE__, RAW_NAME, text, __FILE__};
    strncat(text, params, 64);
    h->log(h->user, &ev);
    return ESP_E_ARG;
}
static esp_status faulty_open(const esp_host *h, const char *params, void **self) {
    int fault = fault_of(params);
    void *room;
    if (fault < 0 && last_fault == UNKNOWN) fault = UNKNOWN;
    if (fault < 0 || (last_fault == PARAMS && fault == NONE)) return faulty_refuse(h, params);
    room = h->alloc(h->user, cpu, 64, 64);
    if (!room) return fault == POOR ? ESP_E_ARG : ESP_E_NOMEM;
    if (fault == LEAK)
        leaked = room; /* global, so that the leak sanitizer does not report it */
    else
        h->free_(h->user, cpu, room, 64);
    raw_host = h;
    last_fault = selves[fault] = fault;
    *self = &selves[fault];
    return ESP_OK;
}
static int fault_in(const void *self) { return *(const int *)self; }

static esp_status faulty_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced, esp_bound *out) {
    const int f = fault_in(self);
    esp_bound all = {out->struct_size, 0, 0, 0, 0};
    raw_bound(NULL, like, round, n_reduced, &all);
    if (f == SHRINKS && like->count > 5000 && like->count < 6000) all.payload_bytes = ESP_PAYLOAD_HEADER;
    memcpy(out, &all, f == LONGER || out->struct_size > sizeof all ? sizeof all : out->struct_size);
    return ESP_OK;
}

static int finite_numbers(const esp_codec_args *a) {
    const float *x = (const float *)a->tensor[0]->data.ptr;
    for (uint64_t i = 0; i < a->tensor[0]->count; i++)
        if (!(x[i] - x[i] <= 0)) return 0;
    return 1;
}

static esp_status faulty_compress(void *self, const esp_codec_args *a) {
    const int f = fault_in(self);
    const uint64_t n = a->tensor[0]->count;
    esp_payload_header h = esp_payload_header_of(esp_name_hash(RAW_NAME), 1, 0, n, n * 4, 0);
    int finite = finite_numbers(a);
    if (f == NOT_A_NUMBER) finite = 1;
    if (f == COUNT) h.count++;
    if (!finite) h.flags = ESP_PAYLOAD_NONFINITE, h.body_bytes = 0;
    if (f == CAPACITY && a->payload->data.bytes && a->payload->data.bytes < ESP_PAYLOAD_HEADER + h.body_bytes)
        *(char *)a->payload->data.ptr = 0;
    if (esp_payload_begin(a->payload, &h) != ESP_OK) return ESP_E_TOO_SMALL;
    if (!h.body_bytes) return ESP_OK;
    unsigned char *body = (unsigned char *)esp_payload_body(a->payload);
    memcpy(body, a->tensor[0]->data.ptr, n * 4);
    if (f == SEED) body[0] ^= (unsigned char)(a->seed >> 2 & 1);
    if (f == CLOCK) body[0] ^= (++calls % 3 ? 1 : 0);
    if (f == SHARED) {
        __atomic_store_n(&shared_word, (int)body[0], __ATOMIC_SEQ_CST);
        const struct timespec moment = {0, 100000};
        for (int i = 0; i < 20 && __atomic_load_n(&shared_word, __ATOMIC_SEQ_CST) == (int)body[0]; i++)
            nanosleep(&moment, NULL);
        body[0] = (unsigned char)__atomic_load_n(&shared_word, __ATOMIC_SEQ_CST);
    }
    if (f == LINEAR)
        for (uint64_t i = 0; i < n * 4; i += 4) body[i + 3] ^= 1; /* sums of such payloads are wrong */
    return ESP_OK;
}

static esp_status faulty_decompress(void *self, const esp_codec_args *a) {
    const int f = fault_in(self);
    float *out = (float *)a->tensor[0]->data.ptr;
    const uint64_t n = a->tensor[0]->count;
    const float scale = a->scale == 0 || f == IGNORES ? 1 : a->scale;
    int nan = 0;
    for (uint32_t p = 0; p < a->n_payloads; p++) {
        esp_payload_header h;
        esp_status s = esp_payload_read(&a->payload[p], esp_name_hash(RAW_NAME), 1, n, &h);
        const uint64_t there = a->payload[p].data.bytes;
        if (f == HEADER && s && there == ESP_PAYLOAD_HEADER + n * 4 && h.codec != esp_name_hash(RAW_NAME)) s = ESP_OK;
        if (f == CRASH && s && there >= sizeof h && h.body_bytes > n * 4)
            out[0] = ((const volatile float *)a->payload[p].data.ptr)[(ESP_PAYLOAD_HEADER + h.body_bytes) / 4];
        if (f == ORDER && s && n && a->n_payloads == 1) out[0] = 0;
        if (f == AMONG && s && p) out[0] = 0;
        if (s || h.body_bytes != (h.flags ? 0 : n * 4)) return ESP_E_CORRUPT;
        nan |= h.flags & ESP_PAYLOAD_NONFINITE;
    }
    for (uint64_t i = 0; i < n; i++) {
        float sum = a->mode == ESP_OUT_SUM ? out[i] : 0;
        for (uint32_t p = 0; p < a->n_payloads; p++) {
            esp_payload_header h;
            float x = 0;
            memcpy(&h, a->payload[p].data.ptr, sizeof h);
            if (h.flags & ESP_PAYLOAD_EMPTY) continue;
            if (!nan) memcpy(&x, (const char *)esp_payload_body(&a->payload[p]) + i * 4, 4);
            if (f == LINEAR) {
                uint32_t bits;
                memcpy(&bits, &x, 4);
                bits ^= 1u << 24;
                memcpy(&x, &bits, 4);
            }
            if (f == ROUND) x *= 1.25f;
            sum += scale * x;
        }
        out[i] = sum;
    }
    const uint32_t quiet = 0x7fc00000u;
    for (uint64_t i = 0; nan && i < n; i++) memcpy(out + i, &quiet, 4);
    return ESP_OK;
}

static esp_status faulty_compress_all(void *self, const esp_codec_args *a) {
    float *e = esp_residual_of(a, 0);
    const uint64_t n = a->tensor[0]->count;
    const float *g = (const float *)a->tensor[0]->data.ptr;
    esp_tensor phi = *a->tensor[0], *one = &phi;
    esp_codec_args inner = *a;
    esp_status s;
    if (!e) return faulty_compress(self, a);
    float *tmp = (float *)raw_host->alloc(raw_host->user, (esp_device){ESP_CPU, 0}, n * 4 + 4, 64);
    for (uint64_t i = 0; i < n; i++) {
        const float b = a->beta * e[i], c = a->gamma * g[i];
        tmp[i] = b + c;
    }
    phi.data.ptr = tmp;
    inner.tensor = &one;
    s = faulty_compress(self, &inner);
    if (!s && (finite_numbers(&inner) || fault_in(self) == NOT_A_NUMBER))
        for (uint64_t i = 0; i < n; i++) e[i] = fault_in(self) == LOSES ? 0.25f : 0;
    if (!s && fault_in(self) == ROUND && finite_numbers(&inner))
        for (uint64_t i = 0; i < n; i++) e[i] = tmp[i] - 1.25f * tmp[i];
    raw_host->free_(raw_host->user, (esp_device){ESP_CPU, 0}, tmp, n * 4 + 4);
    return s;
}

static esp_status faulty_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                               esp_codec_model *out) {
    const esp_codec_model m = {.struct_size = out->struct_size,
                               .sent = {64, 0, fault_in(self) == SIZE ? 1 : 4, 0, 0},
                               .reduced = {{n_reduced > 1 ? 64 : 0, 0, n_reduced > 1 ? 4 : 0, 0, 0}},
                               .error = fault_in(self) == ERRS    ? 0.5
                                        : fault_in(self) == ROUND ? 0.0625
                                                                  : 0, /* the error of 1.25 x */
                               .n_times = 1,
                               .times = {{1, 1000, 1000}}};
    (void)like, (void)d;
    memcpy(out, &m, out->struct_size < sizeof m ? out->struct_size : sizeof m);
    return ESP_OK;
}

static esp_status faulty_traits(void *self, esp_traits *out) {
    if (fault_in(self) != LISTS) out->caps &= ~(uint64_t)ESP_CODEC_LISTS;
    return ESP_OK;
}

static const esp_round sum_of_f32[] = {{ESP_REDUCE_SUM, ESP_F32, 0, 0}};
static const esp_codec faulty_codec = {.struct_size = sizeof(esp_codec),
                                       .wire_version = 1,
                                       .caps = ESP_CODEC_DETERMINISTIC | ESP_CODEC_REDUCIBLE |
                                               ESP_CODEC_FUSED_RESIDUAL |
                                               ESP_CODEC_LISTS, /* a false claim: only the first tensor is compressed */
                                       .dtypes = ESP_BIT(ESP_F32),
                                       .devices = ESP_BIT(ESP_CPU),
                                       .name = RAW_NAME,
                                       .summary = "breaks one rule",
                                       .params = "fault=none",
                                       .n_rounds = 1,
                                       .rounds = sum_of_f32,
                                       .open = faulty_open,
                                       .close = raw_close,
                                       .bound = faulty_bound,
                                       .compress = faulty_compress_all,
                                       .decompress = faulty_decompress,
                                       .traits = faulty_traits,
                                       .model = faulty_model};
static const esp_codec *const faulty_codecs[] = {&faulty_codec};

/* ---- a copy of backend loop with one fault, which its parameter names ------------------------------------------- */
static const char *const net_faults[] = {"none",  "sum",     "slots",  "bits",  "abort",
                                         "sleep", "traffic", "varlen", "scale", "paced"};
enum {
    NET_NONE,
    NET_SUM,
    NET_SLOTS,
    NET_BITS,
    NET_ABORT,
    NET_SLEEP,
    NET_TRAFFIC,
    NET_VARLEN,
    NET_SCALE,
    NET_PACED,
    NET_FAULTS
};
static int net_fault;
static __thread esp_coll net_last;
static __thread int net_rank;
const esp_plugin *espresso_plugin_v1_loop(const esp_host *h);
static const esp_backend *loop;

static esp_status net_open(const esp_host *h, const esp_group *g, const char *params, void **comm) {
    for (int i = 0; i < NET_FAULTS; i++)
        if (!strncmp(params, "fault=", 6) && strcspn(params + 6, ",") == strlen(net_faults[i]) &&
            !strncmp(params + 6, net_faults[i], strlen(net_faults[i])))
            net_fault = i;
    if (net_fault == NET_PACED && strstr(params, "inter=")) return faulty_refuse(h, params);
    net_rank = g->rank;
    return loop->open(h, g, "", comm);
}
static esp_status net_start(void *comm, const esp_coll *c, esp_stream s, void **req) {
    esp_coll other = *c;
    net_last = *c;
    if (net_fault == NET_SCALE) other.scale = 0;
    return loop->start(comm, &other, s, req);
}
static esp_status net_test(void *comm, void *req) {
    const esp_status s = loop->test(comm, req);
    const esp_coll *c = &net_last;
    float *out = (float *)c->dst.ptr;
    if (s || !out || !c->count || c->dtype != (c->slot_bytes ? 0 : ESP_F32)) return s;
    for (uint64_t at = 0; net_fault == NET_VARLEN && at < (c->slot_bytes ? c->dst.bytes : 0); at += c->slot_bytes) {
        esp_payload_header h;
        memcpy(&h, (char *)out + at, sizeof h);
        memset((char *)out + at + sizeof h + h.body_bytes, 0, c->slot_bytes - sizeof h - h.body_bytes);
    }
    if (net_fault == NET_SUM && c->op == ESP_COLL_ALLREDUCE) out[c->count - 1] += 1;
    if (net_fault == NET_SLOTS && c->slot_bytes) ((unsigned char *)out)[c->slot_bytes + 70] ^= 1;
    if (net_fault == NET_BITS && c->op == ESP_COLL_ALLREDUCE && c->count == 30011 && net_rank == 1)
        out[3] *= 1.0000002f;
    return s;
}
static esp_status net_abort(void *comm) { return net_fault == NET_ABORT ? ESP_OK : loop->abort(comm); }
static void net_wake(void *comm) {
    if (net_fault != NET_SLEEP) loop->wake(comm);
}
static esp_status net_traffic(void *comm, esp_traffic *out) {
    return net_fault == NET_TRAFFIC ? ESP_OK : loop->traffic(comm, out);
}
static esp_backend faulty_net;
static const esp_backend *const faulty_backends[] = {&faulty_net};

ESPRESSO_PLUGIN_ENTRY(faulty) {
    static const esp_plugin plugin = {sizeof plugin, 1, 1, 0, faulty_codecs, faulty_backends, NULL};
    loop = espresso_plugin_v1_loop(h)->backends[0];
    faulty_net = *loop;
    faulty_net.name = "faultynet";
    faulty_net.open = net_open, faulty_net.start = net_start, faulty_net.test = net_test;
    faulty_net.abort = net_abort, faulty_net.wake = net_wake, faulty_net.traffic = net_traffic;
    return &plugin;
}
