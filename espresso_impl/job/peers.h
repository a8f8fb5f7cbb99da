/* peers.h: connections and messages between ranks, shared by the files of this folder. Other folders include job.h. The connections
 * are a star: every other rank has one socket to rank 0. No file here knows what exchanges mean, or anything of tensors, shared
 * memory or backends. */
#ifndef ESP__PEERS_H
#define ESP__PEERS_H
#include "espresso_impl/job/hmac.h"
#include "espresso_impl/job/job.h"
#include <poll.h>
#include <sys/socket.h>

enum {
    ESP__MSG_HELLO = 1,      /* to 0: a rank's first message, in all versions of the library                   */
    ESP__MSG_WELCOME = 2,    /* from 0: all ranks are here                                                     */
    ESP__MSG_REFUSE = 3,     /* from 0: the meeting failed; rank = status, body = text                         */
    ESP__MSG_GATHER = 4,     /* to 0: tag, seq; body = n, members (n 0: all ranks), data                       */
    ESP__MSG_SHARED = 5,     /* from 0: tag, seq; body = all members' data, packed                             */
    ESP__MSG_FAILED = 6,     /* from 0: tag, seq; the exchange cannot succeed: rank left, or (-1) sizes differ */
    ESP__MSG_WHO = 7,        /* to 0: tag, seq; whose data is missing?                                         */
    ESP__MSG_MISSING = 8,    /* from 0: tag, seq; rank = the first missing one, -1: none                       */
    ESP__MSG_GONE = 9,       /* from 0: rank died (tag 0) or left (tag 1); seq as of LEAVE                     */
    ESP__MSG_LEAVE = 10,     /* both ways: end-of-file follows, and does not mean death; seq = -status of the  */
                             /* error that the sender closes after; 0: none, or that of a lost rank            */
    ESP__MSG_FINAL = 11,     /* to 0: body = the final message                                                 */
    ESP__MSG_SUSPECT = 12,   /* to 0: the sender has waited too long, for rank, at tensor tag                  */
    ESP__MSG_ASK = 13,       /* from 0: how far are you? seq = inquiry                                         */
    ESP__MSG_ANSWER = 14,    /* to 0: seq = inquiry; body = esp__answer                                        */
    ESP__MSG_DECISION = 15,  /* from 0: rank has failed: it did not come to tensor tag                        */
    ESP__MSG_CHALLENGE = 16, /* from 0, to 0, from 0: see rendezvous.c                                       */
    ESP__MSG_RESPONSE = 17,
    ESP__MSG_PROOF = 18,
    ESP__MSG_CHECK = 19, /* to 0: the sender has waited for long; do all ranks answer?                    */
    ESP__MSG_MEMBERS =
        20, /* from the host of a regroup: tag = epoch; body = esp__survivor of each member                     */
    ESP__MSG_EXCLUDED = 21, /* both ways: the sender goes on without the receiver                            */
    ESP__MSG_LONG_WAIT = 22 /* to 0: the trainer of the sender waits long */
};
enum { ESP__HERE = 0, ESP__LEFT = 1, ESP__DIED = 2 }; /* of a connection */
enum {
    ESP__BODY_MOST = 1 << 30,  /* bytes of a message's body                                               */
    ESP__BODY_FIRST = 1 << 16, /* memory for a body before any of it has come                             */
    ESP__EXCHANGES_EACH = 64   /* exchanges that may be open at a time, for each rank: it has fewer threads */
};
enum { ESP__ROOT_MAX = 56, ESP__ROOTS = 7 }; /* "[IPv6 address]:PORT"; addresses of a listening rank */
enum {
    ESP__CANDIDATES = 64
}; /* places, besides one for each rank: ranks that come at once never displace each other */

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
    int state;          /* ESP__HERE ...                                                */
    bool broken;        /* writing failed: nothing more is sent; reading finds out why  */
    bool shut;          /* this side is closed for writing                              */
    bool no_memory;     /* this rank had no memory for a message, and has shut the connection */
    uint64_t got, sent; /* bytes: of the message that comes; sent so far            */
    esp__msg head;
    uint8_t *body; /* body_cap bytes of it are there, or on their way */
    uint64_t body_cap;
    esp__bytes out;
    uint64_t out_at;
    esp__bytes last; /* rank 0: the other rank's final message, until this one closes */
    bool last_done;
    uint64_t heard_ns; /* rank 0: when its last answer came */
} esp__conn;

