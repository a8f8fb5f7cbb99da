/* hmac.h: SHA-256, HMAC-SHA256, comparison in constant time, and random bytes from the kernel. */
#ifndef ESP__HMAC_H
#define ESP__HMAC_H
#include "espresso_impl/base/private.h"

enum { ESP__SHA256_BYTES = 32, ESP__SHA256_BLOCK = 64 };
typedef struct esp__sha256 {
    uint32_t h[8];
    uint64_t bytes; /* bytes added so far */
    uint8_t block[ESP__SHA256_BLOCK];
} esp__sha256;

/* SHA-256 (FIPS 180-4) of all data passed to esp__sha256_add since esp__sha256_start. */
ESP__FN void esp__sha256_start(esp__sha256 *s);
ESP__FN void esp__sha256_add(esp__sha256 *s, const void *data, size_t bytes);
ESP__FN void esp__sha256_end(esp__sha256 *s, uint8_t out[ESP__SHA256_BYTES]);

/* HMAC-SHA256 (RFC 2104) of all data passed to esp__hmac_add since esp__hmac_start. */
typedef struct esp__hmac {
    esp__sha256 inner, outer;
} esp__hmac;
ESP__FN void esp__hmac_start(esp__hmac *m, const void *key, size_t key_bytes);
ESP__FN void esp__hmac_add(esp__hmac *m, const void *data, size_t bytes);
ESP__FN void esp__hmac_end(esp__hmac *m, uint8_t out[ESP__SHA256_BYTES]);

/* Returns true if both are equal. Always takes the same time, so that an attacker cannot find a secret byte by byte. */
ESP__FN bool esp__same_bytes(const void *a, const void *b, size_t bytes);
/* Overwrites memory that held a secret. The compiler does not optimize this away. */
ESP__FN void esp__wipe(void *data, size_t bytes);
/* Fills `data` with cryptographically random bytes. Returns 0 or an errno. */
ESP__FN int esp__random_bytes(void *data, size_t bytes);
ESP__FN void esp__hex(const void *data, size_t bytes, char *out);
#endif
