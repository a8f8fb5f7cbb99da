/* mpi.c: backend "mpi", for ranks that an MPI launcher started. The p2p transport runs the collectives; this file sends
 * its messages with MPI 3 (such as Open MPI or MPICH).
 * If the program has not initialised MPI, this file does, with MPI_THREAD_MULTIPLE. If the program has initialised it
 * with a lower level, the library calls MPI only inside esp_push and esp_wait, on the program's thread
 * (ESP_BACKEND_CALLER). With MPI_THREAD_FUNNELED, that must be the thread that called MPI_Init_thread; with
 * MPI_THREAD_SERIALIZED, it may be any thread while no other one calls MPI. */
#include "backends/p2p/p2p.h"
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#if defined(MPICH_NAME) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wstringop-overflow" /* MPICH gives MPI_STATUSES_IGNORE a size that is wrong */
#endif
#define MPI_NAME "mpi"
enum { MPI_CANCEL_MS = 200, MPI_END_S = 2, MPI_LEAVE_MS = 200, MPI_TAGS = 4 * 4 * P2P_COLUMNS };

/* ---- MPI itself -------------------------------------------------------------------------------------------------- */
/* State of the process, shared by all its contexts. */
static pid_t mpi_started; /* the process in which this file has initialised MPI, or 0 */
static bool mpi_failed;   /* a collective failed, so other ranks may have ended */
static int mpi_exits, mpi_inside, mpi_wires, mpi_messages_posted;
static MPI_Comm mpi_job_comm = MPI_COMM_NULL;

static esp_status mpi_error(const esp_host *h, esp_status s, const char *what, int rc) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    MPI_Error_string(rc, text, &n);
    return backend_log(h, MPI_NAME, s, "%s failed: %.300s", what, text);
}
static esp_status mpi_message_error(const esp_host *h, const char *what, int rc) {
    static const int wrong[] = {MPI_ERR_TRUNCATE, MPI_ERR_COUNT,  MPI_ERR_TAG, MPI_ERR_RANK,
                                MPI_ERR_COMM,     MPI_ERR_BUFFER, MPI_ERR_ARG, MPI_ERR_REQUEST};
    int class = rc;
    MPI_Error_class(rc, &class);
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++)
        if (class == wrong[k]) return mpi_error(h, ESP_E_COMM, what, rc);
    return mpi_error(h, ESP_E_PEER, what, rc);
}

/* ---- exit -------------------------------------------------------------------------------------------------------- */
/* Call this before MPI functions, and mpi_leave after them. Returns false if the process exits: MPI must not be called
 * then. */
static bool mpi_enter(void) {
    __atomic_fetch_add(&mpi_inside, 1, __ATOMIC_SEQ_CST);
    if (!BACKEND_LOAD(&mpi_exits)) return true;
    __atomic_fetch_sub(&mpi_inside, 1, __ATOMIC_SEQ_CST);
    return false;
}
static void mpi_leave(void) { __atomic_fetch_sub(&mpi_inside, 1, __ATOMIC_SEQ_CST); }

/* Keeps threads of the library, which still run, from calling MPI. Returns false if one does not return from MPI: a
 * signal handler may have called exit inside of it. */
static bool mpi_stop_calls(void) {
    const uint64_t until = backend_now_ns() + (uint64_t)MPI_LEAVE_MS * 1000000u;
    BACKEND_STORE(&mpi_exits, 1);
    while (BACKEND_LOAD(&mpi_inside) && backend_now_ns() < until) sched_yield();
    return !BACKEND_LOAD(&mpi_inside);
}

/* MPI_Finalize, at exit, waits for all ranks. After a failure a rank may be missing, so a timer then ends this
 * process. */
static volatile sig_atomic_t mpi_status;
static void mpi_end_now(int signal_number) {
    (void)signal_number;
    _exit(mpi_status);
}
/* A rank that exits with status 0 without esp_close may be the only one: the others then wait for it, and it waits for
 * them in MPI_Finalize. */