/* An allgather that rank 0 collects. */
typedef struct esp__exchange {
    struct esp__exchange *next;
    uint64_t tag, seq, bytes;
    int32_t n, n_got;
    int32_t failed; /* -2: no; -1: sizes differ; else the rank that left */
    int32_t *members;
    uint8_t *got, *data;
} esp__exchange;

/* A thread of this rank that waits in an allgather. Lives on that thread's stack. */
typedef struct esp__waiter {
    struct esp__waiter *next;
    uint64_t tag, seq, each, bytes; /* each: of one member */
    void *out;
    int done;
    int32_t failed, missing; /* -2: not known */
} esp__waiter;

/* Rank 0 asks all ranks how far they are, for a report, for a decision which rank has failed, or for both. */
typedef struct esp__inquiry {
    uint64_t number, until_ns, soon_ns; /* soon_ns: from then on, ranks silent since checked_ns count as silent */
    bool report, decide;                /* what it is for; none: no inquiry runs */
    int32_t suspecting;                 /* the rank whose suspicion began it     */
    bool decided;
    int32_t failed; /* the decision */
    uint64_t tensor;
} esp__inquiry;

/* Reports of stragglers. */
typedef struct esp__reporter {
    esp__report_events ev;
    bool on;             /* callbacks may be called                             */
    int inside;          /* callbacks under way                                 */
    uint64_t look_ns;    /* when to look again at this rank's wait              */
    uint64_t long_ns;    /* when rank 0 was notified of it; 0: it is not long   */
    uint64_t longest_ns; /* the longest wait of the report                      */
    bool said;           /* it was reported; on rank 1: that rank 0 is silent   */
    /* rank 0 */
    bool open;                       /* some rank waits long                                        */
    uint64_t ask_ns, say_ns, gap_ns; /* when to ask again, to report again; between the two reports */
} esp__reporter;

struct esp__peers {
    esp_ctx *ctx;
    esp__peers_events ev;
    int32_t rank, size;
    uint32_t timeout_ms;
    long pid; /* of the process that opened it: a forked child must send nothing */
    char where[ESP__SPEC_MAX];
    char secret[ESP__SPEC_MAX]; /* "": the job has none; wiped when the ranks have met */
    esp__survivor survivor;     /* in a regroup: this rank                             */
    esp__conn *conns;           /* rank 0: [size], own entry unused; else [1], rank 0 */
    int32_t n_conns;
    int wake_fd;
    bool has_thread, closing, quit, all_sent;
    uint64_t quit_ns;
    pthread_t thread;
    pthread_mutex_t lock; /* protects everything below, and of conns all but the fields for reading */
    pthread_cond_t changed;
    int32_t dead;   /* first rank that died, -1: none */
    uint64_t cause; /* this rank's, when it closes: see LEAVE */
    int left_known; /* 1: the context knows of a rank that left. 2: of one that left after an error */
    bool decision_known, hub_left, excluded;
    bool no_memory; /* this rank could not send, receive or collect: it has left the job, and the others see it die */
    bool left_job;  /* that was done */
    uint8_t *left;  /* [size] 1: the rank said that it leaves */
    esp__exchange *exchanges;
    int64_t n_exchanges;
    esp__waiter *waiters;
    esp__bytes tags; /* an array of esp__tag */
    struct pollfd *polls;
    /* this rank's suspicion, and what it knows of rank 0 */
    bool suspecting; /* it waits for the decision */
    int32_t suspect;
    uint64_t suspect_tensor, decide_ns; /* decide_ns: without a decision by then, rank 0 is silent */
    uint64_t check_ns, hub_ns;          /* when this rank first asked for a check since rank 0 asked; when that was */
    /* rank 0 */
    bool suspect_now, check_now; /* its own suspicion and check are for the watch thread to begin */
    uint64_t checked_ns;         /* when all ranks were asked because one waits for long */
    esp__inquiry inquiry;
    esp__asked *asked; /* [size] */
    esp__reporter report;
};

