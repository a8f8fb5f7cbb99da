/* model_print.h prints a planner's model in the format that esp__model_parse reads. Only tests need it. Include
 * planner/files/files.h first. */
#ifndef ESPRESSO_TESTS_FUZZ_MODEL_PRINT_H
#define ESPRESSO_TESTS_FUZZ_MODEL_PRINT_H
#include "espresso_impl/base/json.h"
#include "planner/files/write.h"

static void model_put_tensor(esp__text *t, const esp_plan_tensor *x) {
    esp__text_add(t, "    {\"name\": ");
    esp__json_string(t, x->name);
    esp__text_add(t, ", \"elements\": %llu, \"compute_us\": ", (unsigned long long)x->elements);
    files_put_us(t, x->compute_ns);
    if (x->keep) {
        esp__text_add(t, ", \"keep\": ");
        esp__json_string(t, x->keep);
    }
    if (x->rows)
        esp__text_add(t, ", \"rows\": %llu, \"cols\": %llu", (unsigned long long)x->rows, (unsigned long long)x->cols);
    esp__text_add(t, "},\n");
}

static void model_put_count(esp__text *t, const char *key, uint32_t n) {
    if (n) esp__text_add(t, "  \"%s\": %u,\n", key, n);
}

static void model_print(const esp__model_file *f, esp__text *t) {
    uint64_t parameters = 0;
    esp__text_add(t, "{\n  \"espresso\": 1,\n");
    files_put_text_line(t, "  ", "model", f->model.name);
    files_put_text_line(t, "  ", "source", f->source);
    files_put_text_line(t, "  ", "device", f->measured.device);
    for (uint32_t i = 0; i < f->model.n_tensors; i++) parameters += f->model.tensors[i].elements;
    esp__text_add(t, "  \"parameters\": %llu,\n", (unsigned long long)parameters);
    files_put_us_line(t, "  ", "forward_us", f->model.forward_ns);
    if (f->model.update_ns != 0) files_put_us_line(t, "  ", "update_us", f->model.update_ns);
    esp__text_add(t, "  \"dtype\": \"f32\",\n");
    model_put_count(t, "steps", f->steps);
    model_put_count(t, "ranks", f->measured.ranks);
    model_put_count(t, "cores", f->measured.cores);
    if (f->measured.noisy) esp__text_add(t, "  \"noisy\": true,\n");
    esp__text_add(t, "  \"tensors\": [\n");
    for (uint32_t i = 0; i < f->model.n_tensors; i++) model_put_tensor(t, &f->model.tensors[i]);
    files_put_no_comma(t);
    esp__text_add(t, "  ]\n}\n");
}
#endif
