/* handshake.c: makes and checks the messages by which a joining rank and rank 0 prove to each other that they know the
 * job's secret. rendezvous.c shows their order. */
#include "espresso_impl/job/peers.h"

ESP__FN void esp__code(const char *secret, int host, const esp__hello *hello, const esp__challenge *ch,
                       const esp__response *r, uint8_t out[ESP__SHA256_BYTES]) {
    static const char roles[2][16] = {"espresso joins", "espresso hosts"};
    esp__hmac m;
    esp__hmac_start(&m, secret, strlen(secret));
    esp__hmac_add(&m, roles[host], sizeof roles[host]);
    esp__hmac_add(&m, hello, sizeof *hello);
    esp__hmac_add(&m, ch, sizeof *ch);
    esp__hmac_add(&m, r, offsetof(esp__response, code));
    esp__hmac_end(&m, out);
}

ESP__FN bool esp__code_check(const esp__peers *p, int host, const esp__hello *hello, const esp__challenge *ch,
                             const esp__response *r, const uint8_t code[ESP__SHA256_BYTES]) {
    uint8_t want[ESP__SHA256_BYTES];
    esp__code(p->secret, host, hello, ch, r, want);
    return esp__same_bytes(want, code, sizeof want);
}

ESP__FN void esp__hello_make(const esp__peers *p, uint64_t job, esp__hello *out) {
    *out = (esp__hello){.rank = p->rank, .size = p->size, .job = job};
    memcpy(out->magic, ESP__HELLO_MAGIC, sizeof out->magic);
    /* versions without "/2" have no CHALLENGE; by this text they see that the versions differ */
    snprintf(out->version, sizeof out->version, "%s/2", ESPRESSO_VERSION);
}

ESP__FN bool esp__challenge_make(const esp__peers *p, esp__challenge *out) {
    *out = (esp__challenge){.secured = p->secret[0] != 0};
    memcpy(out->magic, ESP__MEET_MAGIC, sizeof out->magic);
    return esp__random_bytes(out->nonce, sizeof out->nonce) == 0;
}

ESP__FN bool esp__response_make(const esp__peers *p, const esp__hello *hello, const esp__challenge *ch,
                                esp__response *out) {
    *out = (esp__response){
        .secured = p->secret[0] != 0, .rank = p->rank, .size = p->size, .job = hello->job, .survivor = p->survivor};
    memcpy(out->magic, ESP__MEET_MAGIC, sizeof out->magic);
    if (esp__random_bytes(out->nonce, sizeof out->nonce) != 0) return false;
    esp__code(p->secret, 0, hello, ch, out, out->code);
    return true;
}
