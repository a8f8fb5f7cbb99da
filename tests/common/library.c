/* library.c: the library, the planner's files and the command as one object, which all tests link. Private functions are
 * external, so that tests can call them, and weak, so that a test that includes a file brings its own copy of them. */
#define ESP__FN __attribute__((weak))
#define ESPRESSO_API __attribute__((weak)) extern
#define main espresso_main
#include "tools/espresso.c"

/* Tests' tensors are small: built-in strategies compress them like large ones, except where a test says otherwise. */
__attribute__((constructor)) static void compress_small_tensors(void) { setenv("ESPRESSO_RAW_UP_TO", "0", 0); }

/* tests/conformance/conformance.h drives the codecs through their tables */
extern const esp_plugin_fn cf_entries[];
const esp_plugin_fn cf_entries[] = {ESP_CODEC_ENTRIES, NULL};
