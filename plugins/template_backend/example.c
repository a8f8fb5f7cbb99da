/* example.c: a backend to copy as the start of your own. Ranks exchange files in a shared directory, which is slow but
 * short, and correct for any number of ranks. Replace example_send and example_receive by calls of your network.
 * In every collective each rank sends a range of its source to each rank, including itself, and adds or copies what it
 * receives, in rank order. A file is written under another name and then renamed, so a reader never sees half of it.
 * (Opening files allocates memory, which a real backend does in open() only.) */
#include "espresso.h"
#include "halves.h"
#include <dirent.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EXAMPLE_REQUESTS = 64, EXAMPLE_CHUNK = 16384, EXAMPLE_PATH = 256 };
static const char example_name[] = "example";

typedef struct example_request {
    esp_coll c;
    uint64_t number;
    int32_t next; /* rank whose data this rank reads next */
    int busy;
} example_request;

typedef struct example_comm {
    const esp_host *host;
    int32_t rank, size;
    int32_t *other_machine; /* [size]: nonzero for ranks on other machines */
    uint64_t started, intra_bytes, inter_bytes;
    atomic_int aborted; /* any thread may set it */
    char dir[EXAMPLE_PATH];
    int lock; /* descriptor of the directory, which this rank has locked, or -1 */
    example_request requests[EXAMPLE_REQUESTS];
} example_comm;

typedef struct range {
    uint64_t begin, end; /* the items [begin, end) */
} range;

static esp_status example_fail(const esp_host *h, esp_status status, const char *message) {
    const esp_log_event ev = {sizeof ev, ESP_LOG_ERROR, status, 0, example_name, message, __FILE__};
    h->log(h->user, &ev);
    return status;
}

/* ---- transport: replace these two ------------------------------------------------------------------------------- */
static void example_file(const example_comm *e, uint64_t number, int32_t from, int32_t to, char *out, size_t cap) {
    snprintf(out, cap, "%s/%llu.%d.%d", e->dir, (unsigned long long)number, (int)from, (int)to);
}

static esp_status example_send(const example_comm *e, uint64_t number, int32_t to, const void *data, uint64_t bytes) {
    char part[EXAMPLE_PATH + 80], whole[EXAMPLE_PATH + 64];
    FILE *f;
    int ok;
    example_file(e, number, e->rank, to, whole, sizeof whole);
    snprintf(part, sizeof part, "%s.part", whole);
    f = fopen(part, "wb");
    if (!f) return example_fail(e->host, ESP_E_COMM, "cannot write into the directory of parameter dir=");
    ok = !bytes || fwrite(data, 1, bytes, f) == bytes;
    ok = fclose(f) == 0 && ok;
    if (ok && rename(part, whole) == 0) return ESP_OK;
    return example_fail(e->host, ESP_E_COMM, "cannot write into the directory of parameter dir= (is the disk full?)");
}

/* Opens the file that `from` has sent. Returns NULL until it has arrived. */
static FILE *example_receive(const example_comm *e, uint64_t number, int32_t from) {
    char path[EXAMPLE_PATH + 64];
    FILE *f;
    example_file(e, number, from, e->rank, path, sizeof path);
    f = fopen(path, "rb");
    if (f) unlink(path); /* the open file can still be read */
    return f;
}

/* ---- the data of each collective --------------------------------------------------------------------------------- */
static uint64_t example_width(const esp_coll *c) { return c->width ? c->width : 1; }
/* Returns the bytes of an item, which is one payload or `width` numbers. */
static uint64_t example_unit(const esp_coll *c) {
    return c->slot_bytes ? c->slot_bytes : esp_dtype_bytes(c->dtype) * example_width(c);
}

static int example_sums(const esp_coll *c) {
    return c->op == ESP_COLL_ALLREDUCE || c->op == ESP_COLL_REDUCE_SCATTER || c->op == ESP_COLL_REDUCE;
}

static range example_part(uint64_t count, int32_t n, int32_t p) {
    const uint64_t c = (count + (uint64_t)n - 1) / (uint64_t)n;
    range r = {(uint64_t)p * c, ((uint64_t)p + 1) * c};
    if (r.begin > count) r.begin = count;
    if (r.end > count) r.end = count;
    return r;
}

/* Returns the range of the whole buffer that rank `from` sends to rank `to`. */
static range example_range(const esp_coll *c, int32_t n, int32_t from, int32_t to) {
    const range all = {0, c->count}, nothing = {0, 0};
    switch (c->op) {
    case ESP_COLL_ALLREDUCE: return all;
    case ESP_COLL_REDUCE: return to == c->root ? all : nothing;
    case ESP_COLL_BROADCAST: return from == c->root ? all : nothing;
    case ESP_COLL_ALLGATHER: return example_part(c->count, n, from);
    case ESP_COLL_GATHER: return to == c->root ? example_part(c->count, n, from) : nothing;
    default: return example_part(c->count, n, to); /* REDUCE_SCATTER and ALLTOALL */
    }
}