/* ---- socket.c ---- */
typedef struct esp__addr {
    struct sockaddr_storage sa;
    socklen_t len;
} esp__addr;
/* Where a rank listens: addresses that others may try, one after another. */
typedef struct esp__roots {
    int32_t n;
    char at[ESP__ROOTS][ESP__ROOT_MAX];
} esp__roots;
ESP__FN int esp__bytes_add(esp_ctx *ctx, esp__bytes *b, const void *data, uint64_t n); /* 0: out of memory */
ESP__FN void esp__bytes_free(esp_ctx *ctx, esp__bytes *b);
/* Resolves `root` into at most `cap` addresses, and returns how many; 0, with an error text, if there is none. */
ESP__FN int esp__addr_resolve(const char *root, esp__addr *out, int cap, const char **error);
ESP__FN void esp__socket_close(int *fd);
/* A listening socket for `root`, or -1. */
ESP__FN int esp__listen(const char *root, const char **error);
/* Listens for ranks of this host at the abstract name `name`, or (NULL) for others at any port of all addresses. Returns the socket
 * and its addresses, those that other hosts can reach first; -1: none, and the reason. */
ESP__FN int esp__listen_roots(const char *name, esp__roots *roots, const char **error);
ESP__FN int esp__open_to_all(int fd); /* 1 if processes of other hosts can reach a listening socket */
/* Begins to connect *fd to `a`: 0, or an errno; EINPROGRESS: poll it for writing, then call esp__connected. */
ESP__FN int esp__connect(const esp__addr *a, int *fd);
ESP__FN int esp__connected(const esp__addr *a, int fd); /* 0, or an errno */
/* Takes a connection whose other end this user may trust. -1 and errno; 0 in errno: there is none, ECONNREFUSED: of another user. */
ESP__FN int esp__accept(int listen_fd, int *pidfd);
/* Checks that the other end of a Unix socket belongs to this user or to root. *pidfd: the other process. */
ESP__FN int esp__socket_peer(int fd, int *pidfd);
ESP__FN void esp__conn_init(esp__conn *c, int fd, int32_t rank);
ESP__FN void esp__conn_free(esp_ctx *ctx, esp__conn *c);
ESP__FN void esp__conn_flush(esp__conn *c);
/* Queues one message, with a body in one or two pieces, and writes as much as the socket takes. Under the lock. */
ESP__FN void esp__conn_send(esp_ctx *ctx, esp__conn *c, esp__msg m, const void *body, uint64_t bytes);
ESP__FN void esp__conn_send2(esp_ctx *ctx, esp__conn *c, esp__msg m, const void *a, uint64_t a_bytes, const void *b,
                             uint64_t b_bytes);
ESP__FN void esp__send(esp__peers *p, int32_t i, esp__msg m); /* without a body, over p->conns[i] */
ESP__FN void esp__send_all(esp__peers *p, esp__msg m);        /* from rank 0, to all others */
/* 1: c->head and c->body hold one message (then call esp__conn_next); 0: not yet; -1: the connection has ended, or its next message
 * has more than `limit` bytes. */
ESP__FN int esp__conn_read(esp_ctx *ctx, esp__conn *c, uint64_t limit);
ESP__FN void esp__conn_next(esp_ctx *ctx, esp__conn *c);
/* Milliseconds for poll() until `deadline_ns`, rounded up; -1 for no deadline. */
ESP__FN int esp__poll_ms(uint64_t deadline_ns);

