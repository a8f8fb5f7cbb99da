/* builtin.c: lists the built-in plugins. */
#include "espresso_impl/registry/builtin.h"
#include "espresso_impl/registry/registry.h"

ESP__FN const esp_plugin_fn *esp__builtin_entries(void) {
    static const esp_plugin_fn entries[] = {ESP__BUILTIN_CODECS(ESP__BUILTIN_ENTRY)
                                                ESP__BUILTIN_BACKENDS(ESP__BUILTIN_ENTRY) NULL};
    return entries;
}
