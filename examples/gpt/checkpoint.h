/* checkpoint.h: saves and loads checkpoints, from which a run resumes with the same bits. Rank 0 writes the trainer's
 * file (parameters, moments, step), and every rank writes espresso's state. */
#ifndef GPT_CHECKPOINT_H
#define GPT_CHECKPOINT_H
#include "espresso.h"
#include "model.h"

/** Saves a checkpoint after step `step`. All ranks call it. `run` is a line that describes the run, which can only be
 * resumed with the same line. If saving is interrupted, the previous checkpoint remains. Returns NULL, or an error
 * text. */
const char *checkpoint_save(esp_ctx *ctx, const gpt *m, const char *folder, const char *run, size_t step);
/** Loads the newest checkpoint. All ranks call it, after esp_start. Returns NULL, or an error text. */
const char *checkpoint_load(esp_ctx *ctx, gpt *m, const char *folder, const char *run, size_t *step);
#endif
