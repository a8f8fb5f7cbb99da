/* write.h: writes JSON lines into a text, and the text into a file. */
#ifndef ESP__FILES_WRITE_H
#define ESP__FILES_WRITE_H
#include "planner/files/files.h"

/* These two write a number so that the same double is read again. Files have times in microseconds instead of ns. */
ESP__FN void files_put_number(esp__text *t, double x);
ESP__FN void files_put_us(esp__text *t, double ns);
/* Adds the line `indent`"key": "text", or nothing if text is NULL. */
ESP__FN void files_put_text_line(esp__text *t, const char *indent, const char *key, const char *text);
ESP__FN void files_put_us_line(esp__text *t, const char *indent, const char *key, double ns);
/* Removes the comma at the end of the last line, as JSON allows none before a closing bracket. */
ESP__FN void files_put_no_comma(esp__text *t);
/* Frees the text, too. */
ESP__FN esp_status files_write(const char *path, esp__text *t);
#endif
