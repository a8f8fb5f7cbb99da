/* backend_fake.c has two backends that move the fake device's memory between ranks that are threads. With "ordered",
 * test() returns at once, and the data arrives late, in the stream's order. With "served", test() returns ESP_PENDING
 * until the data has arrived. Data in host memory is moved by backend loop. */
#ifndef TEST_BACKEND_FAKE_C
#define TEST_BACKEND_FAKE_C
#include "tests/device/fake.c"

/* numbers of collectives on device memory that have begun, and that have ended */
static int moved_issued, moved_done;

typedef struct moved_coll {
    uint64_t number;
    int32_t arrived, left; /* numbers of ranks that have begun it and ended it */
    uint8_t *src[64];
    struct moved_coll *next;
} moved_coll;

typedef struct moved_group {
    pthread_mutex_t lock;
    int32_t size, refs;
    moved_coll *first;
} moved_group;

typedef struct moved_comm {
    const esp_backend *loop;
    void *inner;
    moved_group *group;
    int32_t rank, size;
    uint64_t number;
    int ordered;
} moved_comm;

typedef struct moved_req {
    moved_comm *comm;
    void *inner;
    esp_coll coll;
    uint64_t number;
    uint8_t *src, *dst;
    int done;
} moved_req;

static moved_coll *moved_find(moved_group *g, uint64_t number) {
    moved_coll *c = g->first;
    while (c && c->number != number) c = c->next;
    if (c) return c;
    c = calloc(1, sizeof *c);
    c->number = number;
    c->next = g->first;
    return g->first = c;
}

static uint64_t moved_item(const esp_coll *c) {
    return c->slot_bytes ? c->slot_bytes : esp_dtype_bytes(c->dtype) * (c->width ? c->width : 1);
}
/* Computes begin and size, in bytes, of the part of the elements that belongs to rank p of n. */
static void moved_part(const esp_coll *c, int32_t n, int32_t p, uint64_t *begin, uint64_t *bytes) {
    const uint64_t each = (c->count + (uint64_t)n - 1) / (uint64_t)n, at = each * (uint64_t)p;
    const uint64_t from = at < c->count ? at : c->count, to = at + each < c->count ? at + each : c->count;
    *begin = from * moved_item(c);
    *bytes = (to - from) * moved_item(c);
}

static uint64_t moved_sent(const moved_req *q) {
    uint64_t begin, bytes;
    const esp_coll *c = &q->coll;
    moved_part(c, q->comm->size, q->comm->rank, &begin, &bytes);
    if (c->op == ESP_COLL_ALLGATHER || c->op == ESP_COLL_GATHER) return bytes;
    return c->op != ESP_COLL_BROADCAST || c->root == q->comm->rank ? c->count * moved_item(c) : 0;
}

static esp_status moved_send(void *arg) {
    const moved_req *q = *(moved_req **)arg;
    moved_group *g = q->comm->group;
    const uint64_t bytes = moved_sent(q);
    uint8_t *copy = malloc(bytes + 1);
    if (bytes) memcpy(copy, q->src, bytes);
    pthread_mutex_lock(&g->lock);
    moved_coll *c = moved_find(g, q->number);
    c->src[q->comm->rank] = copy;
    c->arrived++;
    pthread_mutex_unlock(&g->lock);
    return ESP_OK;
}

static int moved_ready(void *arg) {
    const moved_req *q = *(moved_req **)arg;
    moved_group *g = q->comm->group;
    pthread_mutex_lock(&g->lock);
    const int all = moved_find(g, q->number)->arrived == g->size;
    pthread_mutex_unlock(&g->lock);
    return all;
}

static void moved_sum(const moved_req *q, const moved_coll *c, uint64_t begin, uint64_t bytes) {
    const uint64_t e = esp_dtype_bytes(q->coll.dtype), n = bytes / e;
    float *sum = malloc(n * 4 + 4);
    for (int32_t r = 0; r < q->comm->size; r++)
        esp__device_cpu()->convert(NULL, sum, ESP_F32, c->src[r] + begin, q->coll.dtype, 1.0f, r > 0, n, fake_here);
    esp__device_cpu()->convert(NULL, q->dst, q->coll.dtype, sum, ESP_F32, q->coll.scale == 0 ? 1.0f : q->coll.scale, 0,
                               n, fake_here);
    free(sum);
}

