/* exchange.c: allgather among any set of ranks, which rank 0 collects, for peers.c. An exchange is identified by its set of members
 * (`tag`) and the number of exchanges that this set made before (`seq`), so that different sets do not wait for each other.
 * Everything here runs under the lock of esp__peers. */
#include "espresso_impl/job/job.h"

static uint64_t esp__exchange_bytes(int32_t n) { return (uint64_t)n * (sizeof(int32_t) + 1); }

static void esp__exchange_free(esp__peers *p, esp__exchange *x) {
    if (x->members) esp__free(p->ctx, x->members);
    if (x->data) esp__free(p->ctx, x->data);
    esp__free(p->ctx, x);
}

static esp__waiter *esp__waiter_find(esp__peers *p, uint64_t tag, uint64_t seq) {
    for (esp__waiter *w = p->waiters; w; w = w->next)
        if (w->tag == tag && w->seq == seq) return w;
    return NULL;
}

/* Ends this rank's wait for an exchange, with all members' data or (failed != -2) with a failure. */
static void esp__waiter_finish(esp__peers *p, uint64_t tag, uint64_t seq, const void *data, uint64_t bytes,
                               int32_t failed) {
    esp__waiter *w = esp__waiter_find(p, tag, seq);
    if (!w) return; /* the wait ended by timeout */
    if (failed == -2 && bytes != w->bytes) failed = -1;
    if (failed == -2 && bytes) memcpy(w->out, data, bytes);
    w->failed = failed;
    w->done = 1;
    pthread_cond_broadcast(&p->changed);
}

/* ---- rank 0 ---- */
static esp__exchange *esp__exchange_find(esp__peers *p, uint64_t tag, uint64_t seq) {
    for (esp__exchange *x = p->exchanges; x; x = x->next)
        if (x->tag == tag && x->seq == seq) return x;
    return NULL;
}

static esp__exchange *esp__exchange_new(esp__peers *p, uint64_t tag, uint64_t seq, int32_t n, const int32_t *members,
                                        uint64_t bytes) {
    esp__exchange *x = NULL;
    if (bytes <= ESP__BODY_MOST && (uint64_t)n * bytes <= ESP__BODY_MOST &&
        p->n_exchanges < (int64_t)ESP__EXCHANGES_EACH * p->size)
        x = (esp__exchange *)esp__alloc(p->ctx, sizeof *x);
    if (!x) return NULL;
    x->tag = tag;
    x->seq = seq;
    x->n = n;
    x->bytes = bytes;
    x->alloc = (uint64_t)n * bytes;
    x->failed = -2;
    x->members = (int32_t *)esp__alloc(p->ctx, esp__exchange_bytes(n));
    x->data = (uint8_t *)esp__alloc(p->ctx, x->alloc);
    if (!x->members || !x->data) {
        esp__exchange_free(p, x);
        return NULL;
    }
    memcpy(x->members, members, (uint64_t)n * sizeof *members);
    x->got = (uint8_t *)(x->members + n);
    for (int32_t i = 0; i < n; i++)
        if (p->conns[members[i]].state != ESP__HERE) x->failed = members[i];
    x->next = p->exchanges;
    p->exchanges = x;
    p->n_exchanges++;
    return x;
}

/* Takes x off the list once every member has been answered or can no longer ask. */
static void esp__exchange_end(esp__peers *p, esp__exchange *x) {
    esp__exchange **at = &p->exchanges;
    while (*at != x) at = &(*at)->next;
    *at = x->next;
    p->n_exchanges--;
    esp__exchange_free(p, x);
}

/* Sends member i all data, or the reason of the failure. */
static void esp__exchange_answer(esp__peers *p, const esp__exchange *x, int32_t i) {
    int32_t r = x->members[i];
    if (r == 0)
        esp__waiter_finish(p, x->tag, x->seq, x->data, x->alloc, x->failed);
    else if (x->failed != -2)
        esp__conn_send(p->ctx, &p->conns[r], (esp__msg){ESP__MSG_FAILED, x->failed, x->tag, x->seq, 0}, NULL, 0);
    else
        esp__conn_send(p->ctx, &p->conns[r], (esp__msg){ESP__MSG_SHARED, 0, x->tag, x->seq, 0}, x->data, x->alloc);
}