static void mpi_still_waits(int signal_number) {
    static const char text[] = "espresso: backend mpi: this rank has exited without esp_close, and waits in "
                               "MPI_Finalize for the other ranks. If they wait for this one: call esp_close on all "
                               "ranks, or exit with another status than 0 after an error\n";
    (void)signal_number;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) return;
}
/* At exit, calls MPI_Finalize if this process (not its parent) initialised MPI, unless messages are in transit, or the
 * program exits with an error while a communicator is open: other ranks then wait for messages from this one, and
 * MPI_Finalize would wait for these ranks. */
static void mpi_end(int status, void *unused) {
    int over = 0;
    (void)unused;
    if (mpi_started != getpid() || !mpi_stop_calls()) return;
    if (BACKEND_LOAD(&mpi_messages_posted) || (status && BACKEND_LOAD(&mpi_wires))) return;
    MPI_Finalized(&over);
    if (over) return;
    if (mpi_failed) {
        mpi_status = status;
        signal(SIGALRM, mpi_end_now);
        alarm(MPI_END_S);
    } else if (BACKEND_LOAD(&mpi_wires)) {
        signal(SIGALRM, mpi_still_waits);
        alarm(MPI_END_S);
    }
    MPI_Finalize();
}
/* ---- start ------------------------------------------------------------------------------------------------------- */
static bool mpi_launched(void) {
    return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE") || getenv("PMIX_RANK") || getenv("PMI_FD");
}
static bool mpi_is_on(void) {
    int on = 0, over = 0;
    MPI_Initialized(&on);
    MPI_Finalized(&over);
    return on && !over;
}
/* Returns the thread level with which the program has initialised MPI, or -1 if it has not. */
static int mpi_level(void) {
    int level = -1;
    if (mpi_is_on()) MPI_Query_thread(&level);
    return level;
}

