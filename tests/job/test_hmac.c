/* test_hmac.c checks SHA-256 and HMAC-SHA256 against published results, for input in any pieces, and random bytes. */
#include "tests/lib/test.h"
#include "espresso_impl/job/hmac.h"

static void sha_is(const void *data, size_t bytes, size_t piece, const char *want) {
    esp__sha256 s;
    uint8_t sum[ESP__SHA256_BYTES];
    char text[2 * ESP__SHA256_BYTES + 1];
    esp__sha256_start(&s);
    for (size_t at = 0; at < bytes; at += piece)
        esp__sha256_add(&s, (const char *)data + at, bytes - at < piece ? bytes - at : piece);
    esp__sha256_end(&s, sum);
    esp__hex(sum, sizeof sum, text);
    assert_string_equal(text, want);
}

/* Examples B.1 to B.3 of FIPS 180-2, and the hash of no bytes. */
TEST(known_sums) {
    static const char two[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    char *million = malloc(1000000);
    assert_non_null(million);
    memset(million, 'a', 1000000);
    sha_is("", 0, 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    sha_is("abc", 3, 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sha_is(two, sizeof two - 1, 9, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    for (size_t piece = 1; piece < 200; piece += 9)
        sha_is(million, 1000000, piece, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    sha_is(million, 1000000, 1000000, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(million);
}

static void hmac_is(const void *key, size_t key_bytes, const void *data, size_t bytes, const char *want) {
    esp__hmac m;
    uint8_t code[ESP__SHA256_BYTES];
    char text[2 * ESP__SHA256_BYTES + 1];
    for (size_t cut = 0; cut <= bytes; cut++) {
        esp__hmac_start(&m, key, key_bytes);
        esp__hmac_add(&m, data, cut);
        esp__hmac_add(&m, (const char *)data + cut, bytes - cut);
        esp__hmac_end(&m, code);
        esp__hex(code, sizeof code, text);
        text[strlen(want)] = 0; /* one of the results is published shortened */
        assert_string_equal(text, want);
    }
}

/* Examples 4.2 to 4.8 of RFC 4231. */
TEST(known_codes) {
    static const char hash_key[] = "Test Using Larger Than Block-Size Key - Hash Key First";
    static const char both_long[] = "This is a test using a larger than block-size key and a larger than block-size "
                                    "data. The key needs to be hashed before being used by the HMAC algorithm.";
    uint8_t key[131], data[50];
    memset(key, 0x0b, sizeof key);
    hmac_is(key, 20, "Hi There", 8, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    hmac_is("Jefe", 4, "what do ya want for nothing?", 28,
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    memset(data, 0xdd, sizeof data);
    hmac_is(key, 20, data, 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    for (uint8_t i = 0; i < 25; i++) key[i] = (uint8_t)(i + 1);
    memset(data, 0xcd, sizeof data);
    hmac_is(key, 25, data, 50, "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
    memset(key, 0x0c, sizeof key);
    hmac_is(key, 20, "Test With Truncation", 20, "a3b6167473100ee06e0c796c2955552b");
    memset(key, 0xaa, sizeof key);
    hmac_is(key, 131, hash_key, sizeof hash_key - 1,
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    hmac_is(key, 131, both_long, sizeof both_long - 1,
            "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(comparing) {
    uint8_t a[ESP__SHA256_BYTES], b[ESP__SHA256_BYTES];
    assert_int_equal(esp__random_bytes(a, sizeof a), 0);
    memcpy(b, a, sizeof b);
    assert_true(esp__same_bytes(a, b, sizeof a));
    for (size_t i = 0; i < sizeof a; i++)
        for (int bit = 0; bit < 8; bit++) {
            b[i] ^= (uint8_t)(1 << bit);
            assert_false(esp__same_bytes(a, b, sizeof a));
            b[i] ^= (uint8_t)(1 << bit);
        }
    esp__wipe(a, sizeof a);
    for (size_t i = 0; i < sizeof a; i++) assert_int_equal(a[i], 0);
}

/* Random bytes must not stay 0 or repeat. 1000 bytes need several system calls, which may return only 256 each. */
TEST(random_bytes) {
    uint8_t a[1000], b[1000];
    size_t same = 0, zero = 0;
    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    assert_int_equal(esp__random_bytes(a, sizeof a), 0);
    assert_int_equal(esp__random_bytes(b, sizeof b), 0);
    for (size_t i = 0; i < sizeof a; i++) same += a[i] == b[i], zero += a[i] == 0;
    assert_true(same < 40 && zero < 40);
}
