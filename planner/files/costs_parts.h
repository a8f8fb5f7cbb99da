/* costs_parts.h: what codec, system and model files have in common: curves of time by size, and how they were
 * measured. */
#ifndef ESP__FILES_COSTS_PARTS_H
#define ESP__FILES_COSTS_PARTS_H
#include "planner/files/read.h"

static const char *const files_curve_kinds[] = {"linear", "log", NULL};
static const char *const files_device_names[] = {"cpu", "gpu", NULL}; /* index: ESP_ON_CPU, ESP_ON_GPU */

/* Reads [[size, microseconds], ...] and sets *n to the number of pairs. */
ESP__FN const esp_cost_point *files_get_points(files_input *in, files_place p, uint32_t *n);
ESP__FN void files_put_points(esp__text *t, const esp_cost_curve *c);
/* Reads the key "interpolate" of the object. Returns 1 if its value is "log", else 0. */
ESP__FN uint32_t files_get_interpolate(files_input *in, const files_place *object);
/* Information on how a file's numbers were measured. files_get_measured warns if other work ran on the machine, and
 * does not read the spread. */
ESP__FN void files_get_measured(files_input *in, const files_place *root, esp__measured *m);
ESP__FN void files_get_spread(files_input *in, const files_place *root, esp__measured *m);
ESP__FN void files_put_measured(esp__text *t, const esp__measured *m);
#endif
