/* models.c: finds the file of a model that is given by name, such as "lstm". */
#include "tools/plan/plan.h"
#include <dirent.h>
#include <unistd.h>

/* Returns whether `name` is a path, such as "lstm.json" or "./lstm", and not a built-in model's name, such as
 * "lstm". */
ESP__FN bool plan_is_path(const char *name) {
    const size_t n = strlen(name);
    return strchr(name, '/') || (n > 5 && strcmp(name + n - 5, ".json") == 0);
}

/* Writes the i-th folder to search for models: those of ESPRESSO_MODELS, then those of the source tree and of the
 * installed library. Returns the number of folders. */
static int plan_model_dir(int i, char *out, size_t size) {
    static const char *const beside[] = {"../share/espresso/models", "../../planner/models"};
    const char *user = getenv("ESPRESSO_MODELS");
    char exe[PATH_MAX];
    int users = 0;
    for (const char *at = user; at && *at; at += strspn(at, ":")) {
        const size_t n = strcspn(at, ":");
        if (n && users++ == i) snprintf(out, size, "%.*s", (int)n, at);
        at += n;
    }
    i -= users;
    const ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    exe[n > 0 ? n : 0] = 0;
    char *slash = strrchr(exe, '/');
    if (slash) slash[1] = 0;
    if (i == 0 || i == 1) snprintf(out, size, "%s%s", exe, beside[i]);
    if (i == 2) snprintf(out, size, "%s/share/espresso/models", ESPRESSO_PREFIX);
    return users + 3;
}

static void plan_model_names(const char *dir, esp__text *names) {
    struct dirent **list;
    const int n = scandir(dir, &list, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        const char *name = list[i]->d_name;
        const size_t len = strlen(name);
        if (len > 5 && strcmp(name + len - 5, ".json") == 0)
            esp__text_add(names, "%s%.*s", names->len ? " " : "", (int)len - 5, name);
        free(list[i]);
    }
    if (n >= 0) free(list);
}

/* Finds the file of a model. If there is none, prints every path that it tried, and returns 0. */
ESP__FN int plan_find_model(const tool_command *c, const char *name, char *path, size_t size) {
    char dir[PATH_MAX + 64];
    esp__text tried = {NULL, 0, 0, 0, NULL}, names = {NULL, 0, 0, 0, NULL};
    int found = plan_is_path(name);
    snprintf(path, size, "%s", name);
    for (int i = 0; !found && i < plan_model_dir(i, dir, sizeof dir); i++) {
        snprintf(path, size, "%s/%.240s.json", dir, name);
        found = access(path, F_OK) == 0;
        esp__text_add(&tried, "\n  tried %s", path);
        plan_model_names(dir, &names);
    }
    if (!found && access(name, F_OK) == 0) {
        snprintf(path, size, "%s", name);
        found = 1;
    }
    if (!found)
        tool_fail(c, "no model '%s'%s%s%s\n  a file of your own: --model ./%s.json, or its folder in ESPRESSO_MODELS",
                  name, tried.data ? tried.data : "", names.len ? "\n  there are: " : "", names.len ? names.data : "",
                  name);
    esp__text_free(&tried);
    esp__text_free(&names);
    return found;
}
