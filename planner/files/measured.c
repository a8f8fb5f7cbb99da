/* measured.c: how a file's figures were measured: by how many ranks at once, on how many cores, and with which spread. Must not
 * know what the figures mean. */

static const files_range files_range_measured_spread = {0, 1e12, 0, "a spread >= 0, as a share of the median"};

/* Noisy figures are used, with a warning. */
static void files_get_measured(files_input *in, const files_place *root, esp__measured *m) {
    const files_place ranks = files_at(root, "ranks"), cores = files_at(root, "cores"),
                      spread = files_at(root, "spread"), noisy = files_at(root, "noisy"),
                      device = files_at(root, "device");
    m->ranks = files_get_count(in, &ranks, &files_range_count, FILES_OPTIONAL);
    m->cores = files_get_count(in, &cores, &files_range_count, FILES_OPTIONAL);
    m->has_spread = files_get_number(in, &spread, &files_range_measured_spread, FILES_OPTIONAL, &m->spread);
    m->noisy = files_get_flag(in, &noisy, 0);
    m->device = files_get_text(in, &device, "text", FILES_OPTIONAL);
    if (!m->noisy) return;
    char text[ESP__ERROR_MAX];
    snprintf(text, sizeof text,
             "%.1000s:%d: noisy: the times were measured on a busy machine: expect plans to be off, or measure again",
             in->name, files_place_line(in, &noisy));
    files_input_warn(in, text);
}

/* Writes only what is known. */
static void files_put_measured(esp__text *t, const esp__measured *m) {
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
