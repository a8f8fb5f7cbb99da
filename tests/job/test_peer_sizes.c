/* test_peer_sizes.c sends messages with wrong sizes, ranks and members. No memory may be accessed out of bounds, which
 * the address sanitizer checks, or grow without limit. */
/* runs: tsan */
#include "tests/lib/test.h"
#include "espresso_impl/job/peers.h"

enum { SIZE = 3 };
static int32_t lost_rank, late_rank;
static void on_lost(void *user, int32_t rank, int left) { (void)user, (void)left, lost_rank = rank; }
static void on_late(void *user, int32_t rank, uint32_t tensor) { (void)user, (void)tensor, late_rank = rank; }

/* Makes a rank's connections without their threads. They are socket pairs, whose other ends are in `other`. */
static esp__peers *open_peers(int32_t rank, int other[SIZE]) {
    esp__where w = {.rank = rank, .size = SIZE};
    const esp__peers_events ev = {NULL, on_lost, on_late, NULL, NULL};
    esp__peers *p = esp__peers_new(NULL, NULL, &w, &ev);
    assert_non_null(p);
    lost_rank = late_rank = -99;
    for (int32_t i = 0; i < p->n_conns; i++) {
        int ends[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
        p->conns[i].fd = ends[0];
        other[i] = ends[1];
    }
    return p;
}
static void close_peers(esp__peers *p, int other[SIZE]) {
    for (int32_t i = 0; i < p->n_conns; i++) close(other[i]);
    esp__peers_free(p);
}

/* Memory grows with the bytes received, and not with the size that a message states. */
TEST(test_body_sizes) {
    static uint8_t data[400000], heard[400000];
    int other[SIZE];
    esp__peers *p = open_peers(1, other);
    esp__conn *c = &p->conns[0];
    esp__msg m = {ESP__MSG_SHARED, 0, 1, 2, 1u << 29};
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(i * 7 + i / 1000);
    assert_int_equal(write(other[0], &m, sizeof m), sizeof m);
    assert_int_equal(write(other[0], data, 1000), 1000);
    assert_int_equal(esp__conn_read(NULL, c, ESP__BODY_MOST), 0);
    assert_true(c->body_cap <= ESP__BODY_FIRST); /* the message states half a GiB */
    esp__conn_free(NULL, c);
    close_peers(p, other);

    p = open_peers(1, other);
    c = &p->conns[0];
    m.bytes = sizeof data;
    assert_int_equal(write(other[0], &m, sizeof m), sizeof m);
    for (size_t at = 0; at < sizeof data;) {
        ssize_t n = write(other[0], data + at, sizeof data - at);
        if (n > 0) at += (size_t)n;
        assert_int_equal(esp__conn_read(NULL, c, sizeof data), at == sizeof data);
    }
    assert_int_equal(c->body_cap, sizeof data);
    memcpy(heard, c->body, sizeof heard);
    assert_memory_equal(heard, data, sizeof data);
    esp__conn_next(NULL, c);

    static const uint64_t too_large[] = {sizeof data + 1, 1ull << 31, 1ull << 63, UINT64_MAX,
                                         UINT64_MAX - sizeof m + 1};
    for (size_t i = 0; i < sizeof too_large / sizeof *too_large; i++) {
        m.bytes = too_large[i];
        assert_int_equal(write(other[0], &m, sizeof m), sizeof m);
        assert_int_equal(esp__conn_read(NULL, c, sizeof data), -1);
        assert_null(c->body);
    }
    close_peers(p, other);
}

/* Packed data is unpacked unchanged. Data that is truncated or has wrong lengths is refused. */
TEST(test_packed) {
    static uint8_t data[3000], packed[2 * sizeof data], out[sizeof data + 1];
    static const uint64_t eaches[] = {1, 4, 24, 56, 300, 1000, 3000};
    uint32_t seed = 7;
    for (int round = 0; round < 200; round++) {
        const uint64_t each = eaches[round % 7], n = sizeof data / each, all = n * each;
        for (uint64_t i = 0; i < all; i++) {
            seed = seed * 1664525u + 1013904223u;
            data[i] = i >= each && (seed >> 16) % 100 < (unsigned)round % 101 ? data[i - each] : (uint8_t)(seed >> 24);
        }
        const uint64_t bytes = esp__pack(data, each, all, packed);
        assert_true(bytes <= 2 * all && bytes == esp__pack(data, each, all, NULL));
        out[all] = 0xee;
        assert_true(esp__unpack(packed, bytes, out, each, all));
        assert_memory_equal(out, data, all);
        assert_false(esp__unpack(packed, bytes - 1, out, each, all));
        assert_false(esp__unpack(packed, bytes, out, each, all - 1));
        packed[bytes] = 1;
        assert_false(esp__unpack(packed, bytes + 1, out, each, all));
        for (uint64_t i = 0; i < bytes; i += 37) { /* damaged input must not cause writes out of bounds */
            const uint8_t was = packed[i];
            packed[i] = (uint8_t)(was ^ (1u << i % 8));
            esp__unpack(packed, bytes, out, each, all);
            packed[i] = was;
        }
        assert_int_equal(out[all], 0xee);
    }
    memset(data, 0, sizeof data); /* the same data from all ranks needs few bytes */
    assert_true(esp__pack(data, 10, sizeof data, packed) < 30);
    assert_true(esp__unpack(NULL, 0, out, 0, 0));
}

/* Passes a message of rank 1 to rank 0, as in an allgather. `list` has the number of members, then their ranks.
 * `claims` is the size that the message's header states. */
static int gather(esp__peers *p, const int32_t *list, uint64_t list_bytes, uint64_t tag, uint64_t seq,
                  uint64_t claims) {
    esp__conn *c = &p->conns[1];
    int ok;
    c->head = (esp__msg){ESP__MSG_GATHER, 1, tag, seq, claims};
    c->body = (uint8_t *)esp__alloc(NULL, list_bytes + 1);
    memcpy(c->body, list, list_bytes);
    ok = esp__exchange_message(p, c);
    esp__free(NULL, c->body);
    c->body = NULL;
    return ok;
}
static uint64_t tag_of(const int32_t *list, uint64_t bytes) { return esp__hash64(ESP__HASH0, list, bytes); }

TEST(test_gather) {
    static const int32_t all[] = {3, 0, 1, 2}, others[] = {2, 0, 2}, negative[] = {-1, 0, 1},
                         many[] = {INT32_MAX, 0, 1}, beyond[] = {3, 0, 1, 3}, below[] = {3, 0, 1, -1},
                         four[] = {4, 0, 1, 2, 1};
    int other[SIZE], taken = 0;
    esp__peers *p = open_peers(0, other);
    assert_false(gather(p, all, 2, 0, 0, 2)); /* too short to hold the number of members */
    assert_false(gather(p, all, 8, tag_of(all, 8), 0, 8));
    assert_false(gather(p, negative, 12, tag_of(negative, 12), 0, 12));
    assert_false(gather(p, many, 12, tag_of(many, 12), 0, 12));
    assert_false(gather(p, beyond, 16, tag_of(beyond, 16), 0, 16));
    assert_false(gather(p, below, 16, tag_of(below, 16), 0, 16));
    assert_false(gather(p, four, 20, tag_of(four, 20), 0, 20));
    assert_false(gather(p, others, 12, tag_of(others, 12), 0, 12));
    assert_false(gather(p, all, 16, tag_of(all, 16) + 1, 0, 16));
    assert_false(gather(p, all, 16, tag_of(all, 16), 0, 16 + (1ull << 29)));
    assert_null(p->exchanges); /* no message has begun an exchange */
    assert_true(gather(p, all, 16, tag_of(all, 16), 0, 16));
    assert_false(gather(p, all, 16, tag_of(all, 16), 0, 16)); /* the second message of a rank is refused */
    for (uint64_t seq = 1; seq < 100000; seq++) taken += gather(p, all, 16, tag_of(all, 16), seq, 16);
    assert_int_equal(taken, ESP__EXCHANGES_EACH * SIZE - 1);
    assert_int_equal(p->n_exchanges, ESP__EXCHANGES_EACH * SIZE);
    for (int i = 0; i < 1000; i++) {
        esp__conn *c = &p->conns[1];
        c->head = (esp__msg){ESP__MSG_FINAL, 1, 0, 0, 1000};
        c->body = (uint8_t *)esp__alloc(NULL, 1000);
        pthread_mutex_lock(&p->lock);
        esp__watch_on_hub(p, c);
        esp__conn_next(NULL, c);
        pthread_mutex_unlock(&p->lock);
    }
    assert_int_equal(p->conns[1].last.len, 1000);
    close_peers(p, other);
}

/* In every type of message, ranks and tensors may be out of range. No callback may get such a rank. */
TEST(test_wild_ranks) {
    static const int32_t ranks[] = {INT32_MIN, -3, -2, -1, 0, 1, 2, 3, 4, 1000000, INT32_MAX};
    static const uint64_t tags[] = {0, 1, UINT32_MAX, UINT64_MAX};
    int other[SIZE];
    for (uint32_t type = 0; type < 26; type++)
        for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
            for (size_t t = 0; t < sizeof tags / sizeof *tags; t++)
                for (int hub = 0; hub < 2; hub++) {
                    uint64_t in[SIZE];
                    esp__peers *p = open_peers(hub ? 0 : 1, other);
                    esp__conn *c = &p->conns[hub];
                    esp__waiter w = {NULL, tags[t], tags[t], sizeof *in, sizeof in, in, 0, -2, -2};
                    p->waiters = &w;
                    p->inquiry.decide = type == ESP__MSG_ANSWER;
                    p->inquiry.number = tags[t];
                    c->head = (esp__msg){type, ranks[i], tags[t], tags[t], 0};
                    esp__answer answer = {.waits_for = ranks[i], .tensor = (uint32_t)tags[t]};
                    if (type == ESP__MSG_ANSWER) c->head.bytes = sizeof answer, c->body = (uint8_t *)&answer;
                    pthread_mutex_lock(&p->lock);
                    if (hub)
                        esp__watch_on_hub(p, c);
                    else
                        esp__watch_from_hub(p, c);
                    if (hub && p->inquiry.decide) esp__inquiry_decide(p, true);
                    pthread_mutex_unlock(&p->lock);
                    assert_true(late_rank == -99 || (late_rank >= -1 && late_rank < SIZE));
                    assert_true(lost_rank == -99 || (lost_rank >= 0 && lost_rank < SIZE));
                    assert_true(w.failed >= -2 && w.failed < SIZE && w.missing >= -2 && w.missing < SIZE);
                    assert_true(!w.done || w.failed != -2);
                    p->waiters = NULL;
                    c->body = NULL;
                    close_peers(p, other);
                }
}

/* An exchange that is too large to be sent fails before anything is sent. */
TEST(test_too_much) {
    int other[SIZE];
    esp__peers *p = open_peers(1, other);
    char byte = 0;
    assert_int_equal(esp__peers_allgather(p, NULL, 0, &byte, &byte, 1u << 29), ESP_E_ARG);
    assert_non_null(strstr(esp_last_error(NULL), "together"));
    assert_int_equal(esp__peers_allgather(p, NULL, 0, &byte, &byte, UINT64_MAX / 2), ESP_E_ARG);
    close_peers(p, other);
}

/* Acts as a rank 0 that answers with wrong data when ranks compare their settings. */
enum { OWN = 4096 };
static void *hostile_hub(void *arg) {
    int fd = *(int *)arg;
    for (int round = 0; round < 3; round++) {
        esp__msg m;
        static uint8_t body[SIZE * OWN + 64], packed[2 * sizeof body];
        uint64_t d[SIZE][2];
        uint64_t each;
        while (recv(fd, &m, sizeof m, MSG_WAITALL) < 0) poll(NULL, 0, 1);
        for (uint64_t got = 0; got < m.bytes;) {
            ssize_t n = recv(fd, body + got, m.bytes - got, 0);
            if (n > 0) got += (uint64_t)n;
        }
        each = m.bytes - 4;
        m.type = ESP__MSG_SHARED;
        memset(body, 'x', sizeof body);
        if (round == 1) memset(body, 0, sizeof body);
        for (int r = 0; r < SIZE; r++) d[r][0] = (uint64_t)r, d[r][1] = 1;
        if (round == 0) memcpy(body, d, sizeof d);
        m.bytes = esp__pack(body, each, each * SIZE, packed);
        if (write(fd, &m, sizeof m) < 0 || write(fd, packed, m.bytes) < 0) break;
    }
    return NULL;
}
TEST(test_agree) {
    int other[SIZE];
    esp__peers *p = open_peers(1, other);
    esp_ctx *ctx = (esp_ctx *)calloc(1, sizeof *ctx);
    uint8_t room[SIZE * ESP__JOB_ROOM];
    esp__text lines = {0};
    pthread_t hub;
    esp__base_parts(ctx);
    ctx->job.size = SIZE;
    ctx->job.rank = 1;
    ctx->job.peers = p;
    ctx->job.room = room;
    for (int i = 0; i < OWN - 1; i++) esp__text_add(&lines, "%c", i < OWN - 2 ? 'm' : '\n');
    fcntl(other[0], F_SETFL, 0);
    pthread_create(&hub, NULL, hostile_hub, &other[0]);
    assert_int_equal(esp__watch_start(p), ESP_OK);
    assert_int_equal(esp__agree_lines(ctx, &lines, ESP_OK), ESP_E_MISMATCH);
    pthread_join(hub, NULL);
    close(other[0]);
    esp__peers_close(p, NULL, 0, NULL, NULL);
    free(ctx);
}
