/* fake_codecs.c has codecs none and topk for the fake device, which run the CPU's code on the device's thread, and the
 * plugins that register them. fake.c includes it. */
typedef struct fake_codec {
    const esp_codec *cpu;
    void *self;
    int lists;
} fake_codec;
static int fake_list_calls;
static int fake_corrupts; /* nonzero: payloads are damaged before they are decoded */

static esp_status fake_codec_open(const esp_host *h, const char *name, const char *params, void **self) {
    fake_codec *c = calloc(1, sizeof *c);
    c->cpu = esp__registry_codec_on(h->user, name, ESP_CPU);
    const esp_codec *const own = esp__registry_codec_on(h->user, name, FAKE_KIND);
    c->lists = (own->caps & ESP_CODEC_LISTS) != 0;
    const esp_status s = c->cpu->open(h, params, &c->self);
    *self = c;
    if (s) free(c), *self = NULL;
    return s;
}
static esp_status fake_none_open(const esp_host *h, const char *params, void **self) {
    return fake_codec_open(h, "none", params, self);
}
static esp_status fake_topk_open(const esp_host *h, const char *params, void **self) {
    return fake_codec_open(h, "topk", params, self);
}
static void fake_codec_close(void *self) {
    fake_codec *c = self;
    c->cpu->close(c->self);
    free(c);
}
static esp_status fake_codec_bound(void *self, const esp_tensor *like, uint32_t round, uint32_t n_reduced,
                                   esp_bound *out) {
    const fake_codec *c = self;
    return c->cpu->bound(c->self, like, round, n_reduced, out);
}
static esp_status fake_codec_model(void *self, const esp_tensor *like, uint32_t n_reduced, esp_device d,
                                   esp_codec_model *out) {
    const fake_codec *c = self;
    return c->cpu->model(c->self, like, n_reduced, d, out);
}

/* A call of a codec, with a copy of its arguments: it runs later on the device, when the caller's are gone. */
enum { FAKE_PAYLOADS = 16 };
typedef struct fake_call {
    const fake_codec *codec;
    int compress;
    esp_codec_args args;
    esp_tensor tensor;
    uint64_t offset;
    esp_buf residual, state, scratch;
    esp_payload reduced, payload[FAKE_PAYLOADS];
} fake_call;

static esp_status fake_codec_run(void *arg) {
    fake_call *c = arg;
    esp_tensor *tensor = &c->tensor;
    c->args.tensor = &tensor;
    c->args.offset = &c->offset;
    c->args.payload = c->payload;
    if (c->args.residual) c->args.residual = &c->residual;
    if (c->args.state) c->args.state = &c->state;
    if (c->args.scratch) c->args.scratch = &c->scratch;
    if (c->args.reduced) c->args.reduced = &c->reduced;
    if (!c->compress && __atomic_load_n(&fake_corrupts, __ATOMIC_SEQ_CST))
        ((uint8_t *)c->payload[0].data.ptr)[8] ^= 1; /* damages the count */
    return c->compress ? c->codec->cpu->compress(c->codec->self, &c->args)
                       : c->codec->cpu->decompress(c->codec->self, &c->args);
}

static esp_status fake_buf(esp_buf *to, const esp_buf *from) {
    if (!from || !from->bytes) return ESP_OK;
    if (from->dev.kind != FAKE_KIND) return ESP_E_ARG;
    *to = *from;
    to->ptr = fake_own(from->ptr, from->bytes);
    return to->ptr ? ESP_OK : ESP_E_ARG;
}

static esp_status fake_codec_part(void *self, const esp_codec_args *a, uint32_t t, int compress) {
    const esp_payload *payload = a->payload + (size_t)t * a->n_payloads;
    fake_call c;
    esp_status s;
    memset(&c, 0, sizeof c);
    if (a->n_payloads > FAKE_PAYLOADS) abort();
    c.codec = self;
    c.compress = compress;
    c.args = *a;
    c.args.n_tensors = 1;
    c.tensor = *a->tensor[t];
    c.offset = a->offset[t];
    s = fake_buf(&c.tensor.data, &a->tensor[t]->data);
    if (!s && a->residual) s = fake_buf(&c.residual, a->residual + t);
    if (!s && a->state) s = fake_buf(&c.state, a->state + t);
    if (!s) s = fake_buf(&c.scratch, a->scratch);
    if (!s && a->reduced) s = fake_buf(&c.reduced.data, &a->reduced[t].data);
    for (uint32_t p = 0; p < a->n_payloads && !s; p++) {
        s = fake_buf(&c.payload[p].data, &payload[p].data);
        if (payload[p].used) c.payload[p].used = fake_own(payload[p].used, sizeof(uint64_t));
        if (payload[p].used && !c.payload[p].used) s = ESP_E_ARG;
    }
    return s ? s : fake_launch(a->stream, fake_codec_run, &c, sizeof c);
}
static esp_status fake_codec_call(void *self, const esp_codec_args *a, int compress) {
    esp_status s = ESP_OK;
    if (a->n_tensors > 1 && !((const fake_codec *)self)->lists) return ESP_E_ARG;
    if (a->n_tensors > 1) __atomic_add_fetch(&fake_list_calls, 1, __ATOMIC_RELAXED);
    for (uint32_t t = 0; t < a->n_tensors && !s; t++) s = fake_codec_part(self, a, t, compress);
    return s;
}
static esp_status fake_compress(void *self, const esp_codec_args *a) { return fake_codec_call(self, a, 1); }
static esp_status fake_decompress(void *self, const esp_codec_args *a) { return fake_codec_call(self, a, 0); }

