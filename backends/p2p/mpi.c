/* mpi.c: backend "mpi": ranks are processes that an MPI launcher started, on any number of machines. This file joins or starts MPI
 * and moves messages; backends/p2p makes collectives of them. Needs MPI 3: Open MPI and MPICH have it.
 *
 * Who calls MPI: one thread at a time, the one that drives the links. MPI must allow that other threads of the program call it
 * too: MPI_THREAD_MULTIPLE, which this file asks for where it starts MPI. A program that has called MPI_Init_thread with less keeps
 * working: then the trainer's calls run all ops (ESP_BACKEND_CALLER), on the thread that calls esp_push and esp_wait, and this
 * must be the one that called MPI_Init_thread (with MPI_THREAD_SERIALIZED: any, as long as one calls MPI at a time). */
#include "backends/p2p/p2p.h"
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#if defined(MPICH_NAME) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wstringop-overflow" /* MPICH declares MPI_STATUSES_IGNORE as room that is written */
#endif
#define MPI_NAME "mpi"
enum { MPI_CANCEL_MS = 200, MPI_END_S = 2, MPI_TAGS = 4 * 4 * MESH_COLUMNS };

/* ---- MPI itself --------------------------------------------------------------------------------------------------------- */
/* One process has one MPI, whatever number of contexts it opens. */
static int mpi_started, mpi_failed; /* started by this file; a collective failed, so peers may be gone */
/* all ranks of the job, of the last context: a process opens one at a time */
static MPI_Comm mpi_meeting = MPI_COMM_NULL;

static esp_status mpi_error(const esp_host *h, esp_status s, const char *what, int rc) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int n = 0;
    MPI_Error_string(rc, text, &n);
    return backend_say(h, MPI_NAME, s, "%s failed: %.300s", what, text);
}
/* Of a message. But for a wrong call, a connection has ended, usually as the peer's process has. */
static esp_status mpi_message_error(const esp_host *h, const char *what, int rc) {
    static const int wrong[] = {MPI_ERR_TRUNCATE, MPI_ERR_COUNT,  MPI_ERR_TAG, MPI_ERR_RANK,
                                MPI_ERR_COMM,     MPI_ERR_BUFFER, MPI_ERR_ARG, MPI_ERR_REQUEST};
    int class = rc;
    MPI_Error_class(rc, &class);
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++)
        if (class == wrong[k]) return mpi_error(h, ESP_E_COMM, what, rc);
    return mpi_error(h, ESP_E_PEER, what, rc);
}

/* At exit. MPI_Finalize waits for all ranks. After a failure one may be gone, so the process then ends by itself soon. */
static volatile sig_atomic_t mpi_status;
static void mpi_end_late(int signal_number) {
    (void)signal_number;
    _exit(mpi_status);
}
static void mpi_end(int status, void *unused) {
    int over = 0;
    (void)unused;
    MPI_Finalized(&over);
    if (!mpi_started || over) return;
    if (mpi_failed) {
        mpi_status = status;
        signal(SIGALRM, mpi_end_late);
        alarm(MPI_END_S);
    }
    MPI_Finalize();
}
static int mpi_launched(void) {
    return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMI_SIZE") || getenv("PMIX_RANK") || getenv("PMI_FD");
}
static int mpi_is_on(void) {
    int on = 0, over = 0;
    MPI_Initialized(&on);
    MPI_Finalized(&over);
    return on && !over;
}
/* The thread level of an MPI that the program has started; -1: it has not. */
static int mpi_level(void) {
    int level = -1;
    if (mpi_is_on()) MPI_Query_thread(&level);
    return level;
}

static esp_status mpi_begin(const esp_host *h) {
    int over = 0, level = -1;
    MPI_Finalized(&over);
    if (over)
        return backend_say(h, MPI_NAME, ESP_E_STATE,
                           "MPI_Finalize was called already: call esp_open before it and esp_close too");
    if (mpi_is_on()) return ESP_OK;
    if (!mpi_launched())
        return backend_say(h, MPI_NAME, ESP_E_UNSUPPORTED,
                           "no MPI launcher started this process: start it with mpirun, or with srun --mpi=pmix");
    const int rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    if (rc != MPI_SUCCESS) return mpi_error(h, ESP_E_COMM, "MPI_Init_thread", rc);
    mpi_started = 1;
    on_exit(mpi_end, NULL);
    if (level >= MPI_THREAD_SERIALIZED) return ESP_OK;
    return backend_say(h, MPI_NAME, ESP_E_UNSUPPORTED,
                       "this MPI library cannot be called by a thread of the library: call MPI_Init_thread yourself, "
                       "before esp_open; the trainer's thread then calls MPI");
}

