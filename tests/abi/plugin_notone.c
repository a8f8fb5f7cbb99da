/* plugin_notone.c is a shared object that is not a plugin. */
__attribute__((visibility("default"))) int some_function(void);
__attribute__((visibility("default"))) int some_function(void) { return 42; }
