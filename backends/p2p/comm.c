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
static int mesh_pending(const mesh_comm *m) { return m->first != m->next_req; }

/* No message under way touches this rank's memory afterwards. */
static esp_status mesh_fail(mesh_comm *m, esp_status s) {
    if (m->error != ESP_OK) return m->error;
    m->error = s;
    m->wire->drop(m->self);
    return s;
}

/* How many messages a column may have under way. */
static uint32_t mesh_most_messages(int32_t n) { return 4 * (uint32_t)n; }

/* Begins the columns for which there is room, in the order of requests. Returns 1 when it began one. */
static int mesh_begin_some(mesh_comm *m) {
    int began = 0;
    while (m->next_begin != m->next_req) {
        mesh_req *r = &m->reqs[m->next_begin % MESH_QUEUE];
        if (r->begun == r->cols) {
            m->next_begin++;
            continue;
        }
        uint32_t k = 0;
        while (k < MESH_AHEAD && m->columns[k].r) k++;
        if (k == MESH_AHEAD) break;
        mesh_column *x = &m->columns[k];
        uint8_t *cell = m->staging + k * m->cell_bytes;
        memset(x, 0, sizeof *x);
        x->r = r, x->i = r->begun++, x->seq = m->seq++, x->cell = cell;
        began = 1;
        const int s = mesh_begin(m, x);
        if (s) return s;
    }
    return began;
}

/* Ends requests whose columns are all done. They become done in the order in which they end. */
static void mesh_end_some(mesh_comm *m) {
    for (uint64_t k = m->first; k != m->next_req; k++) {
        mesh_req *r = &m->reqs[k % MESH_QUEUE];
        if (!r->done && r->ended == r->cols) r->done = 1, m->ready++;
    }
    while (m->first != m->next_req && m->reqs[m->first % MESH_QUEUE].done) m->first++;
}

/* Lets columns go on until none can. Returns 1 when one did. */
static int mesh_go_all(mesh_comm *m) {
    int any = 0;
    for (uint32_t k = 0; k < MESH_AHEAD; k++) {
        mesh_column *x = &m->columns[k];
        if (!x->r) continue;
        const int s = mesh_go_on(m, x);
        if (s < 0) return s;
        if (!s) continue;
        x->r->ended++;
        x->r = NULL;
        any = 1;
    }
    return any;
}

static int mesh_take(mesh_comm *m) {
    uint32_t places[MESH_DONE];
    uint64_t bytes[MESH_DONE];
    const int n = m->wire->some(m->self, places, bytes, MESH_DONE);
    for (int k = 0; k < n; k++) {
        const mesh_message t = m->messages[places[k]];
        mesh_column *x = &m->columns[t.column];
        m->free[m->n_free++] = places[k];
        m->messages[places[k]].what = MESH_FREE;
        if (t.what == MESH_IN || t.what == MESH_GET) m->level_bytes[m->level[t.peer] - 1] += bytes[k];
        const int s = mesh_through(m, x, &t);
        if (s) return s;
    }
    return n;
}

/* Moves what can be moved now. Returns 1 when something moved, 0 when not, or an error. */
static int mesh_drive(mesh_comm *m) {
    static int (*const steps[3])(mesh_comm *) = {mesh_begin_some, mesh_take, mesh_go_all};
    const uint64_t until = backend_now_ns() + MESH_BUDGET_NS;
    int moved = 0;
    if (m->error != ESP_OK) return m->error;
    if (!mesh_pending(m)) return 0;
    if (BACKEND_LOAD(&m->aborted)) return mesh_fail(m, ESP_E_PEER);
    for (;;) {
        int any = 0;
        for (int k = 0; k < 3; k++) {
            const int s = steps[k](m);
            if (s < 0) return mesh_fail(m, s);
            any |= s;
        }
        if (!any) break;
        moved = 1;
        mesh_end_some(m);
        if (!mesh_pending(m) || backend_now_ns() >= until) break;
    }
    mesh_end_some(m); /* those without columns too */
    return moved;
}

/* Drives every comm of the job. Returns 1 where something moved, or a request waits for its test(). *pending: messages are under
 * way. */
static int mesh_drive_all(mesh_job *j, int *pending) {
    int again = 0;
    *pending = 0;
    for (mesh_comm *m = j->comms; m; m = m->next) {
        if (mesh_pending(m) && mesh_drive(m)) again = 1;
        if (m->ready) again = 1;
        *pending |= mesh_pending(m) && m->error == ESP_OK;
    }
    return again;
}

