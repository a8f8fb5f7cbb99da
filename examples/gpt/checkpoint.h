/* checkpoint.h: what a run needs to go on later as if it had never stopped: the trainer's own file (parameters, moments, step)
 * by rank 0, and espresso's state by every rank. */
#ifndef GPT_CHECKPOINT_H
#define GPT_CHECKPOINT_H
#include "espresso.h"
#include "model.h"

/** After step `step`, on all ranks. `run` is one line that says what kind of run this is. An interruption at any time leaves
 *  the checkpoint before this one, or this one. Returns NULL, or what is wrong. */
const char *checkpoint_save(esp_ctx *ctx, const gpt *m, const char *folder, const char *run, size_t step);
/** On all ranks, after esp_start: reads the newest one. */
const char *checkpoint_load(esp_ctx *ctx, gpt *m, const char *folder, const char *run, size_t *step);
#endif
