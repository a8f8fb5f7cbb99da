/* peers.h: connections and messages between ranks. Rank 0 (the hub) has a connection to each other rank. The others
 * have none among themselves. */
#ifndef ESP__PEERS_H
#define ESP__PEERS_H
#include "espresso_impl/job/hmac.h"
#include "espresso_impl/job/job.h"
#include <poll.h>
#include <sys/socket.h>

/* Types of messages: where they go, what they mean, and in () which members of esp__msg they use. */
enum {
    ESP__MSG_HELLO = 1,
    ESP__MSG_WELCOME = 2, /* from rank 0: all ranks have met */
    ESP__MSG_REFUSE = 3,  /* from rank 0: you may not join; an error text follows */
    ESP__MSG_GATHER = 4,  /* to rank 0: my data for an allgather (tag, seq) */
    ESP__MSG_SHARED = 5,  /* from rank 0: all members' data, packed (tag, seq) */
    ESP__MSG_FAILED = 6,
    ESP__MSG_WHO = 7,       /* to rank 0: whose data is missing? (tag, seq) */
    ESP__MSG_MISSING = 8,   /* from rank 0: `rank` has sent no data (tag, seq) */
    ESP__MSG_DIED = 9,      /* from rank 0: `rank` died */
    ESP__MSG_LEAVE = 10,    /* both ways: the sender closes, because of error -seq if not 0 */
    ESP__MSG_FINAL = 11,    /* to rank 0: the sender's last data, before it closes */
    ESP__MSG_SUSPECT = 12,  /* to rank 0: my wait timed out (rank, tag = tensor) */
    ESP__MSG_ASK = 13,      /* from rank 0: what is your state? (seq) */
    ESP__MSG_ANSWER = 14,   /* to rank 0: an esp__answer to ASK (seq as in ASK) */
    ESP__MSG_DECISION = 15, /* from rank 0: `rank` is the one that failed (tag = tensor) */
    ESP__MSG_CHALLENGE = 16,
    ESP__MSG_RESPONSE = 17,
    ESP__MSG_PROOF = 18,
    ESP__MSG_CHECK = 19, /* to rank 0: please send ASK to all ranks */
    ESP__MSG_MEMBERS = 20,
    ESP__MSG_EXCLUDED = 21,
    ESP__MSG_LONG_WAIT = 22,
    ESP__MSG_LEFT = 23,     /* from rank 0: a list of ranks that sent LEAVE (seq) */
    ESP__MSG_DESCRIBE = 24, /* from a rank that joins: its tensors and options, as text */
    ESP__MSG_ADMIT = 25,    /* to a rank that joins: an esp__admission and the strategy's text */
    ESP__MSG_STATE = 26,    /* to a rank that has joined: a part of a member's anchors and momenta */
    ESP__MSG_TURN = 27      /* both ways: a rank has come to fragment seq of an outer loop */
};
enum { ESP__HERE = 0, ESP__LEFT = 1, ESP__DIED = 2 }; /* state of the other end of a connection */
enum {
    ESP__BODY_MOST = 1 << 30,  /* limit of the bytes after a message's head */
    ESP__RESERVE = 256,        /* longest message that needs no allocation, in bytes */
    ESP__BODY_FIRST = 1 << 16, /* size of the first allocation for a longer message */
    ESP__EXCHANGES_EACH = 64   /* limit of unfinished allgathers, for each rank */
};
enum { ESP__ROOT_MAX = 56, ESP__ROOTS = 7 };
/* How many more connections than ranks may wait to prove that they belong to the job. */
enum { ESP__CANDIDATES = 64 };
enum { ESP__NOT_FAILED = -2, ESP__SIZES_DIFFER = -1, ESP__NOT_ANSWERED = -2 };

/* The head of every message. A body of `bytes` bytes follows. */
typedef struct esp__msg {
    uint32_t type;
    int32_t rank;
    uint64_t tag, seq, bytes;
} esp__msg;

typedef struct esp__bytes {
    uint8_t *data;
    uint64_t len, cap;
} esp__bytes;

