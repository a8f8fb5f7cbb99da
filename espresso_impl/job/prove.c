/* prove.c: how two processes that meet prove to each other that they know the job's secret, for meet.c and join.c. A joining rank
 * and rank 0 send each other a random number, and a code that only a process with the secret can compute from both (HMAC-SHA256).
 * Rank 0 checks the code before it believes anything else. Neither code is of use in another meeting, nor in the other direction.
 *
 *     joining rank                                    rank 0
 *     KNOCK      version                       ->
 *                                              <-     CHALLENGE  its random number
 *     HELLO      rank, size, number, code      ->
 *                                              <-     PROOF      its code
 *                                              <-     WELCOME    when all ranks are here
 *
 * A job without a secret does the same with an empty one, which proves nothing. Nothing is encrypted (docs/security.md). */
#include "espresso_impl/job/job.h"
#include "espresso_impl/base/hmac.h"

enum { ESP__NONCE = 32, ESP__SECRET_MADE = 24 }; /* random bytes: of a challenge; of a secret that the library makes */
/* All versions of the library begin with a knock of this layout, so that each can tell the other its version. */
static const char esp__knock_magic[8] = {'E', 'S', 'P', 'P', 'E', 'E', 'R', '1'};
static const char esp__meet_magic[8] = {'E', 'S', 'P', 'M', 'E', 'E', 'T', '2'};
/* Versions before "/2" had no challenge, and take this knock for a rank of another version. */
enum { ESP__MEET_VERSION = 24 };
static const char *esp__meet_version(char out[ESP__MEET_VERSION]) {
    snprintf(out, ESP__MEET_VERSION, "%s/2", ESPRESSO_VERSION);
    return out;
}

typedef struct esp__knock {
    char magic[8], version[ESP__MEET_VERSION];
    int32_t rank, size;
    uint64_t job; /* a random number that the ranks agreed on before, or 0 */
} esp__knock;
typedef struct esp__challenge {
    char magic[8];
    uint32_t secured, reserved; /* secured: 1: this side has a secret. Only for the error text */
    uint8_t nonce[ESP__NONCE];
} esp__challenge;
typedef struct esp__hello {
    char magic[8];
    uint32_t secured;
    int32_t rank, size;
    uint32_t reserved;
    uint64_t job;
    uint8_t nonce[ESP__NONCE];
    uint8_t code[ESP__SHA256_BYTES];
} esp__hello;
typedef struct esp__proof {
    uint8_t code[ESP__SHA256_BYTES];
} esp__proof;
_Static_assert(sizeof(esp__knock) == 48 && sizeof(esp__challenge) == 48 && sizeof(esp__hello) == 96,
               "sent as they are");

/* The code of one side (`host`: rank 0's) over everything that both have sent. */
static void esp__prove_code(const char *secret, int host, const esp__knock *k, const esp__challenge *ch,
                            const esp__hello *h, uint8_t out[ESP__SHA256_BYTES]) {
    static const char roles[2][16] = {"espresso joins", "espresso hosts"};
    esp__hmac m;
    esp__hmac_start(&m, secret, strlen(secret));
    esp__hmac_add(&m, roles[host], sizeof roles[host]);
    esp__hmac_add(&m, k, sizeof *k);
    esp__hmac_add(&m, ch, sizeof *ch);
    esp__hmac_add(&m, h, offsetof(esp__hello, code));
    esp__hmac_end(&m, out);
}

static void esp__prove_knock(const esp__peers *p, uint64_t job, esp__knock *out) {
    memset(out, 0, sizeof *out);
    memcpy(out->magic, esp__knock_magic, sizeof out->magic);
    esp__meet_version(out->version);
    out->rank = p->rank;
    out->size = p->size;
    out->job = job;
}

/* 0: no random numbers. */
static int esp__prove_challenge(const esp__peers *p, esp__challenge *out) {
    memset(out, 0, sizeof *out);
    memcpy(out->magic, esp__meet_magic, sizeof out->magic);
    out->secured = p->secret[0] != 0;
    return esp__random_bytes(out->nonce, sizeof out->nonce) == 0;
}

/* 0: no random numbers. */
static int esp__prove_hello(const esp__peers *p, const esp__knock *k, const esp__challenge *ch, esp__hello *out) {
    memset(out, 0, sizeof *out);
    memcpy(out->magic, esp__meet_magic, sizeof out->magic);
    out->secured = p->secret[0] != 0;
    out->rank = p->rank;
    out->size = p->size;
    out->job = k->job;
    if (esp__random_bytes(out->nonce, sizeof out->nonce) != 0) return 0;
    esp__prove_code(p->secret, 0, k, ch, out, out->code);
    return 1;
}

/* 1 if `code` is the one that the other side (`host`: rank 0) has to send. */
static int esp__prove_check(const esp__peers *p, int host, const esp__knock *k, const esp__challenge *ch,
                            const esp__hello *h, const uint8_t code[ESP__SHA256_BYTES]) {
    uint8_t want[ESP__SHA256_BYTES];
    esp__prove_code(p->secret, host, k, ch, h, want);
    return esp__same_bytes(want, code, sizeof want);
}

/* Makes text from another process fit to be printed: it may be anybody's. */
static void esp__printable(char *text, size_t cap) {
    text[cap - 1] = 0;
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 127) *text = '?';
}
