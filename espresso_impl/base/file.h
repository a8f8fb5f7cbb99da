/* file.h: reads whole files, and writes files that a reader sees whole or not at all. Must not know what is in them.
 * The content of a written file goes into a new file in the same folder, "PATH.tmp-espresso", which takes the name PATH when everything is on
 * the disk. A failure, for example a full disk, leaves PATH as it was and no temporary file. If a process was killed, the next
 * one that writes PATH removes its temporary file. A link stays a link: the file that it points to is replaced. A pipe or a
 * device is written to directly. Every function that returns an int returns 0, or an errno. */
#ifndef ESP__FILE_H
#define ESP__FILE_H
#include "espresso_impl/base/text.h"
#include <limits.h>

enum { ESP__FILE_NAMES = 16 }; /* so many processes may write one path at the same time */
typedef struct esp__file {
    FILE *to;                                 /* NULL: not open                                   */
    char path[PATH_MAX], temporary[PATH_MAX]; /* temporary "": `to` is the pipe or device `path`  */
    int error;                                /* the first error of esp__file_put                 */
} esp__file;

/* Opens the temporary file. After a failure nothing needs to be closed or removed. */
ESP__FN int esp__file_open(esp__file *f, const char *path);
/* Keeps an error in f->error: esp__file_sync and esp__file_close return it. */
ESP__FN void esp__file_put(esp__file *f, const void *data, size_t bytes);
/* First half of closing: brings the content to the disk, under the temporary name. */
ESP__FN int esp__file_sync(esp__file *f);
/* Second half: gives the file its name, and brings that to the disk too. */
ESP__FN int esp__file_rename(esp__file *f);
/* Both halves. */
ESP__FN int esp__file_close(esp__file *f);
/* Gives up: removes the temporary file, and PATH stays as it was. Does nothing to a file that was closed, dropped, or zeroed. */
ESP__FN void esp__file_drop(esp__file *f);

/* Opens, writes and closes. Does not block: a pipe that is full or has no reader is an error. */
ESP__FN int esp__file_replace(const char *path, const void *data, size_t bytes);
/* Could a file of that path be written? Leaves nothing on the disk. */
ESP__FN int esp__file_check(const char *path);
/* Reads a whole file, pipe or device into *text, which the caller frees and which ends with a NUL behind the *bytes that were
 * read. EFBIG: it has more than `most`. After an error *text is NULL. */
ESP__FN int esp__file_read(const char *path, size_t most, char **text, size_t *bytes);
/* The same into an empty text, in memory of its context. */
ESP__FN int esp__file_read_text(const char *path, size_t most, esp__text *t);
/* Writes everything to an open descriptor. */
ESP__FN int esp__file_write_all(int fd, const void *data, size_t bytes);
/* Copies a file's name with the rank in place of "%r". Returns 1 if it had one: then every rank has a file of its own. */
ESP__FN int esp__path_of_rank(const char *name, int32_t rank, char *out, size_t cap);
/* The absolute form of `path`: it stays right after a chdir of the program. */
ESP__FN int esp__path_absolute(const char *path, char out[PATH_MAX]);
#endif
