/* hmac.c: see hmac.h. The code is short rather than fast, since ranks hash only a few hundred bytes when they connect.
 * */
#include "espresso_impl/job/hmac.h"
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

/* First 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4). */
static const uint32_t esp__sha256_k[64] = {
    0x428a2f98u, 0x71374491u, 0xb5c0fbcfu, 0xe9b5dba5u, 0x3956c25bu, 0x59f111f1u, 0x923f82a4u, 0xab1c5ed5u,
    0xd807aa98u, 0x12835b01u, 0x243185beu, 0x550c7dc3u, 0x72be5d74u, 0x80deb1feu, 0x9bdc06a7u, 0xc19bf174u,
    0xe49b69c1u, 0xefbe4786u, 0x0fc19dc6u, 0x240ca1ccu, 0x2de92c6fu, 0x4a7484aau, 0x5cb0a9dcu, 0x76f988dau,
    0x983e5152u, 0xa831c66du, 0xb00327c8u, 0xbf597fc7u, 0xc6e00bf3u, 0xd5a79147u, 0x06ca6351u, 0x14292967u,
    0x27b70a85u, 0x2e1b2138u, 0x4d2c6dfcu, 0x53380d13u, 0x650a7354u, 0x766a0abbu, 0x81c2c92eu, 0x92722c85u,
    0xa2bfe8a1u, 0xa81a664bu, 0xc24b8b70u, 0xc76c51a3u, 0xd192e819u, 0xd6990624u, 0xf40e3585u, 0x106aa070u,
    0x19a4c116u, 0x1e376c08u, 0x2748774cu, 0x34b0bcb5u, 0x391c0cb3u, 0x4ed8aa4au, 0x5b9cca4fu, 0x682e6ff3u,
    0x748f82eeu, 0x78a5636fu, 0x84c87814u, 0x8cc70208u, 0x90befffau, 0xa4506cebu, 0xbef9a3f7u, 0xc67178f2u};

static uint32_t esp__rotate(uint32_t x, int bits) { return x >> bits | x << (32 - bits); }

static void esp__sha256_block(esp__sha256 *s, const uint8_t *p) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = esp__rotate(w[i - 15], 7) ^ esp__rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = esp__rotate(w[i - 2], 17) ^ esp__rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(v, s->h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t big1 = esp__rotate(v[4], 6) ^ esp__rotate(v[4], 11) ^ esp__rotate(v[4], 25);
        uint32_t big0 = esp__rotate(v[0], 2) ^ esp__rotate(v[0], 13) ^ esp__rotate(v[0], 22);
        uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]), most = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        uint32_t t1 = v[7] + big1 + choice + esp__sha256_k[i] + w[i], t2 = big0 + most;
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) s->h[i] += v[i];
}

ESP__FN void esp__sha256_start(esp__sha256 *s) {
    /* first 32 bits of the fractional parts of the square roots of the first 8 primes */
    static const uint32_t first[8] = {0x6a09e667u, 0xbb67ae85u, 0x3c6ef372u, 0xa54ff53au,
                                      0x510e527fu, 0x9b05688cu, 0x1f83d9abu, 0x5be0cd19u};
    memset(s, 0, sizeof *s);
    memcpy(s->h, first, sizeof first);
}

ESP__FN void esp__sha256_add(esp__sha256 *s, const void *data, size_t bytes) {
    const uint8_t *p = (const uint8_t *)data;
    while (bytes) {
        size_t at = (size_t)(s->bytes % ESP__SHA256_BLOCK), n = ESP__SHA256_BLOCK - at;
        if (n > bytes) n = bytes;
        memcpy(s->block + at, p, n);
        s->bytes += n;
        p += n;
        bytes -= n;
        if (at + n == ESP__SHA256_BLOCK) esp__sha256_block(s, s->block);
    }
}

ESP__FN void esp__sha256_end(esp__sha256 *s, uint8_t out[ESP__SHA256_BYTES]) {
    static const uint8_t pad[ESP__SHA256_BLOCK] = {0x80};
    uint8_t length[8];
    uint64_t bits = s->bytes * 8;
    size_t at = (size_t)(s->bytes % ESP__SHA256_BLOCK);
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    esp__sha256_add(s, pad, at < 56 ? 56 - at : 120 - at);
    esp__sha256_add(s, length, sizeof length);
    for (int i = 0; i < ESP__SHA256_BYTES; i++) out[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
    esp__wipe(s, sizeof *s);
}

ESP__FN void esp__hmac_start(esp__hmac *m, const void *key, size_t key_bytes) {
    uint8_t block[ESP__SHA256_BLOCK] = {0};
    esp__sha256_start(&m->inner);
    if (key_bytes > sizeof block) {
        esp__sha256_add(&m->inner, key, key_bytes);
        esp__sha256_end(&m->inner, block);
        esp__sha256_start(&m->inner);
    } else if (key_bytes) {
        memcpy(block, key, key_bytes);
    }
    for (size_t i = 0; i < sizeof block; i++) block[i] ^= 0x36;
    esp__sha256_add(&m->inner, block, sizeof block);
    for (size_t i = 0; i < sizeof block; i++) block[i] ^= 0x36 ^ 0x5c;
    esp__sha256_start(&m->outer);
    esp__sha256_add(&m->outer, block, sizeof block);
    esp__wipe(block, sizeof block);
}

ESP__FN void esp__hmac_add(esp__hmac *m, const void *data, size_t bytes) { esp__sha256_add(&m->inner, data, bytes); }

ESP__FN void esp__hmac_end(esp__hmac *m, uint8_t out[ESP__SHA256_BYTES]) {
    uint8_t inner[ESP__SHA256_BYTES];
    esp__sha256_end(&m->inner, inner);
    esp__sha256_add(&m->outer, inner, sizeof inner);
    esp__sha256_end(&m->outer, out);
}

ESP__FN bool esp__same_bytes(const void *a, const void *b, size_t bytes) {
    const volatile uint8_t *x = (const volatile uint8_t *)a, *y = (const volatile uint8_t *)b;
    uint8_t differ = 0;
    for (size_t i = 0; i < bytes; i++) differ = (uint8_t)(differ | (x[i] ^ y[i]));
    return differ == 0;
}

ESP__FN void esp__wipe(void *data, size_t bytes) {
    volatile uint8_t *p = (volatile uint8_t *)data;
    for (size_t i = 0; i < bytes; i++) p[i] = 0;
}

ESP__FN int esp__random_bytes(void *data, size_t bytes) {
    uint8_t *p = (uint8_t *)data;
    while (bytes) {
        long n = syscall(SYS_getrandom, p, bytes, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : EIO;
        p += n;
        bytes -= (size_t)n;
    }
    return 0;
}

ESP__FN void esp__hex(const void *data, size_t bytes, char *out) {
    static const char digits[] = "0123456789abcdef";
    const uint8_t *p = (const uint8_t *)data;
    for (size_t i = 0; i < bytes; i++) {
        out[2 * i] = digits[p[i] >> 4];
        out[2 * i + 1] = digits[p[i] & 15];
    }
    out[2 * bytes] = 0;
}
