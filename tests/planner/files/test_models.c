/* test_models.c checks the models of planner/models: their published sizes and operations, their tensors against
 * published traces, and that the generator still writes the same files. It must be started in the project's root. */
#include "tests/lib/test.h"
#include <fnmatch.h>
#include "planner/problem/problem.h"
#include "planner/files/read.h"

typedef struct published {
    const char *name;
    uint32_t tensors;
    uint64_t parameters;
    double gmacs; /* billions of multiply-adds per image, or 0 if unknown */
    /* A hash of the names and sizes of tensors in a trace that the Espresso authors published (EuroSys 2023), or 0. */
    uint64_t trace;
} published;
static const published models[] = {{"vgg16", 32, 138357544, 15.47, 0x6b51e5876f1ac967u},
                                   {"resnet50", 161, 25557032, 4.09, 0xa84ef3f89453d6cfu},
                                   {"resnet101", 314, 44549160, 7.80, 0x8d684601747f4e76u},
                                   {"ugatit", 148, 670761088, 0, 0x8a78d6d63159b7bbu},
                                   {"bert-base", 199, 108893186, 0, 0x69b3ab9b905249adu},
                                   {"gpt2", 148, 124439808, 0, 0x486d027b3c864754u},
                                   {"gpt2-medium", 292, 354823168, 0, 0},
                                   {"lstm", 10, 85974278, 0, 0x7e3658e0d40bff6du},
                                   {"vit-b-16", 152, 86567656, 17.56, 0},
                                   {"llama-1b", 201, 1100048384, 0, 0}};
enum { MODELS = sizeof models / sizeof *models };

static int warnings;
static void warn(void *user, const char *text) {
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

static double flops_of_an_image(const char *name) {
    char path[256];
    snprintf(path, sizeof path, "planner/models/%s.json", name);
    json_t *root = json_load_file(path, 0, NULL), *tensor;
    size_t i;
    double flops = 0;
    json_array_foreach(json_object_get(root, "tensors"), i, tensor) {
        assert_true(json_is_integer(json_object_get(tensor, "flops")));
        flops += json_number_value(json_object_get(tensor, "flops"));
    }
    const double batch = json_number_value(json_object_get(root, "batch"));
    assert_true(batch > 0);
    json_decref(root);
    return flops / batch;
}

TEST(test_sizes_are_as_published) {
    for (int k = 0; k < MODELS; k++) {
        const published *m = &models[k];
        esp__model_file f;
        read_model("planner/models", m->name, &f);
        assert_string_equal(f.model.name, m->name);
        assert_int_equal(f.model.n_tensors, m->tensors);
        assert_int_equal(elements(&f), m->parameters);
        assert_int_equal(warnings, 0);
        assert_non_null(f.source);
        assert_non_null(f.measured.device);
        assert_true(f.model.forward_ns > 0 && f.model.update_ns > 0);
        for (uint32_t i = 0; i < f.model.n_tensors; i++) assert_true(f.model.tensors[i].compute_ns >= 0);
        /* A multiply and an add are two operations. Backward has twice as many as forward, except in the first
         * layer. */
        const double gmacs = flops_of_an_image(m->name) / 4e9;
        if (m->gmacs > 0 && fabs(gmacs - m->gmacs) > 0.02 * m->gmacs)
            fail_msg("%s: %g GMAC an image, published are %g", m->name, gmacs, m->gmacs);
        esp__model_free(&f);
    }
}

static void check_model(const char *name) {
    esp__arena arena = {0};
    esp__problem p = {0};
    jmp_buf failed;
    esp__model_file f;
    read_model("planner/models", name, &f);
    if (setjmp(failed)) fail_msg("out of memory");
    arena.on_failure = &failed;
    p.arena = &arena, p.model = &f.model, p.n_tensors = f.model.n_tensors;
    if (esp__check_model(&p) != ESP_OK) fail_msg("%s", esp_last_error(NULL));
    esp__arena_free(&arena);
    esp__model_free(&f);
}

TEST(test_models_are_valid) {
    for (int k = 0; k < MODELS; k++) check_model(models[k].name);
}

TEST(test_published_traces_have_the_same_tensors) {
    int traced = 0;
    for (int k = 0; k < MODELS; k++) {
        const int bert = !strcmp(models[k].name, "bert-base");
        esp__model_file f;
        uint64_t hash = ESP__HASH0;
        if (!models[k].trace) continue;
        read_model("planner/models", models[k].name, &f);
        for (uint32_t i = 0; i < f.model.n_tensors; i++) {
            const char *name = f.model.tensors[i].name, *dense = bert ? strstr(name, "intermediate.dense.") : NULL;
            const size_t head = dense ? (size_t)(dense - name) + strlen("intermediate.dense") : strlen(name);
            const int words = bert && !strcmp(name, "bert.embeddings.word_embeddings.weight");
            char line[256];
            const int n = snprintf(line, sizeof line, "%.*s%s%s %llu\n", (int)head, name, dense ? "_act" : "",
                                   name + head, (unsigned long long)f.model.tensors[i].elements + (words ? 4608 : 0));
            hash = esp__hash64(hash, line, (uint64_t)n);
        }
        if (hash != models[k].trace) fail_msg("%s: other tensors than in the published trace", models[k].name);
        traced++;
        esp__model_free(&f);
    }
    assert_int_equal(traced, 7);
}

TEST(test_generator_makes_these_files) {
    if (system("command -v python3 >/dev/null 2>&1") != 0)
        test_skip("python3 is not there: the generator of models is not run");
    assert_int_equal(system("python3 planner/models/generate.py --check"), 0);
    assert_int_not_equal(system("python3 planner/models/generate.py --check --batch 3 lstm >/dev/null"), 0);
    assert_int_not_equal(system("python3 planner/models/generate.py nosuch 2>/dev/null"), 0);
}