/* ---- rendezvous.c ---- */
/* All versions of the library begin with a hello of this layout, so that each knows the version of the other. */
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
    uint32_t secured, reserved; /* secured: 1: this side has a secret. Only for the error text */
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
    bool spoke, proven; /* its hello came; it has proven itself by `response` */
    int32_t member;     /* in a regroup: the rank before; -1: not known       */
    esp__hello hello;
    esp__challenge challenge;
    esp__response response;
} esp__candidate;
/* Why candidates were refused, or dropped. */
enum {
    ESP__DIFFERS,
    ESP__WITHOUT,
    ESP__WITH,
    ESP__VERSION,
    ESP__USER,
    ESP__UNKNOWN,
    ESP__SILENT,
    ESP__DISPLACED,
    ESP__REASONS
};
/* A listening socket and the candidates there: at most `most`. */
typedef struct esp__lobby {
    int listen_fd;
    int32_t n, most;
    esp__candidate *candidates;
    uint64_t refused[ESP__REASONS];
} esp__lobby;
ESP__FN int esp__lobby_open(esp_ctx *ctx, esp__lobby *l, int listen_fd, int32_t ranks); /* 0: out of memory */
ESP__FN void esp__lobby_close(esp_ctx *ctx, esp__lobby *l);                             /* not the listening socket */
ESP__FN void esp__lobby_drop(esp_ctx *ctx, esp__lobby *l, esp__candidate *c, int why);  /* why -1: not counted */
/* Accepts some of the connections that wait. Returns an errno, where the process or the system lacks what a connection takes. */
ESP__FN int esp__lobby_accept(esp_ctx *ctx, esp__lobby *l);
ESP__FN esp__candidate *esp__lobby_first_to_go(const esp__lobby *l); /* there is one */
ESP__FN uint64_t esp__lobby_room_ns(const esp__lobby *l);

ESP__FN void esp__hello_make(const esp__peers *p, uint64_t job, esp__hello *out);
ESP__FN int esp__challenge_make(const esp__peers *p, esp__challenge *out); /* 0: no random numbers */
ESP__FN int esp__response_make(const esp__peers *p, const esp__hello *k, const esp__challenge *ch, esp__response *out);
/* Reads what a candidate of p's job has sent, and answers it. ESP_OK: it has proven itself, or more follows. ESP_PENDING: drop it,
 * because of *why. failed: it gets the error of the meeting. */
ESP__FN esp_status esp__candidate_read(esp__peers *p, uint64_t job, esp__candidate *g, esp_status failed, int *why);
/* A connection to what may be a host. */
typedef struct esp__joining {
    esp__conn *conn;
    esp__hello hello;
    esp__challenge challenge;
    esp__response response;
    int stage; /* the messages from the host so far: challenge, proof */
} esp__joining;
ESP__FN void esp__join_begin(const esp__peers *p, esp__joining *j, esp__conn *c, uint64_t job);
/* Handles the message that has come. ESP_PENDING: another one follows. ESP_OK: the host has proven itself before, and the message is
 * for the caller. */
ESP__FN esp_status esp__join_message(esp__peers *p, esp__joining *j);
ESP__FN void esp__code(const char *secret, int host, const esp__hello *k, const esp__challenge *ch,
                       const esp__response *r, uint8_t out[ESP__SHA256_BYTES]);
/* 1 if `code` is the one that the other side (`host`: rank 0) has to send. */
ESP__FN int esp__code_check(const esp__peers *p, int host, const esp__hello *k, const esp__challenge *ch,
                            const esp__response *r, const uint8_t code[ESP__SHA256_BYTES]);
/* Without connections and thread. NULL: out of memory. */
ESP__FN esp__peers *esp__peers_new(esp_ctx *ctx, const esp_config *cfg, const esp__where *w,
                                   const esp__peers_events *ev);
