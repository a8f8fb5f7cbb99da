/* test_crc32c.c: CRC-32C by the processor's instruction and by the table, against known sums. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>
#include "espresso_impl/base/crc32c.c"

static void both(const void *data, uint64_t bytes, uint32_t want) {
    assert_int_equal(esp__crc32c_table(0, data, bytes), want);
    assert_int_equal(esp__crc32c(0, data, bytes), want);
}

/* RFC 3720, B.4, and the number that catalogues of checksums give. */
static void known_sums(void **state) {
    static const uint8_t command[48] = {0x01, 0xC0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0, 0,
                                        0x14, 0,    0, 0, 0, 0, 4, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18,
                                        0x28, 0,    0, 0, 0, 0, 0, 0, 2, 0, 0, 0,    0, 0, 0, 0};
    uint8_t bytes[32];
    (void)state;
    memset(bytes, 0, sizeof bytes);
    both(bytes, sizeof bytes, 0x8A9136AAu);
    memset(bytes, 0xFF, sizeof bytes);
    both(bytes, sizeof bytes, 0x62A8AB43u);
    for (uint8_t i = 0; i < 32; i++) bytes[i] = i;
    both(bytes, sizeof bytes, 0x46DD794Eu);
    for (uint8_t i = 0; i < 32; i++) bytes[i] = (uint8_t)(31 - i);
    both(bytes, sizeof bytes, 0x113FDB5Cu);
    both(command, sizeof command, 0xD9963A56u);
    both("123456789", 9, 0xE3069283u);
    both("", 0, 0);
}

/* Around the ends of words and of the blocks that are summed side by side, from addresses of all alignments. */
static void all_lengths(void **state) {
    enum { MOST = 200000 };
    static const uint64_t ends[] = {0, 8, 64, 8192, 3 * 8192, 4 * 8192, 6 * 8192, 7 * 3 * 8192};
    uint8_t *data = malloc(MOST);
    uint32_t x = 12345;
    (void)state;
    for (size_t i = 0; i < MOST; i++) data[i] = (uint8_t)((x = x * 1664525u + 1013904223u) >> 24);
    for (size_t k = 0; k < sizeof ends / sizeof *ends; k++)
        for (uint64_t more = 0; more < 19; more++) {
            const uint64_t n = ends[k] + more, from = more % 8;
            assert_int_equal(esp__crc32c(0, data + from, n), esp__crc32c_table(0, data + from, n));
        }
    free(data);
}

static void in_pieces(void **state) {
    enum { BYTES = 100000 };
    uint8_t *data = malloc(BYTES);
    (void)state;
    for (uint32_t i = 0; i < BYTES; i++) data[i] = (uint8_t)(i * 7u + (i >> 8));
    const uint32_t whole = esp__crc32c(0, data, BYTES);
    for (uint32_t cut = 0; cut < BYTES; cut += 9973)
        assert_int_equal(esp__crc32c(esp__crc32c(0, data, cut), data + cut, BYTES - cut), whole);
    for (uint32_t bit = 0; bit < 8; bit++) { /* any one bit shows */
        data[bit * 12000] ^= (uint8_t)(1u << bit);
        assert_int_not_equal(esp__crc32c(0, data, BYTES), whole);
        data[bit * 12000] ^= (uint8_t)(1u << bit);
    }
    free(data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_sums),
        cmocka_unit_test(all_lengths),
        cmocka_unit_test(in_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
