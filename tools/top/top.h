/* top.h: for `espresso top`: what it has read of a job, the statistics file, and the screen. */
#ifndef ESPRESSO_TOOLS_TOP_H
#define ESPRESSO_TOOLS_TOP_H
#include "tools/common/args.h"
#include "espresso_impl/base/text.h"
#include <jansson.h>
#include <sys/types.h>

extern const tool_command top_command;

enum { TOP_HISTORY = 120, TOP_LINE_MAX = 64 << 20, TOP_CATCH_UP = 4 << 20 };

typedef struct top_tensor {
    const char *name; /* points into `header` */
    double elements, error, feedback;
    int sampled;
} top_tensor;

/* What the lines read so far tell about the job. JSON objects are NULL until the file has them. */
typedef struct top_job {
    json_t *header, *strategy, *sample, *end;
    json_t *index;
    top_tensor *tensors;
    size_t n_tensors;
    double history[TOP_HISTORY]; /* medians of the step time, the oldest first */
    int n_history;
    long strategies;
    long garbage;
    long lines;
} top_job;

typedef struct top_file {
    const char *path;
    int fd;
    dev_t dev;
    ino_t ino;
    off_t at, caught_up; /* samples that begin before caught_up are skipped */
    char *part;
    size_t len, cap;
    int error; /* errno of the last attempt to open the file, or 0 */
} top_file;

/* Defined in read.c: */
ESP__FN double top_number(const json_t *object, const char *key);
ESP__FN double top_number_in(const json_t *object, const char *group, const char *key);
ESP__FN const char *top_text(const json_t *object, const char *key);
ESP__FN void top_follow(top_file *f, top_job *j);
ESP__FN void top_job_free(top_job *j);
ESP__FN void top_file_close(top_file *f);
/* Defined in screen.c: */
typedef struct top_view {
    int columns, rows; /* 0 if unlimited */
    int utf8, ansi;
    double now; /* seconds since 1970 */
} top_view;
ESP__FN void top_render(const top_file *f, const top_job *j, const top_view *v, esp__text *out);
#endif
