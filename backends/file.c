/* file.c: backend "file": the ranks exchange files in a directory that all of them see, such as one on NFS. Slow, for machines that
 * nothing else connects, and for tests. Knows no other backend.
 *
 * Every group has a directory of its own. For its collective number k rank r writes its source into a file, and then links it as
 * "k.r": so a file is there as a whole or not at all. Then it reads the others' files, in pieces. Sums are made by every rank
 * that needs them, in rank order. When all ranks have linked their files of k + 1, nobody needs those of k, and each rank removes
 * its own. Whoever closes last removes the directory. */
#include "espresso.h"

#include "codecs/common/half.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FILE_PIECE = 64 * 1024, /* bytes moved at once                                              */
    FILE_QUEUE = 64,        /* requests open at the same time on one comm                       */
    FILE_LOOK_US = 1000,    /* a directory on NFS tells nobody of its changes: look so often    */
    FILE_PATH = 512
};
enum { FILE_WRITES = 0, FILE_READS, FILE_MOVES }; /* what the running collective does */

typedef struct file_req {
    esp_coll c;
    uint32_t used, done;
} file_req;

/* What a rank tells the group when it opens. */
typedef struct file_hello {
    int32_t status;
    char dir[FILE_PATH];
} file_hello;

typedef struct file_comm {
    const esp_host *host;
    int32_t rank, size;
    char dir[FILE_PATH];
    int dirfd, epoll, notify, event; /* epoll: wakes for this comm and those that have it as parent   */
    struct file_comm *parent;
    uint8_t *level; /* [size] the outermost level at which the rank's place differs               */
    int *fds;       /* [size] the others' files of the running collective; -1: not there yet      */
    uint64_t *used; /* [size] used bytes of the slot that is read from each                       */
    uint8_t *piece; /* FILE_PIECE                                                                 */
    float *sum;     /* numbers of a piece, as f32; integers use the same room                     */
    file_req reqs[FILE_QUEUE];
    uint64_t first, next; /* the request that runs; the next free one. Numbers of collectives, too */
    uint64_t oldest;      /* this rank's oldest file that is still there                           */
    uint32_t state;
    uint64_t at; /* bytes written, or moved                                                     */
    int own;     /* this rank's file while it is written                                        */
    int32_t waits_for;
    uint32_t aborted;
    esp_status error;
    esp_traffic traffic;
} file_comm;

static esp_status file_say(const esp_host *h, esp_status s, const char *what, const char *path) {
    char text[FILE_PATH + 200];
    esp_log_event ev;
    memset(&ev, 0, sizeof ev);
    snprintf(text, sizeof text, "%s%s%s", what, *path ? " " : "", path);
    ev.struct_size = sizeof ev;
    ev.level = ESP_LOG_ERROR;
    ev.status = s;
    ev.component = "file";
    ev.message = text;
    ev.file = "backends/file.c";
    if (h->log) h->log(h->user, &ev);
    return s;
}
static esp_status file_errno(file_comm *m, const char *what) {
    char text[160];
    snprintf(text, sizeof text, "%s: %s: in", what, strerror(errno));
    return m->error = file_say(m->host, ESP_E_COMM, text, m->dir);
}

