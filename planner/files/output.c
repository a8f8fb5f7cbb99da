/* output.c: files that are there whole or not at all. Knows nothing of what is written. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static int files_write_all(int fd, const char *text, size_t len) {
    while (len) {
        ssize_t n = write(fd, text, len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        text += n;
        len -= (size_t)n;
    }
    return 0;
}

/* Into a new file beside `path`, which then takes its name. */
static int files_write_renamed(const char *path, const char *text, size_t len) {
    char temporary[4096 + 16];
    mode_t mask = umask(0);
    int fd, error;
    umask(mask);
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.XXXXXX", path) >= sizeof temporary) return ENAMETOOLONG;
    if ((fd = mkstemp(temporary)) < 0) return errno;
    error = files_write_all(fd, text, len);
    if (!error && fchmod(fd, 0666 & ~mask) != 0) error = errno;
    if (!error && fsync(fd) != 0) error = errno;
    if (close(fd) != 0 && !error) error = errno;
    if (!error && rename(temporary, path) != 0) error = errno;
    if (error) unlink(temporary);
    return error;
}

ESP__FN esp_status esp__output_write(const char *path, const char *text, size_t len) {
    struct stat st;
    int error, there = strcmp(path, "-") != 0 && stat(path, &st) == 0;
    if (!strcmp(path, "-")) {
        error = fwrite(text, 1, len, stdout) != len || fflush(stdout) != 0 ? errno : 0;
    } else if (there && S_ISDIR(st.st_mode)) {
        error = EISDIR;
    } else if (there && !S_ISREG(st.st_mode)) { /* a pipe or a terminal is written to, not replaced */
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        error = fd < 0 ? errno : files_write_all(fd, text, len);
        if (fd >= 0) close(fd);
    } else {
        char real[4096];
        ssize_t n = readlink(path, real, sizeof real); /* a link stays one */
        error = n < 0 || !realpath(path, real) ? files_write_renamed(path, text, len)
                                               : files_write_renamed(real, text, len);
    }
    if (!error) return ESP_OK;
    return esp__fail(NULL, ESP_E_ARG, "%s: cannot be written: %s", path, strerror(error));
}
