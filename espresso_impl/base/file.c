/* file.c: see file.h. */
#include "espresso_impl/base/base.h"
#include "espresso_impl/base/file.h"
#include "espresso_impl/base/limits.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

ESP__FN int esp__file_read_text(const char *path, size_t most, esp__text *t) {
    int fd = open(path, O_RDONLY | O_CLOEXEC), error = fd < 0 ? errno : 0;
    while (!error) {
        if (t->cap - t->len < 2 && !esp__text_reserve(t, t->cap ? t->cap * 2 : 16384)) {
            error = ENOMEM;
            break;
        }
        ssize_t n = read(fd, t->data + t->len, t->cap - t->len - 1);
        if (n == 0) break;
        if (n < 0 && errno != EINTR) error = errno;
        if (n > 0) t->len += (size_t)n;
        t->data[t->len] = 0;
        if (t->len > most) error = EFBIG;
    }
    if (fd >= 0) close(fd);
    if (error)
        esp__text_free(t);
    else if (t->len >= 3 && !memcmp(t->data, "\xEF\xBB\xBF", 3)) /* some editors begin files with a byte order mark */
        memmove(t->data, t->data + 3, (t->len -= 3) + 1);
    return error;
}

ESP__FN int esp__file_read(const char *path, size_t most, char **text, size_t *bytes) {
    esp__text t = {0};
    const int error = esp__file_read_text(path, most, &t);
    *text = t.data;
    if (!error) *bytes = t.len;
    return error;
}

ESP__FN int esp__file_write_all(int fd, const void *data, size_t bytes) {
    const char *at = (const char *)data;
    esp__held_signals held;
    int error = 0;
    esp__signals_hold(&held);
    while (bytes && !error) {
        ssize_t n = write(fd, at, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) error = n ? errno : EIO;
        if (n > 0) at += n, bytes -= (size_t)n;
    }
    esp__signals_release(&held);
    return error;
}

/* ---- temporary names ---- */
/* Removes a temporary file if the process that wrote it has ended: its lock on the file has then ended too. */
static bool esp__file_remove_left(const char *name) {
    struct stat st;
    bool removed = false;
    const int fd = open(name, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return false;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0) removed = unlink(name) == 0;
    close(fd);
    return removed;
}