ESP__FN void esp__peers_free(esp__peers *p);
ESP__FN uint64_t esp__random64(void); /* not 0 */
/* What rank 0 sends to the others. Of one size in all builds of this version. */
typedef struct esp__invitation {
    uint64_t job;
    esp__roots roots;                      /* n 0: roots.at[0] begins an error text */
    char secret[2 * ESP__SECRET_MADE + 4]; /* made by rank 0 for this job; "": the job has ESPRESSO_SECRET */
} esp__invitation;
_Static_assert(sizeof(esp__invitation) == 456, "other builds of the library send as much");
/* Rank 0: listens, and writes the invitation. Returns the socket; -1: none, and the invitation has the reason. */
ESP__FN int esp__invite(esp__peers *p, esp__invitation *inv, bool one_host);
/* One connected socket to `a`, or -1 and errno. */
ESP__FN int esp__join_connect(const esp__addr *a, uint64_t deadline_ns);

/* ---- exchange.c: under the lock ---- */
ESP__FN int esp__exchange_message(esp__peers *p, const esp__conn *c); /* GATHER, on rank 0. 0: it is malformed */
ESP__FN int32_t esp__exchange_missing(esp__peers *p, uint64_t tag, uint64_t seq); /* -1: none, or unknown */
ESP__FN void esp__exchange_left(esp__peers *p, int32_t rank); /* fails the exchanges that lack its data */
ESP__FN void esp__exchange_free(esp__peers *p, esp__exchange *x);
/* SHARED (failed == -2) or FAILED: ends a wait. */
ESP__FN void esp__waiter_finish(esp__peers *p, uint64_t tag, uint64_t seq, const void *packed, uint64_t bytes,
                                int32_t failed);
ESP__FN esp__waiter *esp__waiter_find(esp__peers *p, uint64_t tag, uint64_t seq);
/* Returns the packed bytes. out NULL: only counts them; they are at most twice as many. */
ESP__FN uint64_t esp__pack(const uint8_t *data, uint64_t each, uint64_t all, uint8_t *out);
/* 0: the bytes are no packed data of this size. */
ESP__FN int esp__unpack(const uint8_t *packed, uint64_t bytes, uint8_t *out, uint64_t each, uint64_t all);

/* ---- liveness.c: under the lock ---- */
ESP__FN esp_status esp__watch_start(esp__peers *p);
/* Sleeps until something changed or the deadline has passed; 0: it has passed. */
ESP__FN int esp__peers_sleep(esp__peers *p, uint64_t deadline_ns);
ESP__FN void esp__peers_wake(esp__peers *p); /* the watch thread looks at its flags and deadlines again */
ESP__FN void esp__peers_kick(esp__peers *p); /* after another thread has sent: the watch thread writes the rest */
ESP__FN uint64_t esp__watch_polls_bytes(const esp__peers *p);
/* Rank 0: handles a message from another rank. */
ESP__FN void esp__watch_on_hub(esp__peers *p, esp__conn *c);
/* Other ranks: handles a message from rank 0. */
ESP__FN void esp__watch_from_hub(esp__peers *p, esp__conn *c);
ESP__FN void esp__watch_read(esp__peers *p, esp__conn *c); /* not under the lock: handles what has come */
/* Decides, unless it depends on a rank that may still answer (`final`: no rank may). */
ESP__FN void esp__inquiry_decide(esp__peers *p, bool final);
/* The watch thread calls it in every pass: begins, ends or gives up an inquiry, when it is time. */
ESP__FN void esp__suspect_turn(esp__peers *p, bool quiet);

/* ---- regroup.c ---- */
/* Address `i` of the rank that began the job as `origin`. 0: it has no more. */
ESP__FN int esp__standby_root(const esp__standby *s, int32_t origin, int32_t i, char out[ESP__ROOT_MAX]);
#endif
