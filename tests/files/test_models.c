/* test_models.c: the models of planner/models: their published sizes and operations, the traces that others published, and
 * that the generator still makes these files. Run in the project's root. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#define ESPRESSO_STATIC
#define ESPRESSO_IMPLEMENTATION
#include "espresso.h"
#include "planner/files/files.c"
#include <math.h>

typedef struct published {
    const char *name;
    uint32_t tensors;
    uint64_t parameters;
    double gmacs;  /* of one image's forward, as torchvision prints ("GFLOPS"); 0: not printed */
    double traced; /* elements by which the published trace differs; NAN: there is none       */
} published;
static const published models[] = {{"vgg16", 32, 138357544, 15.47, 0},      {"resnet50", 161, 25557032, 4.09, 0},
                                   {"resnet101", 314, 44549160, 7.80, 0},   {"ugatit", 148, 670761088, 0, 0},
                                   {"bert-base", 199, 108893186, 0, 4608},  {"gpt2", 148, 124439808, 0, 0},
                                   {"gpt2-medium", 292, 354823168, 0, NAN}, {"lstm", 10, 85974278, 0, 0},
                                   {"vit-b-16", 152, 86567656, 17.56, NAN}, {"llama-1b", 201, 1100048384, 0, NAN}};
enum { MODELS = sizeof models / sizeof *models };

static int warnings;
static void warn(void *user, const char *text) {
    (void)user;
    fprintf(stderr, "%s\n", text);
    warnings++;
}

static void read_model(const char *folder, const char *name, esp__model_file *f) {
    const esp__files_log log = {warn, NULL};
    char path[256];
    snprintf(path, sizeof path, "%s/%s.json", folder, name);
    if (esp__model_read(path, f, &log) != ESP_OK) fail_msg("%s", esp_last_error(NULL));
}

static uint64_t elements(const esp__model_file *f) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < f->model.n_tensors; i++) n += f->model.tensors[i].elements;
    return n;
}

static void test_sizes_are_as_published(void **state) {
    (void)state;
    for (int k = 0; k < MODELS; k++) {
        const published *m = &models[k];
        esp__model_file f;
        double flops = 0;
        read_model("planner/models", m->name, &f);
        assert_string_equal(f.model.name, m->name);
        assert_int_equal(f.model.n_tensors, m->tensors);
        assert_int_equal(elements(&f), m->parameters);
        assert_int_equal(warnings, 0);
        assert_non_null(f.source);
        assert_non_null(f.device);
        assert_true(f.batch > 0 && f.model.forward_ns > 0 && f.model.update_ns > 0);
        for (uint32_t i = 0; i < f.model.n_tensors; i++) {
            assert_true(f.model.tensors[i].compute_ns >= 0);
            assert_true(f.more[i].n_shape > 0 &&
                        f.more[i].flops >= 0); /* the reader checks that shapes make elements */
            flops += f.more[i].flops;
        }
        /* backward has twice forward's operations, but for the first layer; a multiply and an add are two */
        if (m->gmacs > 0 && fabs(flops / (double)f.batch / 4e9 - m->gmacs) > 0.02 * m->gmacs)
            fail_msg("%s: %g GMAC an image, published are %g", m->name, flops / (double)f.batch / 4e9, m->gmacs);
        esp__model_free(&f);
    }
}

/* The planner takes them as they are. */
static void test_models_are_valid(void **state) {
    (void)state;
    for (int k = 0; k < MODELS; k++) {
        esp__arena arena = {0};
        esp__problem p = {0};
        jmp_buf failed;
        esp__model_file f;
        read_model("planner/models", models[k].name, &f);
        if (setjmp(failed)) fail_msg("out of memory");
        arena.on_failure = &failed;
        p.arena = &arena, p.model = &f.model, p.n_tensors = f.model.n_tensors;
        if (esp__check_model(&p) != ESP_OK) fail_msg("%s", esp_last_error(NULL));
        esp__arena_free(&arena);
        esp__model_free(&f);
    }
}

/* Tensor for tensor what the published traces have, where those are there. */
static void test_published_traces_have_the_same_tensors(void **state) {
    (void)state;
    if (access("../shared/models/vgg16.json", R_OK) != 0) {
        print_message("../shared/models is not there: nothing to compare with\n");
        skip();
    }
    for (int k = 0; k < MODELS; k++) {
        esp__model_file ours, theirs;
        if (isnan(models[k].traced)) continue;
        read_model("planner/models", models[k].name, &ours);
        read_model("../shared/models", models[k].name, &theirs);
        assert_int_equal(ours.model.n_tensors, theirs.model.n_tensors);
        assert_int_equal(elements(&theirs) - elements(&ours), (uint64_t)models[k].traced);
        for (uint32_t i = 0; i < ours.model.n_tensors; i++) {
            const esp_plan_tensor *a = &ours.model.tensors[i], *b = &theirs.model.tensors[i];
            const char *fused = strstr(b->name, "dense_act."); /* BERT-base: the same layer by another name */
            const size_t same = fused ? (size_t)(fused - b->name) + strlen("dense") : strlen(b->name);
            if (strncmp(a->name, b->name, same) != 0) fail_msg("%s: %s, %s", models[k].name, a->name, b->name);
            if (strcmp(a->name, "bert.embeddings.word_embeddings.weight") != 0)
                assert_int_equal(a->elements, b->elements);
        }
        esp__model_free(&ours);
        esp__model_free(&theirs);
    }
}

static void test_generator_makes_these_files(void **state) {
    (void)state;
    if (system("command -v python3 >/dev/null 2>&1") != 0) {
        print_message("python3 is not there: the generator is not run\n");
        skip();
    }
    assert_int_equal(system("python3 planner/models/generate.py --check"), 0);
    /* and --check would notice */
    assert_int_not_equal(system("python3 planner/models/generate.py --check --batch 3 lstm >/dev/null"), 0);
    assert_int_not_equal(system("python3 planner/models/generate.py nosuch 2>/dev/null"), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_are_as_published),
        cmocka_unit_test(test_models_are_valid),
        cmocka_unit_test(test_published_traces_have_the_same_tensors),
        cmocka_unit_test(test_generator_makes_these_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