/* A connection to another rank. Only the watch thread reads it. Any thread may append to `out` under the lock. */
typedef struct esp__conn {
    int fd; /* -1 if closed */
    int pidfd;
    int32_t rank;
    int state;
    bool broken; /* writing failed; the watch thread finds out why */
    bool shut;
    bool no_memory;
    uint64_t got; /* bytes of the incoming message so far */
    uint64_t sent;
    esp__msg head;
    uint8_t *body;    /* has body_cap bytes; grows while the body arrives */
    uint8_t *reserve; /* ESP__RESERVE bytes for small messages, or NULL */
    uint64_t body_cap;
    esp__bytes out;
    uint64_t out_at;
    esp__bytes last; /* on rank 0: the data of this rank's FINAL message */
    bool last_done;
    uint64_t answered_ns;
} esp__conn;

/* On rank 0: an allgather that has begun and not ended. */
typedef struct esp__exchange {
    struct esp__exchange *next;
    uint64_t tag, seq, bytes;
    int32_t n, n_got;
    int32_t failed;
    int32_t *members;
    uint8_t *got, *data;
} esp__exchange;

/* A thread of this rank that waits in an allgather. The struct lives on that thread's stack. */
typedef struct esp__waiter {
    struct esp__waiter *next;
    uint64_t tag, seq;
    uint64_t each, bytes; /* size of one member's data, and of all members' */
    void *out;
    bool done;
    int32_t failed;
    int32_t missing;
} esp__waiter;

/* An inquiry: rank 0 asks all ranks for their state, to report stragglers, to decide which rank has failed, or both. */
typedef struct esp__inquiry {
    bool report, decide;
    uint64_t number;
    uint64_t until_ns;   /* when it ends at the latest */
    uint64_t silence_ns; /* earlier end, if the missing ranks were silent before */
    int32_t suspecting;  /* the rank whose timeout started the inquiry */
    bool decided;
    int32_t failed;
    uint64_t tensor;
} esp__inquiry;

typedef struct esp__reporter {
    esp__report_events ev;
    bool on;
    int inside; /* number of callbacks that run now */
    uint64_t poll_ns;
    uint64_t long_ns; /* when this rank last told rank 0 that it waits, or 0 */
    uint64_t longest_ns;
    bool reported;
    /* the members below are used on rank 0 */
    bool open;       /* some rank waits for long, so rank 0 asks all ranks */
    uint64_t ask_ns; /* when to send ASK next */
    uint64_t report_ns;
    uint64_t interval_ns; /* time between two reports */
} esp__reporter;

struct esp__peers {
    esp_ctx *ctx;
    esp__peers_events ev;
    int32_t rank, size;
    uint32_t timeout_ms;
    long pid; /* the process that opened the context */
    char where[ESP__SPEC_MAX];
    char secret[ESP__SPEC_MAX]; /* the job's secret or ""; erased when all ranks have met */
    esp__peers *before;         /* if the ranks of a job meet again: their connections until then, else NULL */
    esp__survivor survivor;
    /* On rank 0, conns[rank] leads to each other rank. On other ranks, conns[0] leads to rank 0. */
    esp__conn *conns;
    int32_t n_conns;
    int wake_fd;
    bool has_thread, closing, quit, all_sent;
    uint64_t quit_ns;
    pthread_t thread;
    pthread_mutex_t lock; /* protects the members below, and writing to conns */
    pthread_cond_t changed;
    int32_t dead;   /* the first rank that died, or -1 */
    uint64_t cause; /* the error because of which this rank closes, or 0 */
    bool left_known;
    bool error_known;
    bool decision_known, hub_left, excluded;
    bool no_memory;
    bool left_job;
    uint8_t *left;      /* [size], 1 for each rank that has left */
    int32_t first_left; /* the first rank that this rank knows to have left, itself included on rank 0, or -1 */
    /* On other ranks: memory for small messages of rank 0, so that receiving them at the end of a job allocates
     * nothing. */
    uint8_t reserve[ESP__RESERVE];
    /* On rank 0: ranks that have left because of error -leaving_cause, which rank 0 has not told the others yet. */
    int32_t *leaving, n_leaving;
    uint64_t leaving_cause, pass_on_ns;
    esp__exchange *exchanges;
    int64_t n_exchanges;
    esp__waiter *waiters;
    esp__bytes tags;
    struct pollfd *polls;
    /* If this rank's wait timed out: the rank that it waited for and the tensor. Rank 0 must decide which rank
     * failed. */
    bool suspecting;
    int32_t suspect;
    uint64_t suspect_tensor;
    uint64_t decide_ns; /* after this time without a decision, rank 0 counts as failed */
    uint64_t hub_asked_ns;
    uint64_t check_ns;
    /* the members below are used on rank 0 */
    bool suspect_now, check_now;
    uint64_t turns; /* fragments of an outer loop of which all ranks know */
    uint64_t checked_ns;
    esp__inquiry inquiry;
    esp__rank_state *asked;
    esp__reporter report;
};

