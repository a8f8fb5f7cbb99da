/* wire.h has the fuzz target that sends arbitrary messages over the connections between ranks. No message may crash
 * a rank, make it write outside its memory, or complete an exchange with wrong bytes. Messages arrive over sockets
 * as in a job, but the target itself calls the functions of the thread that receives them. Include
 * tests/lib/library.h first. */
#ifndef ESPRESSO_TESTS_FUZZ_WIRE_H
#define ESPRESSO_TESTS_FUZZ_WIRE_H
#include "check.h"
#include "espresso_impl/job/peers.h"
#include <sys/socket.h>

enum { WIRE_RANKS = 3, WIRE_WAITS = 24, WIRE_MESSAGE = 9 };

typedef struct wire {
    esp_ctx *ctx;
    esp__peers *p;
    int far[WIRE_RANKS];
    uint8_t out[WIRE_WAITS + 2];
    esp__waiter waiter;
    int lost, stragglers;
} wire;

static void wire_lost(void *user, int32_t rank, int left) {
    wire *w = user;
    fuzz_check(rank >= 0 && rank < WIRE_RANKS, "a rank that does not exist is lost");
    w->lost++;
}
static void wire_late(void *user, int32_t rank, uint32_t tensor) {
    wire *w = user;
    w->stragglers++;
}
static void wire_answer(void *user, esp__answer *out) {
    out->waits_for = 1;
    out->tensor = 0;
}

static void wire_open(wire *w, esp_ctx *ctx, int32_t rank) {
    const esp__peers_events ev = {w, wire_lost, wire_late, wire_answer, NULL};
    esp__where where;
    memset(w, 0, sizeof *w);
    memset(&where, 0, sizeof where);
    where.rank = rank;
    where.size = WIRE_RANKS;
    w->ctx = ctx;
    w->p = esp__peers_new(ctx, NULL, &where, &ev);
    fuzz_check(w->p != NULL, "no memory");
    for (int32_t k = 0; k < WIRE_RANKS; k++) w->far[k] = -1;
    for (int32_t k = 0; k < w->p->n_conns; k++) {
        int pair[2];
        if (rank == 0 && k == 0) continue;
        fuzz_check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0, "no sockets");
        w->p->conns[k].fd = pair[0];
        w->far[k] = pair[1];
    }
    w->waiter = (esp__waiter){NULL, 1, 0, WIRE_WAITS / WIRE_RANKS, WIRE_WAITS, w->out + 1, 0, -2, -2};
    memset(w->out, 0xee, sizeof w->out);
    w->p->waiters = &w->waiter;
}

static void wire_close(wire *w) {
    fuzz_check(w->out[0] == 0xee && w->out[WIRE_WAITS + 1] == 0xee, "an exchange wrote outside its room");
    w->p->waiters = NULL;
    for (int32_t k = 0; k < WIRE_RANKS; k++)
        if (w->far[k] >= 0) close(w->far[k]);
    esp__peers_free(w->p);
}

/* Receives and drops what the rank sent. */
static void wire_answers(wire *w) {
    uint8_t some[4096];
    for (int32_t k = 0; k < WIRE_RANKS; k++)
        while (w->far[k] >= 0 && recv(w->far[k], some, sizeof some, MSG_DONTWAIT) > 0) {
        }
}

static void wire_deliver(wire *w, int32_t k, const void *data, size_t bytes) {
    if (w->far[k] < 0 || w->p->conns[k].fd < 0) return;
    if (bytes && send(w->far[k], data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
    esp__watch_read(w->p, &w->p->conns[k]);
    if (w->p->rank == 0 || w->p->inquiry.decide) {
        pthread_mutex_lock(&w->p->lock);
        esp__suspect_turn(w->p, 1);
        pthread_mutex_unlock(&w->p->lock);
    }
    wire_answers(w);
}

/* Sends the input to the rank, unchanged if `raw`. Otherwise the input describes messages: WIRE_MESSAGE bytes select
 * a connection and a message's header, and some of the following bytes are its content. */
static void wire_messages(wire *w, const uint8_t *data, size_t size, int raw) {
    if (raw) {
        for (size_t at = 0; at < size; at += 40)
            wire_deliver(w, w->p->rank == 0 ? 1 + (int32_t)(at / 40 % 2) : 0, data + at,
                         size - at < 40 ? size - at : 40);
        return;
    }
    while (size >= WIRE_MESSAGE) {
        uint8_t text[sizeof(esp__msg) + 4 + 4 * 8 + 64];
        const int32_t k = w->p->rank == 0 ? 1 + data[0] % (WIRE_RANKS - 1) : 0;
        esp__msg m = {data[1] & 31u, (int8_t)data[2], data[3] & 3u, data[4] & 3u, 0};
        const uint8_t body = data[5], n = data[6];
        size_t at = sizeof m, own = data[7] % 65;
        if (data[0] & 64) m.tag = data[0] & 32 ? UINT64_MAX : UINT32_MAX;
        if (body & 128) {
            const int32_t members = (int8_t)n;
            memcpy(text + at, &members, 4), at += 4;
            for (int i = 0; i < (body & 7); i++) {
                const int32_t r = body & 64 ? (int8_t)(data[8] + i) : i;
                memcpy(text + at, &r, 4), at += 4;
            }
        }
        data += WIRE_MESSAGE, size -= WIRE_MESSAGE;
        if (own > size) own = size;
        memcpy(text + at, data, own), at += own;
        data += own, size -= own;
        m.bytes = at - sizeof m;
        if (body & 8) m.bytes = (uint64_t)n << (body & 56); /* a header with a wrong size */
        memcpy(text, &m, sizeof m);
        wire_deliver(w, k, text, at);
    }
}

static void wire_quiet(void *user, const esp_log_event *ev) {
    fuzz_check(*ev->message != 0, "an event without a text");
}
static const esp_host wire_host = {.struct_size = sizeof wire_host, .log = wire_quiet};
static esp_ctx *wire_ctx;
static inline int fuzz_wire(const uint8_t *data, size_t size) {
    wire w;
    if (!wire_ctx) {
        fuzz_check(esp__open_alone(&wire_ctx) == ESP_OK, "a context cannot be opened");
        wire_ctx->base.user_host = &wire_host;
    }
    if (size < 2) return 0;
    wire_open(&w, wire_ctx, data[0] & 1);
    if (data[0] & 16) w.p->suspecting = true, w.p->suspect = 2, w.p->suspect_now = w.p->rank == 0;
    wire_messages(&w, data + 1, size - 1, (data[0] & 8) != 0);
    if (w.waiter.done && w.waiter.failed == -2 && w.p->rank)
        fuzz_check(w.waiter.bytes == WIRE_WAITS, "an exchange of another size succeeded");
    const int done = w.waiter.done;
    wire_close(&w);
    return done;
}
#endif
