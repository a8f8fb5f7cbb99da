/* system.c: reads and writes system files: machines, their devices and links. */
#include "planner/files/costs_parts.h"
#include "planner/files/keys.h"
#include "planner/files/write.h"
#include <math.h>

static const char *const files_alpha_kinds[] = {"collective", "hop", NULL};
static const files_range files_range_index = {0, 4294967295.0, false, "a whole number from 0 to 4294967295"};

/* ---- reading --------------------------------------------------------------------------------------------------- */
/* Reads the curve "gap" (how long a collective occupies its link) or "core" (how long it occupies a processor core). */
static void files_read_kept(files_input *in, const files_place *table, const char *key, uint32_t log_size,
                            esp_cost_curve *curve) {
    const files_place p = files_at(table, key);
    if (!p.value) return;
    curve->log_size = log_size;
    curve->points = files_get_points(in, p, &curve->n);
}

static void files_read_tables(files_input *in, const files_place *object, esp_plan_link *link) {
    const files_place p = files_at(object, "tables");
    if (!p.value) return;
    files_object(in, p, files_coll_keys, "an object { \"allreduce\": { \"points\": [...] }, ... }");
    for (int c = 0; files_coll_keys[c]; c++) {
        const files_place table = files_at(&p, files_coll_keys[c]);
        if (!table.value) continue;
        files_object(in, table, files_table_keys, "an object { \"points\": [[bytes, us], ...] }");
        esp_cost_curve *curve = &link->table[c + 1];
        curve->log_size = files_get_interpolate(in, &table);
        curve->points = files_get_points(in, files_at(&table, "points"), &curve->n);
        files_read_kept(in, &table, "gap", curve->log_size, &link->gap[c + 1]);
        files_read_kept(in, &table, "core", curve->log_size, &link->core[c + 1]);
    }
}

/* Reads a rate, or a list of one for each of `groups`, and lowers *slowest to the least. */
static esp__rates files_read_rates(files_input *in, files_place p, uint32_t groups, double *slowest) {
    static const files_range speed = {0, 1e12, true, "a number of bytes per microsecond > 0"};
    const bool list = json_is_array(p.value);
    const uint32_t n = list ? groups : 1;
    double *rate = esp__arena_get(in->arena, n * sizeof *rate);
    if (list && json_array_size(p.value) != n)
        files_fail(in, p, "expected a rate, or one for each of %u, found %zu", n, json_array_size(p.value));
    for (uint32_t i = 0; i < n; i++) {
        files_get_number(in, list ? files_item(&p, i) : p, &speed, FILES_NEEDED, &rate[i]);
        if (!(*slowest <= rate[i])) *slowest = rate[i];
    }
    return (esp__rates){rate, n};
}

/* All groups wait for the slowest. They send as much as they receive, so the slower direction counts. */
static void files_read_link(files_input *in, const files_place *root, const char *key, uint32_t ranks,
                            const char *between, esp_plan_link *link, esp__directions *rates) {
    const files_place p = files_at(root, key);
    if (!p.value && ranks <= 1) return;
    if (!p.value)
        files_fail(in, p, "missing: expected the links between %s, { \"alpha_us\": ..., \"bytes_per_us\": ... }",
                   between);
    files_object(in, p, files_link_keys, "an object { \"alpha_us\": ..., \"bytes_per_us\": ... }");
    const files_place is = files_at(&p, "alpha_is");
    link->alpha_ns = files_get_us(in, files_at(&p, "alpha_us"), FILES_NEEDED);
    if (is.value) link->alpha_is = files_get_choice(in, is, files_alpha_kinds, "\"collective\" or \"hop\"");
    link->bytes_per_us = NAN;
    rates->up = files_read_rates(in, files_at(&p, "bytes_per_us"), ranks, &link->bytes_per_us);
    const files_place down = files_at(&p, "down_bytes_per_us");
    if (down.value) rates->down = files_read_rates(in, down, ranks, &link->bytes_per_us);
    files_read_tables(in, &p, link);
}

static uint32_t files_read_devices(files_input *in, files_place p) {
    static const char expected[] = "a list of the devices that can compress: \"cpu\", \"gpu\" or both";
    const size_t n = files_get_list(in, p, expected);
    uint32_t devices = 0;
    if (!n) files_expected(in, p, expected);
    for (size_t i = 0; i < n; i++) {
        const files_place device = files_item(&p, i);
        const uint32_t bit = 1u << files_get_choice(in, device, files_device_names, "\"cpu\" or \"gpu\"");
        if (devices & bit) files_fail(in, device, "expected each device once");
        devices |= bit;
    }
    return devices;
}

static void files_read_dispatch(files_input *in, const files_place *root, esp_plan_system *s) {
    const files_place p = files_at(root, "dispatch_us");
    if (!p.value) return;
    files_object(in, p, files_lane_keys, "an object { \"cpu\": ..., \"intra\": ..., \"inter\": ... }");
    for (int lane = 0; files_lane_keys[lane]; lane++)
        s->dispatch_ns[lane] = files_get_us(in, files_at(&p, files_lane_keys[lane]), FILES_OPTIONAL);
}