/* These return where a range begins in the sender's source and in the receiver's destination, in items. */
static uint64_t example_src_at(const esp_coll *c, range r) {
    return c->op == ESP_COLL_ALLGATHER || c->op == ESP_COLL_GATHER ? 0 : r.begin;
}
static uint64_t example_dst_at(const esp_coll *c, int32_t n, int32_t from, range r) {
    if (c->op == ESP_COLL_ALLTOALL) return example_part(c->count, n, from).begin;
    return c->op == ESP_COLL_REDUCE_SCATTER ? 0 : r.begin;
}

static float example_load(esp_dtype t, const unsigned char *p) {
    uint16_t half;
    float x;
    if (t == ESP_F32) return memcpy(&x, p, 4), x;
    memcpy(&half, p, 2);
    return t == ESP_F16 ? f16_to_f32(half) : bf16_to_f32(half);
}
static void example_store(esp_dtype t, unsigned char *p, float x) {
    const uint16_t half = t == ESP_F16 ? f32_to_f16(x) : f32_to_bf16(x);
    if (t == ESP_F32)
        memcpy(p, &x, 4);
    else
        memcpy(p, &half, 2);
}

/* Adds `count` numbers of each rank's file f[rank], in rank order. f16 and bf16 are summed in f32 and rounded once. */
static esp_status example_sum(const esp_coll *c, FILE **f, int32_t n, uint64_t count) {
    const size_t unit = (size_t)esp_dtype_bytes(c->dtype);
    const float scale = c->scale == 0 ? 1.0f : c->scale;
    unsigned char in[EXAMPLE_CHUNK], *out = c->dst.ptr;
    float sum[EXAMPLE_CHUNK / 2];
    for (uint64_t at = 0; at < count;) {
        const size_t now = count - at < EXAMPLE_CHUNK / unit ? (size_t)(count - at) : EXAMPLE_CHUNK / unit;
        for (int32_t r = 0; r < n; r++) {
            if (fread(in, unit, now, f[r]) != now) return ESP_E_COMM;
            for (size_t i = 0; i < now; i++) {
                const float x = example_load(c->dtype, in + i * unit);
                sum[i] = r ? sum[i] + x : x;
            }
        }
        for (size_t i = 0; i < now; i++) example_store(c->dtype, out + (at + i) * unit, sum[i] * scale);
        at += now;
    }
    return ESP_OK;
}

/* ---- directories ------------------------------------------------------------------------------------------------- */
/* Locks a directory until its descriptor is closed or the process ends. Every rank holds a shared lock on its job's
 * directory. */
static int example_lock(const char *dir, int how) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && flock(fd, how | LOCK_NB) != 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static void example_remove(const char *dir) {
    const int fd = example_lock(dir, LOCK_EX);
    DIR *d = fd < 0 ? NULL : opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.') unlinkat(fd, e->d_name, 0);
    if (d) closedir(d);
    if (fd < 0) return;
    rmdir(dir);
    close(fd);
}

/* Makes and locks a directory in `parent`, and returns its descriptor or -1. Before it is locked, another rank may take
 * it for one that a killed job has left, and remove it; then this makes another one. */
static int example_make(const char *parent, char dir[EXAMPLE_PATH]) {
    struct stat locked, there;
    for (int tries = 0; tries < 100; tries++) {
        snprintf(dir, EXAMPLE_PATH, "%s/espresso-example-XXXXXX", parent);
        if (!mkdtemp(dir)) break;
        const int fd = example_lock(dir, LOCK_SH);
        if (fd >= 0 && fstat(fd, &locked) == 0 && stat(dir, &there) == 0 && locked.st_ino == there.st_ino) return fd;
        if (fd >= 0) close(fd);
        rmdir(dir);
    }
    dir[0] = 0;
    return -1;
}

/* Removes the directories of jobs whose ranks were all killed. */
static void example_remove_left(const char *parent) {
    static const char prefix[] = "espresso-example-";
    char dir[EXAMPLE_PATH];
    DIR *d = opendir(parent);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        if (strncmp(e->d_name, prefix, sizeof prefix - 1)) continue;
        if ((size_t)snprintf(dir, sizeof dir, "%s/%s", parent, e->d_name) < sizeof dir) example_remove(dir);
    }
    if (d) closedir(d);
}

/* ---- the table's functions --------------------------------------------------------------------------------------- */
static esp_status example_probe(const esp_host *h, int32_t *score) {
    (void)h;
    *score = 1; /* lowest, since any other backend is faster */
    return ESP_OK;
}