/* ---- messages ----------------------------------------------------------------------------------------------------------- */
typedef struct mpi_wire {
    const esp_host *host;
    MPI_Comm comm;
    int shared;          /* comm is the meeting's, in which other groups have messages too            */
    int first_tag, tags; /* of this group; so many, a power of two: the mesh's higher bits are cut off */
    int32_t *ranks;      /* [n]: the members' ranks in the meeting's communicator                     */
    uint64_t n;
    MPI_Request *requests; /* [places] */
    MPI_Status *statuses;
    int *found; /* places that came through, of which `given` were handed on */
    int n_found, given;
    uint32_t places, top, active; /* no request at or above top is under way */
} mpi_wire;

static int mpi_posted(mpi_wire *w, uint32_t place, int rc, const char *what) {
    if (rc != MPI_SUCCESS) return mpi_message_error(w->host, what, rc);
    w->active++;
    if (place >= w->top) w->top = place + 1;
    return 0;
}
static int mpi_tag(const mpi_wire *w, uint32_t tag) { return w->first_tag + ((int)tag & (w->tags - 1)); }
static int mpi_send(void *self, uint32_t place, int32_t to, uint32_t tag, const void *p, uint64_t bytes) {
    mpi_wire *w = self;
    const int rc = MPI_Isend(p, (int)bytes, MPI_BYTE, w->shared ? w->ranks[to] : to, mpi_tag(w, tag), w->comm,
                             &w->requests[place]);
    return mpi_posted(w, place, rc, "MPI_Isend");
}
static int mpi_recv(void *self, uint32_t place, int32_t from, uint32_t tag, void *p, uint64_t room) {
    mpi_wire *w = self;
    const int rc = MPI_Irecv(p, (int)room, MPI_BYTE, w->shared ? w->ranks[from] : from, mpi_tag(w, tag), w->comm,
                             &w->requests[place]);
    return mpi_posted(w, place, rc, "MPI_Irecv");
}
static int mpi_some(void *self, uint32_t *places, uint64_t *bytes, uint32_t most) {
    mpi_wire *w = self;
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
        MPI_Get_count(&w->statuses[w->given], MPI_BYTE, &got); /* of a message sent it means nothing */
        bytes[n] = got > 0 ? (uint64_t)got : 0;
        w->active--;
    }
    if (!w->active) w->top = 0;
    return (int)n;
}

/* Receives are cancelled. A send cannot be: MPI may still read its memory, until the process ends. */
static void mpi_drop(void *self) {
    mpi_wire *w = self;
    const uint64_t until = backend_now_ns() + (uint64_t)MPI_CANCEL_MS * 1000000u;
    int left = w->active > 0;
    mpi_failed = 1;
    for (uint32_t k = 0; k < w->top; k++)
        if (w->requests[k] != MPI_REQUEST_NULL) MPI_Cancel(&w->requests[k]);
    while (left && backend_now_ns() < until) {
        if (MPI_Testall((int)w->top, w->requests, &left, MPI_STATUSES_IGNORE) != MPI_SUCCESS) break;
        left = !left;
        if (left) sched_yield();
    }
}
static void mpi_wire_free(mpi_wire *w) {
    backend_release(w->host, w->requests, w->places * sizeof *w->requests);
    backend_release(w->host, w->statuses, w->places * sizeof *w->statuses);
    backend_release(w->host, w->found, w->places * sizeof *w->found);
    backend_release(w->host, w->ranks, w->n * sizeof *w->ranks);
    backend_release(w->host, w, sizeof *w);
}
static void mpi_wire_close(void *self, int failed) {
    mpi_wire *w = self;
    if (failed) mpi_failed = 1;
    if (w->comm != MPI_COMM_NULL && !w->shared && !failed && mpi_is_on()) MPI_Comm_free(&w->comm);
    if (!failed || !w->active) mpi_wire_free(w); /* otherwise MPI still knows its requests */
}
static const mesh_wire mpi_messages = {mpi_send, mpi_recv, mpi_some, mpi_drop, mpi_wire_close};

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

