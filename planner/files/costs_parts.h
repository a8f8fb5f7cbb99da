/* costs_parts.h: what files of costs have in common: time as a function of size, and how it was measured. Must not know what was timed. */
#ifndef ESP__FILES_COSTS_PARTS_H
#define ESP__FILES_COSTS_PARTS_H
#include "planner/files/read.h"

static const char *const files_curve_kinds[] = {"linear", "log", NULL};
static const char *const files_device_names[] = {"cpu", "gpu", NULL}; /* by ESP_ON_CPU, ESP_ON_GPU */

/* [[size, microseconds], ...]; *n: how many. */
ESP__FN const esp_cost_point *files_get_points(files_input *in, files_place p, uint32_t *n);
ESP__FN void files_put_points(esp__text *t, const esp_cost_curve *c);
/* The object's key "interpolate": 1 for "log". */
ESP__FN uint32_t files_get_interpolate(files_input *in, const files_place *object);
/* Reads ranks, cores, device and noisy, and warns of noisy numbers; and reads "spread". */
ESP__FN void files_get_measured(files_input *in, const files_place *root, esp__measured *m);
ESP__FN void files_get_spread(files_input *in, const files_place *root, esp__measured *m);
ESP__FN void files_put_measured(esp__text *t, const esp__measured *m); /* only what is known */
#endif
