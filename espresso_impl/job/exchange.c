/* exchange.c: allgather among any set of ranks. The members send their data to rank 0, which sends all data to each of
 * them. In each message, `tag` is a hash of the set of members, and `seq` counts the exchanges of this set, so that
 * different sets do not wait for each other. Members mostly send equal data, so rank 0 answers with the differences
 * between members, which are short. */
#include "espresso_impl/job/peers.h"

typedef struct esp__tag {
    uint64_t tag, next_seq;
} esp__tag;

/* ---- packed data: each byte is XORed with the previous member's; a run of zeros becomes a zero and its length ---- */
static uint8_t esp__difference(const uint8_t *data, uint64_t each, uint64_t at) {
    return (uint8_t)(data[at] ^ (at < each ? 0 : data[at - each]));
}

ESP__FN uint64_t esp__pack(const uint8_t *data, uint64_t each, uint64_t all, uint8_t *out) {
    uint64_t n = 0;
    for (uint64_t at = 0, run = 1; at < all; at += run, n++) {
        const uint8_t differs = esp__difference(data, each, at);
        for (run = 1; !differs && run < 255 && at + run < all && !esp__difference(data, each, at + run); run++) {
        }
        if (out) out[n] = differs;
        if (!differs && out) out[n + 1] = (uint8_t)run;
        n += !differs;
    }
    return n;
}

ESP__FN bool esp__unpack(const uint8_t *packed, uint64_t bytes, uint8_t *out, uint64_t each, uint64_t all) {
    const uint8_t *end = bytes ? packed + bytes : packed; /* NULL if the message is empty */
    for (uint64_t at = 0; at < all;) {
        const uint8_t differs = packed < end ? *packed++ : 0;
        uint64_t run = differs ? 1 : packed < end ? *packed++ : 0;
        if (!run || run > all - at) return false;
        for (; run; run--, at++) out[at] = (uint8_t)(differs ^ (at < each ? 0 : out[at - each]));
    }
    return packed == end;
}

/* ---- waiting for an exchange, on any rank ---- */
ESP__FN esp__waiter *esp__waiter_find(esp__peers *p, uint64_t tag, uint64_t seq) {
    for (esp__waiter *w = p->waiters; w; w = w->next)
        if (w->tag == tag && w->seq == seq) return w;
    return NULL;
}

ESP__FN void esp__waiter_finish(esp__peers *p, uint64_t tag, uint64_t seq, const void *packed, uint64_t bytes,
                                int32_t failed) {
    esp__waiter *w = esp__waiter_find(p, tag, seq);
    if (!w) return; /* no thread of this rank waits for it any more */
    if (failed == ESP__NOT_FAILED && !esp__unpack(packed, bytes, w->out, w->each, w->bytes)) failed = ESP__SIZES_DIFFER;
    w->failed = failed;
    w->done = true;
    pthread_cond_broadcast(&p->changed);
}

/* ---- collecting the data, on rank 0 ---- */
static esp__exchange *esp__exchange_find(esp__peers *p, uint64_t tag, uint64_t seq) {
    for (esp__exchange *x = p->exchanges; x; x = x->next)
        if (x->tag == tag && x->seq == seq) return x;
    return NULL;
}

ESP__FN void esp__exchange_free(esp__peers *p, esp__exchange *x) {
    esp__free(p->ctx, x->members);
    esp__free(p->ctx, x->data);
    esp__free(p->ctx, x);
}

