/* peers.h: connections and messages between ranks, shared by the files of this folder. Other folders include job.h. The
 * connections are a star: every other rank has one socket to rank 0. No file here knows tensors. */
#ifndef ESP__PEERS_H
#define ESP__PEERS_H
#include "espresso_impl/job/hmac.h"
#include "espresso_impl/job/job.h"
#include <poll.h>
#include <sys/socket.h>

/* Types of messages, with their direction. The names in () are the members of esp__msg that a message uses. */
enum {
    ESP__MSG_HELLO = 1,      /* to 0: the first, in all versions */
    ESP__MSG_WELCOME = 2,    /* from 0: all ranks have met */
    ESP__MSG_REFUSE = 3,     /* from 0: an error text (rank = status) */
    ESP__MSG_GATHER = 4,     /* to 0: n, members, data (tag, seq) */
    ESP__MSG_SHARED = 5,     /* from 0: data of all, packed (tag, seq) */
    ESP__MSG_FAILED = 6,     /* from 0: exchange failed (tag, seq, rank) */
    ESP__MSG_WHO = 7,        /* to 0: whose data is missing? (tag, seq) */
    ESP__MSG_MISSING = 8,    /* from 0: a missing rank (tag, seq, rank) */
    ESP__MSG_DIED = 9,       /* from 0: a rank died (rank) */
    ESP__MSG_LEAVE = 10,     /* both: I close, after error -seq if not 0 */
    ESP__MSG_FINAL = 11,     /* to 0: the final message */
    ESP__MSG_SUSPECT = 12,   /* to 0: timeout at (rank, tag = tensor) */
    ESP__MSG_ASK = 13,       /* from 0: what is your state? (seq) */
    ESP__MSG_ANSWER = 14,    /* to 0: esp__answer (seq of ASK) */
    ESP__MSG_DECISION = 15,  /* from 0: failed (rank, tag = tensor) */
    ESP__MSG_CHALLENGE = 16, /* see rendezvous.c */
    ESP__MSG_RESPONSE = 17,
    ESP__MSG_PROOF = 18,
    ESP__MSG_CHECK = 19,     /* to 0: please ask all ranks */
    ESP__MSG_MEMBERS = 20,   /* from 0 in a regroup: survivors (tag = epoch) */
    ESP__MSG_EXCLUDED = 21,  /* both: the job continues without you */
    ESP__MSG_LONG_WAIT = 22, /* to 0: my trainer has waited for long */
    ESP__MSG_LEFT = 23       /* from 0: int32_t ranks left (seq of LEAVE) */
};
enum { ESP__HERE = 0, ESP__LEFT = 1, ESP__DIED = 2 }; /* state of a connection */
enum {
    ESP__BODY_MOST = 1 << 30, /* bytes of a message's body */
    ESP__RESERVE = 256,
    ESP__BODY_FIRST = 1 << 16, /* memory for a body before any of it has come */
    ESP__EXCHANGES_EACH = 64   /* open exchanges per rank: more than threads */
};
enum { ESP__ROOT_MAX = 56, ESP__ROOTS = 7 }; /* "[IPv6 address]:PORT"; addresses of a listening rank */
/* Candidates besides one for each rank, so that ranks that connect at the same time all find room. */
enum { ESP__CANDIDATES = 64 };
/* Why an exchange failed, where no rank is to blame; and the number of a missing rank that is not known yet. */
enum { ESP__NOT_FAILED = -2, ESP__SIZES_DIFFER = -1, ESP__NOT_ANSWERED = -2 };

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

/* A connection to another rank. Only the watch thread reads from it; any thread may append to `out` under the lock. */
typedef struct esp__conn {
    int fd;    /* or -1 */
    int pidfd; /* readable once the process has ended; or -1 */
    int32_t rank;
    int state;      /* ESP__HERE, ... */
    bool broken;    /* writing failed; reading finds out why */
    bool shut;      /* this side is closed for writing */
    bool no_memory; /* shut, for there was no memory for a message */
    uint64_t got;   /* bytes received of the current message */
    uint64_t sent;  /* bytes sent so far */
    esp__msg head;
    uint8_t *body;    /* room for body_cap bytes, which grows */
    uint8_t *reserve; /* NULL, or ESP__RESERVE bytes for a body that needs no more */
    uint64_t body_cap;
    esp__bytes out;
    uint64_t out_at;
    esp__bytes last; /* on rank 0: the rank's final message */
    bool last_done;
    uint64_t answered_ns; /* on rank 0: when the last answer came */
} esp__conn;