static esp_codec fake_none, fake_topk;
static const esp_codec *const fake_codecs[] = {&fake_none, &fake_topk};
static const esp_device_table *const fake_devices[] = {&fake_table};
static esp_plugin fake_plugin_table;
static pthread_mutex_t fake_once = PTHREAD_MUTEX_INITIALIZER;

/* Copies the CPU's table of a codec, except for the functions that run on the device. */
static void fake_codec_like(esp_codec *c, const esp_codec *cpu,
                            esp_status (*open)(const esp_host *, const char *, void **)) {
    *c = *cpu;
    c->devices = ESP_BIT(FAKE_KIND);
    c->open = open;
    c->close = fake_codec_close;
    c->bound = fake_codec_bound;
    c->compress = fake_compress;
    c->decompress = fake_decompress;
    c->model = cpu->model ? fake_codec_model : NULL;
}

/* The plugin's entry function, for esp_config.builtin. It must be called after the built-in codecs are registered,
 * which it copies. */
static ESP__UNUSED const esp_plugin *fake_plugin(const esp_host *h) {
    pthread_mutex_lock(&fake_once);
    if (!fake_plugin_table.struct_size) {
        fake_codec_like(&fake_none, esp__registry_codec_on(h->user, "none", ESP_CPU), fake_none_open);
        fake_codec_like(&fake_topk, esp__registry_codec_on(h->user, "topk", ESP_CPU), fake_topk_open);
        fake_plugin_table.n_codecs = 2;
        fake_plugin_table.codecs = fake_codecs;
        fake_plugin_table.n_devices = 1;
        fake_plugin_table.devices = fake_devices;
        fake_plugin_table.struct_size = sizeof fake_plugin_table;
    }
    pthread_mutex_unlock(&fake_once);
    return &fake_plugin_table;
}
static esp_status fake_shared2_open(const esp_host *h, const char *params, void **self) {
    return fake_codec_open(h, "shared2", params, self);
}
static esp_status fake_shared3_open(const esp_host *h, const char *params, void **self) {
    return fake_codec_open(h, "shared3", params, self);
}
static esp_codec fake_shared[2];
static const esp_codec *const fake_shared_list[] = {&fake_shared[0], &fake_shared[1]};
static esp_plugin fake_shared_table;
static ESP__UNUSED const esp_plugin *fake_rounds_plugin(const esp_host *h) {
    pthread_mutex_lock(&fake_once);
    if (!fake_shared_table.struct_size) {
        fake_codec_like(&fake_shared[0], esp__registry_codec_on(h->user, "shared2", ESP_CPU), fake_shared2_open);
        fake_codec_like(&fake_shared[1], esp__registry_codec_on(h->user, "shared3", ESP_CPU), fake_shared3_open);
        fake_shared_table.n_codecs = 2;
        fake_shared_table.codecs = fake_shared_list;
        fake_shared_table.struct_size = sizeof fake_shared_table;
    }
    pthread_mutex_unlock(&fake_once);
    return &fake_shared_table;
}
static esp_codec fake_flipped[2];
static const esp_codec *const fake_flipped_list[] = {&fake_flipped[0], &fake_flipped[1]};
static esp_plugin fake_flipped_table;
static ESP__UNUSED const esp_plugin *fake_plugin_lists(const esp_host *h) {
    fake_plugin(h);
    pthread_mutex_lock(&fake_once);
    if (!fake_flipped_table.struct_size) {
        fake_flipped_table = fake_plugin_table;
        for (int k = 0; k < 2; k++) {
            fake_flipped[k] = *fake_codecs[k];
            fake_flipped[k].caps ^= ESP_CODEC_LISTS;
        }
        fake_flipped_table.codecs = fake_flipped_list;
    }
    pthread_mutex_unlock(&fake_once);
    return &fake_flipped_table;
}
/* A plugin that has no codecs for the device, so that they run on the CPU. */
static ESP__UNUSED const esp_plugin *fake_plugin_bare(const esp_host *h) {
    static const esp_plugin p = {.struct_size = sizeof p, .n_devices = 1, .devices = fake_devices};
    return &p;
}