/* ---- socket.c ---- */
typedef struct esp__addr {
    struct sockaddr_storage sa;
    socklen_t len;
} esp__addr;
typedef struct esp__roots {
    int32_t n;
    char at[ESP__ROOTS][ESP__ROOT_MAX];
} esp__roots;
/* Returns false if memory runs out. */
ESP__FN bool esp__bytes_add(esp_ctx *ctx, esp__bytes *b, const void *data, uint64_t n);
ESP__FN void esp__bytes_free(esp_ctx *ctx, esp__bytes *b);
/* Writes at most `cap` addresses of host and port `root`, and returns their number. If it is 0, sets *error. */
ESP__FN int esp__addr_resolve(const char *root, esp__addr *out, int cap, const char **error);
ESP__FN void esp__socket_close(int *fd);
/* Returns a socket that listens at `root`, or -1 with *error. */
ESP__FN int esp__listen(const char *root, const char **error);
/* Listens at the abstract Unix name `name` or, if that is NULL, at a free TCP port of all this host's addresses.
 * Returns the socket or -1, and writes its addresses, those that other hosts can reach first, or *error. */
ESP__FN int esp__listen_roots(const char *name, esp__roots *roots, const char **error);
ESP__FN bool esp__open_to_all(int fd);
/* Begins to connect. Returns 0 or an errno. After EINPROGRESS, poll *fd for writing, then call esp__connected. */
ESP__FN int esp__connect(const esp__addr *a, int *fd);
ESP__FN int esp__connected(const esp__addr *a, int fd);
/* Accepts a connection. Returns -1 with errno 0 if none waits, and with ECONNREFUSED if it is from another user. */
ESP__FN int esp__accept(int listen_fd, int *pidfd);
/* Returns true if the socket is TCP, or if the process at its other end, *pidfd, belongs to this user or root. */
ESP__FN bool esp__socket_peer(int fd, int *pidfd);
ESP__FN void esp__conn_init(esp__conn *c, int fd, int32_t rank);
ESP__FN void esp__conn_free(esp_ctx *ctx, esp__conn *c);
ESP__FN void esp__conn_flush(esp__conn *c);
/* Queue a message followed by one or two blocks of data, and send what the socket takes. The caller holds the lock. */
ESP__FN void esp__conn_send(esp_ctx *ctx, esp__conn *c, esp__msg m, const void *body, uint64_t bytes);
ESP__FN void esp__conn_send2(esp_ctx *ctx, esp__conn *c, esp__msg m, const void *a, uint64_t a_bytes, const void *b,
                             uint64_t b_bytes);
/* Send a message without data over p->conns[i], or from rank 0 to all other ranks. */
ESP__FN void esp__send(esp__peers *p, int32_t i, esp__msg m);
ESP__FN void esp__send_all(esp__peers *p, esp__msg m);
/* Reads what has arrived. Returns 1 if c->head and c->body hold a whole message; then call esp__conn_next after using
 * it. Returns 0 if bytes are missing, and -1 if the connection has ended or the message has more than `limit` bytes. */
ESP__FN int esp__conn_read(esp_ctx *ctx, esp__conn *c, uint64_t limit);
ESP__FN void esp__conn_next(esp_ctx *ctx, esp__conn *c);
/* The timeout for poll() in ms, at most a minute. Returns -1 (no timeout) if deadline_ns is UINT64_MAX. */
ESP__FN int esp__poll_ms(uint64_t deadline_ns);
/* Unlocks p->lock and waits. Returns true if something has changed, false after the deadline. */
ESP__FN bool esp__peers_sleep(esp__peers *p, uint64_t deadline_ns);
ESP__FN void esp__peers_wake(esp__peers *p);
ESP__FN void esp__peers_kick(esp__peers *p);

