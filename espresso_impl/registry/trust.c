/* trust.c: checks that no other user can change a plugin before loader.c loads it, because it runs with all rights of
 * this process. File and folder must belong to this user or root, and no folder above may be writable by all. The
 * owner's group is trusted. */
#include "espresso_impl/base/limits.h"
#include "espresso_impl/registry/registry.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

/* Checks one file or folder. `up` means a folder above the plugin's own folder; such a folder may have any owner. */
static esp_status esp__trust_one(esp_ctx *ctx, const char *plugin, const char *name, const struct stat *st, bool up) {
    const bool folder = S_ISDIR(st->st_mode);
    const char *its = up ? "the folder" : folder ? "its folder" : "the file";
    const unsigned mode = (unsigned)st->st_mode & 07777u;
    /* in a sticky folder, such as /tmp, nobody can replace another user's file */
    if (mode & S_IWOTH && !(folder && mode & S_ISVTX))
        return esp__fail(
            ctx, ESP_E_UNSUPPORTED,
            "%s: not loaded: any user may write to %s %s (mode %04o) and put other code there: chmod o-w %s", plugin,
            its, name, mode, name);
    if (!up && st->st_uid != 0 && st->st_uid != geteuid())
        return esp__fail(
            ctx, ESP_E_UNSUPPORTED,
            "%s: not loaded: %s %s (mode %04o) belongs to user %u, who can put other code there, and not to "
            "root or user %u, who runs this: copy the plugin into a folder of your own and chmod go-w it",
            plugin, its, name, mode, (unsigned)st->st_uid, (unsigned)geteuid());
    return ESP_OK;
}

/* Checks the folder of `file` and all folders above it. Overwrites `file` with the path of the last one. */
static esp_status esp__trust_folders(esp_ctx *ctx, const char *plugin, char *file) {
    struct stat st;
    esp_status s = ESP_OK;
    for (bool up = false; s == ESP_OK && file[1]; up = true) {
        char *slash = strrchr(file, '/');
        slash[slash == file] = 0;
        if (stat(file, &st) != 0)
            return esp__fail(ctx, ESP_E_NOT_FOUND, "%s: its folder %s: %s", plugin, file, esp__strerror(errno));
        s = esp__trust_one(ctx, plugin, file, &st, up);
    }
    return s;
}

ESP__FN esp_status esp__plugin_trust(esp_ctx *ctx, const char *path) {
    const char *slash = strrchr(path, '/');
    char real[PATH_MAX], folder[PATH_MAX + 2], *found;
    struct stat st, again;
    esp_status s = ESP_OK;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), error = errno;
    if (fd < 0 && error == ENOENT) return esp__fail(ctx, ESP_E_NOT_FOUND, "%s: no such file", path);
    if (fd < 0) return esp__fail(ctx, ESP_E_UNSUPPORTED, "%s: cannot be read: %s", path, esp__strerror(error));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || !realpath(path, real))
        s = esp__fail(ctx, ESP_E_ABI, "%s: not a file", path);
    if (s == ESP_OK) s = esp__trust_one(ctx, path, real, &st, false);
    if (s == ESP_OK) { /* `path` may be a symbolic link: checks the folder of the link, then that of the file */
        snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 2, slash ? path : "./");
        found = realpath(folder, NULL);
        snprintf(folder, sizeof folder, "%s/x", found && found[1] ? found : "");
        if (!found) s = esp__fail(ctx, ESP_E_NOT_FOUND, "%s: its folder: %s", path, esp__strerror(errno));
        free(found);
    }
    if (s == ESP_OK) s = esp__trust_folders(ctx, path, folder);
    snprintf(folder, sizeof folder, "%s", real);
    if (s == ESP_OK) s = esp__trust_folders(ctx, path, folder);
    /* fails if the file was replaced meanwhile; from now on, only this user, root and folder owners can do so */
    if (s == ESP_OK && (stat(real, &again) != 0 || again.st_dev != st.st_dev || again.st_ino != st.st_ino))
        s = esp__fail(ctx, ESP_E_UNSUPPORTED, "%s: not loaded: it was replaced while it was looked at: try again",
                      path);
    close(fd);
    return s;
}