/* On rank 0: an allgather that is under way. */
typedef struct esp__exchange {
    struct esp__exchange *next;
    uint64_t tag, seq, bytes;
    int32_t n, n_got;
    int32_t failed; /* the rank that left, or ESP__NOT_FAILED, ... */
    int32_t *members;
    uint8_t *got, *data;
} esp__exchange;

/* A thread of this rank that waits in an allgather. Lives on that thread's stack. */
typedef struct esp__waiter {
    struct esp__waiter *next;
    uint64_t tag, seq;
    uint64_t each, bytes; /* of one member, of all members */
    void *out;
    bool done;
    int32_t failed;  /* the rank that left, or ESP__NOT_FAILED, ... */
    int32_t missing; /* rank 0's answer, or ESP__NOT_ANSWERED */
} esp__waiter;

/* An inquiry: rank 0 asks all ranks for their state, to report stragglers, to decide which rank has failed, or both.
 * Without either purpose, no inquiry runs. */
typedef struct esp__inquiry {
    bool report, decide;
    uint64_t number;
    uint64_t until_ns;   /* when it ends, if ranks do not answer */
    uint64_t silence_ns; /* when it ends, if those are silent since checked_ns */
    int32_t suspecting;  /* the rank whose timeout started it */
    bool decided;
    int32_t failed; /* the decision: a rank, and its tensor */
    uint64_t tensor;
} esp__inquiry;

/* Reports of stragglers. Times are of esp__now_ns. */
typedef struct esp__reporter {
    esp__report_events ev;
    bool on;             /* callbacks may be called */
    int inside;          /* callbacks under way */
    uint64_t poll_ns;    /* when to check this rank's wait again */
    uint64_t long_ns;    /* when rank 0 learned of its long wait, or 0 */
    uint64_t longest_ns; /* the longest wait of the report */
    bool reported;       /* rank 1: reported that rank 0 is silent */
    /* on rank 0 */
    bool open;            /* some rank has waited for long */
    uint64_t ask_ns;      /* when to ask all ranks again */
    uint64_t report_ns;   /* when to report again */
    uint64_t interval_ns; /* from this report to the next */
} esp__reporter;

struct esp__peers {
    esp_ctx *ctx;
    esp__peers_events ev;
    int32_t rank, size;
    uint32_t timeout_ms;
    long pid; /* the process that opened it, not a forked child */
    char where[ESP__SPEC_MAX];
    char secret[ESP__SPEC_MAX]; /* or ""; wiped when the ranks have met */
    esp__survivor survivor;     /* in a regroup: this rank */
    /* Rank 0 has a connection to each rank, conns[rank]. Another rank has one, conns[0], to rank 0. */
    esp__conn *conns;
    int32_t n_conns;
    int wake_fd;
    bool has_thread, closing, quit, all_sent;
    uint64_t quit_ns;
    pthread_t thread;
    pthread_mutex_t lock; /* protects all below, and sending on conns */
    pthread_cond_t changed;
    int32_t dead;     /* the first rank that died, or -1 */
    uint64_t cause;   /* this rank's, for ESP__MSG_LEAVE */
    bool left_known;  /* the context knows of a rank that left */
    bool error_known; /* the context knows that a rank left after an error */
    bool decision_known, hub_left, excluded;
    bool no_memory; /* there was none: see esp__watch_no_memory */
    bool left_job;  /* after no_memory: its connections are shut */
    uint8_t *left;  /* [size], 1 where the rank has left */
    /* Ranks other than 0: room for a LEFT message, so that the end of a job allocates nothing. */
    uint8_t reserve[ESP__RESERVE];
    /* On rank 0: ranks that left after error leaving_cause. The others get the list at pass_on_ns. */
    int32_t *leaving, n_leaving;
    uint64_t leaving_cause, pass_on_ns;
    esp__exchange *exchanges;
    int64_t n_exchanges;
    esp__waiter *waiters;
    esp__bytes tags; /* an array of esp__tag */
    struct pollfd *polls;
    /* this rank's timeout: it suspects rank `suspect`, and waits for rank 0's decision */
    bool suspecting;
    int32_t suspect;
    uint64_t suspect_tensor;
    uint64_t decide_ns;    /* without a decision by then, rank 0 is silent */
    uint64_t hub_asked_ns; /* when rank 0 last sent ASK */
    uint64_t check_ns;     /* when this rank first sent CHECK after that */
    /* on rank 0 */
    bool suspect_now, check_now; /* the watch thread must start these */
    uint64_t checked_ns;         /* when a check last asked all ranks */
    esp__inquiry inquiry;
    esp__rank_state *asked; /* [size] */
    esp__reporter report;
};

