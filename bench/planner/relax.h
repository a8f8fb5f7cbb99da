/* relax.h: counts, in the 144 cases of quality.h, how often the planner finds a longer step although the machines are
 * faster or more options are allowed. */
#include "tests/planner/relaxations.h"

static void relax_main(const char *dir) {
    static bench_case c;
    static relax_input from, tight, loose;
    relax_count count[RELAX_KINDS] = {{0}};
    for (uint32_t m = 0; m < PAPER_MODELS; m++) {
        bench_model model;
        if (!model_open(&model, model_names[m])) die("no such model here", model_names[m]);
        for (uint32_t k = 0; k < CODECS * TESTBEDS * SIZES; k++) {
            case_open(&c, k / SIZES % CODECS, k / SIZES / CODECS, 1u << k % SIZES);
            from = (relax_input){.model = model.model, .codecs = {c.costs.codec}, .n_codecs = 1, .system = c.system};
            for (uint32_t kind = 0; kind < RELAX_KINDS; kind++)
                if (relax(kind, &from, &tight, &loose)) relax_add(&count[kind], relax_longer(&tight, &loose));
        }
        model_close(&model);
    }
    FILE *csv =
        result_open(dir, "plan-relax", "build/bench/plan relax: plans that get longer if the problem is relaxed",
                    "relaxation,cases,longer,most_percent");
    for (uint32_t kind = 0; kind < RELAX_KINDS; kind++)
        fprintf(csv, "%s,%u,%u,%.3f\n", relax_names[kind], count[kind].n, count[kind].longer, count[kind].most);
    result_close(csv);
}
