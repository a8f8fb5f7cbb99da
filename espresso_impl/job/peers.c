/* peers.c: how ranks meet, exchange small messages and notice that one is gone. The connections are a star: every other rank has
 * one socket to rank 0. One watch thread a rank reads all messages, so that it sees the end-of-file of a rank that dies at once.
 * Must not know what the exchanges mean, nor anything of tensors, shared memory or backends.
 *
 * Parts: wire.c has sockets and messages; prove.c, guests.c, meet.c, join.c and oob.c the meeting; exchange.c allgather; late.c finds
 * the rank that is late; stall.c reports who keeps the others waiting; watch.c has the watch thread; standby.c and survivors.c a new
 * meeting after ranks were lost; this file opens and closes. */
#include "espresso_impl/job/job.h"
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    ESP__MSG_KNOCK = 1,      /* to 0: a rank's first message, in all versions of the library                   */
    ESP__MSG_WELCOME = 2,    /* from 0: all ranks are here                                                     */
    ESP__MSG_REFUSE = 3,     /* from 0: the meeting failed; rank = status, body = text                         */
    ESP__MSG_GATHER = 4,     /* to 0: tag, seq; body = n, members, data                                        */
    ESP__MSG_SHARED = 5,     /* from 0: tag, seq; body = all members' data                                     */
    ESP__MSG_FAILED = 6,     /* from 0: tag, seq; the exchange cannot succeed: rank left, or (-1) sizes differ */
    ESP__MSG_WHO = 7,        /* to 0: tag, seq; whose data is missing?                                         */
    ESP__MSG_MISSING = 8,    /* from 0: tag, seq; rank = the first missing one, -1: none                       */
    ESP__MSG_GONE = 9,       /* from 0: rank died (tag 0) or left (tag 1); seq as of BYE                       */
    ESP__MSG_BYE = 10,       /* both ways: end-of-file follows, and does not mean death; seq = -status of the  */
                             /* error that the sender closes after; 0: none, or that of a lost rank            */
    ESP__MSG_FAREWELL = 11,  /* to 0: body = the farewell's data                                               */
    ESP__MSG_ACCUSE = 12,    /* to 0: the sender has waited too long, for rank, at tensor tag                  */
    ESP__MSG_ASK = 13,       /* from 0: which rank do you wait for? seq = inquiry                              */
    ESP__MSG_ANSWER = 14,    /* to 0: rank, tag = tensor, seq = inquiry; rank -2: not waiting                  */
    ESP__MSG_VERDICT = 15,   /* from 0: rank is late for tensor tag                                            */
    ESP__MSG_CHALLENGE = 16, /* from 0, to 0, from 0: see prove.c                                              */
    ESP__MSG_HELLO = 17,
    ESP__MSG_PROOF = 18,
    ESP__MSG_SUSPECT = 19, /* to 0: the sender has waited for long; are all ranks alive?                     */
    ESP__MSG_REJOIN = 20,  /* to the host of survivors: body = esp__rejoin                                   */
    ESP__MSG_HOSTED = 21,  /* from it: the rejoin came; wait for the others                                  */
    ESP__MSG_MEMBERS = 22, /* from it: tag = epoch; body = esp__survivor of each member                      */
    ESP__MSG_EXCLUDED = 23 /* both ways: the sender goes on without the receiver                             */
};
enum {
    ESP__MSG_STALL = 32,       /* to 0: the sender waits (tag 0), or waits no more (tag 1), for seq ns        */
    ESP__MSG_STALL_ASK = 33,   /* from 0: how far are you? seq = inquiry                                      */
    ESP__MSG_STALL_ANSWER = 34 /* to 0: seq = inquiry; body = the answer, or nothing: not started, or closing */
};
enum { ESP__HERE = 0, ESP__LEFT = 1, ESP__DIED = 2 };
enum { ESP__CAUSES = 64 }; /* of BYE: more are none */
enum {
    ESP__BODY_MOST = 1 << 30,  /* bytes of a message's body                                           */
    ESP__BODY_FIRST = 1 << 16, /* memory for a body before any of it has come                         */
    ESP__EXCHANGES_EACH = 64   /* exchanges that may be open at a time, for each rank: it has fewer threads */
};