/* ---- rendezvous.c ---- */
/* HELLO is the first message in all versions of the library, so that two versions can recognize each other. */
enum { ESP__NONCE = 32, ESP__MEET_VERSION = 24, ESP__SECRET_MADE = 24 };
#define ESP__HELLO_MAGIC "ESPPEER1"
#define ESP__MEET_MAGIC "ESPMEET2"
typedef struct esp__hello {
    char magic[8], version[ESP__MEET_VERSION];
    int32_t rank, size;
    uint64_t job; /* the job's random number, or 0 if this rank does not know it */
} esp__hello;
typedef struct esp__challenge {
    char magic[8];
    uint32_t secured, reserved;
    uint8_t nonce[ESP__NONCE];
} esp__challenge;
typedef struct esp__response {
    char magic[8];
    uint32_t secured;
    int32_t rank, size;
    uint32_t reserved;
    uint64_t job;
    esp__survivor survivor;
    uint8_t nonce[ESP__NONCE];
    uint8_t code[ESP__SHA256_BYTES];
} esp__response;
typedef struct esp__proof {
    uint8_t code[ESP__SHA256_BYTES];
} esp__proof;
_Static_assert(sizeof(esp__hello) == 48 && sizeof(esp__challenge) == 48 && sizeof(esp__response) == 120,
               "sent as they are");

/* A connection to a listening rank. The process at the other end has not proven yet that it is a rank of this job. */
typedef struct esp__candidate {
    esp__conn conn;
    uint64_t since_ns;
    bool greeted;
    bool proven;
    int32_t member;
    esp__hello hello;
    esp__challenge challenge;
    esp__response response;
} esp__candidate;
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
typedef struct esp__lobby {
    int listen_fd;
    int32_t n, most;
    esp__candidate *candidates;
    uint64_t refused[ESP__REFUSALS];
} esp__lobby;
ESP__FN bool esp__lobby_open(esp_ctx *ctx, esp__lobby *l, int listen_fd, int32_t ranks);
ESP__FN void esp__lobby_close(esp_ctx *ctx, esp__lobby *l);
/* Drops a candidate and counts it under `why`, one of ESP__REFUSED_*. Does not count it if `why` is -1. */
ESP__FN void esp__lobby_drop(esp_ctx *ctx, esp__lobby *l, esp__candidate *c, int why);
/* Accepts several connections. Returns an errno if descriptors or memory run out. */
ESP__FN int esp__lobby_accept(esp_ctx *ctx, esp__lobby *l);
ESP__FN esp__candidate *esp__lobby_first_to_go(const esp__lobby *l);
/* Returns 0 if a new connection can be accepted now, otherwise the time when the oldest one may be replaced. */
ESP__FN uint64_t esp__lobby_room_ns(const esp__lobby *l);

ESP__FN void esp__hello_make(const esp__peers *p, uint64_t job, esp__hello *out);
ESP__FN bool esp__challenge_make(const esp__peers *p, esp__challenge *out);
ESP__FN bool esp__response_make(const esp__peers *p, const esp__hello *hello, const esp__challenge *ch,
                                esp__response *out);
/* Reads and answers messages of a new connection. Returns ESP_OK to keep it, and ESP_PENDING if the caller must drop
 * it for the reason *why. If `failed` is an error, the answer is the text of the last error. */
ESP__FN esp_status esp__candidate_read(esp__peers *p, uint64_t job, esp__candidate *c, esp_status failed, int *why);
typedef struct esp__joining {
    esp__conn *conn;
    esp__hello hello;
    esp__challenge challenge;
    esp__response response;
    int stage; /* 1 after CHALLENGE, 2 after PROOF */
} esp__joining;
ESP__FN void esp__join_begin(const esp__peers *p, esp__joining *j, esp__conn *c, uint64_t job);
/* Handles a message of the listening rank. Returns ESP_PENDING while the handshake goes on, and ESP_OK if it was
 * complete before this message. */
ESP__FN esp_status esp__join_message(esp__peers *p, esp__joining *j);
/* Computes the code which proves that the listening end (`host` 1) or the joining one (0) knows the secret. */
ESP__FN void esp__code(const char *secret, int host, const esp__hello *hello, const esp__challenge *ch,
                       const esp__response *r, uint8_t out[ESP__SHA256_BYTES]);
ESP__FN bool esp__code_check(const esp__peers *p, int host, const esp__hello *hello, const esp__challenge *ch,
                             const esp__response *r, const uint8_t code[ESP__SHA256_BYTES]);