/* ---- what a collective moves ----------------------------------------------------------------------------------- */
static int file_sums(const esp_coll *c) {
    return c->op == ESP_COLL_ALLREDUCE || c->op == ESP_COLL_REDUCE_SCATTER || c->op == ESP_COLL_REDUCE;
}
static uint64_t file_unit(const esp_coll *c) {
    return c->slot_bytes ? c->slot_bytes : esp_dtype_bytes(c->dtype) * (c->width ? c->width : 1);
}
/* Part p of the buffer: its begin in bytes; its length. */
static uint64_t file_part(const file_comm *m, const esp_coll *c, int32_t p, uint64_t *bytes) {
    uint64_t n = (uint64_t)m->size, per = (c->count + n - 1) / n, unit = file_unit(c);
    uint64_t from = per * (uint64_t)p < c->count ? per * (uint64_t)p : c->count;
    uint64_t to = from + per < c->count ? from + per : c->count;
    *bytes = (to - from) * unit;
    return from * unit;
}
/* Bytes that rank q writes. */
static uint64_t file_sends(const file_comm *m, const esp_coll *c, int32_t q) {
    uint64_t all = c->count * file_unit(c), part;
    file_part(m, c, q, &part);
    if (c->op == ESP_COLL_BROADCAST) return q == c->root ? all : 0;
    return c->op == ESP_COLL_ALLGATHER || c->op == ESP_COLL_GATHER ? part : all;
}
/* Does this rank read rank q's file? And which bytes of it: from *at, *bytes of them, to dst + *to. */
static int file_takes(const file_comm *m, const esp_coll *c, int32_t q, uint64_t *at, uint64_t *bytes, uint64_t *to) {
    *at = *to = 0;
    *bytes = c->count * file_unit(c);
    switch (c->op) {
    case ESP_COLL_ALLREDUCE: return 1;
    case ESP_COLL_REDUCE: return m->rank == c->root;
    case ESP_COLL_REDUCE_SCATTER: *at = file_part(m, c, m->rank, bytes); return 1;
    case ESP_COLL_GATHER:
    case ESP_COLL_ALLGATHER: *to = file_part(m, c, q, bytes); return c->op == ESP_COLL_ALLGATHER || m->rank == c->root;
    case ESP_COLL_ALLTOALL:
        *to = file_part(m, c, q, bytes);
        *at = file_part(m, c, m->rank, bytes);
        return 1;
    default: return q == c->root && m->rank != q;
    }
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */
static float file_load(esp_dtype d, const uint8_t *p, uint64_t i) {
    uint16_t h;
    float f;
    if (d == ESP_F32) return memcpy(&f, p + i * 4, 4), f;
    memcpy(&h, p + i * 2, 2);
    return d == ESP_F16 ? half_from_f16(h) : half_float((uint32_t)h << 16);
}
static void file_store(esp_dtype d, uint8_t *p, uint64_t i, float x) {
    uint16_t h = (uint16_t)(d == ESP_F16 ? half_any_f16(x) : half_any_bf16(x));
    if (d == ESP_F32)
        memcpy(p + i * 4, &x, 4);
    else
        memcpy(p + i * 2, &h, 2);
}
static int32_t file_load_int(esp_dtype d, const uint8_t *p, uint64_t i) {
    int32_t x;
    int16_t h;
    if (d == ESP_I32) return memcpy(&x, p + i * 4, 4), x;
    if (d == ESP_I16) return memcpy(&h, p + i * 2, 2), h;
    return (int8_t)p[i];
}
/* Rises with x; -0 is less than +0. */
static int32_t file_order(float x) {
    int32_t bits;
    memcpy(&bits, &x, 4);
    return bits < 0 ? bits ^ INT32_MAX : bits;
}
/* The bytes of `piece` into the numbers at m->sum; first: they are the first rank's. */
static void file_add(file_comm *m, const esp_coll *c, uint64_t n, int first) {
    const uint32_t nan_bits = 0x7fc00000u;
    int32_t *ints = (int32_t *)(void *)m->sum;
    for (uint64_t i = 0; i < n; i++) {
        if (c->dtype >= ESP_I8) {
            int32_t x = file_load_int(c->dtype, m->piece, i), y = first ? x : ints[i];
            ints[i] = first                         ? x
                      : c->reduce == ESP_REDUCE_MAX ? (x > y ? x : y)
                      : c->reduce == ESP_REDUCE_MIN ? (x < y ? x : y)
                                                    : (int32_t)((uint32_t)x + (uint32_t)y);
            continue;
        }
        float x = file_load(c->dtype, m->piece, i), y = first ? x : m->sum[i];
        if (c->reduce <= ESP_REDUCE_SUM)
            m->sum[i] = first ? x : y + x;
        else if (x != x || y != y)
            memcpy(&m->sum[i], &nan_bits, 4); /* the same NaN on every rank, whichever had one */
        else
            m->sum[i] = (file_order(x) < file_order(y)) == (c->reduce == ESP_REDUCE_MIN) ? x : y;
    }
}
static void file_put(const file_comm *m, const esp_coll *c, uint64_t n, uint8_t *dst) {
    const int32_t *ints = (const int32_t *)(const void *)m->sum;
    float scale = c->scale != 0 && c->reduce <= ESP_REDUCE_SUM ? c->scale : 1.0f;
    for (uint64_t i = 0; i < n; i++) {
        int16_t h = c->dtype == ESP_I16 ? (int16_t)(uint32_t)ints[i] : (int16_t)0;
        if (c->dtype == ESP_I32)
            memcpy(dst + i * 4, &ints[i], 4);
        else if (c->dtype == ESP_I16)
            memcpy(dst + i * 2, &h, 2);
        else if (c->dtype == ESP_I8)
            dst[i] = (uint8_t)(uint32_t)ints[i];
        else
            file_store(c->dtype, dst, i, m->sum[i] * scale);
    }
}

/* ---- the running collective ------------------------------------------------------------------------------------------- */
static void file_name(char *out, uint64_t number, int32_t rank) {
    snprintf(out, 40, "%llu.%d", (unsigned long long)number, (int)rank);
}
/* Removes this rank's files that no rank needs any more: those before a collective whose files are all there. */
static void file_clean(file_comm *m) {
    char name[40];
    for (; m->oldest + 1 <= m->first; m->oldest++) {
        for (int32_t q = 0; q < m->size; q++) {
            file_name(name, m->oldest + 1, q);
            if (q != m->rank && faccessat(m->dirfd, name, F_OK, 0) != 0) return;
        }
        file_name(name, m->oldest, m->rank);
        unlinkat(m->dirfd, name, 0);
    }
}
/* Used bytes of a payload slot, from its header. */
static uint64_t file_used(const void *header, uint64_t slot_bytes) {
    esp_payload_header h;
    memcpy(&h, header, sizeof h);
    return h.body_bytes > slot_bytes - ESP_PAYLOAD_HEADER ? slot_bytes : ESP_PAYLOAD_HEADER + h.body_bytes;
}
/* Writes the next piece of the source: of payload slots only their used bytes, so that the file has holes. */
static int file_write_piece(file_comm *m, const esp_coll *c, uint64_t all) {
    const uint8_t *src = (const uint8_t *)c->src.ptr;
    uint64_t n = all - m->at < FILE_PIECE ? all - m->at : FILE_PIECE, step = n;
    if (c->slot_bytes) {
        uint64_t in = m->at % c->slot_bytes, used = file_used(src + m->at - in, c->slot_bytes);
        if (n > c->slot_bytes - in) n = step = c->slot_bytes - in;
        n = used <= in ? 0 : used - in < n ? used - in : n;
    }
    if (n && pwrite(m->own, src + m->at, n, (off_t)m->at) != (ssize_t)n) return file_errno(m, "cannot write");
    m->at += step;
    return 1;
}
/* Writes a piece of this rank's file; links it at the end. 1: something was done. */
static int file_write(file_comm *m, const esp_coll *c) {
    char name[40], hidden[44];
    uint64_t all = file_sends(m, c, m->rank);
    file_name(name, m->first, m->rank);
    snprintf(hidden, sizeof hidden, ".%s", name);
    if (m->own < 0) m->own = openat(m->dirfd, hidden, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (m->own < 0) return file_errno(m, "cannot make a file");
    for (int i = 0; i < 16 && m->at < all; i++)
        if (file_write_piece(m, c, all) < 0) return m->error;
    if (m->at < all) return 1;
    int failed = ftruncate(m->own, (off_t)all) || close(m->own) || linkat(m->dirfd, hidden, m->dirfd, name, 0) ||
                 unlinkat(m->dirfd, hidden, 0);
    m->own = -1;
    if (failed) return file_errno(m, "cannot write");
    m->state = FILE_READS, m->at = 0;
    return 1;
}
/* Opens the files that this rank needs. 1: all are there. */
static int file_open_all(file_comm *m, const esp_coll *c) {
    uint64_t at, bytes, to;
    for (int32_t q = 0; q < m->size; q++) {
        char name[40];
        struct stat st;
        if (m->fds[q] >= 0 || !file_takes(m, c, q, &at, &bytes, &to)) continue;
        file_name(name, m->first, q);
        m->waits_for = q;
        if ((m->fds[q] = openat(m->dirfd, name, O_RDONLY | O_CLOEXEC)) < 0)
            return errno == ENOENT || errno == ESTALE ? 0 : file_errno(m, "cannot open a rank's file");
        if (fstat(m->fds[q], &st) || (uint64_t)st.st_size != file_sends(m, c, q))
            return m->error = file_say(m->host, ESP_E_MISMATCH, "ranks started different collectives: see", m->dir);
    }
    m->waits_for = -1;
    m->state = FILE_MOVES;
    return 1;
}
static int file_read(file_comm *m, int32_t q, uint64_t at, uint64_t n, void *out) {
    if (pread(m->fds[q], out, n, (off_t)at) != (ssize_t)n) return file_errno(m, "cannot read a rank's file");
    if (q == m->rank) return 0;
    *(m->level[q] > 1 ? &m->traffic.inter_bytes : &m->traffic.intra_bytes) += n;
    m->traffic.level_bytes[m->level[q] - 1] += n;
    return 0;
}
/* Reads rank q's piece [at, at + n) of payload slots to `out`: their used bytes. */
static int file_read_slot(file_comm *m, const esp_coll *c, int32_t q, uint64_t at, uint64_t n, uint8_t *out) {
    uint64_t in = at % c->slot_bytes;
    if (!in) {
        uint8_t header[ESP_PAYLOAD_HEADER];
        if (pread(m->fds[q], header, sizeof header, (off_t)at) != (ssize_t)sizeof header)
            return file_errno(m, "cannot read a rank's file");
        m->used[q] = file_used(header, c->slot_bytes);
    }
    if (m->used[q] <= in) return 0;
    return file_read(m, q, at, m->used[q] - in < n ? m->used[q] - in : n, out);
}
/* Moves a piece of the result, beginning at m->at. 1: more is left; 0: it was the last; negative: an error. */
static int file_move(file_comm *m, const esp_coll *c) {
    uint64_t at, bytes = 0, to, longest = 0, e = c->slot_bytes ? 1 : esp_dtype_bytes(c->dtype);
    uint64_t most = FILE_PIECE / 4 * e, n;
    uint8_t *dst = (uint8_t *)c->dst.ptr;
    int first = 1, sums = file_sums(c);
    if (c->slot_bytes && most > c->slot_bytes - m->at % c->slot_bytes) most = c->slot_bytes - m->at % c->slot_bytes;
    for (int32_t q = 0; q < m->size; q++) {
        if (!file_takes(m, c, q, &at, &bytes, &to)) continue;
        if (bytes > longest) longest = bytes;
        if (bytes <= m->at) continue;
        n = bytes - m->at < most ? bytes - m->at : most;
        if (c->slot_bytes ? file_read_slot(m, c, q, at + m->at, n, dst + to + m->at)
                          : file_read(m, q, at + m->at, n, sums ? m->piece : dst + to + m->at))
            return m->error;
        if (sums) file_add(m, c, n / e, first);
        first = 0;
    }
    if (sums && !first) file_put(m, c, (longest - m->at < most ? longest - m->at : most) / e, dst + m->at);
    m->at += most;
    return m->at < longest;
}
static void file_done(file_comm *m) {
    for (int32_t q = 0; q < m->size; q++) {
        if (m->fds[q] >= 0) close(m->fds[q]);
        m->fds[q] = -1;
    }
    m->reqs[m->first % FILE_QUEUE].done = 1;
    m->first++;
    m->state = FILE_WRITES, m->at = 0;
    if (m->first < m->next || m->first - m->oldest > 2) file_clean(m);
}
/* Does a piece of the running collective. 1: something moved; 0: nothing can move now; negative: an error. */
static int file_drive(file_comm *m) {
    if (m->error) return m->error;
    if (m->first == m->next) return 0;
    if (__atomic_load_n(&m->aborted, __ATOMIC_SEQ_CST)) return m->error = ESP_E_PEER;
    const esp_coll *c = &m->reqs[m->first % FILE_QUEUE].c;
    if (m->state == FILE_WRITES) return file_write(m, c);
    if (m->state == FILE_READS) {
        int all = file_open_all(m, c);
        if (all <= 0) return all;
    }
    int more = file_move(m, c);
    if (more < 0) return more;
    if (!more) file_done(m);
    return 1;
}

/* ---- the table ------------------------------------------------------------------------------------------------------------- */
static esp_status file_check(file_comm *m, const esp_coll *c) {
    int sums = file_sums(c);
    if (c->op < ESP_COLL_ALLREDUCE || c->op > ESP_COLL_REDUCE)
        return file_say(m->host, ESP_E_ARG, "there is no such collective: use ESP_COLL_*", "");
    if ((c->root < 0 || c->root >= m->size) &&
        (c->op == ESP_COLL_BROADCAST || c->op == ESP_COLL_GATHER || c->op == ESP_COLL_REDUCE))
        return file_say(m->host, ESP_E_ARG, "the root is no rank of the group", "");
    if (c->slot_bytes ? sums || c->slot_bytes < ESP_PAYLOAD_HEADER : !esp_dtype_bytes(c->dtype))
        return file_say(m->host, ESP_E_ARG, "needs a dtype, or slots of 64 bytes and more (not for sums)", "");
    if (c->op == ESP_COLL_ALLTOALL && c->count % (uint64_t)m->size)
        return file_say(m->host, ESP_E_ARG, "alltoall: count must be a multiple of the ranks", "");
    if (c->src.dev.kind > ESP_CPU || c->dst.dev.kind > ESP_CPU)
        return file_say(m->host, ESP_E_UNSUPPORTED, "moves host memory only: copy to the CPU first", "");
    return ESP_OK;
}
static esp_status file_start(void *comm, const esp_coll *c, esp_stream s, void **req) {
    file_comm *m = (file_comm *)comm;
    file_req *r = &m->reqs[m->next % FILE_QUEUE];
    (void)s;
    if (m->error) return m->error;
    esp_status st = file_check(m, c);
    if (st != ESP_OK) return st;
    if (r->used) return file_say(m->host, ESP_E_STATE, "64 requests are open: test them before starting more", "");
    memset(r, 0, sizeof *r);
    memcpy(&r->c, c, c->struct_size && c->struct_size < sizeof r->c ? c->struct_size : sizeof r->c);
    r->used = 1;
    m->next++;
    *req = r;
    return ESP_OK;
}
static void file_drain(file_comm *m) {
    struct epoll_event events[16];
    char drop[4096];
    int n = epoll_wait(m->epoll, events, 16, 0);
    for (int i = 0; i < n; i++)
        while (read(events[i].data.fd, drop, sizeof drop) > 0) {
        }
}
static void file_wake(void *comm) {
    file_comm *m = (file_comm *)comm;
    uint64_t one = 1;
    if (write((m->parent ? m->parent : m)->event, &one, sizeof one) < 0) return; /* full: it is readable already */
}
static esp_status file_test(void *comm, void *req) {
    file_comm *m = (file_comm *)comm;
    file_req *r = (file_req *)req;
    file_drain(m->parent ? m->parent : m); /* before the look: what changes later makes it readable again */
    int moved = 1;
    for (int i = 0; i < 4 && !r->done && moved; i++)
        if ((moved = file_drive(m)) < 0) return moved;
    if (!r->done && moved) file_wake(m); /* there is more to do at once */
    if (!r->done) return ESP_PENDING;
    r->used = 0;
    return ESP_OK;
}
static esp_status file_progress(void *comm, uint64_t timeout_us) {
    file_comm *m = (file_comm *)comm;
    struct pollfd p = {m->epoll, POLLIN, 0};
    if (timeout_us > FILE_LOOK_US) timeout_us = FILE_LOOK_US;
    if (timeout_us && poll(&p, 1, (int)((timeout_us + 999) / 1000)) < 0 && errno != EINTR) return ESP_E_COMM;
    file_drain(m);
    return ESP_OK;
}
static int32_t file_wait_fd(void *comm) { return ((file_comm *)comm)->epoll; }
static esp_status file_abort(void *comm) {
    __atomic_store_n(&((file_comm *)comm)->aborted, 1u, __ATOMIC_SEQ_CST);
    file_wake(comm);
    return ESP_OK;
}
static int32_t file_late(void *comm, void *req) {
    file_comm *m = (file_comm *)comm;
    return ((file_req *)req)->done ? -1 : m->waits_for;
}
static esp_status file_traffic(void *comm, esp_traffic *out) {
    file_comm *m = (file_comm *)comm;
    esp_traffic t = m->traffic;
    t.struct_size = out->struct_size;
    memcpy(out, &t, out->struct_size < sizeof t ? out->struct_size : sizeof t);
    return ESP_OK;
}
static esp_status file_probe(const esp_host *h, int32_t *score) {
    (void)h;
    *score = 1; /* as low as loop, which stands before it */
    return ESP_OK;
}

/* ---- opening and closing ------------------------------------------------------------------------------------------------- */
/* Removes the directory if every rank has left it, or all hope is lost. */
static void file_sweep(file_comm *m) {
    struct dirent *e;
    char name[40];
    int left = m->size, copy;
    for (int32_t q = 0; q < m->size; q++) {
        snprintf(name, sizeof name, "left.%d", (int)q);
        left -= faccessat(m->dirfd, name, F_OK, 0) == 0;
    }
    if (left && !m->error) return;
    copy = openat(m->dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = copy < 0 ? NULL : fdopendir(copy);
    if (!d) return;
    while ((e = readdir(d)) != NULL)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) unlinkat(m->dirfd, e->d_name, 0);
    closedir(d);
    rmdir(m->dir);
}
static void file_free(file_comm *m) {
    const int fds[] = {m->own, m->dirfd, m->notify, m->event, m->epoll};
    esp_device cpu = {ESP_CPU, 0};
    uint64_t n = (uint64_t)m->size;
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0) close(fds[i]);
    for (int32_t q = 0; m->fds && q < m->size; q++)
        if (m->fds[q] >= 0) close(m->fds[q]);
    if (m->level) m->host->free_(m->host->user, cpu, m->level, n);
    if (m->fds) m->host->free_(m->host->user, cpu, m->fds, n * sizeof *m->fds);
    if (m->used) m->host->free_(m->host->user, cpu, m->used, n * sizeof *m->used);
    if (m->piece) m->host->free_(m->host->user, cpu, m->piece, FILE_PIECE);
    if (m->sum) m->host->free_(m->host->user, cpu, m->sum, FILE_PIECE);
    m->host->free_(m->host->user, cpu, m, sizeof *m);
}
static void file_close(void *comm) {
    file_comm *m = (file_comm *)comm;
    char name[40];
    if (!m) return;
    snprintf(name, sizeof name, "left.%d", (int)m->rank);
    int fd = openat(m->dirfd, name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (fd >= 0) close(fd);
    file_sweep(m);
    file_free(m);
}

/* The outermost level at which each rank's place differs from this rank's. */
static void file_levels(file_comm *m, const esp_group *g) {
    for (int32_t q = 0; q < m->size; q++) {
        m->level[q] = g->machine && g->machine[q] != g->machine[m->rank] ? 2 : 1;
        for (int32_t k = 0; g->place && k < g->n_levels && g->n_levels <= ESP_LEVELS; k++)
            if (g->place[q * g->n_levels + k] != g->place[m->rank * g->n_levels + k]) m->level[q] = (uint8_t)(k + 1);
    }
}
static esp_status file_take(file_comm *m, const esp_group *g) {
    esp_device cpu = {ESP_CPU, 0};
    uint64_t n = (uint64_t)m->size;
    m->level = (uint8_t *)m->host->alloc(m->host->user, cpu, n, 64);
    m->fds = (int *)m->host->alloc(m->host->user, cpu, n * sizeof *m->fds, 64);
    m->used = (uint64_t *)m->host->alloc(m->host->user, cpu, n * sizeof *m->used, 64);
    m->piece = (uint8_t *)m->host->alloc(m->host->user, cpu, FILE_PIECE, 64);
    m->sum = (float *)m->host->alloc(m->host->user, cpu, FILE_PIECE, 64);
    for (int32_t q = 0; m->fds && q < m->size; q++) m->fds[q] = -1;
    if (!m->level || !m->fds || !m->used || !m->piece || !m->sum)
        return file_say(m->host, ESP_E_NOMEM, "no memory for a communicator", "");
    file_levels(m, g);
    return ESP_OK;
}
/* Reads "dir=PATH" into m->dir, with the pattern of a new directory in it. */
static esp_status file_params(file_comm *m, const char *params) {
    char key[16], val[FILE_PATH - 32] = "/tmp";
    int more;
    while ((more = esp_params_next(&params, key, sizeof key, val, sizeof val)) > 0)
        if (strcmp(key, "dir") != 0)
            return file_say(m->host, ESP_E_ARG, "takes dir=PATH, a directory that all ranks see; not", key);
    if (more < 0) return file_say(m->host, ESP_E_ARG, "parameters are malformed: write dir=/path", "");
    snprintf(m->dir, sizeof m->dir, "%s/espresso-XXXXXX", val);
    return ESP_OK;
}
/* Rank 0 makes the directory, all ranks open it. */
static esp_status file_meet(file_comm *m, const esp_group *g, esp_status so_far, file_hello *all) {
    file_hello mine;
    memset(&mine, 0, sizeof mine);
    if (m->rank == 0 && !so_far && !mkdtemp(m->dir)) so_far = file_errno(m, "cannot make a directory");
    snprintf(mine.dir, sizeof mine.dir, "%s", m->dir);
    for (int turn = 0; turn < 2; turn++) { /* then each says whether it could open it */
        mine.status = so_far;
        all[0] = mine;
        esp_status s = m->size > 1 ? g->oob_allgather(g->user, &mine, all, sizeof mine) : ESP_OK;
        for (int32_t q = 0; q < m->size && !s; q++) s = all[q].status;
        if (s) return so_far ? so_far : file_say(m->host, s, "another rank cannot use the directory", all[0].dir);
        snprintf(m->dir, sizeof m->dir, "%s", all[0].dir);
        if (turn) break;
        m->dirfd = open(m->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (m->dirfd < 0) so_far = file_errno(m, "cannot open the directory (do all ranks see it?)");
    }
    return ESP_OK;
}
/* Descriptors that become readable when a file appears, or when somebody wakes this rank. */
static esp_status file_watch(file_comm *m) {
    struct epoll_event e = {.events = EPOLLIN};
    m->epoll = epoll_create1(EPOLL_CLOEXEC);
    m->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    m->notify = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (m->epoll < 0 || m->event < 0 || m->notify < 0 || inotify_add_watch(m->notify, m->dir, IN_CREATE) < 0)
        return file_errno(m, "cannot watch the directory");
    for (int k = 0; k < 2; k++) {
        e.data.fd = k ? m->event : m->notify;
        int to = k || !m->parent ? m->epoll : m->parent->epoll;
        if (epoll_ctl(to, EPOLL_CTL_ADD, e.data.fd, &e)) return file_errno(m, "cannot watch the directory");
    }
    return ESP_OK;
}
static esp_status file_open(const esp_host *h, const esp_group *g, const char *params, void **comm) {
    esp_device cpu = {ESP_CPU, 0};
    uint64_t bytes = (uint64_t)g->size * sizeof(file_hello);
    file_comm *m = (file_comm *)h->alloc(h->user, cpu, sizeof *m, 64);
    *comm = NULL;
    if (!m) return file_say(h, ESP_E_NOMEM, "no memory for a communicator", "");
    memset(m, 0, sizeof *m);
    m->host = h, m->rank = g->rank, m->size = g->size, m->waits_for = -1, m->parent = (file_comm *)g->parent;
    m->own = m->dirfd = m->epoll = m->event = m->notify = -1;
    file_hello *all = (file_hello *)h->alloc(h->user, cpu, bytes, 64);
    esp_status s = file_take(m, g);
    if (!s) s = file_params(m, params);
    if (!all) { /* no way to tell the others: they find out by their timeout */
        file_free(m);
        return file_say(h, ESP_E_NOMEM, "no memory for a communicator", "");
    }
    s = file_meet(m, g, s, all);
    h->free_(h->user, cpu, all, bytes);
    if (!s) s = file_watch(m);
    if (s) {
        if (m->rank == 0 && m->dirfd >= 0) rmdir(m->dir);
        file_free(m);
        return s;
    }
    *comm = m;
    return ESP_OK;
}

static const esp_backend file_backend = {
    .struct_size = sizeof(esp_backend),
    .caps = ESP_BACKEND_NEEDS_PROGRESS | ESP_BACKEND_VARLEN | ESP_BACKEND_SCALE,
    .colls = ESP_BIT(ESP_COLL_ALLREDUCE) | ESP_BIT(ESP_COLL_ALLGATHER) | ESP_BIT(ESP_COLL_ALLTOALL) |
             ESP_BIT(ESP_COLL_REDUCE_SCATTER) | ESP_BIT(ESP_COLL_BROADCAST) | ESP_BIT(ESP_COLL_GATHER) |
             ESP_BIT(ESP_COLL_REDUCE),
    .devices = ESP_BIT(ESP_CPU),
    .dtypes =
        ESP_BIT(ESP_F32) | ESP_BIT(ESP_F16) | ESP_BIT(ESP_BF16) | ESP_BIT(ESP_I8) | ESP_BIT(ESP_I16) | ESP_BIT(ESP_I32),
    .reduces = ESP_BIT(ESP_REDUCE_SUM) | ESP_BIT(ESP_REDUCE_MAX) | ESP_BIT(ESP_REDUCE_MIN),
    .name = "file",
    .summary = "ranks exchange files in a directory that all of them see",
    .params = "dir=/tmp",
    .probe = file_probe,
    .open = file_open,
    .close = file_close,
    .start = file_start,
    .test = file_test,
    .progress = file_progress,
    .wake = file_wake,
    .wait_fd = file_wait_fd,
    .abort = file_abort,
    .late = file_late,
    .traffic = file_traffic,
};
static const esp_backend *const file_backends[] = {&file_backend};
static const esp_plugin file_plugin = {
    .struct_size = sizeof(esp_plugin),
    .n_backends = 1,
    .name = "file",
    .version = ESPRESSO_VERSION,
    .license = "MIT",
    .backends = file_backends,
};
ESPRESSO_PLUGIN_ENTRY(file) {
    (void)h;
    return &file_plugin;
}
