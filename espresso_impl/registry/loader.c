/* loader.c: finds, loads and registers plugins. It never unloads an accepted plugin, because other code may use it. */
#include "espresso_impl/registry/registry.h"
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <sys/auxv.h>
#include <sys/stat.h>

static esp_status esp__plugin_no_entry(esp_ctx *ctx, void *so, const char *path) {
    for (int major = 0; major < 10; major++) {
        char name[32];
        snprintf(name, sizeof name, "espresso_plugin_v%d", major);
        if (major == (int)ESP_ABI_MAJOR || !dlsym(so, name)) continue;
        return esp__fail(ctx, ESP_E_ABI,
                         "%s: made for plugin ABI %d, and this library has %u: rebuild it with this library's "
                         "espresso.h (before 1.0 each major is the only one that loads)",
                         path, major, ESP_ABI_MAJOR);
    }
    return esp__fail(ctx, ESP_E_ABI, "%s: not an Espresso plugin (it does not export espresso_plugin_v%u)", path,
                     ESP_ABI_MAJOR);
}

/* True if the program has no dynamic linker. In such a program, dlopen of glibc may crash: it loads another libc, which
 * was not started. */
static bool esp__linked_statically(void) {
    const ElfW(Phdr) *header = (const ElfW(Phdr) *)getauxval(AT_PHDR);
    for (unsigned long n = header ? getauxval(AT_PHNUM) : 0; n; n--)
        if (header[n - 1].p_type == PT_INTERP) return false;
    return header != NULL;
}

/* Loads the file. A refused plugin is unloaded, since nothing but its entry function has run. */
static esp_status esp__plugin_open(esp_ctx *ctx, const char *path, bool replaces) {
    void *so, *symbol;
    esp_plugin_fn entry;
    const esp_plugin *plugin;
    const char *why;
    esp_status s = esp__plugin_trust(ctx, path);
    if (s != ESP_OK) return s;
    if (esp__linked_statically())
        return esp__fail(ctx, ESP_E_UNSUPPORTED,
                         "%s: a program that is linked statically cannot load plugins: link it without -static, or "
                         "link the plugin into it and name its entry in esp_config.builtin",
                         path);
    so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!so) {
        why = dlerror(); /* dlerror's text usually begins with the path */
        return esp__fail(ctx, ESP_E_ABI, "%s%s%s", why && strstr(why, path) ? "" : path,
                         why && strstr(why, path) ? "" : ": ", why ? why : "dlopen failed");
    }
    symbol = dlsym(so, "espresso_plugin_v1");
    if (!symbol) {
        s = esp__plugin_no_entry(ctx, so, path);
    } else {
        memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from void * to a function pointer */
        esp__plugin_detail_clear();
        plugin = entry(esp__registry_of(ctx)->host);
        why = esp__plugin_detail();
        s = plugin ? esp__registry_add_from(ctx, plugin, path, replaces)
                   : esp__fail(ctx, ESP_E_UNSUPPORTED, "%s: the plugin refuses to run here%s%s", path,
                               why[0] ? ": " : "", why);
    }
    if (s != ESP_OK)
        dlclose(so);
    else
        esp__log(ctx, ESP_LOG_INFO, "plugins", "loaded %s", path);
    return s;
}

/* A search for a plugin by name: the paths tried so far, and the first error other than ESP_E_NOT_FOUND. */
typedef struct esp__search {
    esp_ctx *ctx;
    const char *name;
    esp__text tried;
    esp_status status;
} esp__search;

static esp_status esp__search_dir(esp__search *s, const char *dir, size_t len) {
    esp__text path = {.ctx = s->ctx};
    esp_status got = ESP_E_NOMEM;
    esp__text_add(&path, "%.*s/libespresso-%s.so", (int)len, dir, s->name);
    if (!path.failed) got = esp__plugin_open(s->ctx, path.data, false);
    if (got != ESP_OK) esp__text_add(&s->tried, "%s%s", s->tried.len ? "; " : "", esp_last_error(s->ctx));
    if (got != ESP_OK && s->status == ESP_E_NOT_FOUND) s->status = got;
    esp__text_free(&path);
    return got;
}

