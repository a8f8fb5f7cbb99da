/* screen.c: formats a job's statistics as lines of text for a screen or a pipe. */
#include "tools/top/top.h"
#include "tools/common/quantity.h"
#include <math.h>

typedef struct top_page {
    const top_view *view;
    esp__text *out;
    int rows;
} top_page;

static void top_clean(char *text) {
    for (unsigned char *p = (unsigned char *)text; *p; p++) {
        if (*p < ' ' || *p == 0x7f) *p = '?';
        if (p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0) p[0] = p[1] = '?';
    }
}

/* Returns how many bytes of `text` fit into `columns` characters. */
static size_t top_fitting(const char *text, int columns) {
    size_t n = 0;
    for (int used = 0; text[n]; n++) {
        if (((unsigned char)text[n] & 0xc0) == 0x80) continue;
        if (used++ == columns) break;
    }
    return n;
}

/* Prints a line, cut to the screen's width. Bold text is printed only on a terminal. */
static void top_line(top_page *p, bool bold, const char *fmt, ...) ESP__PRINTF(3, 4);
static void top_line(top_page *p, bool bold, const char *fmt, ...) {
    char text[1024];
    va_list ap;
    if (p->view->rows && p->rows >= p->view->rows) return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    text[sizeof text - 1] = 0;
    top_clean(text);
    size_t n = p->view->columns ? top_fitting(text, p->view->columns) : strlen(text);
    while (n && text[n - 1] == ' ') n--;
    bold = bold && p->view->ansi && n;
    esp__text_add(p->out, "%s%.*s%s%s\n", bold ? "\033[1m" : "", (int)n, text, bold ? "\033[0m" : "",
                  p->view->ansi ? "\033[K" : "");
    p->rows++;
}

static const char *top_us(double us) { return isfinite(us) ? tool_time(us * 1000) : "-"; }
static const char *top_size(double bytes) { return isfinite(bytes) ? tool_bytes(bytes) : "-"; }

static const char *top_ago(double s) {
    char *out = tool_scratch();
    if (s < 0) s = 0; /* the clock of the job's machine may be ahead */
    if (s < 60)
        snprintf(out, 32, "%.0f s", s);
    else if (s < 7200)
        snprintf(out, 32, "%.0f min", s / 60);
    else
        snprintf(out, 32, "%.1f h", s / 3600);
    return out;
}

/* Draws a bar chart with one character for each number, in Unicode or in ASCII. */
static void top_spark(const top_view *v, const double *x, int n, char *out, size_t cap) {
    static const char *const fine[] = {"\u2581", "\u2582", "\u2583", "\u2584", "\u2585", "\u2586", "\u2587", "\u2588"};
    static const char *const plain[] = {"_", ".", ",", "-", "~", "=", "*", "#"};
    double least = INFINITY, most = 0;
    size_t at = 0;
    for (int i = 0; i < n; i++) least = fmin(least, x[i]), most = fmax(most, x[i]);
    *out = 0;
    for (int i = 0; i < n && at + 4 < cap; i++) {
        /* the chart's height is at least 10% of the lowest value, so that nearly equal steps look equal */
        double range = fmax(most - least, least * 0.1), part = range > 0 ? (x[i] - least) / range : 0;
        int k = (int)(part * 7.999);
        at += (size_t)snprintf(out + at, cap - at, "%s", (v->utf8 ? fine : plain)[k < 0 ? 0 : k > 7 ? 7 : k]);
    }
}

static void top_bar(const top_view *v, double part, int columns, char *out, size_t cap) {
    size_t at = 0;
    int full = isfinite(part) ? (int)(part * columns + 0.5) : 0;
    *out = 0;
    for (int i = 0; i < columns && at + 4 < cap; i++)
        at += (size_t)snprintf(out + at, cap - at, "%s",
                               i < full  ? v->utf8 ? "\u2588" : "#"
                               : v->utf8 ? "\u2591"
                                         : ".");
}

static int top_columns(const top_page *p) { return p->view->columns ? p->view->columns : 100; }

/* Returns the mean step time, which is 100% for the other mean times. */
static double top_mean(const json_t *sample) {
    double mean = top_number_in(sample, "step_us", "mean");
    return mean > 0 ? mean : top_number_in(sample, "step_us", "median");
}

/* ---- the parts --------------------------------------------------------------------------------------------------- */
static void top_title(top_page *p, const top_job *j) {
    const json_t *h = j->header;
    const char *link = top_text(h, "link"), *program = top_text(h, "program");
    top_line(p, 1, "%.60s: %.0f rank(s) on %.0f machine(s), %s%s%.40s; rank %.0f, pid %.0f on %.60s", program,
             top_number(h, "ranks"), top_number(h, "machines"), top_text(h, "backend"), *link ? " " : "", link,
             top_number(h, "rank"), top_number(h, "pid"), top_text(h, "host"));
}