/* Makes and locks a new file. Returns EEXIST if the name is taken, or another process removed the file meanwhile. */
static int esp__file_create(const char *name, int *fd) {
    struct stat st;
    *fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (*fd < 0) return errno;
    /* errors other than EWOULDBLOCK mean that this file system has no locks */
    const bool held = flock(*fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    if (!held && fstat(*fd, &st) == 0 && st.st_nlink > 0) return 0;
    close(*fd);
    return EEXIST;
}

static int esp__file_beside(esp__file *f) {
    for (int i = 0; i < ESP__FILE_NAMES; i++) {
        char number[16] = "";
        int fd, error;
        if (i) snprintf(number, sizeof number, "-%d", i);
        if ((size_t)snprintf(f->temporary, sizeof f->temporary, "%s.tmp-espresso%s", f->path, number) >=
            sizeof f->temporary) {
            errno = ENAMETOOLONG;
            return -1;
        }
        error = esp__file_create(f->temporary, &fd);
        if (error == EEXIST && esp__file_remove_left(f->temporary)) error = esp__file_create(f->temporary, &fd);
        if (!error) return fd;
        errno = error;
        if (error != EEXIST) return -1;
    }
    return -1;
}

/* ---- writing ---- */
/* Sets f->path to `path` with links resolved. Sets *special if it is a pipe or device, which cannot be replaced. */
static int esp__file_target(esp__file *f, const char *path, bool *special) {
    struct stat st;
    const bool there = stat(path, &st) == 0;
    memset(f, 0, sizeof *f);
    *special = there && !S_ISREG(st.st_mode);
    if (there && S_ISDIR(st.st_mode)) return EISDIR;
    if (there && !*special && realpath(path, f->path)) return 0;
    return (size_t)snprintf(f->path, sizeof f->path, "%s", path) < sizeof f->path ? 0 : ENAMETOOLONG;
}

ESP__FN int esp__file_open(esp__file *f, const char *path) {
    bool special;
    int error = esp__file_target(f, path, &special);
    if (error) return error;
    int fd = special ? open(f->path, O_WRONLY | O_CLOEXEC | O_NONBLOCK) : esp__file_beside(f);
    if (fd < 0) return errno;
    if ((f->to = fdopen(fd, "w"))) return 0;
    error = errno;
    close(fd);
    if (!special) unlink(f->temporary);
    return error;
}

ESP__FN void esp__file_put(esp__file *f, const void *data, size_t bytes) {
    esp__held_signals held;
    if (f->error) return;
    esp__signals_hold(&held);
    errno = 0;
    if (bytes && fwrite(data, 1, bytes, f->to) != bytes) f->error = errno ? errno : EIO;
    esp__signals_release(&held);
}

ESP__FN void esp__file_drop(esp__file *f) {
    esp__held_signals held;
    esp__signals_hold(&held);
    if (f->to) fclose(f->to);
    esp__signals_release(&held);
    if (f->temporary[0]) unlink(f->temporary);
    f->to = NULL;
    f->temporary[0] = 0;
}

ESP__FN int esp__file_sync(esp__file *f) {
    int error = f->error;
    esp__held_signals held;
    esp__signals_hold(&held);
    if (!error && fflush(f->to) != 0) error = errno;
    esp__signals_release(&held);
    /* fsync fails with EINVAL if this file system cannot sync */
    if (!error && f->temporary[0] && fsync(fileno(f->to)) != 0 && errno != EINVAL) error = errno;
    if (error) esp__file_drop(f);
    return error;
}

/* Makes a rename durable. Ignores errors: after a crash, the path names the old or the new complete file. */
static void esp__file_sync_folder(char *path) {
    char *slash = strrchr(path, '/');
    if (slash) slash[slash == path] = 0;
    int fd = open(slash ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    fsync(fd);
    close(fd);
}

ESP__FN int esp__file_rename(esp__file *f) {
    if (f->temporary[0]) {
        if (rename(f->temporary, f->path) != 0) {
            int error = errno;
            esp__file_drop(f);
            return error;
        }
        f->temporary[0] = 0;
        esp__file_sync_folder(f->path);
    }
    fclose(f->to); /* closed only now, because closing ends the lock on the temporary file */
    f->to = NULL;
    return 0;
}

ESP__FN int esp__file_close(esp__file *f) {
    int error = esp__file_sync(f);
    return error ? error : esp__file_rename(f);
}

ESP__FN int esp__file_replace(const char *path, const void *data, size_t bytes) {
    esp__file f;
    int error = esp__file_open(&f, path);
    if (error) return error;
    esp__file_put(&f, data, bytes);
    return esp__file_close(&f);
}

ESP__FN int esp__file_check(const char *path) {
    esp__file f;
    bool special;
    int error = esp__file_target(&f, path, &special);
    if (!error && special) return access(path, W_OK) == 0 ? 0 : errno;
    if (!error) error = esp__file_open(&f, path);
    if (!error) esp__file_drop(&f);
    return error;
}

ESP__FN bool esp__path_of_rank(const char *name, int32_t rank, char *out, size_t cap) {
    size_t at = 0;
    bool every_rank = false;
    for (const char *p = name; *p && at + 16 < cap; p++) {
        const bool is_rank = p[0] == '%' && p[1] == 'r';
        if (is_rank)
            at += (size_t)snprintf(out + at, cap - at, "%d", (int)rank), p++;
        else
            out[at++] = *p;
        every_rank |= is_rank;
    }
    out[at] = 0;
    return every_rank;
}

ESP__FN int esp__path_absolute(const char *path, char out[PATH_MAX]) {
    char here[PATH_MAX];
    int n = path[0] == '/' || !getcwd(here, sizeof here) ? snprintf(out, PATH_MAX, "%s", path)
                                                         : snprintf(out, PATH_MAX, "%s/%s", here, path);
    return n < PATH_MAX ? 0 : ENAMETOOLONG;
}

/* ---- files of several contexts ---- */
typedef struct esp__path_use {
    const esp_ctx *ctx;
    struct esp__path_use *next;
    char path[PATH_MAX];
} esp__path_use;
static esp__path_use *esp__path_uses;
static pthread_mutex_t esp__path_lock = PTHREAD_MUTEX_INITIALIZER;

/* Inserts `part` before the extension, if the name has one. */
static bool esp__path_insert(const char *path, const char *part, char out[PATH_MAX]) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
    const int n = (int)(dot && dot > name ? dot - path : (ptrdiff_t)strlen(path));
    return snprintf(out, PATH_MAX, "%.*s%s%s", n, path, part, path + n) < PATH_MAX;
}

static int esp__path_take(esp_ctx *ctx, const char *path) {
    for (const esp__path_use *u = esp__path_uses; u; u = u->next)
        if (!strcmp(u->path, path)) return u->ctx == ctx ? 0 : EEXIST;
    esp__path_use *mine = esp__alloc(ctx, sizeof *mine);
    if (!mine) return ENOMEM;
    mine->ctx = ctx;
    snprintf(mine->path, sizeof mine->path, "%s", path);
    mine->next = esp__path_uses;
    esp__path_uses = mine;
    return 0;
}

ESP__FN int esp__path_of_context(esp_ctx *ctx, const char *path, char out[PATH_MAX]) {
    char whole[PATH_MAX], part[32];
    struct stat st;
    int error = esp__path_absolute(path, whole);
    snprintf(out, PATH_MAX, "%s", whole);
    if (error || !ctx || (stat(whole, &st) == 0 && !S_ISREG(st.st_mode))) return error;
    snprintf(part, sizeof part, ".p%d", (int)esp__base_of(ctx)->process);
    if (esp__base_of(ctx)->process >= 0 && !esp__path_insert(whole, part, out)) return ENAMETOOLONG;
    snprintf(whole, sizeof whole, "%s", out);
    pthread_mutex_lock(&esp__path_lock);
    for (uint32_t k = 2; (error = esp__path_take(ctx, out)) == EEXIST; k++) {
        snprintf(part, sizeof part, ".%u", (unsigned)k);
        if (!esp__path_insert(whole, part, out)) error = ENAMETOOLONG;
        if (error == ENAMETOOLONG) break;
    }
    pthread_mutex_unlock(&esp__path_lock);
    return error;
}

ESP__FN void esp__paths_release(esp_ctx *ctx) {
    pthread_mutex_lock(&esp__path_lock);
    for (esp__path_use **at = &esp__path_uses; *at;) {
        esp__path_use *u = *at;
        if (u->ctx != ctx) {
            at = &u->next;
            continue;
        }
        *at = u->next;
        esp__free(ctx, u);
    }
    pthread_mutex_unlock(&esp__path_lock);
}
