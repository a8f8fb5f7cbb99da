/* test_hop_error.c: what is lost when payloads are compressed at every hop, against closed forms: made-up gradients, real payloads.
 *
 * A compression of x loses e |x|^2. Let gradients have energy 1, of which c is the same on all ranks: a sum of k of them has E(k) = k
 * (1 - c) + k^2 c. An allgather loses n e in all. In a ring, a part is compressed when it holds 1, 2, ... n gradients: E(1) + ... +
 * E(n) times e. In recursive halving half of the sums of 1, 2, 4, ... are sent, and the last one: n/2 E(1) + n/4 E(2) + ... + E(n). */
#include "tests/common/library.h"
#include "tests/common/hop_error.h"
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static double energy(double k, double c) { return k * (1 - c) + k * k * c; }
static double expected(int option, int n, double c) { /* times the allgather's */
    double sum = energy(n, c);
    if (!option) return 1;
    if (option == 1) return 1 + sum / n; /* the sum once more */
    for (int k = 1; k < n; k += option == 3 ? 1 : k) sum += (option == 3 ? 1.0 : n / (2.0 * k)) * energy(k, c);
    return sum / n;
}

static hop_errors measure(const char *codec, int n, double shared, int heavy) {
    hop_errors h = {codec, {1 << 15, shared, heavy}, {0}, 0, 0};
    assert_int_equal(hop_errors_run(&h, n), 0);
    return h;
}

static void as_computed(void **state) {
    static const char *const codecs[] = {"fp16", "int8:feedback=none", "int4:feedback=none"};
    (void)state;
    for (int c = 0; c < 3; c++)
        for (int n = 2; n <= 8; n *= 2)
            for (int common = 0; common < 2; common++) {
                const hop_errors h = measure(codecs[c], n, 0.5 * common, 0);
                for (int k = 1; k < HOP_OPTIONS; k++) {
                    const double times = h.error[k] / h.error[0], want = expected(k, n, 0.5 * common);
                    /* sums of a few short numbers often lie halfway between two of them: a second rounding loses more */
                    if (fabs(times - want) > (k == 1 ? 0.2 : 0.08) * want)
                        fail_msg("%s, %d ranks, %s: %.3g times the error of one compression, computed %.3g", codecs[c],
                                 n, hop_names[k], times, want);
                }
            }
}

/* The planner's figure is that of independent gradients. */
static void as_planned(void **state) {
    (void)state;
    for (uint32_t n = 2; n <= 64; n *= 2) {
        assert_true(fabs(esp__hops_error(ESP_HOPS_HALVING, n) - expected(2, (int)n, 0)) < 1e-9);
        assert_true(fabs(esp__hops_error(ESP_HOPS_RING, n) - expected(3, (int)n, 0)) < 1e-9);
    }
}

/* Whatever the gradients and the codec: none loses nothing but the rounding of sums, and others lose more the more often they
 * compress, but never more than computed for codecs that lose a part of the energy, and never more than all of it. */
static void in_order(void **state) {
    static const char *const codecs[] = {"none", "fp16", "int8:feedback=none", "topk:ratio=0.01,feedback=none",
                                         "chunktopk:feedback=none"};
    (void)state;
    for (int c = 0; c < 5; c++)
        for (int n = 2; n <= 8; n *= 2) {
            const hop_errors h = measure(codecs[c], n, 0, 1);
            for (int k = 0; k < HOP_OPTIONS; k++) {
                const double times = h.error[k] / h.error[0];
                int right = c ? h.error[k] < 1 && times <= 1.1 * expected(k, n, 0) : h.error[k] < 1e-13;
                if (c && k > 1) right &= times > 1.02;
                if (c && k == 3 && c < 3) right &= n == 2 ? h.error[3] == h.error[2] : h.error[3] > h.error[2];
                if (!right)
                    fail_msg("%s, %d ranks, %s: error %.3g, %.3g times that of one compression", codecs[c], n,
                             hop_names[k], h.error[k], times);
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_computed), cmocka_unit_test(as_planned),
                                       cmocka_unit_test(in_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
