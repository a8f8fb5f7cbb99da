/* profile.h: for the files of `espresso profile`, which measures up to three parts: the trainer (trainer.c), links
 * (links.c) and codecs (codecs.c). Ranks, which are processes of this command, measure links and codecs (ranks.c). Rank
 * 0 writes the costs file. */
#ifndef ESPRESSO_TOOLS_PROFILE_H
#define ESPRESSO_TOOLS_PROFILE_H
#include "tools/common/args.h"
#include "espresso_impl/base/machine.h"
#include "planner/calibrate/costs.h"
#include "planner/files/files.h"
#include <stdbool.h>

enum { PROFILE_MODEL = 1, PROFILE_LINKS = 2, PROFILE_CODECS = 4 }; /* bits of the parts to measure */
enum { PROFILE_SIZES_MAX = ESP__CALIBRATION_POINTS, PROFILE_ROUNDS = 3, PROFILE_SKIP = 5 };

/* The costs file marks times as noisy if one of these limits was exceeded. */
#define PROFILE_NOISY_OTHERS 0.10 /* fraction of the cores that other programs used */
#define PROFILE_NOISY_STOLEN 0.02 /* fraction of time that a hypervisor took */
#define PROFILE_NOISY_SPREAD 0.50 /* median over points of: quartile distance / median */

typedef struct profile_job {
    const tool_command *command;
    /* the members below are from the command line */
    uint32_t parts;
    long n, machines, steps; /* 0 if not given */
    const char *inter, *out;
    char codecs[ESP__CALIBRATION_CODECS][ESP__SPEC_MAX];
    uint32_t n_codecs;                 /* 0 for all registered codecs */
    uint32_t devices;                  /* bits 1 << ESP_ON_CPU and 1 << ESP_ON_GPU */
    uint64_t sizes[PROFILE_SIZES_MAX]; /* in elements for codecs, in bytes for collectives */
    uint32_t n_sizes;
    double budget_ns; /* ns for measuring links and codecs together */
    char **program;   /* the trainer and its arguments */
    bool started;     /* this command, and no other launcher, started this rank */
    int terminal;     /* on rank 0: descriptor of the user's terminal, or -1 */
    int model_file;   /* on rank 0: descriptor of the trainer's model, or -1 */
    /* the launcher's process does not use the members below */
    esp_ctx *ctx;
    esp__calibration *calibration, *gpu; /* gpu measures codecs on a GPU, or is NULL */
    double others, stolen;               /* fractions, see PROFILE_NOISY_* */
    esp__measured measured;
    char device[256]; /* names of the processor and the GPU */
    /* how many of the sizes fit into memory, for collectives and for codecs */
    uint32_t n_links, n_elements;
    /* the part that is measured now; points in time are those of esp__now_ns */
    uint32_t covered;             /* number of sizes that every round has measured so far */
    double deadline_ns, later_ns; /* later_ns: time to leave for the parts after it */
    double round_begun_ns;
    double round_ns; /* duration of the round before, or 0 */
    int round;
} profile_job;

/* Defined in profile.c: */
extern const tool_command profile_command;
/* Writes the costs file, from what the ranks have measured and the model, as far as these exist. */
ESP__FN esp_status profile_write(const profile_job *j, esp__costs_texts *t);

/* trainer.c: runs the trainer, and opens the model file that it has written. Returns the exit status. */
ESP__FN int profile_trainer(profile_job *j);

/* Defined in ranks.c: */
ESP__FN int profile_start(const profile_job *j, char **argv);
ESP__FN int profile_as_rank(profile_job *j);
/* Measures sizes[size]. In each round, all ranks call it for every size. took_ns is how long the size before has taken.
 * Sets *complete to false if too little time was left. */
typedef esp_status (*profile_measure)(profile_job *j, uint32_t size, double left_ns, double took_ns, bool *complete);
ESP__FN esp_status profile_rounds(profile_job *j, const char *part, uint32_t sizes, profile_measure measure);
/* Shows on the terminal what is being measured, and how much time is left. */
ESP__FN void profile_progress(const profile_job *j, const char *fmt, ...) ESP__PRINTF(2, 3);

/* Defined in link_sizes.c: */
ESP__FN esp_status profile_links(profile_job *j);
ESP__FN void profile_links_print(const profile_job *j, const char *source, esp__text *out); /* prints a system file */
ESP__FN void profile_links_show(const profile_job *j);

/* Defined in codec_sizes.c: */
ESP__FN void profile_codecs_read(profile_job *j, const char *list);
/* Checks the codecs that the user named. If the user named none, selects all. */
ESP__FN esp_status profile_codecs_choose(profile_job *j, esp_ctx *ctx);
ESP__FN esp_status profile_codecs(profile_job *j);
ESP__FN void profile_codecs_print(const profile_job *j, uint32_t k, const char *source,
                                  esp__text *out); /* prints a codec file */
ESP__FN void profile_codecs_show(const profile_job *j);
#endif