/* Reads "racks", the number of racks. Each rack then has `machines` machines. */
static void files_read_racks(files_input *in, const files_place *root, esp__system_file *f) {
    esp_plan_system *s = &f->system;
    const files_place racks = files_at(root, "racks");
    if (!racks.value) return;
    const uint32_t n = files_get_count(in, racks, &files_range_count, FILES_NEEDED);
    if ((uint64_t)s->machines * s->ranks_per_machine * n > 1u << 24)
        files_fail(in, *root, "expected at most 16777216 ranks, found %u racks of %u machines of %u", n, s->machines,
                   s->ranks_per_machine);
    s->n_outer = 1;
    s->outer[0].size = n;
    files_read_link(in, root, "outer", n, "racks", &s->outer[0].link, &f->rates[2]);
}

static void files_read_ranks(files_input *in, const files_place *root, esp_plan_system *s) {
    const files_place per_rank = files_at(root, "cores_per_rank");
    s->machines = files_get_count(in, files_at(root, "machines"), &files_range_count, FILES_NEEDED);
    s->ranks_per_machine = files_get_count(in, files_at(root, "ranks_per_machine"), &files_range_count, FILES_NEEDED);
    if ((uint64_t)s->machines * s->ranks_per_machine > 1u << 24)
        files_fail(in, *root, "expected at most 16777216 ranks, found %u machines of %u", s->machines,
                   s->ranks_per_machine);
    s->devices = files_read_devices(in, files_at(root, "devices"));
    s->cores_per_rank = files_get_count(in, per_rank, &files_range_index, FILES_OPTIONAL);
    if (s->cores_per_rank > 3) files_fail(in, per_rank, "expected 0 to 3, found %u", s->cores_per_rank);
}

ESP__FN void files_read_system(files_input *in, const files_place *root, void *out) {
    static const files_range speed = {0, 1e12, false, "a number of bytes per microsecond >= 0"};
    esp__system_file *f = (esp__system_file *)out;
    esp_plan_system *s = &f->system;
    files_get_version(in, root, "system");
    files_object(in, *root, files_system_keys, "an object");
    const files_place flat = files_at(root, "flat");
    s->struct_size = sizeof *s;
    s->name = files_get_line(in, files_at(root, "system"), "the system's name");
    f->source = files_get_text(in, files_at(root, "source"), "text", FILES_OPTIONAL);
    f->accelerator = files_get_text(in, files_at(root, "accelerator"), "text", FILES_OPTIONAL);
    files_read_ranks(in, root, s);
    files_read_link(in, root, "intra", s->ranks_per_machine, "the ranks of a machine", &s->intra, &f->rates[0]);
    files_read_link(in, root, "inter", s->machines, "machines", &s->inter, &f->rates[1]);
    files_read_racks(in, root, f);
    if (flat.value) {
        files_object(in, flat, files_flat_keys, "an object { \"tables\": { ... } }");
        files_read_tables(in, &flat, &s->flat);
    }
    files_get_number(in, files_at(root, "host_bytes_per_us"), &speed, FILES_OPTIONAL, &s->host_bytes_per_us);
    s->pack_ns = files_get_us(in, files_at(root, "pack_us"), FILES_OPTIONAL);
    files_get_number(in, files_at(root, "pack_bytes_per_us"), &speed, FILES_OPTIONAL, &s->pack_bytes_per_us);
    files_get_measured(in, root, &f->measured);
    files_get_spread(in, root, &f->measured);
    files_read_dispatch(in, root, s);
    f->cpu_workers = files_get_count(in, files_at(root, "cpu_workers"), &files_range_index, FILES_OPTIONAL);
}

FILES_KIND(system)

/* ---- writing ---------------------------------------------------------------------------------------------------- */
static int files_has_tables(const esp_plan_link *link) {
    for (int c = 0; files_coll_keys[c]; c++)
        if (link->table[c + 1].n) return 1;
    return 0;
}

static void files_put_kept(esp__text *t, const char *key, const esp_cost_curve *curve) {
    if (!curve->n) return;
    esp__text_add(t, ", \"%s\": ", key);
    files_put_points(t, curve);
}

static void files_put_tables(esp__text *t, const esp_plan_link *link) {
    if (!files_has_tables(link)) return;
    esp__text_add(t, "    \"tables\": {\n");
    for (int c = 0; files_coll_keys[c]; c++) {
        const esp_cost_curve *curve = &link->table[c + 1];
        if (!curve->n) continue;
        esp__text_add(t, "      \"%s\": {\"interpolate\": \"%s\", \"points\": ", files_coll_keys[c],
                      files_curve_kinds[curve->log_size != 0]);
        files_put_points(t, curve);
        files_put_kept(t, "gap", &link->gap[c + 1]);
        files_put_kept(t, "core", &link->core[c + 1]);
        esp__text_add(t, "},\n");
    }
    files_put_no_comma(t);
    esp__text_add(t, "    },\n");
}