/* ---- socket.c ---- */
typedef struct esp__addr {
    struct sockaddr_storage sa;
    socklen_t len;
} esp__addr;
/* The addresses at which a rank listens. */
typedef struct esp__roots {
    int32_t n;
    char at[ESP__ROOTS][ESP__ROOT_MAX];
} esp__roots;
/* Functions that take memory return false when there is none. */
ESP__FN bool esp__bytes_add(esp_ctx *ctx, esp__bytes *b, const void *data, uint64_t n);
ESP__FN void esp__bytes_free(esp_ctx *ctx, esp__bytes *b);
/* Resolves `root` into at most `cap` addresses, and returns their number. Sets *error if there is none. */
ESP__FN int esp__addr_resolve(const char *root, esp__addr *out, int cap, const char **error);
ESP__FN void esp__socket_close(int *fd);
/* A listening socket for `root`, or -1. */
ESP__FN int esp__listen(const char *root, const char **error);
/* Listens at the abstract name `name`, for ranks of this host, or where it is NULL at any free port of all addresses.
 * Returns the socket and its addresses, those that other hosts can reach first; or -1 and *error. */
ESP__FN int esp__listen_roots(const char *name, esp__roots *roots, const char **error);
ESP__FN bool esp__open_to_all(int fd); /* can processes of other hosts connect to it? */
/* Begins to connect *fd to `a`. Returns 0 or an errno; after EINPROGRESS, poll for writing, call esp__connected. */
ESP__FN int esp__connect(const esp__addr *a, int *fd);
ESP__FN int esp__connected(const esp__addr *a, int fd); /* 0, or an errno */
/* Accepts a connection, or returns -1: errno is 0 if none waits, and ECONNREFUSED if it belongs to another user. */
ESP__FN int esp__accept(int listen_fd, int *pidfd);
/* Does the other end of a Unix socket, process *pidfd, belong to this user or to root? True for other sockets. */
ESP__FN bool esp__socket_peer(int fd, int *pidfd);
ESP__FN void esp__conn_init(esp__conn *c, int fd, int32_t rank);
ESP__FN void esp__conn_free(esp_ctx *ctx, esp__conn *c);
ESP__FN void esp__conn_flush(esp__conn *c);
/* Queue a message, with a body in one or two pieces, and write as much as the socket takes. The caller has the lock. */
ESP__FN void esp__conn_send(esp_ctx *ctx, esp__conn *c, esp__msg m, const void *body, uint64_t bytes);
ESP__FN void esp__conn_send2(esp_ctx *ctx, esp__conn *c, esp__msg m, const void *a, uint64_t a_bytes, const void *b,
                             uint64_t b_bytes);
/* Send a message without a body: over p->conns[i], or from rank 0 to all others. */
ESP__FN void esp__send(esp__peers *p, int32_t i, esp__msg m);
ESP__FN void esp__send_all(esp__peers *p, esp__msg m);
/* Returns 1 when c->head and c->body hold a whole message: handle it, then call esp__conn_next. Returns 0 when more
 * bytes must come, and -1 when the connection has ended or its next message has more than `limit` bytes. */
ESP__FN int esp__conn_read(esp_ctx *ctx, esp__conn *c, uint64_t limit);
ESP__FN void esp__conn_next(esp_ctx *ctx, esp__conn *c);
/* Milliseconds for poll() until `deadline_ns`, rounded up; -1 for no deadline. */
ESP__FN int esp__poll_ms(uint64_t deadline_ns);
/* Sleeps under the lock until something changed (true) or the deadline has passed. */
ESP__FN bool esp__peers_sleep(esp__peers *p, uint64_t deadline_ns);
ESP__FN void esp__peers_wake(esp__peers *p); /* the watch thread checks its flags and deadlines again */
ESP__FN void esp__peers_kick(esp__peers *p); /* the watch thread writes what a send left over */

