/* file.h: reads whole files, and writes files that readers see complete or not at all. The content goes into a
 * temporary file in the same folder, "PATH.tmp-espresso", which is renamed to PATH when everything is on the disk. A
 * failure, such as a full disk, leaves PATH unchanged and no temporary file. A killed process' temporary file is
 * removed by the next process that writes PATH. A link stays a link: the file that it points to is replaced. Pipes and
 * devices are written directly. Functions that return an int return 0 or an errno. */
#ifndef ESP__FILE_H
#define ESP__FILE_H
#include "espresso_impl/base/text.h"
#include <limits.h>

enum { ESP__FILE_NAMES = 16 }; /* processes that may write one path at a time */
typedef struct esp__file {
    FILE *to; /* or NULL */
    char path[PATH_MAX];
    char temporary[PATH_MAX]; /* "" if `path` is a pipe or device */
    int error;                /* the first one of esp__file_put */
} esp__file;

/* Opens the temporary file. After a failure nothing needs to be closed or removed. */
ESP__FN int esp__file_open(esp__file *f, const char *path);
/* Keeps an error in f->error: esp__file_sync and esp__file_close return it. */
ESP__FN void esp__file_put(esp__file *f, const void *data, size_t bytes);
/* First half of closing: syncs the content to the disk. */
ESP__FN int esp__file_sync(esp__file *f);
/* Second half: gives the file its name, and syncs that, too. */
ESP__FN int esp__file_rename(esp__file *f);
/* Both halves. */
ESP__FN int esp__file_close(esp__file *f);
/* Gives up: removes the temporary file, and PATH stays as it was. Does nothing to a closed or zeroed file. */
ESP__FN void esp__file_drop(esp__file *f);

/* Opens, writes and closes. Does not block: a pipe that is full or has no reader causes an error. */
ESP__FN int esp__file_replace(const char *path, const void *data, size_t bytes);
/* Could a file of that path be written? Leaves nothing on the disk. */
ESP__FN int esp__file_check(const char *path);
/* Reads a whole file, pipe or device into *text, which the caller frees, and adds a NUL after the *bytes read. Returns
 * EFBIG if it has more than `most` bytes. After an error, *text is NULL. */
ESP__FN int esp__file_read(const char *path, size_t most, char **text, size_t *bytes);
/* The same into an empty text, in memory of its context. */
ESP__FN int esp__file_read_text(const char *path, size_t most, esp__text *t);
ESP__FN int esp__file_write_all(int fd, const void *data, size_t bytes);
/* Copies a file's name with the rank in place of "%r". Did it have one, so that every rank has a file of its own? */
ESP__FN bool esp__path_of_rank(const char *name, int32_t rank, char *out, size_t cap);
/* Makes `path` absolute, so that it stays valid after the program's chdir. */
ESP__FN int esp__path_absolute(const char *path, char out[PATH_MAX]);
#endif