static void moved_receive(const moved_req *q, const moved_coll *c) {
    const int32_t n = q->comm->size, me = q->comm->rank;
    const int root = q->coll.root == me;
    const uint64_t whole = q->coll.count * moved_item(&q->coll);
    uint64_t begin, bytes;
    moved_part(&q->coll, n, me, &begin, &bytes);
    if (q->coll.op == ESP_COLL_ALLREDUCE || (q->coll.op == ESP_COLL_REDUCE && root)) moved_sum(q, c, 0, whole);
    if (q->coll.op == ESP_COLL_REDUCE_SCATTER) moved_sum(q, c, begin, bytes);
    if (q->coll.op == ESP_COLL_BROADCAST && !root) memcpy(q->dst, c->src[q->coll.root], whole);
    for (int32_t r = 0; r < n; r++) {
        uint64_t at, some;
        moved_part(&q->coll, n, r, &at, &some);
        if (some && (q->coll.op == ESP_COLL_ALLGATHER || (q->coll.op == ESP_COLL_GATHER && root)))
            memcpy(q->dst + at, c->src[r], some);
        if (q->coll.op == ESP_COLL_ALLTOALL) memcpy(q->dst + at, c->src[r] + begin, bytes);
    }
}

static esp_status moved_run(void *arg) {
    moved_req *q = *(moved_req **)arg;
    moved_group *g = q->comm->group;
    pthread_mutex_lock(&g->lock);
    moved_coll *c = moved_find(g, q->number);
    moved_receive(q, c);
    if (++c->left == g->size) {
        moved_coll **at = &g->first;
        while (*at != c) at = &(*at)->next;
        *at = c->next;
        for (int32_t r = 0; r < g->size; r++) free(c->src[r]);
        free(c);
    }
    pthread_mutex_unlock(&g->lock);
    __atomic_fetch_add(&moved_done, 1, __ATOMIC_SEQ_CST);
    /* must be read before `done` is set, since test() may then free `q` */
    const int ordered = q->comm->ordered;
    __atomic_store_n(&q->done, 1, __ATOMIC_SEQ_CST);
    if (ordered) free(q);
    return ESP_OK;
}

/* ---- the tables -------------------------------------------------------------------------------------------------- */
static esp_status moved_probe(const esp_host *h, int32_t *score) { return (void)h, *score = 0, ESP_OK; }

static esp_status moved_open(const esp_host *h, const esp_group *g, const char *params, void **comm, int ordered) {
    moved_comm *m = calloc(1, sizeof *m);
    esp_group inner = *g;
    uint64_t address, all[64];
    m->loop = esp__registry_backend(h->user, "loop");
    m->rank = g->rank, m->size = g->size, m->ordered = ordered;
    if (g->rank == 0) {
        m->group = calloc(1, sizeof *m->group);
        pthread_mutex_init(&m->group->lock, NULL);
        m->group->size = m->group->refs = g->size;
    }
    address = (uint64_t)(uintptr_t)m->group;
    if (g->oob_allgather(g->user, &address, all, sizeof address)) abort();
    m->group = (moved_group *)(uintptr_t)all[0];
    if (g->parent) inner.parent = ((moved_comm *)g->parent)->inner;
    *comm = m;
    return m->loop->open(h, &inner, params, &m->inner);
}
static esp_status ordered_open(const esp_host *h, const esp_group *g, const char *params, void **comm) {
    return moved_open(h, g, params, comm, 1);
}
static esp_status served_open(const esp_host *h, const esp_group *g, const char *params, void **comm) {
    return moved_open(h, g, params, comm, 0);
}
static void moved_close(void *comm) {
    moved_comm *m = comm;
    m->loop->close(m->inner);
    pthread_mutex_lock(&m->group->lock);
    const int last = --m->group->refs == 0;
    pthread_mutex_unlock(&m->group->lock);
    if (last) {
        if (m->group->first) abort();
        pthread_mutex_destroy(&m->group->lock);
        free(m->group);
    }
    free(m);
}