/* ---- rendezvous.c ---- */
/* All versions of the library begin with a hello of this layout, so that they recognize each other's version. */
enum {
    ESP__NONCE = 32,
    ESP__MEET_VERSION = 24,
    ESP__SECRET_MADE = 24 /* random bytes of a secret that the library makes */
};
#define ESP__HELLO_MAGIC "ESPPEER1"
#define ESP__MEET_MAGIC "ESPMEET2"
typedef struct esp__hello {
    char magic[8], version[ESP__MEET_VERSION];
    int32_t rank, size;
    uint64_t job; /* a random number that the ranks agreed on before, or 0 */
} esp__hello;
typedef struct esp__challenge {
    char magic[8];
    uint32_t secured, reserved; /* secured: has a secret; for messages */
    uint8_t nonce[ESP__NONCE];
} esp__challenge;
typedef struct esp__response {
    char magic[8];
    uint32_t secured;
    int32_t rank, size;
    uint32_t reserved;
    uint64_t job;
    esp__survivor survivor; /* in a regroup */
    uint8_t nonce[ESP__NONCE];
    uint8_t code[ESP__SHA256_BYTES];
} esp__response;
typedef struct esp__proof {
    uint8_t code[ESP__SHA256_BYTES];
} esp__proof;
_Static_assert(sizeof(esp__hello) == 48 && sizeof(esp__challenge) == 48 && sizeof(esp__response) == 120,
               "sent as they are");

/* A connection to a listening rank that has not proven to be a rank of this job. */
typedef struct esp__candidate {
    esp__conn conn;
    uint64_t since_ns;
    bool greeted;   /* its hello has come */
    bool proven;    /* its response has the right code */
    int32_t member; /* in a regroup: its old rank, or -1 */
    esp__hello hello;
    esp__challenge challenge;
    esp__response response;
} esp__candidate;
/* Why candidates were refused or dropped. The texts are in rendezvous.c. */
enum {
    ESP__REFUSED_OTHER_SECRET,
    ESP__REFUSED_NO_SECRET,
    ESP__REFUSED_HAS_SECRET,
    ESP__REFUSED_VERSION,
    ESP__REFUSED_USER,
    ESP__REFUSED_UNKNOWN,
    ESP__REFUSED_SILENT,
    ESP__REFUSED_DISPLACED,
    ESP__REFUSALS
};
/* A listening socket and its candidates, at most `most`. */
typedef struct esp__lobby {
    int listen_fd;
    int32_t n, most;
    esp__candidate *candidates;
    uint64_t refused[ESP__REFUSALS];
} esp__lobby;
ESP__FN bool esp__lobby_open(esp_ctx *ctx, esp__lobby *l, int listen_fd, int32_t ranks);
ESP__FN void esp__lobby_close(esp_ctx *ctx, esp__lobby *l); /* does not close the listening socket */
/* Drops a candidate, and counts it under ESP__REFUSED_*; -1: under none. */
ESP__FN void esp__lobby_drop(esp_ctx *ctx, esp__lobby *l, esp__candidate *c, int why);
/* Accepts some of the waiting connections. Returns an errno when no descriptor or memory is left. */
ESP__FN int esp__lobby_accept(esp_ctx *ctx, esp__lobby *l);
ESP__FN esp__candidate *esp__lobby_first_to_go(const esp__lobby *l); /* of at least one */
/* The time from which a full lobby may displace a candidate, or 0 if there is room now. */
ESP__FN uint64_t esp__lobby_room_ns(const esp__lobby *l);

ESP__FN void esp__hello_make(const esp__peers *p, uint64_t job, esp__hello *out);
/* These two return false where the system has no random numbers. */
ESP__FN bool esp__challenge_make(const esp__peers *p, esp__challenge *out);
ESP__FN bool esp__response_make(const esp__peers *p, const esp__hello *hello, const esp__challenge *ch,
                                esp__response *out);
/* Reads what a candidate of p's job has sent, and answers it. ESP_OK: it has proven itself, or more follows.
 * ESP_PENDING: drop it, because of *why. If the meeting has `failed`, it gets this thread's error text. */
ESP__FN esp_status esp__candidate_read(esp__peers *p, uint64_t job, esp__candidate *c, esp_status failed, int *why);
/* A joining rank's connection to a rank that may be the host. */
typedef struct esp__joining {
    esp__conn *conn;
    esp__hello hello;
    esp__challenge challenge;
    esp__response response;
    int stage; /* messages received: 1 the challenge, 2 the proof */
} esp__joining;
ESP__FN void esp__join_begin(const esp__peers *p, esp__joining *j, esp__conn *c, uint64_t job);
/* Handles a message. ESP_PENDING: another one follows. ESP_OK: the host is proven; the caller handles this one. */
ESP__FN esp_status esp__join_message(esp__peers *p, esp__joining *j);
/* The code of one side over everything that both have sent. The `host` is rank 0, or the host of a regroup. */
ESP__FN void esp__code(const char *secret, int host, const esp__hello *hello, const esp__challenge *ch,
                       const esp__response *r, uint8_t out[ESP__SHA256_BYTES]);
