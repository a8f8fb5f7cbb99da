/* comm.c: implements the functions of esp_backend for the backends gloo and mpi: opens and closes communicators, runs
 * their collectives, and waits. MPI and gloo do not notify when a message completes, so a waiting thread polls them and
 * sleeps longer after each poll that finds nothing. It sleeps on a timerfd, whose descriptor a thread that waits for
 * several backends can poll. */
#include "backends/p2p/p2p.h"
#include "codecs/common/simd.h"
#include "espresso_impl/base/limits.h"
#include <poll.h>
#include <sched.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* ---- running requests -------------------------------------------------------------------------------------------- */
static bool p2p_pending(const p2p_comm *m) { return m->first != m->next_req; }

/* Marks the communicator as failed, and cancels its messages, so that none accesses this rank's memory any more. */
static esp_status p2p_fail(p2p_comm *m, esp_status s) {
    if (m->error != ESP_OK) return m->error;
    m->error = s;
    m->wire->cancel(m->self);
    return s;
}

static uint32_t p2p_most_messages(int32_t n) { return 4 * (uint32_t)n; }

static int p2p_begin_some(p2p_comm *m) {
    int began = 0;
    while (m->next_begin != m->next_req) {
        p2p_req *r = &m->reqs[m->next_begin % P2P_QUEUE];
        if (r->begun == r->cols) {
            m->next_begin++;
            continue;
        }
        uint32_t k = 0;
        while (k < P2P_AHEAD && m->columns[k].r) k++;
        if (k == P2P_AHEAD) break;
        p2p_column *x = &m->columns[k];
        uint8_t *cell = m->staging + k * m->cell_bytes;
        memset(x, 0, sizeof *x);
        x->r = r, x->i = r->begun++, x->seq = m->seq++, x->cell = cell;
        began = 1;
        const int s = p2p_begin(m, x);
        if (s) return s;
    }
    return began;
}

static void p2p_end_some(p2p_comm *m) {
    for (uint64_t k = m->first; k != m->next_req; k++) {
        p2p_req *r = &m->reqs[k % P2P_QUEUE];
        if (!r->done && r->ended == r->cols) r->done = true, m->ready++;
    }
    while (m->first != m->next_req && m->reqs[m->first % P2P_QUEUE].done) m->first++;
}

static int p2p_advance_all(p2p_comm *m) {
    int any = 0;
    for (uint32_t k = 0; k < P2P_AHEAD; k++) {
        p2p_column *x = &m->columns[k];
        if (!x->r) continue;
        const int s = p2p_advance(m, x);
        if (s < 0) return s;
        if (!s) continue;
        x->r->ended++;
        x->r = NULL;
        any = 1;
    }
    return any;
}

static int p2p_poll(p2p_comm *m) {
    uint32_t places[P2P_DONE];
    uint64_t bytes[P2P_DONE];
    const int n = m->wire->poll(m->self, places, bytes, P2P_DONE);
    for (int k = 0; k < n; k++) {
        const p2p_message t = m->messages[places[k]];
        p2p_column *x = &m->columns[t.column];
        m->free[m->n_free++] = places[k];
        m->messages[places[k]].what = P2P_FREE;
        if (t.what == P2P_INPUT_IN || t.what == P2P_RESULT_IN)
            backend_count(&m->level_bytes[m->level[t.peer] - 1], bytes[k]);
        const int s = p2p_message_done(m, x, &t);
        if (s) return s;
    }
    return n;
}

/* Makes all progress that is possible without waiting. Returns 1 if there was any, 0 if not, or a negative error. */
static int p2p_drive(p2p_comm *m) {
    static int (*const steps[3])(p2p_comm *) = {p2p_begin_some, p2p_poll, p2p_advance_all};
    const uint64_t until = backend_now_ns() + P2P_BUDGET_NS;
    int moved = 0;
    if (m->error != ESP_OK) return m->error;
    if (!p2p_pending(m)) return 0;
    if (BACKEND_LOAD(&m->aborted)) return p2p_fail(m, ESP_E_PEER);
    for (;;) {
        int any = 0;
        for (int k = 0; k < 3; k++) {
            const int s = steps[k](m);
            if (s < 0) return p2p_fail(m, s);
            any |= s;
        }
        if (!any) break;
        moved = 1;
        p2p_end_some(m);
        if (!p2p_pending(m) || backend_now_ns() >= until) break;
    }
    p2p_end_some(m); /* a communicator of one rank has requests without chunks, which end here */
    return moved;
}

/* Makes progress on every communicator of the job. Returns true if there was any, or if p2p_test has not yet returned a
 * finished request. Sets *pending to whether requests are unfinished. */