/* Begins an allgather. `members` NULL stands for all ranks. */
static esp__exchange *esp__exchange_new(esp__peers *p, uint64_t tag, uint64_t seq, int32_t n, const int32_t *members,
                                        uint64_t bytes) {
    const uint64_t each = sizeof(int32_t) + 1;
    esp__exchange *x = NULL;
    if (bytes <= ESP__BODY_MOST && (uint64_t)n * bytes <= ESP__BODY_MOST / 2 &&
        p->n_exchanges < (int64_t)ESP__EXCHANGES_EACH * p->size)
        x = (esp__exchange *)esp__alloc(p->ctx, sizeof *x);
    if (!x) return NULL;
    *x = (esp__exchange){.tag = tag, .seq = seq, .n = n, .bytes = bytes, .failed = ESP__NOT_FAILED};
    x->members = (int32_t *)esp__alloc(p->ctx, (uint64_t)n * each);
    x->data = (uint8_t *)esp__alloc(p->ctx, (uint64_t)n * bytes);
    if (!x->members || !x->data) {
        esp__exchange_free(p, x);
        return NULL;
    }
    x->got = (uint8_t *)(x->members + n);
    for (int32_t i = 0; i < n; i++) {
        x->members[i] = members ? members[i] : i;
        if (p->conns[x->members[i]].state != ESP__HERE) x->failed = x->members[i];
    }
    x->next = p->exchanges;
    p->exchanges = x;
    p->n_exchanges++;
    return x;
}

/* Sends member i the packed data of all or, if `packed` is NULL, a message that the exchange failed. */
static void esp__exchange_answer(esp__peers *p, const esp__exchange *x, int32_t i, const uint8_t *packed,
                                 uint64_t bytes) {
    const int32_t r = x->members[i];
    const esp__msg m = {packed ? ESP__MSG_SHARED : ESP__MSG_FAILED, packed ? 0 : x->failed, x->tag, x->seq, 0};
    if (r == 0)
        esp__waiter_finish(p, x->tag, x->seq, packed, bytes, x->failed);
    else
        esp__conn_send(p->ctx, &p->conns[r], m, packed, bytes);
}

/* Called when all members' data has come: answers those that have no answer yet, and frees the exchange. */
static void esp__exchange_end(esp__peers *p, esp__exchange *x) {
    esp__exchange **at = &p->exchanges;
    uint8_t *packed = NULL;
    uint64_t bytes = 0;
    if (x->failed == ESP__NOT_FAILED) {
        const uint64_t all = (uint64_t)x->n * x->bytes;
        bytes = esp__pack(x->data, x->bytes, all, NULL);
        packed = (uint8_t *)esp__alloc(p->ctx, bytes);
        if (!packed) p->no_memory = true;
        if (packed) esp__pack(x->data, x->bytes, all, packed);
    }
    for (int32_t i = 0; x->failed < 0 && !p->no_memory && i < x->n; i++) esp__exchange_answer(p, x, i, packed, bytes);
    esp__free(p->ctx, packed);
    while (*at != x) at = &(*at)->next;
    *at = x->next;
    p->n_exchanges--;
    esp__exchange_free(p, x);
}

/* Adds the data of member `from`. Returns false if it is malformed, or if memory runs out (sets p->no_memory). */
static bool esp__exchange_deposit(esp__peers *p, uint64_t tag, uint64_t seq, int32_t n, const int32_t *members,
                                  int32_t from, const void *data, uint64_t bytes) {
    esp__exchange *x = esp__exchange_find(p, tag, seq);
    int32_t at = members ? 0 : from;
    while (members && at < n && members[at] != from) at++;
    if (at == n) return false; /* a rank can only start an allgather in which it takes part */
    if (!x) x = esp__exchange_new(p, tag, seq, n, members, bytes);
    if (!x) return p->no_memory = true, false;
    if (n != x->n || x->got[at] || x->members[at] != from ||
        (members && memcmp(x->members, members, (uint64_t)n * sizeof *members) != 0))
        return false;
    x->got[at] = 1;
    x->n_got++;
    if (x->failed >= 0) esp__exchange_answer(p, x, at, NULL, 0); /* the exchange failed before this data came */
    if (x->failed == ESP__NOT_FAILED && bytes != x->bytes) x->failed = ESP__SIZES_DIFFER;
    if (x->failed == ESP__NOT_FAILED && bytes) memcpy(x->data + (uint64_t)at * bytes, data, bytes);
    if (x->n_got == x->n) esp__exchange_end(p, x);
    return true;
}

