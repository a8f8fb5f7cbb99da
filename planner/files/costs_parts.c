/* costs_parts.c: reads and writes what codec, system and model files have in common: curves, and how they were
 * measured. */
#include "planner/files/costs_parts.h"
#include "planner/files/write.h"

ESP__FN const esp_cost_point *files_get_points(files_input *in, files_place p, uint32_t *n_out) {
    static const char expected[] = "a list of pairs [size, microseconds], sizes ascending, at least one";
    static const files_range sizes = {0, 1e15, true, "a size > 0"};
    const size_t n = files_get_list(in, p, expected);
    if (!n || n > 1000000) files_expected(in, p, expected);
    esp_cost_point *points = esp__arena_get(in->arena, n * sizeof *points);
    for (size_t i = 0; i < n; i++) {
        const files_place pair = files_item(&p, i), size = files_item(&pair, 0);
        if (!json_is_array(pair.value) || json_array_size(pair.value) != 2)
            files_expected(in, pair, "a pair [size, microseconds]");
        files_get_number(in, size, &sizes, FILES_NEEDED, &points[i].size);
        points[i].ns = files_get_us(in, files_item(&pair, 1), FILES_NEEDED);
        if (i && points[i].size <= points[i - 1].size)
            files_fail(in, size, "expected ascending sizes: %.15g follows %.15g", points[i].size, points[i - 1].size);
    }
    *n_out = (uint32_t)n;
    return points;
}

ESP__FN void files_put_points(esp__text *t, const esp_cost_curve *c) {
    esp__text_add(t, "[");
    for (uint32_t i = 0; i < c->n; i++) {
        esp__text_add(t, i ? ", [" : "[");
        files_put_number(t, c->points[i].size);
        esp__text_add(t, ", ");
        files_put_us(t, c->points[i].ns);
        esp__text_add(t, "]");
    }
    esp__text_add(t, "]");
}

ESP__FN uint32_t files_get_interpolate(files_input *in, const files_place *object) {
    const files_place p = files_at(object, "interpolate");
    return p.value ? files_get_choice(in, p, files_curve_kinds, "\"linear\" or \"log\"") : 0;
}

ESP__FN void files_get_measured(files_input *in, const files_place *root, esp__measured *m) {
    const files_place noisy = files_at(root, "noisy");
    m->ranks = files_get_count(in, files_at(root, "ranks"), &files_range_count, FILES_OPTIONAL);
    m->cores = files_get_count(in, files_at(root, "cores"), &files_range_count, FILES_OPTIONAL);
    m->device = files_get_text(in, files_at(root, "device"), "text", FILES_OPTIONAL);
    m->noisy = files_get_flag(in, noisy);
    if (m->noisy)
        files_warn(in, noisy, "the times were measured on a busy machine: expect plans to be off, or measure again");
}

ESP__FN void files_get_spread(files_input *in, const files_place *root, esp__measured *m) {
    m->has_spread = files_get_number(in, files_at(root, "spread"), &files_range_spread, FILES_OPTIONAL, &m->spread);
}

ESP__FN void files_put_measured(esp__text *t, const esp__measured *m) {
    files_put_text_line(t, "  ", "device", m->device);
    if (m->ranks) esp__text_add(t, "  \"ranks\": %u,\n", m->ranks);
    if (m->cores) esp__text_add(t, "  \"cores\": %u,\n", m->cores);
    if (m->has_spread) {
        esp__text_add(t, "  \"spread\": ");
        files_put_number(t, m->spread);
        esp__text_add(t, ",\n");
    }
    if (m->noisy || m->has_spread) esp__text_add(t, "  \"noisy\": %s,\n", m->noisy ? "true" : "false");
}