static void example_close(void *comm) {
    const esp_device cpu = {ESP_CPU, 0};
    example_comm *e = comm;
    if (!e) return;
    rmdir(e->dir); /* succeeds on the last rank, when it is empty */
    if (e->lock >= 0) close(e->lock);
    free(e->other_machine);
    e->host->free_(e->host->user, cpu, e, sizeof *e);
}

static esp_status example_open(const esp_host *h, const esp_group *g, const char *params, void **comm) {
    const esp_device cpu = {ESP_CPU, 0};
    char key[16], val[160] = "/tmp", *dirs;
    example_comm *e = h->alloc(h->user, cpu, sizeof *e, 64);
    int more;
    while ((more = esp_params_next(&params, key, sizeof key, val, sizeof val)) > 0 && !strcmp(key, "dir")) {
    }
    if (!e || more) {
        if (e) h->free_(h->user, cpu, e, sizeof *e);
        return e ? example_fail(h, ESP_E_ARG,
                                "the only parameter is dir=DIRECTORY, which all ranks must be able to access")
                 : example_fail(h, ESP_E_NOMEM, "out of memory");
    }
    memset(e, 0, sizeof *e);
    e->host = h;
    e->rank = g->rank;
    e->size = g->size;
    e->lock = -1;
    e->other_machine = calloc((size_t)g->size, sizeof(int32_t));
    dirs = calloc((size_t)g->size, EXAMPLE_PATH);
    for (int32_t r = 0; e->other_machine && r < g->size; r++)
        e->other_machine[r] = g->machine && g->machine[r] != g->machine[g->rank];
    /* Rank 0 of the group creates the directory, and the others get its name in an exchange. */
    if (g->rank == 0) {
        example_remove_left(val);
        e->lock = example_make(val, e->dir);
    }
    if (dirs && g->size > 1 && g->oob_allgather(g->user, e->dir, dirs, EXAMPLE_PATH) == ESP_OK)
        memcpy(e->dir, dirs, EXAMPLE_PATH);
    else if (g->size > 1)
        e->dir[0] = 0;
    if (e->dir[0] && g->rank && (e->lock = example_lock(e->dir, LOCK_SH)) < 0) e->dir[0] = 0;
    /* No rank may close and remove the directory before all have locked it. */
    if (dirs && g->size > 1 && g->oob_allgather(g->user, e->dir, dirs, EXAMPLE_PATH) != ESP_OK) e->dir[0] = 0;
    for (int32_t r = 0; dirs && r < g->size && g->size > 1; r++)
        if (!dirs[(size_t)r * EXAMPLE_PATH]) e->dir[0] = 0;
    free(dirs);
    if (!e->dir[0] || !e->other_machine) {
        example_close(e);
        return example_fail(h, ESP_E_COMM, "cannot make a directory in the one of parameter dir= (default /tmp)");
    }
    *comm = e;
    return ESP_OK;
}

/* Fails for collectives that this backend does not support. The library starts none, but other programs may. */
static esp_status example_check(const example_comm *e, const esp_coll *c) {
    if (c->op < ESP_COLL_ALLREDUCE || c->op > ESP_COLL_REDUCE)
        return example_fail(e->host, ESP_E_ARG, "there is no such collective: use ESP_COLL_*");
    if (c->slot_bytes ? c->width > 1 || example_sums(c) : !esp_dtype_bytes(c->dtype))
        return example_fail(e->host, ESP_E_ARG, "needs a dtype, or payload slots without width and reduction");
    if (example_sums(c) && (c->dtype > ESP_BF16 || c->reduce > ESP_REDUCE_SUM))
        return example_fail(e->host, ESP_E_UNSUPPORTED, "reduces f32, f16 and bf16 by ESP_REDUCE_SUM only");
    return ESP_OK;
}

static esp_status example_start(void *comm, const esp_coll *call, esp_stream s, void **req) {
    example_comm *e = comm;
    example_request *r = NULL;
    const esp_coll *c;
    uint64_t unit;
    esp_status status;
    (void)s; /* work on a CPU stream has already ended */
    for (int i = 0; i < EXAMPLE_REQUESTS && !r; i++)
        if (!e->requests[i].busy) r = &e->requests[i];
    if (!r) return example_fail(e->host, ESP_E_STATE, "more than 64 collectives at once");
    memset(&r->c, 0, sizeof r->c); /* callers of older versions have a shorter struct */
    memcpy(&r->c, call, call->struct_size < sizeof r->c ? call->struct_size : sizeof r->c);
    c = &r->c;
    unit = example_unit(c);
    if ((status = example_check(e, c)) != ESP_OK) return status;
    r->number = e->started++;
    r->next = 0;
    for (int32_t to = 0; to < e->size && status == ESP_OK; to++) {
        const range out = example_range(c, e->size, e->rank, to);
        const unsigned char *src = c->src.ptr;
        if (out.end > out.begin)
            status = example_send(e, r->number, to, src + example_src_at(c, out) * unit, (out.end - out.begin) * unit);
    }
    r->busy = status == ESP_OK;
    *req = r;
    return status;
}