static esp_status esp__search_list(esp__search *s, const char *dirs) {
    while (dirs && *dirs) {
        const size_t len = strcspn(dirs, ":");
        if (len && esp__search_dir(s, dirs, len) == ESP_OK) return ESP_OK;
        dirs += len + (dirs[len] == ':');
    }
    return ESP_E_NOT_FOUND;
}

/* Writes the folder of the file that this code was loaded from, the program or a shared library, or "". */
static void esp__own_folder(char out[PATH_MAX]) {
    static const char here = 0;
    const unsigned long long at = (unsigned long long)(uintptr_t)&here;
    char line[PATH_MAX + 128], *slash = NULL;
    FILE *maps = fopen("/proc/self/maps", "re");
    *out = 0;
    while (maps && !slash && fgets(line, sizeof line, maps)) {
        unsigned long long begin, end;
        const char *path = strchr(line, '/'); /* in this file, only paths contain '/' */
        if (!path || sscanf(line, "%llx-%llx", &begin, &end) != 2 || at < begin || at >= end) continue;
        slash = strrchr(line, '/');
        snprintf(out, PATH_MAX, "%.*s", (int)(slash - path), path);
    }
    if (maps) fclose(maps);
}

/* Searches the folder `parent` + `below`, unless it is the installation folder, which is searched last. */
static esp_status esp__search_below(esp__search *s, const char *parent, const char *below) {
    char folder[PATH_MAX + 16];
    struct stat st;
    snprintf(folder, sizeof folder, "%s%s", parent, below);
    if (stat(folder, &st) != 0 || !S_ISDIR(st.st_mode) || !strcmp(folder, ESPRESSO_PREFIX "/lib/espresso"))
        return ESP_E_NOT_FOUND;
    return esp__search_dir(s, folder, strlen(folder));
}

/* Tries the plugin folders beside the library or program that has this code, because an installation may have been
 * moved. */
static esp_status esp__search_own(esp__search *s) {
    char folder[PATH_MAX], *slash;
    esp__own_folder(folder);
    if (!*folder || esp__search_below(s, folder, "/espresso") == ESP_OK) return *folder ? ESP_OK : ESP_E_NOT_FOUND;
    if (!(slash = strrchr(folder, '/')) || !strcmp(slash, "/lib")) return ESP_E_NOT_FOUND;
    *slash = 0;
    return esp__search_below(s, folder, "/lib/espresso");
}

static bool esp__plugin_name_ok(const char *name) {
    while (esp__spec_name_char(*name)) name++;
    return !*name;
}

ESP__FN esp_status esp__plugin_load(esp_ctx *ctx, const char *path_or_name) {
    esp__search s = {ctx, path_or_name, {.ctx = ctx}, ESP_E_NOT_FOUND};
    const char *env = getenv("ESPRESSO_PLUGIN_PATH");
    if (!path_or_name || !path_or_name[0])
        return esp__fail(ctx, ESP_E_ARG,
                         "no plugin given: expected a path with '/', or the NAME of libespresso-NAME.so");
    if (esp__registry_of(ctx)->frozen)
        return esp__fail(ctx, ESP_E_STATE, "plugin \"%s\": plugins must be loaded before esp_start", path_or_name);
    if (strchr(path_or_name, '/')) return esp__plugin_open(ctx, path_or_name, true);
    if (!esp__plugin_name_ok(path_or_name))
        return esp__fail(
            ctx, ESP_E_ARG,
            "\"%s\" cannot be a plugin's name: expected a path with '/', or the NAME of libespresso-NAME.so",
            path_or_name);
    if (env && esp__registry_of(ctx)->plugin_path && !strcmp(env, esp__registry_of(ctx)->plugin_path)) env = NULL;
    if (esp__search_list(&s, esp__registry_of(ctx)->plugin_path) != ESP_OK && esp__search_list(&s, env) != ESP_OK &&
        esp__search_own(&s) != ESP_OK && esp__search_list(&s, ESPRESSO_PREFIX "/lib/espresso") != ESP_OK)
        esp__fail(ctx, s.status, "no plugin \"%s\"; tried %s%s", path_or_name, s.tried.data ? s.tried.data : "nothing",
                  s.status == ESP_E_NOT_FOUND ? "; ESPRESSO_PLUGIN_PATH adds folders" : "");
    else
        s.status = ESP_OK;
    esp__text_free(&s.tried);
    return s.status;
}