static void top_status(top_page *p, const top_job *j) {
    const json_t *s = j->sample;
    double every = top_number(j->header, "every_s"), age = p->view->now - top_number(s, "time"),
           median = top_number_in(s, "step_us", "median");
    char rate[64] = "";
    if (isfinite(median) && median > 0) snprintf(rate, sizeof rate, ", %.3g steps/s", 1e6 / median);
    if (j->end) {
        const char *error = top_text(j->end, "error");
        top_line(p, 1, "ended %s ago after step %.0f%s%.400s", top_ago(p->view->now - top_number(j->end, "time")),
                 top_number(j->end, "step"), *error ? ": " : "", error);
    } else if (!s) {
        top_line(p, 0, "no sample yet: the first comes after %.3g s", every);
    } else if (age > 3 * every + 2) {
        top_line(p, 1, "step %.0f; no news for %s: it was stopped, or killed, or its disk is full",
                 top_number(s, "step"), top_ago(age));
    } else if (top_number(s, "steps") == 0) {
        top_line(p, 1, "step %.0f; no step was made in the last %.3g s", top_number(s, "step"), every);
    } else {
        top_line(p, 0, "step %.0f%s", top_number(s, "step"), rate);
    }
}

static void top_strategy(top_page *p, const top_job *j) {
    const json_t *s = j->strategy, *codec;
    char codecs[256] = "";
    size_t i, at = 0;
    const char *asked = top_text(j->header, "asked_strategy"), *phase = top_text(j->sample, "phase");
    if (!s) return;
    json_array_foreach(json_object_get(s, "codecs"), i, codec) {
        const char *spec = json_string_value(codec);
        if (spec && at + 2 < sizeof codecs)
            at += (size_t)snprintf(codecs + at, sizeof codecs - at, "%s%s", at ? " " : "", spec);
    }
    top_line(p, 0, "strategy %.16s since step %.0f (%ld so far)%s%.60s%s%.60s", top_text(s, "strategy"),
             top_number(s, "step"), j->strategies, *asked ? ", asked for: " : "", asked, *phase ? "; autopilot: " : "",
             phase);
    if (isfinite(top_number(j->sample, "loss"))) top_line(p, 0, "  loss %.4g", top_number(j->sample, "loss"));
    if (top_number(j->sample, "predicted_us") > 0)
        top_line(p, 0, "  predicted %s a step", tool_time(1e3 * top_number(j->sample, "predicted_us")));
    top_line(p, 0, "  %.0f of %.0f units compressed%s%.250s", top_number(s, "compressed_units"), top_number(s, "units"),
             *codecs ? ": " : "", codecs);
}

static void top_times(top_page *p, const top_job *j) {
    const json_t *s = j->sample;
    double median = top_number_in(s, "step_us", "median"), mean = top_mean(s),
           comm = top_number(s, "exposed_communication_us"), comp = top_number(s, "exposed_compression_us");
    int room = top_columns(p) - 14, n = j->n_history < room ? j->n_history : room;
    char spark[TOP_HISTORY * 4];
    top_line(p, 1, "step time    %s, p90 %s, last %s", top_us(median), top_us(top_number_in(s, "step_us", "p90")),
             top_us(top_number_in(s, "step_us", "last")));
    if (n > 1) {
        const double *x = j->history + j->n_history - n;
        double least = INFINITY, most = 0;
        for (int i = 0; i < n; i++) least = fmin(least, x[i]), most = fmax(most, x[i]);
        top_spark(p->view, x, n, spark, sizeof spark);
        top_line(p, 0, "             %s", spark);
        top_line(p, 0, "             medians of the last %d intervals, %s to %s", n, top_us(least), top_us(most));
    }
    top_line(p, 0, "backward     %s", top_us(top_number(s, "backward_us")));
    top_line(p, 0, "exposed      communication %s (%.0f%%), compression %s (%.0f%%)", top_us(comm),
             isfinite(comm / mean) ? 100 * comm / mean : 0, top_us(comp),
             isfinite(comp / mean) ? 100 * comp / mean : 0);
}

/* Returns the name of level k (0: ranks of a machine), or NULL. Older files have two levels, without names. */
static const char *top_level(const top_job *j, size_t k) {
    static const char *const two[] = {"intra", "inter"};
    const json_t *levels = json_object_get(j->header, "levels");
    if (!json_is_array(levels)) return k < 2 ? two[k] : NULL;
    return k < ESP_LEVELS ? json_string_value(json_array_get(levels, k)) : NULL;
}

