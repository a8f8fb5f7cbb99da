/* checkpoint.c: writes a checkpoint to a folder as files stepN.model, stepN.espresso.rRofS, and `latest`. The latter
 * contains N and is renamed into place last, so that it always names a complete checkpoint. */
#include "checkpoint.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH = 1024 };
static char why[2 * PATH]; /* text of the last error */

static const char *problem(const char *path, const char *what) {
    snprintf(why, sizeof why, "%s: %s", path, what);
    return why;
}

/* Writes a line and `bytes` of data to a temporary file and renames it, so that no reader sees half a file. */
static const char *write_file(const char *path, const char *line, const void *data, size_t bytes) {
    char other[PATH + 8];
    snprintf(other, sizeof other, "%s.tmp", path);
    FILE *f = fopen(other, "wb");
    if (!f) return problem(other, strerror(errno));
    int bad =
        fprintf(f, "%s\n", line) < 0 || (bytes && fwrite(data, 1, bytes, f) != bytes) || fflush(f) || fsync(fileno(f));
    if (fclose(f) || bad || rename(other, path)) {
        problem(path, strerror(errno));
        return unlink(other), why;
    }
    return NULL;
}

/* Reads a file that write_file wrote. If `line` is not empty, the file's first line must equal it. Copies that line to
 * `line`. */
static const char *read_file(const char *path, char *line, size_t room, void *data, size_t bytes) {
    char got[PATH];
    FILE *f = fopen(path, "rb");
    if (!f) return problem(path, strerror(errno));
    const char *bad = NULL;
    if (!fgets(got, sizeof got, f)) bad = problem(path, "is empty");
    if (!bad) got[strcspn(got, "\n")] = 0;
    if (!bad && *line && strcmp(got, line)) {
        snprintf(why, sizeof why, "%s: is from another run: '%s', and this is '%s'", path, got, line);
        bad = why;
    }
    if (!bad && ((bytes && fread(data, 1, bytes, f) != bytes) || fgetc(f) != EOF))
        bad = problem(path, "has the wrong length");
    if (!bad) snprintf(line, room, "%s", got);
    return fclose(f), bad;
}

static void path_of(char *path, const char *folder, size_t step, const char *what) {
    snprintf(path, PATH, "%s/step%zu.%s", folder, step, what);
}

static const char *read_latest(const char *folder, size_t *step) {
    char path[PATH], number[PATH] = "", *end;
    snprintf(path, sizeof path, "%s/latest", folder);
    const char *bad = read_file(path, number, sizeof number, NULL, 0);
    if (bad) return bad;
    *step = (size_t)strtoull(number, &end, 10);
    return *end || end == number ? problem(path, "does not hold a step's number") : NULL;
}

static void remove_own(const esp_ctx *ctx, const char *folder, size_t step) {
    char path[PATH], part[64];
    snprintf(part, sizeof part, "espresso.r%dof%d", (int)esp_rank(ctx), (int)esp_size(ctx));
    path_of(path, folder, step, part);
    unlink(path);
    path_of(path, folder, step, "model");
    if (esp_rank(ctx) == 0) unlink(path);
}

const char *checkpoint_save(esp_ctx *ctx, const gpt *m, const char *folder, const char *run, size_t step) {
    char path[PATH], number[32];
    size_t before = step;
    if (mkdir(folder, 0777) && errno != EEXIST) return problem(folder, strerror(errno));
    if (read_latest(folder, &before)) before = step; /* there is no checkpoint yet */
    path_of(path, folder, step, "model");
    const char *bad = esp_rank(ctx) ? NULL : write_file(path, run, m->value, 3 * m->n_values * sizeof *m->value);
    if (bad) return bad;
    path_of(path, folder, step, "espresso");
    if (esp_state_save(ctx, path) < 0 || esp_barrier(ctx) < 0) return esp_last_error(ctx);
    snprintf(path, sizeof path, "%s/latest", folder), snprintf(number, sizeof number, "%zu", step);
    if (esp_rank(ctx) == 0 && (bad = write_file(path, number, NULL, 0))) return bad;
    if (esp_barrier(ctx) < 0) return esp_last_error(ctx);
    if (before != step) remove_own(ctx, folder, before);
    return NULL;
}

const char *checkpoint_load(esp_ctx *ctx, gpt *m, const char *folder, const char *run, size_t *step) {
    char path[PATH], line[PATH];
    uint64_t number = 0;
    const size_t bytes = 3 * m->n_values * sizeof *m->value;
    if (esp_rank(ctx) == 0) {
        const char *bad = read_latest(folder, step);
        snprintf(line, sizeof line, "%s", run);
        path_of(path, folder, *step, "model");
        if (!bad) bad = read_file(path, line, sizeof line, m->value, bytes);
        if (bad) return bad;
        number = *step;
    }
    if (esp_broadcast(ctx, &number, sizeof number, 0) < 0 || esp_broadcast(ctx, m->value, bytes, 0) < 0)
        return esp_last_error(ctx);
    *step = (size_t)number;
    path_of(path, folder, *step, "espresso");
    return esp_state_load(ctx, path) < 0 ? esp_last_error(ctx) : NULL;
}
