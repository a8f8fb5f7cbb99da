/* read.c: reads a statistics file that a job appends to. The file may be truncated or replaced meanwhile. */
#include "tools/top/top.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- lines ------------------------------------------------------------------------------------------------------- */
ESP__FN double top_number(const json_t *object, const char *key) {
    const json_t *v = json_object_get(object, key);
    return json_is_number(v) ? json_number_value(v) : NAN;
}
ESP__FN double top_number_in(const json_t *object, const char *group, const char *key) {
    return top_number(json_object_get(object, group), key);
}
ESP__FN const char *top_text(const json_t *object, const char *key) {
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : "";
}

static void top_keep(json_t **place, json_t *value) {
    json_decref(*place);
    *place = json_incref(value);
}

ESP__FN void top_job_free(top_job *j) {
    json_decref(j->header);
    json_decref(j->strategy);
    json_decref(j->sample);
    json_decref(j->end);
    json_decref(j->index);
    free(j->tensors);
    memset(j, 0, sizeof *j);
}

/* Handles the line with which a job begins. Drops the data of an earlier job in the same file. */
static void top_take_header(top_job *j, json_t *line) {
    long garbage = j->garbage, lines = j->lines;
    json_t *list = json_object_get(line, "tensors");
    size_t n = json_array_size(list), k = 0;
    top_job_free(j);
    j->garbage = garbage;
    j->lines = lines;
    j->header = json_incref(line);
    j->index = json_object();
    j->tensors = tool_realloc(NULL, n * sizeof *j->tensors);
    for (size_t i = 0; i < n; i++) {
        const json_t *t = json_array_get(list, i);
        const char *name = top_text(t, "name");
        if (!*name || json_object_get(j->index, name)) continue;
        json_object_set_new(j->index, name, json_integer((json_int_t)k));
        j->tensors[k++] = (top_tensor){.name = name, .elements = top_number(t, "elements")};
    }
    j->n_tensors = k;
}

static void top_take_sample(top_job *j, json_t *line) {
    double median = top_number_in(line, "step_us", "median");
    json_t *t;
    size_t i;
    top_keep(&j->sample, line);
    if (isfinite(median) && median > 0) {
        if (j->n_history == TOP_HISTORY)
            memmove(j->history, j->history + 1, (size_t)--j->n_history * sizeof *j->history);
        j->history[j->n_history++] = median;
    }
    json_array_foreach(json_object_get(line, "tensors"), i, t) {
        const json_t *at = json_object_get(j->index, top_text(t, "name"));
        if (!at) continue;
        top_tensor *x = &j->tensors[json_integer_value(at)];
        x->error = top_number(t, "error");
        x->feedback = top_number(t, "feedback");
        x->sampled = 1;
    }
}

static void top_take_line(top_job *j, const char *text, size_t len) {
    json_error_t e;
    if (len == 0) return;
    json_t *line = json_loadb(text, len, JSON_ALLOW_NUL, &e);
    const char *kind = top_text(line, "kind");
    j->lines++;
    if (!*kind)
        j->garbage++;
    else if (!strcmp(kind, "header"))
        top_take_header(j, line);
    else if (!strcmp(kind, "strategy"))
        top_keep(&j->strategy, line), j->strategies++;
    else if (!strcmp(kind, "sample"))
        top_take_sample(j, line);
    else if (!strcmp(kind, "end"))
        top_keep(&j->end, line);
    json_decref(line);
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */
ESP__FN void top_file_close(top_file *f) {
    if (f->fd >= 0) close(f->fd);
    free(f->part);
    *f = (top_file){.path = f->path, .fd = -1, .error = f->error};
}

static void top_file_open(top_file *f) {
    struct stat st;
    f->error = 0;
    f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0 || fstat(f->fd, &st) != 0) {
        f->error = errno;
        top_file_close(f);
        return;
    }
    if (S_ISDIR(st.st_mode)) {
        f->error = EISDIR;
        top_file_close(f);
        return;
    }
    f->dev = st.st_dev;
    f->ino = st.st_ino;
    f->caught_up = st.st_size > TOP_CATCH_UP ? st.st_size - TOP_CATCH_UP : 0;
}

/* Parses the complete lines in `part`, and keeps the incomplete last one. */
static void top_file_lines(top_file *f, top_job *j) {
    static const char sample[] = "{\"kind\":\"sample\"";
    size_t done = 0;
    const char *end;
    while ((end = memchr(f->part + done, '\n', f->len - done)) != NULL) {
        size_t len = (size_t)(end - (f->part + done));
        off_t begin = f->at - (off_t)(f->len - done);
        if (begin >= f->caught_up || len < sizeof sample || memcmp(f->part + done, sample, sizeof sample - 1) != 0)
            top_take_line(j, f->part + done, len);
        done += len + 1;
    }
    memmove(f->part, f->part + done, f->len -= done);
    if (f->len > TOP_LINE_MAX) f->len = 0, j->garbage++; /* no line of statistics is so long */
}

static bool top_file_read(top_file *f, top_job *j) {
    if (f->cap - f->len < 1 << 16) f->part = tool_realloc(f->part, f->cap = f->cap * 2 + (1 << 20));
    ssize_t n = read(f->fd, f->part + f->len, f->cap - f->len);
    if (n <= 0) return false;
    f->len += (size_t)n;
    f->at += n;
    top_file_lines(f, j);
    return true;
}

ESP__FN void top_follow(top_file *f, top_job *j) {
    struct stat st;
    if (f->fd < 0) top_file_open(f);
    for (int again = 0; f->fd >= 0 && again < 2; again++) {
        if (fstat(f->fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size < f->at) { /* the file was truncated */
            lseek(f->fd, 0, SEEK_SET);
            f->at = f->caught_up = 0;
            f->len = 0;
        }
        while (top_file_read(f, j)) {
        }
        if (stat(f->path, &st) != 0 || (st.st_dev == f->dev && st.st_ino == f->ino)) break;
        top_file_close(f); /* another file has this path now */
        top_file_open(f);
    }
}
