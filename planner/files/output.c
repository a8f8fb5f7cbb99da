/* output.c: writes text to standard output, a pipe, or a file, which is replaced as a whole or not at all. Knows nothing of the
 * text. */
#include "espresso_impl/base/file.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

ESP__FN esp_status esp__output_write(const char *path, const char *text, size_t len) {
    struct stat st;
    int error;
    if (!strcmp(path, "-")) {
        error = fwrite(text, 1, len, stdout) != len || fflush(stdout) != 0 ? errno : 0;
    } else if (stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
        /* a pipe or a terminal: the command waits for the reader */
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        error = fd < 0 ? errno : esp__file_write_all(fd, text, len);
        if (fd >= 0) close(fd);
    } else {
        error = esp__file_replace(path, text, len);
    }
    if (!error) return ESP_OK;
    return esp__fail(NULL, ESP_E_ARG, "%s: cannot be written: %s", path, strerror(error));
}