static bool p2p_drive_all(p2p_job *j, bool *pending) {
    bool again = false;
    *pending = false;
    for (p2p_comm *m = j->comms; m; m = m->next) {
        if (p2p_pending(m) && p2p_drive(m)) again = true;
        if (m->ready) again = true;
        *pending |= p2p_pending(m) && m->error == ESP_OK;
    }
    return again;
}

/* ---- the backend table ------------------------------------------------------------------------------------------- */
enum { P2P_POLLS = 32 }; /* polls before the first sleep */

ESP__FN esp_status p2p_start(void *comm, const esp_coll *c, esp_stream s, void **req) {
    p2p_comm *m = (p2p_comm *)comm;
    p2p_req *r = &m->reqs[m->next_req % P2P_QUEUE];
    esp_coll call;
    (void)s;
    if (m->error != ESP_OK) return m->error;
    if (BACKEND_LOAD(&m->aborted)) return ESP_E_PEER;
    backend_copy_call(c, &call);
    esp_status st = backend_check(&m->who, &call);
    if (st != ESP_OK) return st;
    if (call.slot_bytes > P2P_MESSAGE)
        return backend_error(&m->who, ESP_E_UNSUPPORTED,
                             "payload slots of %llu bytes: a message has at most %d: cut the tensor into chunks",
                             (unsigned long long)call.slot_bytes, (int)P2P_MESSAGE);
    if (r->used)
        return backend_error(&m->who, ESP_E_STATE, "%d requests are open: test them before starting more", P2P_QUEUE);
    p2p_plan(m, &call, r);
    if (m->who.size == 1) backend_single_rank(&call, m->simd), r->cols = 0;
    r->used = true;
    m->next_req++;
    m->job->nap_ns = P2P_NAP_LEAST_NS;
    *req = r;
    const int begun = p2p_begin_some(m);
    return begun < 0 ? p2p_fail(m, begun) : ESP_OK;
}

ESP__FN esp_status p2p_test(void *comm, void *req) {
    p2p_comm *m = (p2p_comm *)comm;
    p2p_req *r = (p2p_req *)req;
    if (!r->done) {
        const int s = p2p_drive(m);
        if (s < 0) return s;
        if (!r->done) return ESP_PENDING;
    }
    r->used = false;
    m->ready--;
    return ESP_OK;
}

static void p2p_timer(p2p_job *j, uint64_t ns) {
    struct itimerspec at;
    memset(&at, 0, sizeof at);
    at.it_value.tv_sec = (time_t)(ns / 1000000000u), at.it_value.tv_nsec = (long)(ns % 1000000000u);
    if (j->timer >= 0) timerfd_settime(j->timer, 0, &at, NULL);
}
/* Clears the timer, does all work that is possible, and sets the timer for the next poll if requests are open. */
static void p2p_arm(p2p_job *j) {
    bool pending, again;
    p2p_timer(j, 0);
    BACKEND_STORE(&j->woken, 0u);
    again = p2p_drive_all(j, &pending);
    j->nap_ns = again ? P2P_NAP_LEAST_NS : backend_min(j->nap_ns * 2, P2P_NAP_MOST_NS);
    if (BACKEND_LOAD(&j->woken)) again = true;
    p2p_timer(j, again ? 1 : pending ? j->nap_ns : 0);
    if (!again && BACKEND_LOAD(&j->woken)) p2p_timer(j, 1); /* the line above may have undone p2p_wake's timer */
}
ESP__FN int32_t p2p_wait_fd(void *comm) { return ((p2p_comm *)comm)->job->timer; }

ESP__FN esp_status p2p_progress(void *comm, uint64_t timeout_us) {
    p2p_job *j = ((p2p_comm *)comm)->job;
    const uint64_t until = backend_now_ns() + backend_min(timeout_us, 3600000000u) * 1000u;
    uint64_t nap = P2P_NAP_LEAST_NS;
    if (!timeout_us) return p2p_arm(j), ESP_OK;
    for (int polls = 0;; polls++) {
        bool pending;
        if (__atomic_exchange_n(&j->woken, 0u, __ATOMIC_SEQ_CST) || p2p_drive_all(j, &pending)) return ESP_OK;
        const uint64_t now = backend_now_ns();
        if (now >= until) return ESP_OK;
        if (pending && polls < P2P_POLLS) {
            sched_yield();
            continue;
        }
        struct pollfd fd = {j->timer, POLLIN, 0};
        const uint64_t ns = pending ? backend_min(nap, until - now) : until - now;
        p2p_timer(j, ns);
        if (BACKEND_LOAD(&j->woken)) continue;
        poll(&fd, 1, (int)(ns / 1000000u) + 1);
        nap = backend_min(nap * 2, P2P_NAP_MOST_NS);
    }
}
ESP__FN void p2p_wake(void *comm) {
    p2p_job *j = ((p2p_comm *)comm)->job;
    BACKEND_STORE(&j->woken, 1u);
    p2p_timer(j, 1);
}
ESP__FN esp_status p2p_abort(void *comm) {
    BACKEND_STORE(&((p2p_comm *)comm)->aborted, 1u);
    p2p_wake(comm);
    return ESP_OK;
}

