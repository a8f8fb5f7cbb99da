/* write.c: writes JSON lines into a text, and a text to standard output, a pipe, or a file, which is replaced
 * completely or not at all. */
#include "planner/files/write.h"
#include "espresso_impl/base/file.h"
#include "espresso_impl/base/json.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

ESP__FN void files_put_number(esp__text *t, double x) { esp__json_scaled(t, x, 1.0); }
ESP__FN void files_put_us(esp__text *t, double ns) { esp__json_scaled(t, ns, 1000.0); }

ESP__FN void files_put_text_line(esp__text *t, const char *indent, const char *key, const char *text) {
    if (!text) return;
    esp__text_add(t, "%s\"%s\": ", indent, key);
    esp__json_string(t, text);
    esp__text_add(t, ",\n");
}

ESP__FN void files_put_us_line(esp__text *t, const char *indent, const char *key, double ns) {
    esp__text_add(t, "%s\"%s\": ", indent, key);
    files_put_us(t, ns);
    esp__text_add(t, ",\n");
}

ESP__FN void files_put_no_comma(esp__text *t) {
    if (!t->failed && t->len >= 2 && !strcmp(t->data + t->len - 2, ",\n")) t->len -= 2, t->data[t->len] = 0;
    esp__text_add(t, "\n");
}

ESP__FN esp_status files_write(const char *path, esp__text *t) {
    esp_status s = t->failed ? esp__fail(NULL, ESP_E_NOMEM, "%s: out of memory", path)
                             : esp__output_write(path, t->data ? t->data : "", t->len);
    esp__text_free(t);
    return s;
}

ESP__FN esp_status esp__output_write(const char *path, const char *text, size_t len) {
    struct stat st;
    int error;
    if (!strcmp(path, "-")) {
        error = fwrite(text, 1, len, stdout) != len || fflush(stdout) != 0 ? errno : 0;
    } else if (stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
        /* A pipe or a terminal cannot be replaced, so it is opened. For a pipe, this waits for a reader. */
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        error = fd < 0 ? errno : esp__file_write_all(fd, text, len);
        if (fd >= 0) close(fd);
    } else {
        error = esp__file_replace(path, text, len);
    }
    if (!error) return ESP_OK;
    return esp__fail(NULL, ESP_E_ARG, "%s: cannot be written: %s", path, strerror(error));
}