/* In front of every message; `bytes` of body follow. */
typedef struct esp__msg {
    uint32_t type;
    int32_t rank;
    uint64_t tag, seq, bytes;
} esp__msg;

/* A buffer that grows, from the context's allocator. */
typedef struct esp__bytes {
    uint8_t *data;
    uint64_t len, cap;
} esp__bytes;

/* One connection to another rank. Only the watch thread reads from it; any thread may append to `out` under the lock. */
typedef struct esp__conn {
    int fd;    /* -1: none                                                     */
    int pidfd; /* readable when the other process has ended; -1: it is on another machine */
    int32_t rank;
    int state;     /* ESP__HERE ...                                                */
    int broken;    /* writing failed: nothing more is sent; reading finds out why  */
    int shut;      /* this side is closed for writing                              */
    int no_memory; /* this rank had no memory for a message, and has shut the connection: see esp__watch_no_memory */
    uint64_t got;
    esp__msg head;
    uint8_t *body; /* body_cap bytes of it are there, or on their way */
    uint64_t body_cap;
    esp__bytes out;
    uint64_t out_at;
    esp__bytes farewell; /* rank 0: the other rank's, until this one closes */
    int farewell_done;
    /* the answer to the inquiry that runs; rank 0 stores its own in conns[0] */
    int answered;
    int32_t waits_for;
    uint64_t waits_tensor, heard_ns; /* heard_ns: when its last answer came */
    int seen;
} esp__conn;

/* An allgather that rank 0 collects. */
typedef struct esp__exchange {
    struct esp__exchange *next;
    uint64_t tag, seq, bytes, alloc;
    int32_t n, n_got;
    int32_t failed; /* -2: no; -1: sizes differ; else the rank that left */
    int32_t *members;
    uint8_t *got, *data;
} esp__exchange;

/* A thread of this rank that waits in an allgather. Lives on that thread's stack. */
typedef struct esp__waiter {
    struct esp__waiter *next;
    uint64_t tag, seq, bytes;
    void *out;
    int done;
    int32_t failed, missing; /* -2: not known */
} esp__waiter;

typedef struct esp__tag {
    uint64_t tag, next_seq;
} esp__tag;

typedef struct esp__stall esp__stall;
struct esp__peers {
    esp_ctx *ctx;
    esp__peers_events ev;
    int32_t rank, size;
    uint32_t timeout_ms;
    long pid; /* of the process that opened it: a forked child must send nothing */
    char where[ESP__SPEC_MAX];
    char secret[ESP__SPEC_MAX]; /* "": the job has none; wiped when the ranks have met */
    esp__conn *conns;           /* rank 0: [size], own entry unused; else [1], rank 0 */
    int32_t n_conns;
    int wake_fd, has_thread, closing, quit, sent;
    uint64_t quit_ns;
    pthread_t thread;
    pthread_mutex_t lock; /* protects everything below, and of conns all but the fields for reading */
    pthread_cond_t changed;
    int32_t dead;   /* first rank that died, -1: none */
    uint64_t cause; /* this rank's, when it closes: see BYE */
    int told_left;  /* 1: the context knows of a rank that left. 2: of one that left after an error */
    int told_late, hub_left, excluded;
    int no_memory; /* this rank could not send, receive or collect: it has left the job, and the others see it die */
    int left_job;  /* that was done */
    uint8_t *left; /* [size] 1: the rank said goodbye */
    esp__exchange *exchanges;
    int64_t n_exchanges;
    esp__waiter *waiters;
    esp__bytes tags; /* an array of esp__tag */
    struct pollfd *polls;
    /* late ranks */
    int accusing; /* this rank has accused `accused` and waits for the verdict */
    int32_t accused;
    uint64_t accuse_ns, accuse_tensor; /* the verdict's deadline; the tensor that this rank waits for */
    int asking, inquiring, judged;     /* rank 0: an inquiry is to be started; runs; has given a verdict */
    int32_t accuser, guilty;
    uint64_t inquiry, inquiry_ns, soon_ns,
        guilty_tensor;           /* soon_ns: from then on, ranks silent since asked_ns are late */
    int suspecting;              /* rank 0 suspects, and its watch thread is to ask */
    uint64_t suspect_ns, hub_ns; /* when this rank suspected first since it heard of rank 0; when that was */
    uint64_t asked_ns;           /* rank 0: when all ranks were asked because one suspected */
    esp__stall *stall;           /* NULL: nobody asked for reports of stalls */
};

