/* entries.h declares the entry functions of plugins that are linked into tests. */
#ifndef TEST_ENTRIES_H
#define TEST_ENTRIES_H
#include "espresso.h"

const esp_plugin *espresso_plugin_v1_example(const esp_host *h); /* of the plugin in plugins/template_backend */
const esp_plugin *espresso_plugin_v1_nccl(const esp_host *h);
#endif