ESP__FN void esp__exchange_left(esp__peers *p, int32_t r) {
    for (esp__exchange *x = p->exchanges; x; x = x->next) {
        int32_t at = 0;
        while (at < x->n && x->members[at] != r) at++;
        if (x->failed >= 0 || at == x->n || x->got[at]) continue;
        x->failed = r;
        for (int32_t i = 0; i < x->n; i++)
            if (x->got[i]) esp__exchange_answer(p, x, i, NULL, 0);
    }
}

ESP__FN int32_t esp__exchange_missing(esp__peers *p, uint64_t tag, uint64_t seq) {
    esp__exchange *x = esp__exchange_find(p, tag, seq);
    for (int32_t i = 0; x && i < x->n; i++)
        if (!x->got[i]) return x->members[i];
    return -1;
}

ESP__FN bool esp__exchange_message(esp__peers *p, const esp__conn *c) {
    int32_t n = -1;
    if (c->head.bytes >= sizeof n) memcpy(&n, c->body, sizeof n);
    const uint64_t head = sizeof n + (uint64_t)(n > 0 ? n : 0) * sizeof n;
    if (n < 0 || n > p->size || c->head.bytes < head || c->head.tag != esp__hash64(ESP__HASH0, c->body, head))
        return false;
    const int32_t *members = n ? (const int32_t *)(const void *)c->body + 1 : NULL;
    for (int32_t i = 0; i < n; i++)
        if (members[i] < 0 || members[i] >= p->size) return false;
    return esp__exchange_deposit(p, c->head.tag, c->head.seq, n ? n : p->size, members, c->rank, c->body + head,
                                 c->head.bytes - head);
}

/* ---- any rank ---- */
static uint64_t esp__exchange_seq(esp__peers *p, uint64_t tag) {
    esp__tag *tags = (esp__tag *)(void *)p->tags.data, fresh = {tag, 1};
    for (uint64_t i = 0; i < p->tags.len / sizeof *tags; i++)
        if (tags[i].tag == tag) return tags[i].next_seq++;
    return esp__bytes_add(p->ctx, &p->tags, &fresh, sizeof fresh) ? 0 : UINT64_MAX;
}

/* Waits until the allgather ends, or until rank 0 answers which rank's data is missing. Returns false at the
 * deadline. */
static bool esp__exchange_wait(esp__peers *p, const esp__waiter *w, uint64_t deadline_ns) {
    while (!w->done && p->dead < 0 && !p->hub_left && !p->no_memory && w->missing == ESP__NOT_ANSWERED)
        if (!esp__peers_sleep(p, deadline_ns)) return false;
    return true;
}

static bool esp__exchange_ask(esp__peers *p, esp__waiter *w, uint64_t deadline_ns) {
    w->missing = ESP__NOT_ANSWERED;
    if (p->rank == 0) return esp__exchange_wait(p, w, deadline_ns);
    esp__send(p, 0, (esp__msg){ESP__MSG_WHO, p->rank, w->tag, w->seq, 0});
    esp__peers_kick(p);
    return esp__exchange_wait(p, w, deadline_ns);
}

/* Waits until the allgather ends. If it does not within the timeout, returns ESP_E_TIMEOUT and sets w->missing to
 * the first rank whose data is missing. Shortly before, it asks rank 0, because if rank 0 does not answer, it is the
 * one that is missing. */
static esp_status esp__exchange_finish(esp__peers *p, esp__waiter *w) {
    const uint64_t end = esp__now_ns() + p->timeout_ms * 1000000ull;
    if (esp__exchange_wait(p, w, end - esp__peers_lead_ms(p->timeout_ms) * 1000000ull)) return ESP_OK;
    const bool woken = esp__exchange_ask(p, w, end), hub_answers = w->missing != ESP__NOT_ANSWERED;
    w->missing = ESP__NOT_ANSWERED;
    if (woken && (!hub_answers || esp__exchange_wait(p, w, end))) return ESP_OK;
    if (p->rank == 0)
        w->missing = esp__exchange_missing(p, w->tag, w->seq);
    else if (!esp__exchange_ask(p, w, esp__now_ns() + (hub_answers ? 300000000u : 50000000u)))
        w->missing = 0;
    return w->done || p->dead >= 0 || p->hub_left || p->no_memory ? ESP_OK : ESP_E_TIMEOUT;
}

