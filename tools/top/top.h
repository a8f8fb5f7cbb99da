/* top.h: what the files of `espresso top` share: what is known of a job from its statistics file. */
#ifndef ESPRESSO_TOOLS_TOP_H
#define ESPRESSO_TOOLS_TOP_H

enum { TOP_HISTORY = 120, TOP_LINE_MAX = 64 << 20, TOP_CATCH_UP = 4 << 20 };

typedef struct top_tensor {
    const char *name; /* the header's, or of `own` */
    double elements, error, feedback;
    int sampled;
} top_tensor;

/* The job, as the file has told so far. Objects are NULL until there was one. */
typedef struct top_job {
    json_t *header, *strategy, *sample, *end;
    char *sample_line; /* as it stands in the file */
    json_t *index;     /* tensor's name: its number in `tensors` */
    top_tensor *tensors;
    size_t n_tensors;
    double history[TOP_HISTORY]; /* medians of step_us, the oldest first    */
    int n_history;
    long strategies; /* how many there were    */
    long garbage;    /* lines that are no JSON */
    long lines;
} top_job;

/* The file being followed. */
typedef struct top_file {
    const char *path;
    int fd; /* -1: not there */
    dev_t dev;
    ino_t ino;
    off_t at, caught_up; /* samples before caught_up are not looked at: there are too many */
    char *part;          /* of a line */
    size_t len, cap;
    int error; /* errno of the last try to open it, or 0 */
} top_file;

/* read.c */
static void top_follow(top_file *f, top_job *j); /* takes all that is new */
static void top_job_free(top_job *j);
static void top_file_close(top_file *f);
/* screen.c */
typedef struct top_view {
    int columns, rows; /* 0: no limit */
    int utf8, ansi;
    double now; /* seconds since 1970 */
} top_view;
static void top_render(const top_file *f, const top_job *j, const top_view *v, esp__text *out);
#endif