/* ---- the backend table -------------------------------------------------------------------------------------------------- */
enum { MESH_LOOKS = 32 }; /* with a yield between, before the first nap */

ESP__FN esp_status mesh_start(void *comm, const esp_coll *c, esp_stream s, void **req) {
    mesh_comm *m = (mesh_comm *)comm;
    mesh_req *r = &m->reqs[m->next_req % MESH_QUEUE];
    esp_coll call;
    (void)s; /* a CPU stream has no work queued: its work is done when the call is made */
    if (m->error != ESP_OK) return m->error;
    if (BACKEND_LOAD(&m->aborted)) return ESP_E_PEER;
    backend_whole_call(c, &call);
    esp_status st = backend_check(&m->who, &call);
    if (st != ESP_OK) return st;
    if (call.slot_bytes > MESH_MESSAGE)
        return backend_error(&m->who, ESP_E_UNSUPPORTED,
                             "payload slots of %llu bytes: at most %d go into one message: cut the tensor into chunks",
                             (unsigned long long)call.slot_bytes, (int)MESH_MESSAGE);
    if (r->used)
        return backend_error(&m->who, ESP_E_STATE, "%d requests are open: test them before starting more", MESH_QUEUE);
    mesh_plan(m, &call, r);
    if (m->who.size == 1) backend_alone(&call, m->simd), r->cols = 0;
    r->used = 1;
    m->next_req++;
    m->job->nap_ns = MESH_NAP_LEAST_NS;
    *req = r;
    const int begun = mesh_begin_some(m);
    return begun < 0 ? mesh_fail(m, begun) : ESP_OK;
}

ESP__FN esp_status mesh_test(void *comm, void *req) {
    mesh_comm *m = (mesh_comm *)comm;
    mesh_req *r = (mesh_req *)req;
    if (!r->done) {
        const int s = mesh_drive(m);
        if (s < 0) return s;
        if (!r->done) return ESP_PENDING;
    }
    r->used = 0;
    m->ready--;
    return ESP_OK;
}

static void mesh_timer(mesh_job *j, uint64_t ns) {
    struct itimerspec at;
    memset(&at, 0, sizeof at);
    at.it_value.tv_sec = (time_t)(ns / 1000000000u), at.it_value.tv_nsec = (long)(ns % 1000000000u);
    if (j->timer >= 0) timerfd_settime(j->timer, 0, &at, NULL);
}
/* Makes the timer unreadable, moves what can be moved, and sets it for the next look; off where nothing is under way. */
static void mesh_arm(mesh_job *j) {
    int pending, again;
    mesh_timer(j, 0);             /* setting it also makes it unreadable */
    BACKEND_STORE(&j->woken, 0u); /* the caller looks at everything now */
    again = mesh_drive_all(j, &pending);
    j->nap_ns = again ? MESH_NAP_LEAST_NS : backend_min(j->nap_ns * 2, MESH_NAP_MOST_NS);
    if (BACKEND_LOAD(&j->woken)) again = 1;
    mesh_timer(j, again ? 1 : pending ? j->nap_ns : 0);
    if (!again && BACKEND_LOAD(&j->woken)) mesh_timer(j, 1); /* wake() came before the line above */
}
ESP__FN int32_t mesh_wait_fd(void *comm) { return ((mesh_comm *)comm)->job->timer; }

ESP__FN esp_status mesh_progress(void *comm, uint64_t timeout_us) {
    mesh_job *j = ((mesh_comm *)comm)->job;
    const uint64_t until = backend_now_ns() + backend_min(timeout_us, 3600000000u) * 1000u;
    uint64_t nap = MESH_NAP_LEAST_NS;
    if (!timeout_us) return mesh_arm(j), ESP_OK;
    for (int looks = 0;; looks++) {
        int pending;
        if (__atomic_exchange_n(&j->woken, 0u, __ATOMIC_SEQ_CST) || mesh_drive_all(j, &pending)) return ESP_OK;
        const uint64_t now = backend_now_ns();
        if (now >= until) return ESP_OK;
        if (pending && looks < MESH_LOOKS) {
            sched_yield();
            continue;
        }
        struct pollfd fd = {j->timer, POLLIN, 0};
        const uint64_t ns = pending ? backend_min(nap, until - now) : until - now;
        mesh_timer(j, ns);
        if (BACKEND_LOAD(&j->woken)) continue; /* wake() may have come before the timer was set */
        poll(&fd, 1, (int)(ns / 1000000u) + 1);
        nap = backend_min(nap * 2, MESH_NAP_MOST_NS);
    }
}
ESP__FN void mesh_wake(void *comm) {
    mesh_job *j = ((mesh_comm *)comm)->job;
    BACKEND_STORE(&j->woken, 1u);
    mesh_timer(j, 1);
}
ESP__FN esp_status mesh_abort(void *comm) {
    BACKEND_STORE(&((mesh_comm *)comm)->aborted, 1u);
    mesh_wake(comm);
    return ESP_OK;
}