/* Enters the data of member `from`. 0: the message is malformed, or (p->no_memory) memory is short. */
static int esp__exchange_deposit(esp__peers *p, uint64_t tag, uint64_t seq, int32_t n, const int32_t *members,
                                 int32_t from, const void *data, uint64_t bytes) {
    esp__exchange *x = esp__exchange_find(p, tag, seq);
    int32_t at = 0;
    while (at < n && members[at] != from) at++;
    if (at == n) return 0; /* not a member: it must not even begin an exchange */
    if (!x) x = esp__exchange_new(p, tag, seq, n, members, bytes);
    if (!x) return p->no_memory = 1, 0;
    if (n != x->n || memcmp(x->members, members, (uint64_t)n * sizeof *members) != 0 || x->got[at]) return 0;
    x->got[at] = 1;
    x->n_got++;
    if (x->failed >= 0) esp__exchange_answer(p, x, at); /* the exchange failed before this data came */
    if (x->failed == -2 && bytes != x->bytes)
        x->failed = -1; /* sizes differ: all members learn it when all have come */
    if (x->failed == -2 && bytes) memcpy(x->data + (uint64_t)at * bytes, data, bytes);
    if (x->n_got < x->n) return 1;
    for (int32_t i = 0; x->failed < 0 && i < x->n; i++) esp__exchange_answer(p, x, i);
    esp__exchange_end(p, x);
    return 1;
}

/* Rank `r` has left: fails the exchanges that lack its data. */
static void esp__exchange_left(esp__peers *p, int32_t r) {
    for (esp__exchange *x = p->exchanges; x; x = x->next) {
        int32_t at = 0;
        while (at < x->n && x->members[at] != r) at++;
        if (x->failed >= 0 || at == x->n || x->got[at]) continue;
        x->failed = r;
        for (int32_t i = 0; i < x->n; i++)
            if (x->got[i]) esp__exchange_answer(p, x, i);
    }
}

/* The first member whose data is missing; -1: none, or the exchange is unknown. */
static int32_t esp__exchange_missing(esp__peers *p, uint64_t tag, uint64_t seq) {
    esp__exchange *x = esp__exchange_find(p, tag, seq);
    for (int32_t i = 0; x && i < x->n; i++)
        if (!x->got[i]) return x->members[i];
    return -1;
}

/* Handles a GATHER message, on rank 0. 0: it is malformed. */
static int esp__exchange_message(esp__peers *p, const esp__conn *c) {
    int32_t n = 0, *members = NULL;
    uint64_t head = 0;
    if (c->head.bytes >= sizeof n) memcpy(&n, c->body, sizeof n);
    head = sizeof n + (uint64_t)(n > 0 ? n : 0) * sizeof n;
    if (n < 1 || n > p->size || c->head.bytes < head) return 0;
    members = (int32_t *)(void *)c->body + 1;
    for (int32_t i = 0; i < n; i++)
        if (members[i] < 0 || members[i] >= p->size) return 0;
    if (c->head.tag != esp__hash64(ESP__HASH0, c->body, head)) return 0;
    return esp__exchange_deposit(p, c->head.tag, c->head.seq, n, members, c->rank, c->body + head,
                                 c->head.bytes - head);
}

/* ---- any rank ---- */
static uint64_t esp__exchange_seq(esp__peers *p, uint64_t tag) {
    esp__tag *tags = (esp__tag *)(void *)p->tags.data, fresh = {tag, 1};
    for (uint64_t i = 0; i < p->tags.len / sizeof *tags; i++)
        if (tags[i].tag == tag) return tags[i].next_seq++;
    return esp__bytes_add(p->ctx, &p->tags, &fresh, sizeof fresh) ? 0 : UINT64_MAX;
}

/* Sleeps until something changed or the deadline has passed; 0: it has passed. */
static int esp__peers_sleep(esp__peers *p, uint64_t deadline_ns) {
    struct timespec t = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
    return pthread_cond_timedwait(&p->changed, &p->lock, &t) == 0 || esp__now_ns() < deadline_ns;
}

static int esp__exchange_wait(esp__peers *p, const esp__waiter *w, uint64_t deadline_ns) {
    while (!w->done && p->dead < 0 && !p->hub_left && !p->no_memory && w->missing == -2)
        if (!esp__peers_sleep(p, deadline_ns)) return 0;
    return 1;
}

static void esp__exchange_who(esp__peers *p, esp__waiter *w) {
    w->missing = -2;
    esp__conn_send(p->ctx, &p->conns[0], (esp__msg){ESP__MSG_WHO, p->rank, w->tag, w->seq, 0}, NULL, 0);
    esp__peers_kick(p);
}

/* Waits until the deadline. Some time before it, asks rank 0 which member is missing, to know whether rank 0 answers (*hub). */
static int esp__exchange_wait_all(esp__peers *p, esp__waiter *w, uint64_t deadline_ns, int *hub) {
    *hub = p->rank == 0;
    if (esp__exchange_wait(p, w, deadline_ns - esp__peers_lead_ms(p->timeout_ms) * 1000000ull)) return 1;
    if (p->rank) esp__exchange_who(p, w);
    if (!esp__exchange_wait(p, w, deadline_ns)) return 0;
    if (w->missing == -2) return 1;
    *hub = 1;
    w->missing = -2;
    return esp__exchange_wait(p, w, deadline_ns);
}

