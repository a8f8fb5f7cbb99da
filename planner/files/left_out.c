/* left_out.c: stands in for the readers and writers where there was no jansson at build time. */

static esp_status files_files_left_out(const char *name) {
    return esp__fail(NULL, ESP_E_UNSUPPORTED,
                     "%s: this espresso was built without jansson and has no JSON: install jansson's headers (Debian: "
                     "libjansson-dev) and build it again, or use built-in names",
                     name);
}

ESP__FN esp_status esp__model_read(const char *path, esp__model_file *out, const esp__files_log *log) {
    (void)out, (void)log;
    return files_files_left_out(path);
}
ESP__FN esp_status esp__gc_read(const char *path, esp__gc_file *out, const esp__files_log *log) {
    (void)out, (void)log;
    return files_files_left_out(path);
}
ESP__FN esp_status esp__system_read(const char *path, esp__system_file *out, const esp__files_log *log) {
    (void)out, (void)log;
    return files_files_left_out(path);
}