ESP__FN esp__peers *esp__peers_new(esp_ctx *ctx, const esp_config *cfg, const esp__where *w,
                                   const esp__peers_events *ev);
ESP__FN void esp__peers_free(esp__peers *p);
ESP__FN uint64_t esp__random64(void);
/* What rank 0 sends to the others through esp_config.oob_allgather. All builds of this version send the same size. */
typedef struct esp__invitation {
    uint64_t job;
    esp__roots roots;
    char secret[2 * ESP__SECRET_MADE + 4];
} esp__invitation;
_Static_assert(sizeof(esp__invitation) == 456, "other builds of the library send as much");
/* Listens for the other ranks, and writes address and secret into *inv. Returns the socket or, after storing an
 * error there, -1. */
ESP__FN int esp__invite(esp__peers *p, esp__invitation *inv, bool one_host);
ESP__FN int esp__join_connect(const esp__addr *a, uint64_t deadline_ns);
/* The ranks meet, as in esp__peers_open: rank 0 at the socket `listen_fd`, which is closed, the others at `roots`.
 * Ranks to which `p` has a connection already are here. */
ESP__FN esp_status esp__meet_host(esp__peers *p, int listen_fd, uint64_t job);
ESP__FN esp_status esp__meet_join(esp__peers *p, const esp__roots *roots, uint64_t job);

/* ---- exchange.c: the caller has the lock ---- */
ESP__FN bool esp__exchange_message(esp__peers *p, const esp__conn *c);
ESP__FN int32_t esp__exchange_missing(esp__peers *p, uint64_t tag, uint64_t seq);
ESP__FN void esp__exchange_left(esp__peers *p, int32_t rank); /* fails allgathers that lack data of `rank` */
ESP__FN void esp__exchange_free(esp__peers *p, esp__exchange *x);
ESP__FN void esp__waiter_finish(esp__peers *p, uint64_t tag, uint64_t seq, const void *packed, uint64_t bytes,
                                int32_t failed);
ESP__FN esp__waiter *esp__waiter_find(esp__peers *p, uint64_t tag, uint64_t seq);
/* Packs the data of all members (`all` bytes, `each` per member) into at most 2 * all bytes. Returns the packed
 * size. If `out` is NULL, only computes it. */
ESP__FN uint64_t esp__pack(const uint8_t *data, uint64_t each, uint64_t all, uint8_t *out);
/* Returns false if `packed` does not unpack to exactly `all` bytes. */
ESP__FN bool esp__unpack(const uint8_t *packed, uint64_t bytes, uint8_t *out, uint64_t each, uint64_t all);

/* ---- liveness.c: the caller has the lock ---- */
ESP__FN esp_status esp__watch_start(esp__peers *p);
ESP__FN uint64_t esp__watch_polls_bytes(const esp__peers *p);
ESP__FN void esp__watch_on_hub(esp__peers *p, esp__conn *c);
ESP__FN void esp__watch_from_hub(esp__peers *p, esp__conn *c);
/* On rank 0: remembers that `rank` left because of error -cause. Other ranks are told within 20 ms, or by
 * esp__watch_pass_on. */
ESP__FN void esp__watch_left(esp__peers *p, int32_t rank, uint64_t cause);
ESP__FN void esp__watch_first_left(esp__peers *p, int32_t rank);
ESP__FN void esp__watch_pass_on(esp__peers *p);
ESP__FN void esp__watch_read(esp__peers *p, esp__conn *c);
/* Decides which rank has failed. Unless `final`, it waits for ranks that have not answered yet. */
ESP__FN void esp__inquiry_decide(esp__peers *p, bool final);
/* Called again and again by the thread that watches connections. Starts and ends inquiries (ASK, ANSWER) when it is
 * time. */
ESP__FN void esp__suspect_turn(esp__peers *p, bool quiet);

/* ---- regroup.c ---- */
/* Fills *me for a handshake at a standby socket, and returns this rank's socket. */
ESP__FN int esp__standby_me(esp_ctx *ctx, const esp__standby *s, esp__peers *me);
/* Writes the i-th address at which a rank listens after losses of ranks; `origin` is its number at the start of the
 * job. Returns false if it has fewer addresses. */
ESP__FN bool esp__standby_root(const esp__standby *s, int32_t origin, int32_t i, char out[ESP__ROOT_MAX]);
#endif