/* Backend "ordered" returns this as the request of every collective on device memory, since its test() never has to
 * wait. */
static char moved_ordered;

static esp_status moved_start(void *comm, const esp_coll *c, esp_stream s, void **req) {
    moved_comm *m = comm;
    moved_req *q = calloc(1, sizeof *q);
    *req = q;
    if (s.dev.kind != FAKE_KIND) {
        const esp_status st = m->loop->start(m->inner, c, s, &q->inner);
        if (st) free(q), *req = NULL;
        return st;
    }
    if ((c->src.ptr && c->src.dev.kind != FAKE_KIND) || (c->dst.ptr && c->dst.dev.kind != FAKE_KIND)) abort();
    q->comm = m;
    q->coll = *c;
    q->number = m->number++;
    q->src = moved_sent(q) ? fake_own(c->src.ptr, moved_sent(q)) : NULL;
    q->dst = c->dst.ptr && c->dst.bytes ? fake_own(c->dst.ptr, c->dst.bytes) : NULL;
    __atomic_fetch_add(&moved_issued, 1, __ATOMIC_SEQ_CST);
    if (m->ordered) *req = &moved_ordered;
    const esp_status st = fake_launch(s, moved_send, &q, sizeof q);
    return st ? st : fake_launch_when(s, moved_ready, moved_run, &q, sizeof q);
}

static esp_status moved_test(void *comm, void *req) {
    moved_comm *m = comm;
    moved_req *q = req;
    esp_status st = ESP_OK;
    if (req == &moved_ordered) return ESP_OK;
    if (!q->comm) {
        st = m->loop->test(m->inner, q->inner);
        if (st != ESP_PENDING) free(q);
        return st;
    }
    if (!__atomic_load_n(&q->done, __ATOMIC_SEQ_CST)) return ESP_PENDING;
    free(q);
    return ESP_OK;
}

static esp_status moved_progress(void *comm, uint64_t timeout_us) {
    moved_comm *m = comm;
    return m->loop->progress(m->inner, timeout_us < 200 ? timeout_us : 200);
}
static void moved_wake(void *comm) { ((moved_comm *)comm)->loop->wake(((moved_comm *)comm)->inner); }
static esp_status moved_abort(void *comm) { return ((moved_comm *)comm)->loop->abort(((moved_comm *)comm)->inner); }

static esp_backend moved_tables[2];
static const esp_backend *const moved_list[] = {&moved_tables[0], &moved_tables[1]};
static esp_plugin moved_plugin_table;

static ESP__UNUSED const esp_plugin *moved_plugin(const esp_host *h) {
    pthread_mutex_lock(&fake_once);
    for (int k = 0; k < 2 && !moved_plugin_table.struct_size; k++) {
        const int ordered = k == 1;
        esp_backend *b = &moved_tables[k];
        *b = *esp__registry_backend(h->user, "loop");
        b->caps =
            ESP_BACKEND_NEEDS_PROGRESS | ESP_BACKEND_SCALE | (ordered ? (uint64_t)ESP_BACKEND_STREAM_ORDERED : 0u);
        b->devices |= ESP_BIT(FAKE_KIND);
        b->name = ordered ? "ordered" : "served";
        b->params = NULL;
        b->probe = moved_probe;
        b->open = ordered ? ordered_open : served_open;
        b->close = moved_close;
        b->start = moved_start;
        b->test = moved_test;
        b->progress = moved_progress;
        b->wake = moved_wake;
        b->abort = moved_abort;
        b->straggler = NULL;
        b->traffic = NULL;
    }
    if (!moved_plugin_table.struct_size) {
        moved_plugin_table.n_backends = 2;
        moved_plugin_table.backends = moved_list;
        moved_plugin_table.struct_size = sizeof moved_plugin_table;
    }
    pthread_mutex_unlock(&fake_once);
    return &moved_plugin_table;
}
#endif
