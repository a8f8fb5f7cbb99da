/* report.c: what observe/profile.c and stats.c write their files with: JSON's words, files that are there whole or not at all, and a few
 * facts of the machine. Must not know what is reported. */
#include "espresso_impl/base/base.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

/* A JSON string, with the quotes. Bytes that are no UTF-8 become U+FFFD. */
ESP__FN void esp__put_string(esp__text *t, const char *s) {
    const unsigned char *p = (const unsigned char *)s, *from = p;
    esp__text_add(t, "\"");
    while (*p) {
        int n = esp__utf8_bytes(p);
        if (n && *p >= ' ' && *p != '"' && *p != '\\') {
            p += n;
            continue;
        }
        esp__text_add(t, "%.*s", (int)(p - from), (const char *)from);
        if (!n)
            esp__text_add(t, "\\ufffd");
        else if (*p == '\n')
            esp__text_add(t, "\\n");
        else
            esp__text_add(t, *p < ' ' ? "\\u%04x" : "\\%c", *p);
        from = ++p;
    }
    esp__text_add(t, "%s\"", (const char *)from);
}

/* A number with up to `digits` digits, whatever the program's locale; null where it is none that JSON has. */
ESP__FN void esp__put_double(esp__text *t, double x, int digits) {
    char buf[40];
    if (!(x - x == 0)) {
        esp__text_add(t, "null");
        return;
    }
    snprintf(buf, sizeof buf, "%.*g", digits, x);
    for (char *p = buf; *p; p++)
        if (*p == ',') *p = '.';
    esp__text_add(t, "%s", buf);
}

/* Nanoseconds (>= 0) as microseconds, to the nanosecond. */
ESP__FN void esp__put_us(esp__text *t, double ns) { esp__put_double(t, (double)(uint64_t)(ns + 0.5) / 1000.0, 15); }

/* ---- files ---------------------------------------------------------------------------------------------------------- */
/* An absolute path, so that a chdir of the program changes nothing. Memory of the context, or NULL. */
ESP__FN char *esp__path_absolute(esp_ctx *ctx, const char *path) {
    char here[PATH_MAX], *out;
    if (path[0] == '/' || !getcwd(here, sizeof here)) return esp__strdup(ctx, path);
    size_t bytes = strlen(here) + strlen(path) + 2;
    out = esp__alloc(ctx, bytes);
    if (out) snprintf(out, bytes, "%s/%s", here, path);
    return out;
}

static int esp__write_all(int fd, const char *data, size_t len) {
    while (len) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n ? errno : EIO;
        data += n;
        len -= (size_t)n;
    }
    return 0;
}

/* A new file beside `path`, to be renamed to it: its name goes to `out`. The descriptor, or -1 and errno. */
static int esp__file_beside(const char *path, char *out, size_t cap) {
    if ((size_t)snprintf(out, cap, "%s.tmp-%ld", path, (long)getpid()) >= cap) {
        errno = ENAMETOOLONG;
        return -1;
    }
    return open(out, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
}

/* Replaces the file's content at once: a reader sees the old or the new. 0, or errno. */
ESP__FN int esp__file_replace(const char *path, const char *data, size_t len) {
    char temporary[PATH_MAX], real[PATH_MAX];
    struct stat st;
    int there = stat(path, &st) == 0, error, fd;
    if (there && S_ISDIR(st.st_mode)) return EISDIR;
    if (there && !S_ISREG(st.st_mode)) { /* a pipe or /dev/null is written to, not replaced; nobody is waited for */
        fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK);
        error = fd < 0 ? errno : esp__write_all(fd, data, len);
        if (fd >= 0) close(fd);
        return error;
    }
    if (realpath(path, real)) path = real; /* a link stays one */
    fd = esp__file_beside(path, temporary, sizeof temporary);
    if (fd < 0) return errno;
    error = esp__write_all(fd, data, len);
    if (close(fd) != 0 && !error) error = errno;
    if (!error && rename(temporary, path) != 0) error = errno;
    if (error) unlink(temporary);
    return error;
}

/* Could esp__file_replace work? 0, or errno. */
ESP__FN int esp__file_check(const char *path) {
    char temporary[PATH_MAX];
    struct stat st;
    if (stat(path, &st) == 0) {
        if (S_ISDIR(st.st_mode)) return EISDIR;
        if (!S_ISREG(st.st_mode)) return access(path, W_OK) == 0 ? 0 : errno;
    }
    int fd = esp__file_beside(path, temporary, sizeof temporary);
    if (fd < 0) return errno;
    close(fd);
    unlink(temporary);
    return 0;
}

/* ---- the machine ------------------------------------------------------------------------------------------------------ */
ESP__FN uint32_t esp__machine_cores(void) {
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (uint32_t)n : 1;
}

/* Ticks of all processors so far, and those that the machine below a virtual one gave to others. 0 where not known. */
ESP__FN void esp__machine_ticks(uint64_t *all, uint64_t *stolen) {
    unsigned long long v[8] = {0};
    FILE *f = fopen("/proc/stat", "re");
    *all = *stolen = 0;
    if (!f) return;
    if (fscanf(f, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6],
               &v[7]) == 8) {
        for (int i = 0; i < 8; i++) *all += v[i];
        *stolen = v[7];
    }
    fclose(f);
}

/* The processor's name, or "". */
ESP__FN void esp__cpu_name(char *out, size_t cap) {
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    *out = 0;
    while (f && !*out && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(out, cap, "%.*s", (int)strcspn(colon, "\n"), colon);
    }
    if (f) fclose(f);
}

/* The running program's name, without the folders; a Python script's rather than Python's. */
ESP__FN void esp__program_name(char *out, size_t cap) {
    char text[4096];
    FILE *f = fopen("/proc/self/cmdline", "re");
    size_t n = f ? fread(text, 1, sizeof text - 2, f) : 0;
    if (f) fclose(f);
    text[n] = text[n + 1] = 0;
    const char *word = text, *base = strrchr(word, '/') ? strrchr(word, '/') + 1 : word;
    const char *next = word + strlen(word) + 1;
    if (!strncmp(base, "python", 6) && next < text + n && *next && *next != '-')
        base = strrchr(next, '/') ? strrchr(next, '/') + 1 : next;
    snprintf(out, cap, "%.*s", (int)cap - 1, *base ? base : "trainer");
    for (char *p = out; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f) *p = '?';
}