/* Returns the peer that must send the oldest message for which the request waits. */
ESP__FN int32_t p2p_straggler(void *comm, void *req) {
    const p2p_comm *m = (const p2p_comm *)comm;
    int32_t straggler = -1;
    uint64_t oldest = UINT64_MAX;
    for (uint32_t k = 0; k < m->places; k++) {
        const p2p_message *t = &m->messages[k];
        const p2p_column *x = &m->columns[t->column];
        if (t->what != P2P_INPUT_IN && t->what != P2P_RESULT_IN) continue;
        if (x->r != req || x->seq > oldest || (x->seq == oldest && t->what == P2P_RESULT_IN)) continue;
        oldest = x->seq, straggler = t->peer;
    }
    return straggler;
}

ESP__FN esp_status p2p_traffic(void *comm, esp_traffic *out) {
    const p2p_comm *m = (const p2p_comm *)comm;
    return backend_traffic(out, m->level_bytes,
                           P2P_AHEAD * m->cell_bytes + m->places * (sizeof *m->messages + sizeof *m->free));
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */
static void p2p_free(p2p_comm *m) {
    const esp_host *h = m->who.host;
    const uint64_t n = (uint64_t)m->who.size;
    if (m->wire) m->wire->close(m->self, m->error != ESP_OK || m->aborted);
    backend_release(h, m->level, n);
    backend_release(h, m->staging, P2P_AHEAD * m->cell_bytes);
    backend_release(h, m->messages, m->places * sizeof *m->messages);
    backend_release(h, m->free, m->places * sizeof *m->free);
    if (m->job && --m->job->refs == 0) {
        if (m->job->timer >= 0) close(m->job->timer);
        backend_release(h, m->job, sizeof *m->job);
    }
    backend_release(h, m, sizeof *m);
}
ESP__FN void p2p_close(void *comm) {
    p2p_comm *m = (p2p_comm *)comm;
    if (!m) return;
    if (p2p_pending(m)) p2p_fail(m, ESP_E_STATE);
    p2p_comm **at = &m->job->comms;
    while (*at && *at != m) at = &(*at)->next;
    if (*at) *at = m->next;
    p2p_free(m);
}

ESP__FN esp_status p2p_new(const esp_host *h, const esp_group *g, const char *name, p2p_comm **out) {
    const uint64_t n = (uint64_t)g->size;
    *out = NULL;
    const esp_status s = backend_check_group(h, name, g, BACKEND_RANKS);
    if (s != ESP_OK) return s;
    p2p_comm *m = (p2p_comm *)backend_alloc(h, sizeof *m), *parent = (p2p_comm *)g->parent;
    if (!m) return backend_log(h, name, ESP_E_NOMEM, "no memory for a communicator");
    m->who = (backend_caller){h, name, g->rank, g->size};
    m->simd = esp_simd_level();
    m->places = P2P_AHEAD * p2p_most_messages(g->size);
    m->cell_bytes = n * p2p_widest(g->size);
    m->level = (uint8_t *)backend_alloc(h, n);
    m->staging = (uint8_t *)backend_alloc(h, P2P_AHEAD * m->cell_bytes);
    m->messages = (p2p_message *)backend_alloc(h, m->places * sizeof *m->messages);
    m->free = (uint32_t *)backend_alloc(h, m->places * sizeof *m->free);
    m->job = parent ? parent->job : (p2p_job *)backend_alloc(h, sizeof *m->job);
    if (m->job && !parent) m->job->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (m->job) m->job->refs++;
    if (!m->level || !m->staging || !m->messages || !m->free || !m->job || m->job->timer < 0) {
        const bool timer = m->job && m->job->timer < 0;
        const int error = errno;
        p2p_free(m);
        if (timer) return backend_log(h, name, ESP_E_NOMEM, "cannot make a timer: %s", esp__strerror(error));
        return backend_log(h, name, ESP_E_NOMEM, "no memory for a communicator of %d ranks", (int)n);
    }
    for (uint32_t k = 0; k < m->places; k++) m->free[m->n_free++] = m->places - 1 - k;
    for (int32_t q = 0; q < g->size; q++) m->level[q] = backend_level(g, q, g->rank);
    m->next = m->job->comms;
    m->job->comms = m;
    *out = m;
    return ESP_OK;
}