/* The time is over: asks rank 0 which member is missing, and reports it. `hub`: rank 0 answered a short time ago. */
static esp_status esp__exchange_late(esp__peers *p, esp__waiter *w, int hub, char *text, size_t cap) {
    if (p->rank == 0) {
        w->missing = esp__exchange_missing(p, w->tag, w->seq);
    } else {
        esp__exchange_who(p, w);
        if (!esp__exchange_wait(p, w, esp__now_ns() + (hub ? 300000000u : 50000000u)))
            w->missing = 0; /* rank 0 does not answer: it is the missing one */
    }
    if (w->done || p->dead >= 0 || p->hub_left || p->no_memory) return ESP_PENDING;
    snprintf(text, cap,
             w->missing >= 0 ? "waited %u ms for rank %d, which has not come" : "waited %u ms in an exchange",
             (unsigned)p->timeout_ms, (int)w->missing);
    return ESP_E_TIMEOUT;
}

/* The status of a wait that ended, and the text of its error. */
static esp_status esp__exchange_result(esp__peers *p, const esp__waiter *w, char *text, size_t cap) {
    if (w->done && w->failed == -2) return ESP_OK;
    if (p->no_memory) {
        snprintf(text, cap, "no memory for an exchange of %llu bytes", (unsigned long long)w->bytes);
        return ESP_E_NOMEM;
    }
    if (p->dead >= 0) { /* reported first: other failures follow from a death */
        snprintf(text, cap, "rank %d died (its connection closed without goodbye)", (int)p->dead);
        return ESP_E_PEER;
    }
    if (w->done && w->failed == -1) {
        snprintf(text, cap, "ranks exchange different amounts of data: they are not at the same call");
        return ESP_E_MISMATCH;
    }
    snprintf(text, cap, "rank %d closed its context while others wait for it: see its own error",
             w->done ? (int)w->failed : 0);
    return ESP_E_PEER;
}

ESP__FN esp_status esp__peers_allgather(esp__peers *p, const int32_t *members, int32_t n, const void *in, void *out,
                                        uint64_t bytes) {
    int32_t all[64], *list = NULL, *heap = NULL;
    uint64_t list_bytes = 0;
    esp__waiter w = {NULL, 0, 0, 0, out, 0, -2, -2};
    char text[160] = "";
    esp_status s = ESP_OK;
    int known = 1, hub = 0;
    if (!members) n = p->size;
    if (p->size == 1 || n == 1) {
        if (bytes) memmove(out, in, bytes);
        return ESP_OK;
    }
    list_bytes = (uint64_t)n * sizeof *list + sizeof n; /* n, then the members: as the message has it */
    if (bytes > ESP__BODY_MOST || (uint64_t)n * bytes + list_bytes > ESP__BODY_MOST)
        return esp__fail(p->ctx, ESP_E_ARG, "ranks cannot exchange %llu bytes each: %d of them at most %llu together",
                         (unsigned long long)bytes, (int)n, (unsigned long long)ESP__BODY_MOST);
    list = n < 64 ? all : (heap = (int32_t *)esp__alloc(p->ctx, list_bytes));
    if (!list) return esp__fail(p->ctx, ESP_E_NOMEM, "no memory for an exchange");
    list[0] = n;
    for (int32_t i = 0; i < n; i++) list[i + 1] = members ? members[i] : i;
    w.tag = esp__hash64(ESP__HASH0, list, list_bytes);
    w.bytes = (uint64_t)n * bytes;

    pthread_mutex_lock(&p->lock);
    w.seq = esp__exchange_seq(p, w.tag);
    w.next = p->waiters;
    p->waiters = &w;
    if (w.seq == UINT64_MAX)
        p->no_memory = 1;
    else if (p->rank == 0)
        known = esp__exchange_deposit(p, w.tag, w.seq, n, list + 1, 0, in, bytes);
    else
        esp__conn_send2(p->ctx, &p->conns[0], (esp__msg){ESP__MSG_GATHER, p->rank, w.tag, w.seq, 0}, list, list_bytes,
                        in, bytes);
    esp__peers_kick(p);
    if (!known && !p->no_memory) {
        s = ESP_E_MISMATCH;
        snprintf(text, sizeof text, "an exchange that another thread of this rank is in");
    } else if (!esp__exchange_wait_all(p, &w, esp__now_ns() + p->timeout_ms * 1000000ull, &hub)) {
        s = esp__exchange_late(p, &w, hub, text, sizeof text);
    }
    if (s == ESP_OK || s == ESP_PENDING) s = esp__exchange_result(p, &w, text, sizeof text);
    for (esp__waiter **at = &p->waiters; *at; at = &(*at)->next)
        if (*at == &w) {
            *at = w.next;
            break;
        }
    pthread_mutex_unlock(&p->lock);
    if (heap) esp__free(p->ctx, heap);
    return s == ESP_OK ? s : esp__fail(p->ctx, s, "%s", text);
}
