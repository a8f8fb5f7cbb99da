/* checkpoint.h: saves the state from which a run resumes with the same bits: rank 0 writes the trainer's own file
 * (parameters, moments, step), every rank writes espresso's state. */
#ifndef GPT_CHECKPOINT_H
#define GPT_CHECKPOINT_H
#include "espresso.h"
#include "model.h"

/** Saves a checkpoint after step `step`. Call it on all ranks. `run` is one line that describes the run: a run
 *  resumes only from a checkpoint with the same line. An interruption at any time leaves the previous checkpoint or
 *  this one. Returns NULL on success, otherwise an error text. */
const char *checkpoint_save(esp_ctx *ctx, const gpt *m, const char *folder, const char *run, size_t step);
/** Loads the newest checkpoint. Call it on all ranks, after esp_start. Returns as checkpoint_save. */
const char *checkpoint_load(esp_ctx *ctx, gpt *m, const char *folder, const char *run, size_t *step);
#endif
