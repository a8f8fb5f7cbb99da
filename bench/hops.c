/* hops.c: the error of means that are compressed at every hop, beside one compression of each gradient (allgather) and two (alltoall,
 * then allgather), without feedback: |mean - exact|^2 / |exact|^2. Nothing is timed, and the same numbers come on every machine.
 *
 *     build/bench/hops >bench/results/hops.csv
 *
 * `times`: how many times the error of the allgather. For independent gradients and codecs whose errors are independent, rings have
 * (n + 1) / 2 times that error, and recursive halving 1 + log2(n) / 2 (tests/tree/test_hop_error.c). */
#include "tests/common/hop_error.h"

int main(void) {
    static const char *const codecs[] = {"none:feedback=none",      "fp16:feedback=none",
                                         "int8:feedback=none",      "int4:feedback=none",
                                         "chunktopk:feedback=none", "topk:ratio=0.01,feedback=none"};
    printf("codec,ranks,gradients,shared,option,error,times\n");
    for (size_t c = 0; c < sizeof codecs / sizeof *codecs; c++)
        for (int32_t n = 2; n <= 8; n *= 2)
            for (int kind = 0; kind < 3; kind++) {
                hop_errors h = {codecs[c], {1 << 18, kind == 2 ? 0.5 : 0.0, kind == 1}, {0}, 0, 0};
                if (hop_errors_run(&h, n)) return fprintf(stderr, "%s over %d ranks failed\n", codecs[c], (int)n), 1;
                for (int k = 0; k < HOP_OPTIONS; k++)
                    printf("%.*s,%d,%s,%g,%s,%.3g,%.3g\n", (int)strcspn(codecs[c], ":"), codecs[c], (int)n,
                           kind == 1 ? "t3" : "normal", h.of.shared, hop_names[k], h.error[k],
                           h.error[0] > 0 ? h.error[k] / h.error[0] : 0.0);
                fflush(stdout);
            }
    return 0;
}
