/* file.h: reads whole files, and writes files that readers see complete or not at all. The content goes into a
 * temporary file "PATH.tmp-espresso", which is renamed to PATH once all is on the disk; after a failure PATH is
 * unchanged. If a writer is killed, the next writer of PATH removes its temporary file. If PATH is a link, the file
 * that it points to is replaced. Pipes and devices are written directly. Functions that return an int return 0 or an
 * errno. */
#ifndef ESP__FILE_H
#define ESP__FILE_H
#include "espresso_impl/base/text.h"
#include <limits.h>

enum { ESP__FILE_NAMES = 16 };
typedef struct esp__file {
    FILE *to; /* NULL if closed */
    char path[PATH_MAX];
    char temporary[PATH_MAX];
    int error; /* first error of esp__file_put, or 0 */
} esp__file;

/* Opens the temporary file. After a failure, there is nothing to close or remove. */
ESP__FN int esp__file_open(esp__file *f, const char *path);
/* Writes data. An error is returned only later, by esp__file_sync or esp__file_close. */
ESP__FN void esp__file_put(esp__file *f, const void *data, size_t bytes);
/* Waits until the content is on the disk. */
ESP__FN int esp__file_sync(esp__file *f);
/* Renames the temporary file to PATH, waits until that is on the disk, and closes the file. */
ESP__FN int esp__file_rename(esp__file *f);
ESP__FN int esp__file_close(esp__file *f);
/* Removes the temporary file and leaves PATH unchanged. Does nothing if the file is closed. */
ESP__FN void esp__file_drop(esp__file *f);

/* Writes a whole file. Does not block: if PATH is a pipe that is full or has no reader, returns an error. */
ESP__FN int esp__file_replace(const char *path, const void *data, size_t bytes);
/* Returns 0 if a file of this path can be written. Leaves nothing on the disk. */
ESP__FN int esp__file_check(const char *path);
/* Reads a whole file, pipe or device. The caller frees *text, which has a NUL after the *bytes read. Returns EFBIG if
 * there are more than `most` bytes. After an error, *text is NULL. */
ESP__FN int esp__file_read(const char *path, size_t most, char **text, size_t *bytes);
/* Reads a whole file into `t`, which must be empty. */
ESP__FN int esp__file_read_text(const char *path, size_t most, esp__text *t);
ESP__FN int esp__file_write_all(int fd, const void *data, size_t bytes);
/* Copies a file name with the rank in place of "%r". Returns true if the name contains "%r", so that each rank has a
 * file of its own. */
ESP__FN bool esp__path_of_rank(const char *name, int32_t rank, char *out, size_t cap);
ESP__FN int esp__path_absolute(const char *path, char out[PATH_MAX]);
/* Sets `out` to the absolute path of a file for this context to write. If another context of this process already
 * writes "t.json", the path is "t.2.json", and so on. If the program made several groups of the launcher's ranks, the
 * launcher's rank is added, as in "t.p2.json". Pipes and devices keep their names. The path stays reserved until
 * esp__paths_release. ctx may be NULL. */
ESP__FN int esp__path_of_context(esp_ctx *ctx, const char *path, char out[PATH_MAX]);
ESP__FN void esp__paths_release(esp_ctx *ctx);
#endif