/* The peer of the oldest message that has not come to a column of the request. */
ESP__FN int32_t mesh_late(void *comm, void *req) {
    const mesh_comm *m = (const mesh_comm *)comm;
    int32_t late = -1;
    uint64_t oldest = UINT64_MAX;
    for (uint32_t k = 0; k < m->places; k++) {
        const mesh_message *t = &m->messages[k];
        const mesh_column *x = &m->columns[t->column];
        if (t->what != MESH_IN && t->what != MESH_GET) continue;
        if (x->r != req || x->seq > oldest || (x->seq == oldest && t->what == MESH_GET)) continue;
        oldest = x->seq, late = t->peer;
    }
    return late;
}

ESP__FN esp_status mesh_traffic(void *comm, esp_traffic *out) {
    const mesh_comm *m = (const mesh_comm *)comm;
    return backend_traffic(out, m->level_bytes,
                           MESH_AHEAD * m->cell_bytes + m->places * (sizeof *m->messages + sizeof *m->free));
}

/* ---- open and close --------------------------------------------------------------------------------------------------- */
static void mesh_free(mesh_comm *m) {
    const esp_host *h = m->who.host;
    const uint64_t n = (uint64_t)m->who.size;
    if (m->wire) m->wire->close(m->self, m->error != ESP_OK || m->aborted);
    backend_release(h, m->level, n);
    backend_release(h, m->staging, MESH_AHEAD * m->cell_bytes);
    backend_release(h, m->messages, m->places * sizeof *m->messages);
    backend_release(h, m->free, m->places * sizeof *m->free);
    if (m->job && --m->job->refs == 0) {
        if (m->job->timer >= 0) close(m->job->timer);
        backend_release(h, m->job, sizeof *m->job);
    }
    backend_release(h, m, sizeof *m);
}
ESP__FN void mesh_close(void *comm) {
    mesh_comm *m = (mesh_comm *)comm;
    if (!m) return;
    if (mesh_pending(m)) mesh_fail(m, ESP_E_STATE);
    mesh_comm **at = &m->job->comms;
    while (*at && *at != m) at = &(*at)->next;
    if (*at) *at = m->next;
    mesh_free(m);
}

ESP__FN esp_status mesh_new(const esp_host *h, const esp_group *g, const char *name, mesh_comm **out) {
    const uint64_t n = (uint64_t)g->size;
    *out = NULL;
    const esp_status s = backend_check_group(h, name, g, BACKEND_RANKS);
    if (s != ESP_OK) return s;
    mesh_comm *m = (mesh_comm *)backend_alloc(h, sizeof *m), *parent = (mesh_comm *)g->parent;
    if (!m) return backend_say(h, name, ESP_E_NOMEM, "no memory for a communicator");
    m->who = (backend_who){h, name, g->rank, g->size};
    m->simd = esp_simd_level();
    m->places = MESH_AHEAD * mesh_most_messages(g->size);
    m->cell_bytes = n * mesh_widest(g->size);
    m->level = (uint8_t *)backend_alloc(h, n);
    m->staging = (uint8_t *)backend_alloc(h, MESH_AHEAD * m->cell_bytes);
    m->messages = (mesh_message *)backend_alloc(h, m->places * sizeof *m->messages);
    m->free = (uint32_t *)backend_alloc(h, m->places * sizeof *m->free);
    m->job = parent ? parent->job : (mesh_job *)backend_alloc(h, sizeof *m->job);
    if (m->job && !parent) m->job->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (m->job) m->job->refs++;
    if (!m->level || !m->staging || !m->messages || !m->free || !m->job || m->job->timer < 0) {
        mesh_free(m);
        return backend_say(h, name, ESP_E_NOMEM, "no memory for a communicator of %d ranks", (int)n);
    }
    for (uint32_t k = 0; k < m->places; k++) m->free[m->n_free++] = m->places - 1 - k;
    for (int32_t q = 0; q < g->size; q++) m->level[q] = backend_level(g, q, g->rank);
    m->next = m->job->comms;
    m->job->comms = m;
    *out = m;
    return ESP_OK;
}