/* Copies the data from one rank to the destination. Returns ESP_PENDING until they have arrived. */
static esp_status example_take(example_comm *e, const example_request *r, int32_t from) {
    const range in = example_range(&r->c, e->size, from, e->rank);
    const uint64_t unit = example_unit(&r->c), n = in.end - in.begin;
    unsigned char *dst = r->c.dst.ptr;
    FILE *f;
    int ok = 1;
    if (!n) return ESP_OK;
    if ((f = example_receive(e, r->number, from)) == NULL) return ESP_PENDING;
    if (dst) ok = fread(dst + example_dst_at(&r->c, e->size, from, in) * unit, unit, n, f) == n;
    fclose(f);
    return ok ? ESP_OK : example_fail(e->host, ESP_E_COMM, "a file is shorter than it should be");
}

/* Adds the data of all ranks. It needs all files at the same time, so it returns ESP_PENDING until all have arrived. */
static esp_status example_take_sum(example_comm *e, example_request *r) {
    const range in = example_range(&r->c, e->size, 0, e->rank);
    char path[EXAMPLE_PATH + 64];
    FILE *files[1024];
    esp_status s;
    if (in.end == in.begin) return ESP_OK;
    if (e->size > 1024) return example_fail(e->host, ESP_E_UNSUPPORTED, "at most 1024 ranks");
    for (; r->next < e->size; r->next++) {
        example_file(e, r->number, r->next, e->rank, path, sizeof path);
        if (access(path, F_OK) != 0) return ESP_PENDING;
    }
    for (int32_t i = 0; i < e->size; i++)
        if ((files[i] = example_receive(e, r->number, i)) == NULL) {
            while (i--) fclose(files[i]);
            return example_fail(e->host, ESP_E_COMM, "a file disappeared, or too many are open");
        }
    s = example_sum(&r->c, files, e->size, (in.end - in.begin) * example_width(&r->c));
    for (int32_t i = 0; i < e->size; i++) fclose(files[i]);
    return s;
}

static esp_status example_test(void *comm, void *req) {
    example_comm *e = comm;
    example_request *r = req;
    const uint64_t unit = example_unit(&r->c);
    esp_status s = ESP_OK;
    if (e->aborted) return ESP_E_PEER;
    if (example_sums(&r->c))
        s = example_take_sum(e, r);
    else
        while (r->next < e->size && (s = example_take(e, r, r->next)) == ESP_OK) r->next++;
    if (s == ESP_PENDING) return s;
    for (int32_t from = 0; from < e->size; from++) {
        const range in = example_range(&r->c, e->size, from, e->rank);
        if (from != e->rank && e->other_machine[from])
            e->inter_bytes += (in.end - in.begin) * unit;
        else if (from != e->rank)
            e->intra_bytes += (in.end - in.begin) * unit;
    }
    r->busy = 0;
    return s;
}

static esp_status example_abort(void *comm) {
    ((example_comm *)comm)->aborted = 1;
    return ESP_OK;
}

static int32_t example_straggler(void *comm, void *req) {
    (void)comm;
    return ((example_request *)req)->next;
}

static esp_status example_traffic(void *comm, esp_traffic *out) {
    const example_comm *e = comm;
    out->intra_bytes = e->intra_bytes;
    out->inter_bytes = e->inter_bytes;
    return ESP_OK;
}

static const esp_backend example_backend = {
    .struct_size = sizeof example_backend,
    .caps = ESP_BACKEND_NEEDS_PROGRESS | ESP_BACKEND_SCALE,
    .colls = ESP_BIT(ESP_COLL_ALLREDUCE) | ESP_BIT(ESP_COLL_ALLGATHER) | ESP_BIT(ESP_COLL_ALLTOALL) |
             ESP_BIT(ESP_COLL_REDUCE_SCATTER) | ESP_BIT(ESP_COLL_BROADCAST) | ESP_BIT(ESP_COLL_GATHER) |
             ESP_BIT(ESP_COLL_REDUCE),
    .devices = ESP_BIT(ESP_CPU),
    .dtypes = ESP_BIT(ESP_F32) | ESP_BIT(ESP_F16) | ESP_BIT(ESP_BF16),
    .reduces = ESP_BIT(ESP_REDUCE_SUM),
    .name = example_name,
    .summary = "files in a directory that all ranks share",
    .params = "dir=/tmp",
    .probe = example_probe,
    .open = example_open,
    .close = example_close,
    .start = example_start,
    .test = example_test,
    .abort = example_abort,
    .straggler = example_straggler,
    .traffic = example_traffic,
};
ESP_PLUGIN_BACKEND(example, &example_backend)
