/* curve.c: time as a function of size, as lists [[size, microseconds], ...]. Must not know what was timed. */

static const char *const files_curve_kinds[] = {"linear", "log", NULL};

static const esp_cost_point *files_get_points(files_input *in, const files_place *p, uint32_t *n_out) {
    static const char expected[] = "a list of pairs [size, microseconds], sizes ascending, at least one";
    size_t n = files_get_list(in, p, expected);
    if (!n || n > 1000000) files_input_expected(in, p, expected);
    esp_cost_point *points = esp__arena_get(in->arena, n * sizeof *points);
    for (size_t i = 0; i < n; i++) {
        const files_place pair = files_item(p, i);
        if (!json_is_array(pair.value) || json_array_size(pair.value) != 2)
            files_input_expected(in, &pair, "a pair [size, microseconds]");
        const files_place size = files_item(&pair, 0), us = files_item(&pair, 1);
        files_get_number(in, &size, &files_range_size, FILES_NEEDED, &points[i].size);
        points[i].ns = files_get_us(in, &us, FILES_NEEDED);
        if (i && points[i].size <= points[i - 1].size)
            files_input_fail(in, &size, "expected ascending sizes: %.15g follows %.15g", points[i].size,
                             points[i - 1].size);
    }
    *n_out = (uint32_t)n;
    return points;
}

/* "linear" if the key is missing. */
static uint32_t files_get_interpolate(files_input *in, const files_place *object) {
    const files_place p = files_at(object, "interpolate");
    return p.value ? files_get_choice(in, &p, files_curve_kinds, "\"linear\" or \"log\"") : 0;
}

/* [[size, us], ...] */
static void files_put_points(esp__text *t, const esp_cost_curve *c) {
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