#include "espresso_impl/job/wire.c"
#include "espresso_impl/job/prove.c"
#include "espresso_impl/job/guests.c"
#include "espresso_impl/job/meet.c"
#include "espresso_impl/job/join.c"
#include "espresso_impl/job/oob.c"
#include "espresso_impl/job/exchange.c"
#include "espresso_impl/job/late.c"
#include "espresso_impl/job/stall.c"
#include "espresso_impl/job/watch.c"
#include "espresso_impl/job/standby.c"

ESP__FN int esp__peers_left(esp__peers *p, int32_t rank) {
    int left = 0;
    if (p->size == 1 || rank < 0 || rank >= p->size) return 0;
    pthread_mutex_lock(&p->lock);
    left = p->left[rank];
    pthread_mutex_unlock(&p->lock);
    return left;
}

static void esp__peers_free(esp__peers *p) {
    esp_ctx *ctx = p->ctx;
    for (int32_t i = 0; i < p->n_conns; i++) esp__conn_free(ctx, &p->conns[i]);
    if (p->conns) esp__free(ctx, p->conns);
    if (p->polls) esp__free(ctx, p->polls);
    if (p->left) esp__free(ctx, p->left);
    if (p->stall) esp__free(ctx, p->stall);
    for (esp__exchange *x = p->exchanges, *next; x; x = next) {
        next = x->next;
        esp__exchange_free(p, x);
    }
    esp__bytes_free(ctx, &p->tags);
    esp__socket_close(&p->wake_fd);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    esp__wipe(p->secret, sizeof p->secret);
    esp__free(ctx, p);
}

/* Makes an esp__peers without connections and thread. */
static esp__peers *esp__peers_new(esp_ctx *ctx, const esp_config *cfg, const esp__where *w,
                                  const esp__peers_events *ev) {
    esp__peers *p = (esp__peers *)esp__alloc(ctx, sizeof *p);
    pthread_condattr_t attr;
    if (!p) return NULL;
    p->ctx = ctx;
    if (ev) p->ev = *ev;
    p->rank = w->rank;
    p->size = w->size;
    p->timeout_ms = cfg && cfg->timeout_ms ? cfg->timeout_ms : 300000;
    snprintf(p->secret, sizeof p->secret, "%s", w->secret ? w->secret : "");
    p->pid = (long)getpid();
    p->wake_fd = -1;
    p->dead = -1;
    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&p->changed, &attr);
    pthread_condattr_destroy(&attr);
    if (p->size == 1) return p;
    p->n_conns = p->rank == 0 ? p->size : 1;
    p->conns = (esp__conn *)esp__alloc(ctx, sizeof *p->conns * (uint64_t)p->n_conns);
    p->polls = (struct pollfd *)esp__alloc(ctx, esp__watch_polls_bytes(p));
    p->left = (uint8_t *)esp__alloc(ctx, (uint64_t)p->size);
    if (!p->conns || !p->polls || !p->left) {
        p->n_conns = 0;
        esp__peers_free(p);
        return NULL;
    }
    for (int32_t i = 0; i < p->n_conns; i++) esp__conn_init(&p->conns[i], -1, i);
    return p;
}

ESP__FN esp_status esp__peers_open(esp_ctx *ctx, const esp_config *cfg, const esp__where *w,
                                   const esp__peers_events *ev, esp__peers **out) {
    esp__peers *p = esp__peers_new(ctx, cfg, w, ev);
    esp_status s = ESP_OK;
    *out = NULL;
    if (!p) return esp__fail(ctx, ESP_E_NOMEM, "no memory to connect %d ranks", (int)w->size);
    if (p->size > 1) {
        s = esp__meet(p, cfg, w);
        esp__wipe(p->secret, sizeof p->secret);
        if (s == ESP_OK) s = esp__watch_start(p);
    }
    if (s == ESP_OK)
        *out = p;
    else
        esp__peers_free(p);
    return s;
}

