/* file.h: files that a reader sees whole or not at all. Must not know what is in them.
 * The content goes into a new file in the same folder, "PATH.tmp-espresso", which takes the name PATH when everything is on
 * the disk. A failure, a full disk among them, leaves PATH as it was and nothing beside it. What a process that was killed
 * left is removed by the next one that writes PATH. A link stays one: the file that it points to is replaced. A pipe or a
 * device is written to. Every function that returns an int returns 0, or an errno. */
#ifndef ESP__FILE_H
#define ESP__FILE_H
#include "espresso_impl/base/private.h"
#include <limits.h>

enum { ESP__FILE_NAMES = 16 }; /* that many may write one path at the same time */
typedef struct esp__file {
    FILE *to;                                 /* NULL: not open                                   */
    char path[PATH_MAX], temporary[PATH_MAX]; /* temporary "": `to` is the path itself, a pipe    */
    int error;                                /* the first one of esp__file_put                   */
} esp__file;

/* After a failure there is nothing to close or to remove. */
ESP__FN int esp__file_open(esp__file *f, const char *path);
/* An error is kept, and returned by what follows. */
ESP__FN void esp__file_put(esp__file *f, const void *data, size_t bytes);
/* First half of the end: the content is on the disk, under the temporary name. */
ESP__FN int esp__file_sync(esp__file *f);
/* Second half: the file takes its name, and the name is on the disk too. */
ESP__FN int esp__file_rename(esp__file *f);
/* Both. */
ESP__FN int esp__file_close(esp__file *f);
/* Instead of any of these: PATH stays as it was. Does nothing to a file that was closed, dropped, or zeroed. */
ESP__FN void esp__file_drop(esp__file *f);

/* All at once. Waits for nobody: a pipe without a reader, or a full one, is an error. */
ESP__FN int esp__file_replace(const char *path, const void *data, size_t bytes);
/* Could a file of that path be written? Leaves nothing on the disk. */
ESP__FN int esp__file_check(const char *path);
/* Writes everything to an open descriptor. */
ESP__FN int esp__file_write_all(int fd, const void *data, size_t bytes);
/* `path` as seen from the root folder, so that a chdir of the program changes nothing. */
ESP__FN int esp__path_absolute(const char *path, char out[PATH_MAX]);
#endif