static esp_status mpi_begin(const esp_host *h) {
    int over = 0, level = -1;
    MPI_Finalized(&over);
    if (over)
        return backend_log(h, MPI_NAME, ESP_E_STATE,
                           "MPI_Finalize was called already: call esp_open and esp_close before it");
    if (mpi_is_on()) return ESP_OK;
    if (!mpi_launched())
        return backend_log(h, MPI_NAME, ESP_E_UNSUPPORTED,
                           "no MPI launcher started this process: start it with mpirun, or with srun --mpi=pmix");
    const int rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    if (rc != MPI_SUCCESS) return mpi_error(h, ESP_E_COMM, "MPI_Init_thread", rc);
    mpi_started = getpid();
    on_exit(mpi_end, NULL);
    if (level >= MPI_THREAD_SERIALIZED) return ESP_OK;
    return backend_log(h, MPI_NAME, ESP_E_UNSUPPORTED,
                       "this MPI library cannot be called by a thread of the library: call MPI_Init_thread yourself, "
                       "before esp_open; the trainer's thread then calls MPI");
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */
typedef struct mpi_wire {
    const esp_host *host;
    MPI_Comm comm;
    bool shared;
    int first_tag, tags;
    int32_t *ranks;
    uint64_t n;
    MPI_Request *requests;
    MPI_Status *statuses;
    int *found;
    int n_found, given;
    uint32_t places, active; /* active: posted and not completed yet */
    uint32_t top;
} mpi_wire;

/* Changes the number of messages in transit. */
static void mpi_count(mpi_wire *w, uint32_t more, uint32_t fewer) {
    w->active += more - fewer;
    __atomic_fetch_add(&mpi_messages_posted, (int)(more - fewer), __ATOMIC_SEQ_CST);
}
static int mpi_exiting(const mpi_wire *w) {
    return backend_log(w->host, MPI_NAME, ESP_E_STATE, "this process exits, and has ended its messages");
}
static int mpi_posted(mpi_wire *w, uint32_t place, int rc, const char *what) {
    if (rc == MPI_SUCCESS) mpi_count(w, 1, 0);
    mpi_leave();
    if (rc != MPI_SUCCESS) return mpi_message_error(w->host, what, rc);
    if (place >= w->top) w->top = place + 1;
    return 0;
}
static int mpi_tag(const mpi_wire *w, uint32_t tag) { return w->first_tag + ((int)tag & (w->tags - 1)); }
static int mpi_send(void *self, uint32_t place, int32_t to, uint32_t tag, const void *p, uint64_t bytes) {
    mpi_wire *w = self;
    if (!mpi_enter()) return mpi_exiting(w);
    const int rc = MPI_Isend(p, (int)bytes, MPI_BYTE, w->shared ? w->ranks[to] : to, mpi_tag(w, tag), w->comm,
                             &w->requests[place]);
    return mpi_posted(w, place, rc, "MPI_Isend");
}
static int mpi_recv(void *self, uint32_t place, int32_t from, uint32_t tag, void *p, uint64_t room) {
    mpi_wire *w = self;
    if (!mpi_enter()) return mpi_exiting(w);
    const int rc = MPI_Irecv(p, (int)room, MPI_BYTE, w->shared ? w->ranks[from] : from, mpi_tag(w, tag), w->comm,
                             &w->requests[place]);
    return mpi_posted(w, place, rc, "MPI_Irecv");
}
static int mpi_poll_inside(mpi_wire *w, uint32_t *places, uint64_t *bytes, uint32_t most) {
    uint32_t n = 0;
    if (w->given == w->n_found) {
        int found = 0;
        w->n_found = w->given = 0;
        if (!w->active) return 0;
        const int rc = MPI_Testsome((int)w->top, w->requests, &found, w->found, w->statuses);
        if (rc == MPI_ERR_IN_STATUS)
            for (int k = 0; k < found; k++)
                if (w->statuses[k].MPI_ERROR != MPI_SUCCESS && w->statuses[k].MPI_ERROR != MPI_ERR_PENDING)
                    return mpi_message_error(w->host, "a message", w->statuses[k].MPI_ERROR);
        if (rc != MPI_SUCCESS) return mpi_message_error(w->host, "MPI_Testsome", rc);
        w->n_found = found == MPI_UNDEFINED ? 0 : found;
    }
    for (; n < most && w->given < w->n_found; n++, w->given++) {
        int got = 0;
        places[n] = (uint32_t)w->found[w->given];
        MPI_Get_count(&w->statuses[w->given], MPI_BYTE, &got); /* the count is undefined for sends */
        bytes[n] = got > 0 ? (uint64_t)got : 0;
        mpi_count(w, 0, 1);
    }
    if (!w->active) w->top = 0;
    return (int)n;
}
static int mpi_poll(void *self, uint32_t *places, uint64_t *bytes, uint32_t most) {
    mpi_wire *w = self;
    if (!mpi_enter()) return mpi_exiting(w);
    const int n = mpi_poll_inside(w, places, bytes, most);
    mpi_leave();
    return n;
}

/* Cancels receives only. MPI cannot cancel sends, and may read their memory until the process ends. */
static void mpi_cancel(void *self) {
    mpi_wire *w = self;
    const uint64_t until = backend_now_ns() + (uint64_t)MPI_CANCEL_MS * 1000000u;
    int left = w->active > 0;
    mpi_failed = true;
    if (!mpi_enter()) return;
    for (uint32_t k = 0; k < w->top; k++)
        if (w->requests[k] != MPI_REQUEST_NULL) MPI_Cancel(&w->requests[k]);
    while (left && backend_now_ns() < until) {
        if (MPI_Testall((int)w->top, w->requests, &left, MPI_STATUSES_IGNORE) != MPI_SUCCESS) break;
        left = !left;
        if (left) sched_yield();
    }
    mpi_leave();
}
static void mpi_wire_free(mpi_wire *w) {
    backend_release(w->host, w->requests, w->places * sizeof *w->requests);
    backend_release(w->host, w->statuses, w->places * sizeof *w->statuses);
    backend_release(w->host, w->found, w->places * sizeof *w->found);
    backend_release(w->host, w->ranks, w->n * sizeof *w->ranks);
    backend_release(w->host, w, sizeof *w);
}
static void mpi_wire_close(void *self, bool failed) {
    mpi_wire *w = self;
    if (failed) mpi_failed = true;
    if (mpi_enter()) {
        if (w->comm != MPI_COMM_NULL && !w->shared && !failed && mpi_is_on()) MPI_Comm_free(&w->comm);
        mpi_leave();
    }
    __atomic_fetch_sub(&mpi_messages_posted, (int)w->active, __ATOMIC_SEQ_CST);
    __atomic_fetch_sub(&mpi_wires, 1, __ATOMIC_SEQ_CST);
    if (!failed || !w->active) mpi_wire_free(w); /* else active requests still use it */
}
static const p2p_wire mpi_messages = {mpi_send, mpi_recv, mpi_poll, mpi_cancel, mpi_wire_close};

static mpi_wire *mpi_wire_new(const esp_host *h, uint32_t places, uint64_t n) {
    mpi_wire *w = backend_alloc(h, sizeof *w);
    if (!w) return NULL;
    w->host = h, w->places = places, w->n = n, w->comm = MPI_COMM_NULL;
    w->ranks = backend_alloc(h, n * sizeof *w->ranks);
    w->requests = backend_alloc(h, places * sizeof *w->requests);
    w->statuses = backend_alloc(h, places * sizeof *w->statuses);
    w->found = backend_alloc(h, places * sizeof *w->found);
    for (uint32_t k = 0; w->requests && k < places; k++) w->requests[k] = MPI_REQUEST_NULL;
    if (w->requests && w->statuses && w->found && w->ranks) return w;
    mpi_wire_free(w);
    return NULL;
}

/* ---- the group's communicator ------------------------------------------------------------------------------------ */
typedef struct mpi_hello {
    int32_t status;
    int32_t rank;
    int32_t failed;
    int32_t job_rank;
    int32_t number;
} mpi_hello;
static int32_t mpi_number = 1; /* number of the next range of tags in mpi_job_comm that no group has used */

static esp_status mpi_params(const esp_host *h, const char *params, MPI_Comm *base) {
    char key[32], val[32], *end;
    int more;
    *base = MPI_COMM_WORLD;
    while ((more = esp_params_next(&params, key, sizeof key, val, sizeof val)) > 0) {
        const long handle = strtol(val, &end, 10);
        int size = 0;
        if (strcmp(key, "comm") != 0 || end == val || *end)
            return backend_log(h, MPI_NAME, ESP_E_ARG,
                               "does not know %s=%s: it takes comm=HANDLE, with the number that MPI_Comm_c2f returns",
                               key, val);
        *base = MPI_Comm_f2c((MPI_Fint)handle);
        if (*base == MPI_COMM_NULL || MPI_Comm_size(*base, &size) != MPI_SUCCESS)
            return backend_log(h, MPI_NAME, ESP_E_ARG, "comm=%s is no communicator: use MPI_Comm_c2f(your_comm)", val);
    }
    return more < 0 ? backend_log(h, MPI_NAME, ESP_E_ARG, "parameters are malformed: write comm=HANDLE, or none")
                    : ESP_OK;
}

/* Returns the highest tag. The MPI standard guarantees only 32767, and some networks support few more. */
static int mpi_most_tag(void) {
    int known = 0, *most = NULL;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, (void *)&most, &known);
    return known ? *most : MPI_TAGS - 1;
}
static int mpi_tags(void) {
    int tags = MPI_TAGS;
    while (tags < (int)P2P_TAGS && tags <= mpi_most_tag() / 128) tags *= 2;
    return tags;
}
/* Used after a rank was lost: MPI_Comm_create_group might then never return, but messages between the remaining ranks
 * still arrive. So the group uses mpi_job_comm, with a range of tags that no earlier group has used. */