static int top_level_width(const top_job *j) {
    int width = 10;
    for (size_t k = 0; top_level(j, k); k++)
        if (strlen(top_level(j, k)) > (size_t)width)
            width = strlen(top_level(j, k)) < 16 ? (int)strlen(top_level(j, k)) : 16;
    return width;
}

static void top_lanes(top_page *p, const top_job *j) {
    static const char *const codec[] = {"compress", "decompress"};
    double mean = top_mean(j->sample);
    const int width = top_level_width(j), columns = top_columns(p) - width - 24;
    char bar[512];
    top_line(p, 1, "lanes, busy in a step");
    for (size_t i = 0; i < 2 || top_level(j, i - 2); i++) {
        const char *lane = i < 2 ? codec[i] : top_level(j, i - 2);
        double us = top_number_in(j->sample, "lane_us", lane), part = us / mean;
        top_bar(p->view, isfinite(part) ? fmin(part, 1) : 0,
                columns > 40  ? 40
                : columns > 5 ? columns
                              : 0,
                bar, sizeof bar);
        top_line(p, 0, "  %-*.16s %10s %4.0f%% %s", width, lane, top_us(us), isfinite(part) ? 100 * part : 0, bar);
    }
}

static void top_bytes(top_page *p, const top_job *j) {
    double dropped = top_number(j->sample, "nonfinite");
    top_line(p, 1, "bytes received by this rank");
    for (size_t i = 0; top_level(j, i); i++)
        top_line(p, 0, "  %-*.16s %10s a step, %s in all", top_level_width(j), top_level(j, i),
                 top_size(top_number_in(j->sample, "step_bytes", top_level(j, i))),
                 top_size(top_number_in(j->sample, "bytes", top_level(j, i))));
    top_line(p, 0, "memory       %s", top_size(top_number(j->sample, "memory_bytes")));
    if (dropped > 0) top_line(p, 1, "dropped      %.0f updates of the feedback: NaN or infinity in gradients", dropped);
}

static int top_by_error(const void *a, const void *b) {
    const top_tensor *x = *(const top_tensor *const *)a, *y = *(const top_tensor *const *)b;
    return (x->error < y->error) - (x->error > y->error);
}

/* Shows the tensors with the largest compression errors: as many as fit, or ten if the output is no screen. */
static void top_tensors(top_page *p, const top_job *j) {
    size_t n = 0, most = p->view->rows ? (size_t)p->view->rows : 10;
    const top_tensor **list = tool_realloc(NULL, j->n_tensors * sizeof *list);
    for (size_t i = 0; i < j->n_tensors; i++)
        if (j->tensors[i].sampled && isfinite(j->tensors[i].error)) list[n++] = &j->tensors[i];
    qsort(list, n, sizeof *list, top_by_error);
    int name = top_columns(p) - 38;
    if (name > 40) name = 40;
    if (name < 8) name = 8;
    if (n) top_line(p, 1, "%-*s %10s %10s %12s", name, "compressed tensors", "elements", "error", "feedback");
    for (size_t i = 0; i < n && i < most; i++)
        top_line(p, 0, "  %-*.*s %10s %10.4f %12.3g", name - 2, (int)top_fitting(list[i]->name, name - 2),
                 list[i]->name, tool_count(list[i]->elements), list[i]->error, list[i]->feedback);
    if (n > most) top_line(p, 0, "  and %zu more", n - most);
    free(list);
}

static void top_garbage(top_page *p, const top_job *j) {
    if (j->garbage)
        top_line(p, 1, "%ld of %ld lines of the file are no statistics and were passed over", j->garbage, j->lines);
}

ESP__FN void top_render(const top_file *f, const top_job *j, const top_view *v, esp__text *out) {
    top_page p = {v, out, 0};
    if (!j->header) {
        if (f->error)
            top_line(&p, 1, "waiting for %s: %s", f->path, strerror(f->error));
        else
            top_line(&p, 1, "%s: nothing of a job yet", f->path);
        top_garbage(&p, j);
    } else {
        top_title(&p, j);
        top_status(&p, j);
        top_strategy(&p, j);
        top_garbage(&p, j);
        if (j->sample) {
            top_line(&p, 0, " ");
            top_times(&p, j);
            top_line(&p, 0, " ");
            top_lanes(&p, j);
            top_bytes(&p, j);
            top_line(&p, 0, " ");
            top_tensors(&p, j);
        }
    }
}