static void files_put_rates(esp__text *t, const esp__rates *r) {
    for (uint32_t i = 0; i < r->n; i++) {
        esp__text_add(t, i ? ", " : r->n > 1 ? "[" : "");
        files_put_number(t, r->rate[i]);
    }
    esp__text_add(t, r->n > 1 ? "],\n" : ",\n");
}

/* Writes nothing for a link without a speed, because the system does not have it; and one rate if the link's has
 * changed since its directions were read. */
static void files_put_link(esp__text *t, const char *key, const esp_plan_link *link, const esp__directions *read) {
    const esp__directions one = {.up = {&link->bytes_per_us, 1}};
    double slowest = INFINITY;
    for (uint32_t i = 0; i < read->up.n; i++) slowest = fmin(slowest, read->up.rate[i]);
    for (uint32_t i = 0; i < read->down.n; i++) slowest = fmin(slowest, read->down.rate[i]);
    if (slowest != link->bytes_per_us) read = &one;
    if (!(link->bytes_per_us > 0)) return;
    esp__text_add(t, "  \"%s\": {\n", key);
    files_put_us_line(t, "    ", "alpha_us", link->alpha_ns);
    esp__text_add(
        t, "    \"alpha_is\": \"%s\",\n    \"bytes_per_us\": ", files_alpha_kinds[link->alpha_is == ESP_ALPHA_HOP]);
    files_put_rates(t, &read->up);
    if (read->down.n) esp__text_add(t, "    \"down_bytes_per_us\": "), files_put_rates(t, &read->down);
    files_put_tables(t, link);
    files_put_no_comma(t);
    esp__text_add(t, "  },\n");
}

static void files_put_dispatch(esp__text *t, const esp_plan_system *s) {
    int any = 0;
    const int lanes = ESP__LANE_OUTER + (int)s->n_outer;
    for (int lane = 0; lane < lanes; lane++) any |= s->dispatch_ns[lane] > 0;
    if (!any) return;
    esp__text_add(t, "  \"dispatch_us\": {");
    for (int lane = 0; lane < lanes; lane++) {
        esp__text_add(t, "%s\"%s\": ", lane ? ", " : "", files_lane_keys[lane]);
        files_put_us(t, s->dispatch_ns[lane]);
    }
    esp__text_add(t, "},\n");
}

ESP__FN void esp__system_print(const esp__system_file *f, esp__text *t) {
    const esp_plan_system *s = &f->system;
    esp__text_add(t, "{\n  \"espresso\": 1,\n");
    files_put_text_line(t, "  ", "system", s->name);
    files_put_text_line(t, "  ", "source", f->source);
    files_put_measured(t, &f->measured);
    esp__text_add(t, "  \"machines\": %u,\n  \"ranks_per_machine\": %u,\n  \"devices\": [%s%s%s],\n", s->machines,
                  s->ranks_per_machine, s->devices & 1u << ESP_ON_CPU ? "\"cpu\"" : "", s->devices == 3 ? ", " : "",
                  s->devices & 1u << ESP_ON_GPU ? "\"gpu\"" : "");
    files_put_text_line(t, "  ", "accelerator", f->accelerator);
    files_put_link(t, "intra", &s->intra, &f->rates[0]);
    files_put_link(t, "inter", &s->inter, &f->rates[1]);
    if (s->n_outer) {
        files_put_link(t, "outer", &s->outer[0].link, &f->rates[2]);
        esp__text_add(t, "  \"racks\": %u,\n", s->outer[0].size);
    }
    if (files_has_tables(&s->flat)) {
        esp__text_add(t, "  \"flat\": {\n");
        files_put_tables(t, &s->flat);
        files_put_no_comma(t);
        esp__text_add(t, "  },\n");
    }
    files_put_dispatch(t, s);
    esp__text_add(t, "  \"host_bytes_per_us\": ");
    files_put_number(t, s->host_bytes_per_us);
    esp__text_add(t, ",\n");
    files_put_us_line(t, "  ", "pack_us", s->pack_ns);
    esp__text_add(t, "  \"pack_bytes_per_us\": ");
    files_put_number(t, s->pack_bytes_per_us);
    esp__text_add(t, ",\n  \"cores_per_rank\": %u", s->cores_per_rank);
    if (f->cpu_workers) esp__text_add(t, ",\n  \"cpu_workers\": %u", f->cpu_workers);
    esp__text_add(t, "\n}\n");
}

ESP__FN esp_status esp__system_write(const char *path, const esp__system_file *f) {
    esp__text t = {0};
    esp__system_print(f, &t);
    return files_write(path, &t);
}