static esp_status mpi_group_shares(const esp_host *h, const mpi_hello *all, uint64_t n, mpi_wire *w) {
    int32_t number = 0;
    for (uint64_t q = 0; q < n; q++) {
        if (all[q].job_rank < 0)
            return backend_log(
                h, MPI_NAME, ESP_E_UNSUPPORTED,
                "rank %d of the group did not join the job over MPI, so it cannot continue without lost ranks", (int)q);
        w->ranks[q] = all[q].job_rank;
        if (all[q].number > number) number = all[q].number;
    }
    if (number > (mpi_most_tag() - (w->tags - 1)) / w->tags)
        return backend_log(h, MPI_NAME, ESP_E_UNSUPPORTED,
                           "this MPI has no tags left for another group of ranks: start all ranks again, from the last "
                           "state that was saved");
    mpi_number = number + 1;
    w->shared = true, w->comm = mpi_job_comm, w->first_tag = number * w->tags;
    return ESP_OK;
}
static esp_status mpi_group_owns(const esp_host *h, const esp_group *g, MPI_Comm base, mpi_wire *w) {
    MPI_Group whole, part;
    MPI_Comm_group(base, &whole);
    int rc = MPI_Group_incl(whole, (int)g->size, w->ranks, &part);
    if (rc == MPI_SUCCESS) {
        rc = MPI_Comm_create_group(base, part, g->level + 1, &w->comm);
        MPI_Group_free(&part);
    }
    MPI_Group_free(&whole);
    if (rc != MPI_SUCCESS) return mpi_error(h, ESP_E_COMM, "MPI_Comm_create_group", rc);
    MPI_Comm_set_errhandler(w->comm, MPI_ERRORS_RETURN);
    return ESP_OK;
}
static esp_status mpi_group_comm(const esp_host *h, const esp_group *g, esp_status so_far, MPI_Comm base, mpi_wire *w) {
    const uint64_t n = (uint64_t)g->size, bytes = n * sizeof(mpi_hello);
    mpi_hello mine = {so_far, -1, mpi_failed, -1, mpi_number}, *all = backend_alloc(h, bytes);
    int any = 0;
    if (!all && mine.status == ESP_OK)
        mine.status = backend_log(h, MPI_NAME, ESP_E_NOMEM, "no memory for %d ranks", (int)n);
    if (mine.status == ESP_OK) MPI_Comm_rank(base, &mine.rank);
    if (mine.status == ESP_OK && mpi_job_comm != MPI_COMM_NULL) MPI_Comm_rank(mpi_job_comm, &mine.job_rank);
    if (!all) return mine.status;
    esp_status s = g->oob_allgather(g->user, &mine, all, sizeof mine);
    for (uint64_t q = 0; q < n && s == ESP_OK; q++) {
        if (w) w->ranks[q] = all[q].rank;
        any |= all[q].failed;
        if (all[q].status == ESP_OK) continue;
        s = mine.status != ESP_OK
                ? mine.status
                : backend_log(h, MPI_NAME, all[q].status, "rank %d could not open: see its own error", (int)q);
    }
    if (s == ESP_OK) w->tags = mpi_tags();
    if (s == ESP_OK && any)
        s = mpi_group_shares(h, all, n, w);
    else if (s == ESP_OK)
        s = mpi_group_owns(h, g, base, w);
    backend_release(h, all, bytes);
    return s;
}

