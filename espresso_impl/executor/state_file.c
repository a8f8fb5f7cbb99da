/* state_file.c: states as files, PATH.r<rank>of<size>, one a rank. A save is complete on all ranks or leaves the files
 * of the save before untouched on all. Must not know what is in a state. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static esp_status esp__file_write(void *user, void *data, uint64_t bytes) {
    return fwrite(data, 1, bytes, (FILE *)user) == bytes ? ESP_OK : ESP_E_DEVICE;
}

static esp_status esp__file_read(void *user, void *data, uint64_t bytes) {
    return fread(data, 1, bytes, (FILE *)user) == bytes ? ESP_OK : ESP_E_CORRUPT;
}

static esp_status esp__state_path(const esp_ctx *ctx, const char *path, char *out, size_t cap) {
    if ((size_t)snprintf(out, cap, "%s.r%dof%d", path, (int)ctx->job.rank, (int)ctx->job.size) + 8 < cap) return ESP_OK;
    return esp__fail(ctx, ESP_E_ARG, "the state's path is too long");
}

/* The directory part of `path`, with its last '/', or "./". Returns where the name begins. */
static const char *esp__path_split(const char *path, char *dir, size_t cap) {
    const char *slash = strrchr(path, '/');
    snprintf(dir, cap, "%.*s", slash ? (int)(slash - path + 1) : 2, slash ? path : "./");
    return slash ? slash + 1 : path;
}

/* Whole and on the disk under a temporary name. */
static esp_status esp__state_file_write(esp_ctx *ctx, const char *temporary) {
    FILE *f = fopen(temporary, "we");
    esp_status s = ESP_OK;
    int error = 0;
    if (!f) return esp__fail(ctx, ESP_E_ARG, "cannot write the state %s: %s", temporary, strerror(errno));
    errno = 0;
    s = esp__state_write(ctx, esp__file_write, f);
    if (fflush(f) != 0 || ferror(f) || fsync(fileno(f)) != 0) error = errno ? errno : EIO;
    if (fclose(f) != 0 && !error) error = errno;
    if (s == ESP_OK && !error) return ESP_OK;
    unlink(temporary);
    return esp__fail(ctx, ESP_E_DEVICE, "cannot write the state %s: %s", temporary, strerror(error ? error : EIO));
}

ESPRESSO_API esp_status esp_state_save(esp_ctx *ctx, const char *path) {
    char name[4096], temporary[4096 + 8], dir[4096];
    esp_status s = esp__state_allowed(ctx, "esp_state_save", path != NULL), written;
    int fd;
    if (s != ESP_OK) return s;
    written = s = esp__state_path(ctx, path, name, sizeof name);
    snprintf(temporary, sizeof temporary, "%s.tmp", name);
    if (s == ESP_OK) written = s = esp__state_file_write(ctx, temporary);
    s = esp__state_agree(ctx, s, NULL, "save");
    if (s != ESP_OK && written == ESP_OK) unlink(temporary);
    if (s != ESP_OK) return s;
    if (rename(temporary, name) != 0) {
        s = esp__fail(ctx, ESP_E_DEVICE, "cannot rename %s to %s: %s", temporary, name, strerror(errno));
        unlink(temporary);
        return s;
    }
    esp__path_split(name, dir, sizeof dir); /* the new name itself must reach the disk too */
    fd = open(dir, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    return ESP_OK;
}

/* There is no file of this rank: perhaps there is one of a job of another size. */
static esp_status esp__state_not_found(const esp_ctx *ctx, const char *path, const char *name) {
    char dir[4096], other[64] = "";
    const char *base = esp__path_split(path, dir, sizeof dir);
    size_t n = strlen(base);
    DIR *d = opendir(dir);
    for (struct dirent *e; d && !other[0] && (e = readdir(d));) {
        int rank, size, end = 0;
        if (strncmp(e->d_name, base, n) == 0 && sscanf(e->d_name + n, ".r%dof%d%n", &rank, &size, &end) == 2 &&
            !e->d_name[n + (size_t)end] && size != ctx->job.size)
            snprintf(other, sizeof other, " There is a state of %d ranks: resume with as many.", size);
    }
    if (d) closedir(d);
    return esp__fail(ctx, ESP_E_NOT_FOUND, "there is no state %s.%s", name, other);
}

ESPRESSO_API esp_status esp_state_load(esp_ctx *ctx, const char *path) {
    char name[4096];
    FILE *f = NULL;
    esp_status s = esp__state_allowed(ctx, "esp_state_load", path != NULL);
    if (s != ESP_OK) return s;
    s = esp__state_path(ctx, path, name, sizeof name);
    if (s == ESP_OK && !(f = fopen(name, "re"))) {
        s = errno == ENOENT ? esp__state_not_found(ctx, path, name)
                            : esp__fail(ctx, ESP_E_ARG, "cannot read the state %s: %s", name, strerror(errno));
    }
    s = esp__state_read_after(ctx, s, esp__file_read, f);
    if (f) fclose(f);
    return s;
}