static esp_status esp__exchange_result(esp__peers *p, const esp__waiter *w, char *text, size_t cap) {
    if (w->done && w->failed == ESP__NOT_FAILED) return ESP_OK;
    if (p->no_memory) {
        snprintf(text, cap, "no memory for an exchange of %llu bytes", (unsigned long long)w->bytes);
        return ESP_E_NOMEM;
    }
    if (p->dead >= 0) { /* checked first, because a rank's death may cause other failures */
        snprintf(text, cap, "rank %d died (its connection closed without goodbye)", (int)p->dead);
        return ESP_E_PEER;
    }
    if (w->done && w->failed == ESP__SIZES_DIFFER) {
        snprintf(text, cap, "ranks exchange different amounts of data: they are not at the same call");
        return ESP_E_MISMATCH;
    }
    snprintf(text, cap, "rank %d closed its context while others wait for it: see its own error",
             w->done ? (int)w->failed : 0);
    return ESP_E_PEER;
}

ESP__FN esp_status esp__peers_allgather(esp__peers *p, const int32_t *members, int32_t n, const void *in, void *out,
                                        uint64_t bytes) {
    int32_t few[64], *list = few;
    esp__waiter w = {.each = bytes, .out = out, .failed = ESP__NOT_FAILED, .missing = ESP__NOT_ANSWERED};
    char text[160] = "";
    bool known = true;
    if (!members) n = p->size;
    if (p->size == 1 || n == 1) {
        if (bytes) memmove(out, in, bytes);
        return ESP_OK;
    }
    const uint64_t list_bytes = sizeof n + (members ? (uint64_t)n * sizeof *list : 0);
    if (bytes > ESP__BODY_MOST || (uint64_t)n * bytes + list_bytes > ESP__BODY_MOST / 2)
        return esp__fail(p->ctx, ESP_E_ARG, "ranks cannot exchange %llu bytes each: %d of them at most %llu together",
                         (unsigned long long)bytes, (int)n, (unsigned long long)ESP__BODY_MOST / 2);
    if (list_bytes > sizeof few) list = (int32_t *)esp__alloc(p->ctx, list_bytes);
    if (!list) return esp__fail(p->ctx, ESP_E_NOMEM, "no memory for an exchange");
    list[0] = members ? n : 0;
    if (members) memcpy(list + 1, members, (uint64_t)n * sizeof *list);
    w.tag = esp__hash64(ESP__HASH0, list, list_bytes);
    w.bytes = (uint64_t)n * bytes;

    pthread_mutex_lock(&p->lock);
    w.seq = esp__exchange_seq(p, w.tag);
    w.next = p->waiters;
    p->waiters = &w;
    if (w.seq == UINT64_MAX)
        p->no_memory = true;
    else if (p->rank == 0)
        known = esp__exchange_deposit(p, w.tag, w.seq, n, members, 0, in, bytes) || p->no_memory;
    else
        esp__conn_send2(p->ctx, &p->conns[0], (esp__msg){ESP__MSG_GATHER, p->rank, w.tag, w.seq, 0}, list, list_bytes,
                        in, bytes);
    esp__peers_kick(p);
    esp_status s = known ? esp__exchange_finish(p, &w) : ESP_E_MISMATCH;
    if (!known)
        snprintf(text, sizeof text, "an exchange that another thread of this rank is in");
    else if (s)
        snprintf(text, sizeof text,
                 w.missing >= 0 ? "waited %u ms for rank %d, which has not come" : "waited %u ms in an exchange",
                 (unsigned)p->timeout_ms, (int)w.missing);
    else
        s = esp__exchange_result(p, &w, text, sizeof text);
    esp__waiter **at = &p->waiters;
    while (*at != &w) at = &(*at)->next;
    *at = w.next;
    pthread_mutex_unlock(&p->lock);
    if (list != few) esp__free(p->ctx, list);
    return s == ESP_OK ? s : esp__fail(p->ctx, s, "%s", text);
}
