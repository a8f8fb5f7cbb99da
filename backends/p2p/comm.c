/* comm.c: the collectives of a comm, those of all comms of a job, the functions of the backend table, and waiting. A wire tells nobody
 * when a message comes through: a thread that waits looks after naps, at first short ones. A timer is the descriptor on which it sleeps,
 * so it can sleep on other backends as well. */
#include "backends/p2p/p2p.h"
#include "codecs/common/simd.h"
#include <poll.h>
#include <sched.h>
#include <sys/timerfd.h>
#include <unistd.h>

/* ---- moving what has been started ------------------------------------------------------------------------------------- */
static int p2p_pending(const p2p_comm *m) { return m->first != m->next_req; }

/* No message under way touches this rank's memory afterwards. */
static esp_status p2p_fail(p2p_comm *m, esp_status s) {
    if (m->error != ESP_OK) return m->error;
    m->error = s;
    m->wire->drop(m->self);
    return s;
}

/* How many messages a column may have under way. */
static uint32_t p2p_most_messages(int32_t n) { return 4 * (uint32_t)n; }

/* Begins the columns for which there is room, in the order of requests. Returns 1 when it began one. */
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

/* Ends requests whose columns are all done. They become done in the order in which they end. */
static void p2p_end_some(p2p_comm *m) {
    for (uint64_t k = m->first; k != m->next_req; k++) {
        p2p_req *r = &m->reqs[k % P2P_QUEUE];
        if (!r->done && r->ended == r->cols) r->done = 1, m->ready++;
    }
    while (m->first != m->next_req && m->reqs[m->first % P2P_QUEUE].done) m->first++;
}

/* Lets columns go on until none can. Returns 1 when one did. */
static int p2p_go_all(p2p_comm *m) {
    int any = 0;
    for (uint32_t k = 0; k < P2P_AHEAD; k++) {
        p2p_column *x = &m->columns[k];
        if (!x->r) continue;
        const int s = p2p_go_on(m, x);
        if (s < 0) return s;
        if (!s) continue;
        x->r->ended++;
        x->r = NULL;
        any = 1;
    }
    return any;
}

static int p2p_take(p2p_comm *m) {
    uint32_t places[P2P_DONE];
    uint64_t bytes[P2P_DONE];
    const int n = m->wire->some(m->self, places, bytes, P2P_DONE);
    for (int k = 0; k < n; k++) {
        const p2p_message t = m->messages[places[k]];
        p2p_column *x = &m->columns[t.column];
        m->free[m->n_free++] = places[k];
        m->messages[places[k]].what = P2P_FREE;
        if (t.what == P2P_IN || t.what == P2P_GET) m->level_bytes[m->level[t.peer] - 1] += bytes[k];
        const int s = p2p_through(m, x, &t);
        if (s) return s;
    }
    return n;
}

/* Moves what can be moved now. Returns 1 when something moved, 0 when not, or an error. */
static int p2p_drive(p2p_comm *m) {
    static int (*const steps[3])(p2p_comm *) = {p2p_begin_some, p2p_take, p2p_go_all};
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
    p2p_end_some(m); /* those without columns too */
    return moved;
}

/* Drives every comm of the job. Returns 1 where something moved, or a request waits for its test(). *pending: messages are under
 * way. */
static int p2p_drive_all(p2p_job *j, int *pending) {
    int again = 0;
    *pending = 0;
    for (p2p_comm *m = j->comms; m; m = m->next) {
        if (p2p_pending(m) && p2p_drive(m)) again = 1;
        if (m->ready) again = 1;
        *pending |= p2p_pending(m) && m->error == ESP_OK;
    }
    return again;
}

/* ---- the backend table -------------------------------------------------------------------------------------------------- */
enum { P2P_LOOKS = 32 }; /* with a yield between, before the first nap */

ESP__FN esp_status p2p_start(void *comm, const esp_coll *c, esp_stream s, void **req) {
    p2p_comm *m = (p2p_comm *)comm;
    p2p_req *r = &m->reqs[m->next_req % P2P_QUEUE];
    esp_coll call;
    (void)s; /* a CPU stream has no work queued: its work is done when the call is made */
    if (m->error != ESP_OK) return m->error;
    if (BACKEND_LOAD(&m->aborted)) return ESP_E_PEER;
    backend_whole_call(c, &call);
    esp_status st = backend_check(&m->who, &call);
    if (st != ESP_OK) return st;
    if (call.slot_bytes > P2P_MESSAGE)
        return backend_error(&m->who, ESP_E_UNSUPPORTED,
                             "payload slots of %llu bytes: at most %d go into one message: cut the tensor into chunks",
                             (unsigned long long)call.slot_bytes, (int)P2P_MESSAGE);
    if (r->used)
        return backend_error(&m->who, ESP_E_STATE, "%d requests are open: test them before starting more", P2P_QUEUE);
    p2p_plan(m, &call, r);
    if (m->who.size == 1) backend_alone(&call, m->simd), r->cols = 0;
    r->used = 1;
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
    r->used = 0;
    m->ready--;
    return ESP_OK;
}

