/* lookup.c: finds codecs, backends and devices by name or kind, and loads a plugin if they are unknown. */
#include "espresso_impl/registry/registry.h"

static uint32_t esp__registered_find(const esp__registered_list *all, const char *name) {
    uint32_t i = 0;
    while (i < all->n && strcmp(all->at[i].name, name)) i++;
    return i;
}

/* Reports an unknown name, with the known names and a suggestion. `why` is the loader's error, or "". */
static void esp__registry_unknown(esp_ctx *ctx, esp__kind kind, const char *name, esp_status s, const char *why) {
    const esp__registered_list *all = &esp__registry_of(ctx)->of[kind];
    const char *suggestion = NULL;
    esp__text names = {.ctx = ctx};
    unsigned best = 3;
    for (uint32_t i = 0; i < all->n; i++) {
        const char *known = all->at[i].name;
        /* the name is listed already: a codec may have a table per device */
        if (esp__registered_find(all, known) < i) continue;
        if (esp__suggests(name, known, &best)) suggestion = known;
        esp__text_add(&names, "%s%s", i ? ", " : "", known);
    }
    esp__fail(ctx, s, "there is no %s \"%s\"%s%s%s; known: %s%s%s", esp__kind_word(kind), name,
              suggestion ? " (did you mean \"" : "", suggestion ? suggestion : "", suggestion ? "\"?)" : "",
              names.data ? names.data : "none at all", why[0] ? "; " : "", why);
    esp__text_free(&names);
}

/* Returns the table with that name, and loads a plugin for it if needed. Sets the error if there is none. */
static const esp__registered *esp__registry_get(esp_ctx *ctx, esp__kind kind, const char *name) {
    const esp__registry *r = esp__registry_of(ctx);
    const esp__registered_list *all = &r->of[kind];
    esp_status s = ESP_E_NOT_FOUND;
    char why[ESP__ERROR_MAX] = "";
    uint32_t i = esp__registered_find(all, name);
    if (i == all->n && !r->frozen) {
        s = esp__plugin_load(ctx, name);
        if (s != ESP_OK)
            snprintf(why, sizeof why, "%s", esp_last_error(ctx));
        else
            snprintf(why, sizeof why, "libespresso-%s.so was found, but brings no such %s", name, esp__kind_word(kind));
        i = esp__registered_find(all, name);
    }
    if (i < all->n) return &all->at[i];
    esp__registry_unknown(ctx, kind, name, s == ESP_OK ? ESP_E_NOT_FOUND : s, why);
    return NULL;
}

ESP__FN const esp_codec *esp__registry_codec_on(esp_ctx *ctx, const char *name, esp_devkind kind) {
    const esp__registered_list *all = &esp__registry_of(ctx)->codecs;
    for (uint32_t i = 0; i < all->n && kind < 32; i++)
        if (!strcmp(all->at[i].name, name) && all->at[i].codec->devices & ESP_BIT(kind)) return all->at[i].codec;
    return NULL;
}

ESP__FN const esp_codec *esp__registry_codec(esp_ctx *ctx, const char *name) {
    const esp__registered *found = esp__registry_get(ctx, ESP__CODEC, name);
    const esp_codec *c = found ? esp__registry_codec_on(ctx, name, ESP_CPU) : NULL;
    if (found && !c)
        esp__fail(ctx, ESP_E_UNSUPPORTED,
                  "codec \"%s\" of %s has no table for the CPU: load the plugin that brings it, too", name,
                  found->from);
    return c;
}

ESP__FN const esp_backend *esp__registry_backend(esp_ctx *ctx, const char *name) {
    const esp__registered *found = esp__registry_get(ctx, ESP__BACKEND, name);
    return found ? found->backend : NULL;
}

static const esp_device_table *esp__registry_device_known(const esp__registered_list *all, esp_devkind kind) {
    for (uint32_t i = 0; i < all->n; i++)
        if (all->at[i].device->kind == kind) return all->at[i].device;
    return NULL;
}
ESP__FN const esp_device_table *esp__registry_device(esp_ctx *ctx, esp_devkind kind) {
    const esp__registry *r = esp__registry_of(ctx);
    const esp_device_table *t = esp__registry_device_known(&r->devices, kind);
    if (!t && kind == ESP_CUDA && !r->frozen && esp__plugin_load(ctx, "cuda") == ESP_OK)
        t = esp__registry_device_known(&r->devices, kind);
    return t;
}