static esp_status mpi_open(const esp_host *h, const esp_group *g, const char *params, void **comm) {
    MPI_Comm base = MPI_COMM_WORLD;
    p2p_comm *m = NULL;
    mpi_wire *w = NULL;
    *comm = NULL;
    esp_status s = g->size > 1 ? mpi_begin(h) : ESP_OK; /* a single rank needs no MPI */
    if (s == ESP_OK && g->size > 1) s = mpi_params(h, params, &base);
    if (s == ESP_OK) s = p2p_new(h, g, MPI_NAME, &m);
    if (s == ESP_OK && !(w = mpi_wire_new(h, m->places, (uint64_t)g->size)))
        s = backend_log(h, MPI_NAME, ESP_E_NOMEM, "no memory for a communicator of %d ranks", (int)g->size);
    if (m && w) m->wire = &mpi_messages, m->self = w, __atomic_fetch_add(&mpi_wires, 1, __ATOMIC_SEQ_CST);
    if (g->size > 1) s = mpi_group_comm(h, g, s, base, w);
    if (s == ESP_OK)
        *comm = m;
    else if (m)
        p2p_close(m);
    return s;
}

/* ---- the ranks of a job ------------------------------------------------------------------------------------------ */
static esp_status mpi_allgather(void *user, const void *in, void *out, uint64_t bytes) {
    if (bytes > P2P_MESSAGE) return ESP_E_ARG;
    const int rc = MPI_Allgather(in, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, *(MPI_Comm *)user);
    return rc == MPI_SUCCESS ? ESP_OK : ESP_E_COMM;
}
static esp_status mpi_single_rank(void *user, const void *in, void *out, uint64_t bytes) {
    (void)user;
    memcpy(out, in, (size_t)bytes);
    return ESP_OK;
}
static esp_status mpi_rendezvous(const esp_host *h, const char *params, esp_meeting *out) {
    esp_meeting m;
    MPI_Comm base;
    memset(&m, 0, sizeof m);
    m.struct_size = out->struct_size, m.size = 1, m.oob_allgather = mpi_single_rank;
    if (mpi_is_on() || mpi_launched()) {
        esp_status s = mpi_begin(h);
        if (s == ESP_OK) s = mpi_params(h, params, &base);
        if (s != ESP_OK) return s;
        if (mpi_job_comm != MPI_COMM_NULL && !mpi_failed) MPI_Comm_free(&mpi_job_comm);
        const int rc = MPI_Comm_dup(base, &mpi_job_comm);
        if (rc != MPI_SUCCESS) return mpi_error(h, ESP_E_COMM, "MPI_Comm_dup", rc);
        MPI_Comm_set_errhandler(mpi_job_comm, MPI_ERRORS_RETURN);
        MPI_Comm_rank(mpi_job_comm, &m.rank);
        MPI_Comm_size(mpi_job_comm, &m.size);
        m.oob_allgather = mpi_allgather, m.user = &mpi_job_comm;
    }
    memcpy(out, &m, backend_min(out->struct_size, sizeof m));
    return ESP_OK;
}

static esp_status mpi_probe(const esp_host *h, int32_t *score) {
    (void)h;
    *score = mpi_is_on() || mpi_launched() ? 5 : 0;
    return ESP_OK;
}

#define MPI_TABLE(caps) P2P_TABLE(mpi, caps, "ranks are processes that mpirun or srun started", "comm=", mpi_rendezvous)
static const esp_backend mpi_backend = MPI_TABLE(0), mpi_of_caller = MPI_TABLE(ESP_BACKEND_CALLER);
/* If the program has initialised MPI with less than MPI_THREAD_MULTIPLE, only the program's threads may call the
 * backend. */
ESPRESSO_PLUGIN_ENTRY(mpi) {
    static const esp_backend *const any_thread[] = {&mpi_backend}, *const callers[] = {&mpi_of_caller};
    static const esp_plugin plugin = {.struct_size = sizeof plugin, .n_backends = 1, .backends = any_thread};
    static const esp_plugin of_caller = {.struct_size = sizeof of_caller, .n_backends = 1, .backends = callers};
    const int level = mpi_level();
    (void)h;
    return level >= 0 && level < MPI_THREAD_MULTIPLE ? &of_caller : &plugin;
}
