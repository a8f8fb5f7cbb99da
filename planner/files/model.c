/* model.c: reads and writes model files: tensors in backward order, with their times. */
#include "planner/files/costs_parts.h"
#include "planner/files/keys.h"

/* ---- reading --------------------------------------------------------------------------------------------------- */
/* Only checks the key "shape", because the planner needs nothing but the number of elements. */
static void files_check_shape(files_input *in, const files_place *tensor, uint64_t elements) {
    const files_place p = files_at(tensor, "shape");
    double product = 1;
    if (!p.value) return;
    const size_t n = files_get_list(in, p, "a list of sizes");
    if (n > 16) files_fail(in, p, "expected at most 16 sizes, found %zu", n);
    for (size_t i = 0; i < n; i++) {
        uint64_t size = 0;
        files_get_whole(in, files_item(&p, i), &files_range_elements, FILES_NEEDED, &size);
        product *= (double)size;
    }
    if (product != (double)elements)
        files_fail(in, p, "expected sizes whose product is the tensor's %llu elements, found a product of %.15g",
                   (unsigned long long)elements, product);
}

static void files_read_matrix(files_input *in, const files_place *tensor, esp_plan_tensor *t) {
    const files_place rows = files_at(tensor, "rows"), cols = files_at(tensor, "cols");
    files_get_whole(in, rows, &files_range_elements, FILES_OPTIONAL, &t->rows);
    files_get_whole(in, cols, &files_range_elements, FILES_OPTIONAL, &t->cols);
    if (!t->rows != !t->cols)
        files_fail(in, t->rows ? rows : cols, "expected \"rows\" and \"cols\" together: \"%s\" is missing",
                   t->rows ? "cols" : "rows");
    if (t->rows && (double)t->rows * (double)t->cols != (double)t->elements)
        files_fail(in, rows, "expected rows * cols to be the tensor's %llu elements, found %llu * %llu",
                   (unsigned long long)t->elements, (unsigned long long)t->rows, (unsigned long long)t->cols);
}

/* Reads how the tensor is divided among ranks. Only the planner can check whether that is possible, because it knows
 * the system. */
static void files_read_shard(files_input *in, const files_place *tensor, esp_plan_tensor *t) {
    static const char expected[] = "\"any\", \"flat\" or levels such as \"intra,inter\"";
    const files_place p = files_at(tensor, "shard");
    t->shard = files_get_text(in, p, expected, FILES_OPTIONAL);
    if (t->shard && (!*t->shard || strspn(t->shard, "abcdefghijklmnopqrstuvwxyz+-,") != strlen(t->shard)))
        files_expected(in, p, expected);
}

static void files_read_tensor(files_input *in, const files_place *p, esp_plan_tensor *t) {
    static const char keep_text[] = "\"fp32\", a codec or an option as text";
    static const files_range flops = {0, 1e24, false, "a number of operations >= 0"};
    files_object(in, *p, files_tensor_keys, "an object { \"name\": ..., \"elements\": ..., \"compute_us\": ... }");
    const files_place keep = files_at(p, "keep");
    t->name = files_get_word(in, files_at(p, "name"), "a name");
    files_get_whole(in, files_at(p, "elements"), &files_range_elements, FILES_NEEDED, &t->elements);
    t->compute_ns = files_get_us(in, files_at(p, "compute_us"), FILES_NEEDED);
    t->keep = files_get_text(in, keep, keep_text, FILES_OPTIONAL);
    if (t->keep && (!*t->keep || strpbrk(t->keep, "\n\r#"))) files_expected(in, keep, keep_text);
    files_read_shard(in, p, t);
    files_read_matrix(in, p, t);
    files_check_shape(in, p, t->elements);
    double unused; /* "flops" and "spread" only inform readers */
    files_get_number(in, files_at(p, "flops"), &flops, FILES_OPTIONAL, &unused);
    files_get_number(in, files_at(p, "spread"), &files_range_spread, FILES_OPTIONAL, &unused);
}

static void files_read_tensors(files_input *in, const files_place *p, esp__model_file *f) {
    static const char expected[] = "a list of at least one tensor, in the order of the backward pass";
    const size_t n = files_get_list(in, *p, expected);
    double total_ns = 0, total = 0;
    if (!n) files_expected(in, *p, expected);
    if (n > 1u << 24) files_fail(in, *p, "expected at most 16777216 tensors, found %zu", n);
    esp_plan_tensor *tensors = esp__arena_get(in->arena, n * sizeof *tensors);
    for (size_t i = 0; i < n; i++) {
        const files_place at = files_item(p, i);
        files_read_tensor(in, &at, &tensors[i]);
        total_ns += tensors[i].compute_ns;
        total += (double)tensors[i].elements;
    }
    uint32_t first = 0, second = esp__same_names(in->arena, tensors, (uint32_t)n, &first);
    if (second < n) {
        const files_place at = files_item(p, second);
        files_fail(in, files_at(&at, "name"), "\"%s\" is already tensors[%u]: expected each name once",
                   tensors[second].name, first);
    }
    if (total > 1e15) files_fail(in, *p, "expected at most 1e15 elements in all, found %.4g", total);
    if (total_ns > 1e15) files_fail(in, *p, "expected at most 1e12 microseconds in all, found %.4g", total_ns / 1e3);
    f->model.n_tensors = (uint32_t)n;
    f->model.tensors = tensors;
}

/* Checks the key "parameters", the number of elements of all tensors. If it differs, tensors are missing in the
 * file. */
static void files_check_parameters(files_input *in, const files_place *root, const esp__model_file *f) {
    const files_place p = files_at(root, "parameters");
    uint64_t stated, total = 0;
    if (!files_get_whole(in, p, &files_range_elements, FILES_OPTIONAL, &stated)) return;
    for (uint32_t i = 0; i < f->model.n_tensors; i++) total += f->model.tensors[i].elements;
    if (stated != total)
        files_fail(in, p, "expected the sum of all tensors' elements, %llu, found %llu", (unsigned long long)total,
                   (unsigned long long)stated);
}

ESP__FN void files_read_model(files_input *in, const files_place *root, void *out) {
    static const char *const dtypes[] = {"f32", NULL};
    esp__model_file *f = (esp__model_file *)out;
    uint64_t unused;
    files_get_version(in, root, "model");
    files_object(in, *root, files_model_keys, "an object");
    const files_place dtype = files_at(root, "dtype"), tensors = files_at(root, "tensors");
    f->model.struct_size = sizeof f->model;
    f->model.name = files_get_line(in, files_at(root, "model"), "the model's name");
    f->source = files_get_text(in, files_at(root, "source"), "text", FILES_OPTIONAL);
    files_get_text(in, files_at(root, "forward_is"), "text", FILES_OPTIONAL);
    files_get_whole(in, files_at(root, "batch"), &files_range_elements, FILES_OPTIONAL, &unused);
    if (dtype.value) files_get_choice(in, dtype, dtypes, "\"f32\", the only type that is planned for");
    f->model.forward_ns = files_get_us(in, files_at(root, "forward_us"), FILES_NEEDED);
    f->model.update_ns = files_get_us(in, files_at(root, "update_us"), FILES_OPTIONAL);
    files_read_tensors(in, &tensors, f);
    files_check_parameters(in, root, f);
    f->steps = files_get_count(in, files_at(root, "steps"), &files_range_count, FILES_OPTIONAL);
    files_get_measured(in, root, &f->measured);
}

FILES_KIND(model)
