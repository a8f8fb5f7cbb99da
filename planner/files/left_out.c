/* left_out.c: stands in for the readers and writers where there was no jansson at build time. */

static esp_status files_left_out(const char *name) {
    return esp__fail(NULL, ESP_E_UNSUPPORTED,
                     "%s: this espresso was built without jansson and has no JSON: install jansson's headers (Debian: "
                     "libjansson-dev) and build it again, or use built-in names",
                     name);
}

ESP__FN esp_status esp__model_read(const char *path, esp__model_file *out, const esp__files_log *log) {
    (void)out, (void)log;
    return files_left_out(path);
}
ESP__FN esp_status esp__gc_read(const char *path, esp__gc_file *out, const esp__files_log *log) {
    (void)out, (void)log;
    return files_left_out(path);
}
ESP__FN esp_status esp__system_read(const char *path, esp__system_file *out, const esp__files_log *log) {
    (void)out, (void)log;
    return files_left_out(path);
}
ESP__FN esp_status esp__strategy_json_print(const char *name, const char *text, const esp_plan *plan, esp__text *out) {
    (void)text, (void)plan, (void)out;
    return files_left_out(name);
}
ESP__FN esp_status esp__strategy_json_read(const char *path, esp__text *out, const esp__files_log *log) {
    (void)out, (void)log;
    return files_left_out(path);
}
/* nothing was read, so there is nothing to free */
ESP__FN void esp__model_free(esp__model_file *f) { memset(f, 0, sizeof *f); }
ESP__FN void esp__gc_free(esp__gc_file *f) { memset(f, 0, sizeof *f); }
ESP__FN void esp__system_free(esp__system_file *f) { memset(f, 0, sizeof *f); }
