/* state_file.c: saves states in files, PATH.r<rank>of<size>, one a rank. All ranks save their file, or all keep that of the save
 * before. Must not know what is in a state. */
#include "espresso_impl/base/file.h"
#include <dirent.h>
#include <errno.h>

static esp_status esp__state_file_put(void *user, void *data, uint64_t bytes) {
    esp__file *f = (esp__file *)user;
    esp__file_put(f, data, bytes);
    return f->error ? ESP_E_DEVICE : ESP_OK;
}

static esp_status esp__state_file_get(void *user, void *data, uint64_t bytes) {
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

/* Writes the state to the disk under a temporary name. */
static esp_status esp__state_file_write(esp_ctx *ctx, esp__file *f, const char *name) {
    int error = esp__file_open(f, name);
    if (error) return esp__fail(ctx, ESP_E_ARG, "cannot write the state %s: %s", name, strerror(error));
    esp_status s = esp__state_write(ctx, esp__state_file_put, f);
    if (s != ESP_OK) {
        error = f->error ? f->error : EIO;
        esp__file_drop(f);
    } else {
        error = esp__file_sync(f);
    }
    if (!error) return ESP_OK;
    return esp__fail(ctx, ESP_E_DEVICE, "cannot write the state %s: %s", name, strerror(error));
}

ESPRESSO_API esp_status esp_state_save(esp_ctx *ctx, const char *path) {
    char name[4096];
    esp__file f;
    esp_status s = esp__state_allowed(ctx, "esp_state_save", path != NULL), written;
    if (s != ESP_OK) return s;
    written = s = esp__state_path(ctx, path, name, sizeof name);
    if (s == ESP_OK) written = s = esp__state_file_write(ctx, &f, name);
    s = esp__state_agree(ctx, s, NULL, "save");
    if (s != ESP_OK && written == ESP_OK) esp__file_drop(&f);
    if (s != ESP_OK) return s;
    int error = esp__file_rename(&f);
    return error ? esp__fail(ctx, ESP_E_DEVICE, "cannot write the state %s: %s", name, strerror(error)) : ESP_OK;
}

/* The error for a missing file. Looks for a file that a job of another size saved, and names it. */
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
    s = esp__state_read_after(ctx, s, esp__state_file_get, f);
    if (f) fclose(f);
    return s;
}