static void p2p_timer(p2p_job *j, uint64_t ns) {
    struct itimerspec at;
    memset(&at, 0, sizeof at);
    at.it_value.tv_sec = (time_t)(ns / 1000000000u), at.it_value.tv_nsec = (long)(ns % 1000000000u);
    if (j->timer >= 0) timerfd_settime(j->timer, 0, &at, NULL);
}
/* Makes the timer unreadable, moves what can be moved, and sets it for the next look; off where nothing is under way. */
static void p2p_arm(p2p_job *j) {
    int pending, again;
    p2p_timer(j, 0);              /* setting it also makes it unreadable */
    BACKEND_STORE(&j->woken, 0u); /* the caller looks at everything now */
    again = p2p_drive_all(j, &pending);
    j->nap_ns = again ? P2P_NAP_LEAST_NS : backend_min(j->nap_ns * 2, P2P_NAP_MOST_NS);
    if (BACKEND_LOAD(&j->woken)) again = 1;
    p2p_timer(j, again ? 1 : pending ? j->nap_ns : 0);
    if (!again && BACKEND_LOAD(&j->woken)) p2p_timer(j, 1); /* wake() came before the line above */
}
ESP__FN int32_t p2p_wait_fd(void *comm) { return ((p2p_comm *)comm)->job->timer; }

ESP__FN esp_status p2p_progress(void *comm, uint64_t timeout_us) {
    p2p_job *j = ((p2p_comm *)comm)->job;
    const uint64_t until = backend_now_ns() + backend_min(timeout_us, 3600000000u) * 1000u;
    uint64_t nap = P2P_NAP_LEAST_NS;
    if (!timeout_us) return p2p_arm(j), ESP_OK;
    for (int looks = 0;; looks++) {
        int pending;
        if (__atomic_exchange_n(&j->woken, 0u, __ATOMIC_SEQ_CST) || p2p_drive_all(j, &pending)) return ESP_OK;
        const uint64_t now = backend_now_ns();
        if (now >= until) return ESP_OK;
        if (pending && looks < P2P_LOOKS) {
            sched_yield();
            continue;
        }
        struct pollfd fd = {j->timer, POLLIN, 0};
        const uint64_t ns = pending ? backend_min(nap, until - now) : until - now;
        p2p_timer(j, ns);
        if (BACKEND_LOAD(&j->woken)) continue; /* wake() may have come before the timer was set */
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

/* The peer of the oldest message that has not come to a column of the request. */
ESP__FN int32_t p2p_straggler(void *comm, void *req) {
    const p2p_comm *m = (const p2p_comm *)comm;
    int32_t late = -1;
    uint64_t oldest = UINT64_MAX;
    for (uint32_t k = 0; k < m->places; k++) {
        const p2p_message *t = &m->messages[k];
        const p2p_column *x = &m->columns[t->column];
        if (t->what != P2P_IN && t->what != P2P_GET) continue;
        if (x->r != req || x->seq > oldest || (x->seq == oldest && t->what == P2P_GET)) continue;
        oldest = x->seq, late = t->peer;
    }
    return late;
}

ESP__FN esp_status p2p_traffic(void *comm, esp_traffic *out) {
    const p2p_comm *m = (const p2p_comm *)comm;
    return backend_traffic(out, m->level_bytes,
                           P2P_AHEAD * m->cell_bytes + m->places * (sizeof *m->messages + sizeof *m->free));
}

/* ---- open and close --------------------------------------------------------------------------------------------------- */
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
    if (!m) return backend_say(h, name, ESP_E_NOMEM, "no memory for a communicator");
    m->who = (backend_who){h, name, g->rank, g->size};
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
        p2p_free(m);
        return backend_say(h, name, ESP_E_NOMEM, "no memory for a communicator of %d ranks", (int)n);
    }
    for (uint32_t k = 0; k < m->places; k++) m->free[m->n_free++] = m->places - 1 - k;
    for (int32_t q = 0; q < g->size; q++) m->level[q] = backend_level(g, q, g->rank);
    m->next = m->job->comms;
    m->job->comms = m;
    *out = m;
    return ESP_OK;
}