/* ---- the group's communicator --------------------------------------------------------------------------------------------- */
typedef struct mpi_hello {
    int32_t status, rank;  /* so far; in the communicator from which the group's is made      */
    int32_t failed, meets; /* mpi_failed; the rank in the meeting's communicator, -1: none   */
    int32_t number;        /* the next range of tags that this rank has not used there       */
} mpi_hello;
static int32_t mpi_number = 1; /* in the meeting's communicator */

/* comm=HANDLE: MPI_Comm_c2f of the caller's communicator. */
static esp_status mpi_params(const esp_host *h, const char *params, MPI_Comm *base) {
    char key[32], val[32], *end;
    int more;
    *base = MPI_COMM_WORLD;
    while ((more = esp_params_next(&params, key, sizeof key, val, sizeof val)) > 0) {
        const long handle = strtol(val, &end, 10);
        int size = 0;
        if (strcmp(key, "comm") != 0 || end == val || *end)
            return backend_say(h, MPI_NAME, ESP_E_ARG,
                               "does not know %s=%s: it takes comm=HANDLE, with the number that MPI_Comm_c2f gives",
                               key, val);
        *base = MPI_Comm_f2c((MPI_Fint)handle);
        if (*base == MPI_COMM_NULL || MPI_Comm_size(*base, &size) != MPI_SUCCESS)
            return backend_say(h, MPI_NAME, ESP_E_ARG, "comm=%s is no communicator: use MPI_Comm_c2f(your_comm)", val);
    }
    return more < 0 ? backend_say(h, MPI_NAME, ESP_E_ARG, "parameters are malformed: write comm=HANDLE, or none")
                    : ESP_OK;
}

/* The MPI standard promises tags up to 32767, and some networks have few more. Leaves room for 64 groups in one communicator. */
static int mpi_most_tag(void) {
    int known = 0, *most = NULL;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, (void *)&most, &known);
    return known ? *most : MPI_TAGS - 1;
}
static int mpi_tags(void) {
    int tags = MPI_TAGS;
    while (tags < (int)MESH_TAGS && tags <= mpi_most_tag() / 128) tags *= 2;
    return tags;
}
/* After a failure ranks may be gone, and MPI promises of no collective call, such as those that make a communicator, that it
 * returns. Messages between the ranks that are left still pass, if the launcher lets them live. So the group uses the
 * communicator in which the ranks met, with tags that no message had before. */
