/* profile.h: shared by the files of `espresso profile`. Up to three parts are measured: the trainer (trainer.c), and by ranks (ranks.c),
 * which are processes of this command, links (links.c) and codecs (codecs.c). Rank 0 writes the costs file. */
#ifndef ESPRESSO_TOOLS_PROFILE_H
#define ESPRESSO_TOOLS_PROFILE_H
#include "tools/common/args.h"
#include "espresso_impl/base/machine.h"
#include "planner/calibrate/costs.h"
#include "planner/files/files.h"
#include <stdbool.h>

enum { PROFILE_MODEL = 1, PROFILE_LINKS = 2, PROFILE_CODECS = 4 }; /* parts, as bits */
enum { PROFILE_SIZES_MAX = ESP__CALIBRATION_POINTS, PROFILE_ROUNDS = 3, PROFILE_SKIP = 5 };

/* What was measured is noisy if: */
#define PROFILE_NOISY_OTHERS 0.10 /* other programs took this share of the machine's time,                      */
#define PROFILE_NOISY_STOLEN 0.02 /* or the host of this virtual machine did (steal),                           */
#define PROFILE_NOISY_SPREAD 0.50 /* or a typical point's quartiles were this far apart, as a share of its time */

typedef struct profile_job {
    const tool_command *command;
    /* from the command line */
    uint32_t parts;
    long n, machines, steps; /* n, machines 0: not given */
    const char *inter, *out;
    char codecs[ESP__CALIBRATION_CODECS][ESP__SPEC_MAX];
    uint32_t n_codecs;                 /* 0: those that there are */
    uint32_t devices;                  /* that compress: bits 1 << ESP_ON_CPU, 1 << ESP_ON_GPU */
    uint64_t sizes[PROFILE_SIZES_MAX]; /* elements for codecs, bytes for collectives */
    uint32_t n_sizes;
    double budget_ns; /* of links and codecs together */
    char **program;   /* the trainer and its arguments; *program NULL: none */
    bool started;     /* this rank was started by this command, not by another launcher */
    int terminal;     /* of the user, for rank 0; -1: none */
    int model_file;   /* what the trainer's part measured, for rank 0; -1: nothing */
    /* of a rank */
    esp_ctx *ctx;
    esp__calibration *calibration, *gpu; /* gpu: of codecs on a GPU; NULL: those are not measured */
    double others, stolen;               /* as above */
    esp__measured measured;
    char device[256]; /* names of the processor and the GPU */
    uint32_t n_links,
        n_elements; /* so many of the sizes fit into memory, as bytes of links and as elements of codecs */
    /* of the part that is measured; times are by esp__now_ns */
    uint32_t covered;                /* so many of its sizes were measured completely */
    double deadline_ns, later_ns;    /* later_ns: time for the parts behind it */
    double round_begun_ns, round_ns; /* round_ns: what the last round took; 0: this is the first */
    int round;
} profile_job;

/* profile.c */
extern const tool_command profile_command;
/* Writes the costs file: with what the ranks measured, if they did, and the model, if there is one. */
ESP__FN esp_status profile_write(const profile_job *j, esp__costs_texts *t);

/* trainer.c: runs the trainer, and opens the model file that it wrote. Returns the exit status. */
ESP__FN int profile_trainer(profile_job *j);

/* ranks.c */
ESP__FN int profile_start(const profile_job *j, char **argv);
ESP__FN int profile_as_rank(profile_job *j);
/* All ranks call it, as often as there are sizes, in each round. *complete is set to false where time did not allow all of it. `took`: what
 * the size before took. */
typedef esp_status (*profile_measure)(profile_job *j, uint32_t size, double left_ns, double took_ns, bool *complete);
ESP__FN esp_status profile_rounds(profile_job *j, const char *part, uint32_t sizes, profile_measure measure);
/* Shows what is measured now, and how long the rest takes. */
ESP__FN void profile_say(const profile_job *j, const char *fmt, ...) ESP__PRINTF(2, 3);

/* links.c */
ESP__FN esp_status profile_links(profile_job *j);
ESP__FN void profile_links_print(const profile_job *j, const char *source, esp__text *out); /* a system file */
ESP__FN void profile_links_show(const profile_job *j);

/* codecs.c */
ESP__FN void profile_codecs_read(profile_job *j, const char *list);
/* Checks the codecs, and takes those that there are if none is given. */
ESP__FN esp_status profile_codecs_choose(profile_job *j, esp_ctx *ctx);
ESP__FN esp_status profile_codecs(profile_job *j);
ESP__FN void profile_codecs_print(const profile_job *j, uint32_t k, const char *source,
                                  esp__text *out); /* a codec file */
ESP__FN void profile_codecs_show(const profile_job *j);
#endif