/* Rank 0: waits for all other ranks' farewells. They come soon, except from ranks that are stopped. */
static void esp__peers_collect(esp__peers *p, void (*collect)(void *, int32_t, const void *, uint64_t), void *user) {
    uint64_t deadline = esp__now_ns() + (p->dead >= 0 ? 300000000u : 5000000000u);
    for (;;) {
        int32_t waiting = 0;
        for (int32_t r = 1; r < p->size; r++) waiting += p->conns[r].state == ESP__HERE && !p->conns[r].farewell_done;
        if (!waiting || !esp__peers_sleep(p, deadline)) break;
    }
    for (int32_t r = 1; r < p->size; r++) {
        esp__bytes words = p->conns[r].farewell;
        memset(&p->conns[r].farewell, 0, sizeof words);
        pthread_mutex_unlock(&p->lock);
        if (words.len) collect(user, r, words.data, words.len);
        esp__bytes_free(p->ctx, &words);
        pthread_mutex_lock(&p->lock);
    }
}

/* Rank 0 says goodbye, but passes on the others' messages until they have left too, for a second at most. Most jobs end on all ranks
 * at about the same time, and ranks hear of each other only through rank 0. */
static void esp__peers_linger(esp__peers *p) {
    uint64_t deadline = esp__now_ns() + 1000000000u;
    p->conns[0].state = ESP__LEFT;
    for (int32_t r = 1; r < p->size; r++)
        esp__conn_send(p->ctx, &p->conns[r], (esp__msg){ESP__MSG_GONE, 0, 1, p->cause, 0}, NULL, 0);
    esp__exchange_left(p, 0);
    esp__peers_kick(p);
    for (int32_t here = 1; here && p->dead < 0 && !p->told_late;) {
        here = 0;
        for (int32_t r = 1; r < p->size; r++) here += p->conns[r].state == ESP__HERE;
        if (!here || !esp__peers_sleep(p, deadline)) break;
    }
}

ESP__FN void esp__peers_cause(esp__peers *p, esp_status why) {
    if (p) p->cause = (uint64_t)-why;
}

/* A forked child shares the sockets with its parent, which goes on: the child closes its copies and sends nothing. */
ESP__FN void esp__peers_close(esp__peers *p, const void *farewell, uint64_t bytes,
                              void (*collect)(void *user, int32_t rank, const void *data, uint64_t bytes), void *user) {
    if (!p) return;
    if (p->has_thread && p->pid == (long)getpid()) {
        pthread_mutex_lock(&p->lock);
        p->closing = 1; /* from here on no callback is called */
        if (p->rank == 0 && collect && bytes) collect(user, 0, farewell, bytes);
        if (p->rank == 0 && collect) esp__peers_collect(p, collect, user);
        if (p->rank == 0) esp__peers_linger(p);
        for (int32_t i = 0; i < p->n_conns; i++) {
            esp__conn *c = &p->conns[i];
            if (p->rank != 0 && bytes)
                esp__conn_send(p->ctx, c, (esp__msg){ESP__MSG_FAREWELL, p->rank, 0, 0, 0}, farewell, bytes);
            esp__conn_send(p->ctx, c, (esp__msg){ESP__MSG_BYE, p->rank, 0, p->cause, 0}, NULL, 0);
        }
        p->quit = 1;
        p->quit_ns = esp__now_ns() + (p->dead < 0 && !p->told_late ? 5000000000u : 200000000u);
        esp__peers_wake(p);
        pthread_mutex_unlock(&p->lock);
        pthread_join(p->thread, NULL);
    } else if (p->size == 1 && collect && bytes) {
        collect(user, 0, farewell, bytes);
    }
    esp__peers_free(p);
}

#include "espresso_impl/job/survivors.c" /* makes and frees connections as this file does */