static esp_status mpi_group_shares(const esp_host *h, const mpi_hello *all, uint64_t n, mpi_wire *w) {
    int32_t number = 0;
    for (uint64_t q = 0; q < n; q++) {
        if (all[q].meets < 0)
            return backend_say(
                h, MPI_NAME, ESP_E_UNSUPPORTED,
                "rank %d of the group did not meet the others over MPI, so it cannot go on without lost ranks", (int)q);
        w->ranks[q] = all[q].meets;
        if (all[q].number > number) number = all[q].number;
    }
    if (number > (mpi_most_tag() - (w->tags - 1)) / w->tags)
        return backend_say(h, MPI_NAME, ESP_E_UNSUPPORTED,
                           "this MPI has no tags left for another group of ranks: start all ranks again, from the last "
                           "state that was saved");
    mpi_number = number + 1;
    w->shared = 1, w->comm = mpi_meeting, w->first_tag = number * w->tags;
    return ESP_OK;
}
/* A communicator of its own for the group. */
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
/* All ranks of the group tell their status and who they are; then they get their communicator. */
static esp_status mpi_group_comm(const esp_host *h, const esp_group *g, esp_status so_far, MPI_Comm base, mpi_wire *w) {
    const uint64_t n = (uint64_t)g->size, bytes = n * sizeof(mpi_hello);
    mpi_hello mine = {so_far, -1, mpi_failed, -1, mpi_number}, *all = backend_alloc(h, bytes);
    int any = 0;
    if (!all && mine.status == ESP_OK)
        mine.status = backend_say(h, MPI_NAME, ESP_E_NOMEM, "no memory for %d ranks", (int)n);
    if (mine.status == ESP_OK) MPI_Comm_rank(base, &mine.rank);
    if (mine.status == ESP_OK && mpi_meeting != MPI_COMM_NULL) MPI_Comm_rank(mpi_meeting, &mine.meets);
    if (!all) return mine.status;
    esp_status s = g->oob_allgather(g->user, &mine, all, sizeof mine);
    for (uint64_t q = 0; q < n && s == ESP_OK; q++) {
        if (w) w->ranks[q] = all[q].rank;
        any |= all[q].failed;
        if (all[q].status == ESP_OK) continue;
        s = mine.status != ESP_OK
                ? mine.status
                : backend_say(h, MPI_NAME, all[q].status, "rank %d could not open: see its own error", (int)q);
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
    mesh_comm *m = NULL;
    mpi_wire *w = NULL;
    *comm = NULL;
    esp_status s = g->size > 1 ? mpi_begin(h) : ESP_OK; /* a rank alone needs no MPI */
    if (s == ESP_OK && g->size > 1) s = mpi_params(h, params, &base);
    if (s == ESP_OK) s = mesh_new(h, g, MPI_NAME, &m);
    if (s == ESP_OK && !(w = mpi_wire_new(h, m->places, (uint64_t)g->size)))
        s = backend_say(h, MPI_NAME, ESP_E_NOMEM, "no memory for a communicator of %d ranks", (int)g->size);
    if (m) m->wire = &mpi_messages, m->self = w;
    if (m && !w) m->wire = NULL;
    if (g->size > 1) s = mpi_group_comm(h, g, s, base, w);
    if (s == ESP_OK)
        *comm = m;
    else if (m)
        mesh_close(m);
    return s;
}

/* ---- who the ranks are ------------------------------------------------------------------------------------------------------- */
/* `user` is the communicator. */
static esp_status mpi_allgather(void *user, const void *in, void *out, uint64_t bytes) {
    if (bytes > MESH_MESSAGE) return ESP_E_ARG;
    const int rc = MPI_Allgather(in, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, *(MPI_Comm *)user);
    return rc == MPI_SUCCESS ? ESP_OK : ESP_E_COMM;
}
static esp_status mpi_alone(void *user, const void *in, void *out, uint64_t bytes) {
    (void)user;
    memcpy(out, in, (size_t)bytes);
    return ESP_OK;
}
static esp_status mpi_meet(const esp_host *h, const char *params, esp_meeting *out) {
    esp_meeting m;
    MPI_Comm base;
    memset(&m, 0, sizeof m);
    m.struct_size = out->struct_size, m.size = 1, m.oob_allgather = mpi_alone;
    if (mpi_is_on() || mpi_launched()) {
        esp_status s = mpi_begin(h);
        if (s == ESP_OK) s = mpi_params(h, params, &base);
        if (s != ESP_OK) return s;
        if (mpi_meeting != MPI_COMM_NULL && !mpi_failed) MPI_Comm_free(&mpi_meeting);
        const int rc = MPI_Comm_dup(base, &mpi_meeting);
        if (rc != MPI_SUCCESS) return mpi_error(h, ESP_E_COMM, "MPI_Comm_dup", rc);
        MPI_Comm_set_errhandler(mpi_meeting, MPI_ERRORS_RETURN);
        MPI_Comm_rank(mpi_meeting, &m.rank);
        MPI_Comm_size(mpi_meeting, &m.size);
        m.oob_allgather = mpi_allgather, m.user = &mpi_meeting;
    }
    memcpy(out, &m, backend_min(out->struct_size, sizeof m));
    return ESP_OK;
}

static esp_status mpi_probe(const esp_host *h, int32_t *score) {
    (void)h;
    *score = mpi_is_on() || mpi_launched() ? 5 : 0; /* less than shm, which is faster where it runs */
    return ESP_OK;
}

#define MPI_TABLE(caps) MESH_TABLE(mpi, caps, "ranks are processes that mpirun or srun started", "comm=", mpi_meet)
static const esp_backend mpi_backend = MPI_TABLE(0), mpi_of_caller = MPI_TABLE(ESP_BACKEND_CALLER);
/* A program that has started MPI for fewer threads gets the table that says so. */
ESPRESSO_PLUGIN_ENTRY(mpi) {
    static const esp_backend *const any_thread[] = {&mpi_backend}, *const callers[] = {&mpi_of_caller};
    static const esp_plugin plugin = {.struct_size = sizeof plugin, .n_backends = 1, .backends = any_thread};
    static const esp_plugin of_caller = {.struct_size = sizeof of_caller, .n_backends = 1, .backends = callers};
    const int level = mpi_level();
    (void)h;
    return level >= 0 && level < MPI_THREAD_MULTIPLE ? &of_caller : &plugin;
}
