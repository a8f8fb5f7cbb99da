/* test_relax.c checks that a plan hardly ever gets longer if the problem allows more or is faster (relaxations.h). */
/* runs: slow asan-long */
#include "tests/lib/test.h"
#include "tests/planner/problems.h"
#include "tests/planner/relaxations.h"

TEST(relaxed_problems_have_no_longer_plans) {
    static problem_input in;
    static relax_input from, tight, loose;
    relax_count all = {0};
    for (uint64_t seed = 0; all.n < test_repeats(1000); seed++) {
        problem_random(seed, 16, 0, &in);
        from = (relax_input){in.model, {in.codecs[0], in.codecs[1], in.codecs[2]}, in.n_codecs, in.system, in.config};
        for (uint32_t kind = 0; kind < RELAX_KINDS; kind++) {
            if (!relax(kind, &from, &tight, &loose)) continue;
            const double longer = relax_longer(&tight, &loose);
            relax_add(&all, longer);
            if (kind == RELAX_UNITS) assert_true(longer < 1e-6); /* the search begins with tensors as given */
            if (longer > 0.3)
                print_message("seed %llu, %s: %.2f%%\n", (unsigned long long)seed, relax_names[kind], longer);
        }
    }
    print_message("%u of %u plans get longer, by at most %.3f%%\n", all.longer, all.n, all.most);
    assert_true(all.longer * 50 <= all.n);
    /* a search can end in a worse local optimum; more problems have worse ones */
    assert_true(all.most <= (getenv("TEST_ALL") ? 4.1 : 3.1));
}