ESP__FN bool esp__code_check(const esp__peers *p, int host, const esp__hello *hello, const esp__challenge *ch,
                             const esp__response *r, const uint8_t code[ESP__SHA256_BYTES]);
/* Peers without connections and thread; NULL when out of memory. */
ESP__FN esp__peers *esp__peers_new(esp_ctx *ctx, const esp_config *cfg, const esp__where *w,
                                   const esp__peers_events *ev);
ESP__FN void esp__peers_free(esp__peers *p);
ESP__FN uint64_t esp__random64(void); /* not 0 */
/* What rank 0 sends to the others over the caller's allgather. Of one size in all builds of this version. */
typedef struct esp__invitation {
    uint64_t job;
    esp__roots roots;                      /* if n is 0, roots.at holds an error text */
    char secret[2 * ESP__SECRET_MADE + 4]; /* "" if ESPRESSO_SECRET is set */
} esp__invitation;
_Static_assert(sizeof(esp__invitation) == 456, "other builds of the library send as much");
/* Listens, and writes the invitation. Returns the socket, or -1: then the invitation has the reason. */
ESP__FN int esp__invite(esp__peers *p, esp__invitation *inv, bool one_host);
/* A socket connected to `a`, or -1 and errno. */
ESP__FN int esp__join_connect(const esp__addr *a, uint64_t deadline_ns);

/* ---- exchange.c: the caller has the lock ---- */
/* Handles GATHER on rank 0. Returns false if it is malformed. */
ESP__FN bool esp__exchange_message(esp__peers *p, const esp__conn *c);
ESP__FN int32_t esp__exchange_missing(esp__peers *p, uint64_t tag, uint64_t seq); /* a rank, or -1 */
ESP__FN void esp__exchange_left(esp__peers *p, int32_t rank);                     /* fails exchanges without its data */
ESP__FN void esp__exchange_free(esp__peers *p, esp__exchange *x);
/* Ends a wait, after SHARED or FAILED. */
ESP__FN void esp__waiter_finish(esp__peers *p, uint64_t tag, uint64_t seq, const void *packed, uint64_t bytes,
                                int32_t failed);
ESP__FN esp__waiter *esp__waiter_find(esp__peers *p, uint64_t tag, uint64_t seq);
/* Packs `all` bytes, `each` of one member, and returns the size, at most twice as large. Only counts if out is NULL. */
ESP__FN uint64_t esp__pack(const uint8_t *data, uint64_t each, uint64_t all, uint8_t *out);
/* Returns false if the bytes are no packed data of this size. */
ESP__FN bool esp__unpack(const uint8_t *packed, uint64_t bytes, uint8_t *out, uint64_t each, uint64_t all);

/* ---- liveness.c: the caller has the lock ---- */
ESP__FN esp_status esp__watch_start(esp__peers *p);
ESP__FN uint64_t esp__watch_polls_bytes(const esp__peers *p);
/* Rank 0: handles a message from another rank. */
ESP__FN void esp__watch_on_hub(esp__peers *p, esp__conn *c);
/* Other ranks: handles a message from rank 0. */
ESP__FN void esp__watch_from_hub(esp__peers *p, esp__conn *c);
/* Rank 0: `rank` left after error -cause. The others learn it within 20 ms, or at once by esp__watch_pass_on. */
ESP__FN void esp__watch_left(esp__peers *p, int32_t rank, uint64_t cause);
ESP__FN void esp__watch_pass_on(esp__peers *p);
/* Reads a connection and handles its messages. Called without the lock. */
ESP__FN void esp__watch_read(esp__peers *p, esp__conn *c);
/* Decides which rank has failed, unless that depends on a rank that may still answer. `final`: no rank may. */
ESP__FN void esp__inquiry_decide(esp__peers *p, bool final);
/* Starts, ends or gives up an inquiry when it is time. Called in every pass of the watch thread. */
ESP__FN void esp__suspect_turn(esp__peers *p, bool quiet);

/* ---- regroup.c ---- */
/* Address `i` of the standby socket of the rank that began the job as `origin`; false if it has no more. */
ESP__FN bool esp__standby_root(const esp__standby *s, int32_t origin, int32_t i, char out[ESP__ROOT_MAX]);
#endif
