/* output.c: forwards the output of ranks in complete lines, with the rank's number in front. Never blocks, so that
 * signals and ended ranks are handled even while a reader of this output is slow. */
#include "tools/run/run.h"
#include <limits.h>
#include <sys/stat.h>

ESP__FN void run_queue_add(run_queue *q, const void *data, size_t bytes) {
    if (q->end + bytes > q->cap && q->begin) {
        memmove(q->data, q->data + q->begin, q->end - q->begin);
        q->end -= q->begin;
        q->begin = 0;
    }
    if (q->end + bytes > q->cap) {
        q->cap = (q->end + bytes) * 2;
        q->data = tool_realloc(q->data, q->cap);
    }
    if (bytes) memcpy(q->data + q->end, data, bytes);
    q->end += bytes;
}

ESP__FN void run_sink_open(run_sink *k, int fd) {
    struct stat st;
    memset(k, 0, sizeof *k);
    k->fd = fd;
    k->regular = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    k->color = isatty(fd) && !getenv("NO_COLOR");
}

ESP__FN void run_sink_add(run_sink *k, const char *data, size_t bytes) {
    if (!k->broken && bytes) run_queue_add(&k->queue, data, bytes);
}

ESP__FN size_t run_sink_waiting(const run_sink *k) { return k->queue.end - k->queue.begin; }

/* Writes what can be written without blocking: at most PIPE_BUF bytes after each poll(). Does not set O_NONBLOCK, since
 * that would affect a shell that shares this stdout. */
ESP__FN void run_sink_flush(run_sink *k) {
    run_queue *q = &k->queue;
    while (q->begin < q->end) {
        size_t bytes = q->end - q->begin;
        struct pollfd p = {.fd = k->fd, .events = POLLOUT};
        if (!k->regular && bytes > PIPE_BUF) bytes = PIPE_BUF;
        if (!k->regular && poll(&p, 1, 0) <= 0) return;
        ssize_t n = write(k->fd, q->data + q->begin, bytes);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
        if (n < 0) {
            k->broken = errno; /* the reader is gone, or the disk is full */
            n = (ssize_t)(q->end - q->begin);
        }
        q->begin += (size_t)n;
    }
    q->begin = q->end = 0;
}

/* Prints a message of the launcher itself, after the lines forwarded so far. */
ESP__FN void run_print(run_job *j, const char *fmt, ...) {
    char text[1024];
    int head = snprintf(text, sizeof text, "espresso %s: ", j->plan->part ? j->plan->part : "run");
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text + head, sizeof text - (size_t)head - 1, fmt, ap);
    va_end(ap);
    size_t len = strlen(text);
    if (n < 0) return;
    text[len] = '\n';
    run_sink_add(j->err, text, len + 1);
    run_sink_flush(j->err);
}

static void run_prefix(const run_job *j, const run_stream *s) {
    static const char *const colors[] = {"36", "33", "32", "35", "34", "31"};
    const int rank = j->plan->first + s->child;
    char text[48];
    if (!j->plan->prefix || j->plan->hosts) return;
    int widest = snprintf(NULL, 0, "%d", j->plan->n - 1), own = snprintf(NULL, 0, "%d", rank);
    const char *color = colors[rank % 6];
    int n = s->sink->color ? snprintf(text, sizeof text, "\033[%sm[%d]\033[0m %*s", color, rank, widest - own, "")
                           : snprintf(text, sizeof text, "[%d] %*s", rank, widest - own, "");
    run_sink_add(s->sink, text, (size_t)n);
}

static void run_stream_line(run_job *j, run_stream *s, const char *data, size_t bytes) {
    if (j->plan->hosts) {
        run_queue_add(&s->line, data, bytes);
        run_host_line(j, s);
    } else {
        run_prefix(j, s);
        run_sink_add(s->sink, s->line.data + s->line.begin, s->line.end - s->line.begin);
        run_sink_add(s->sink, data, bytes);
    }
    s->line.end = 0;
}

static void run_stream_take(run_job *j, run_stream *s, const char *data, size_t bytes) {
    while (bytes) {
        const char *newline = memchr(data, '\n', bytes);
        size_t n = newline ? (size_t)(newline - data) + 1 : bytes;
        if (newline) {
            run_stream_line(j, s, data, n);
        } else {
            run_queue_add(&s->line, data, n);
            if (s->line.end >= RUN_LINE_MAX) run_stream_line(j, s, "\n", 1);
        }
        data += n;
        bytes -= n;
    }
}

/* Closes the pipe, and forwards its incomplete last line. */
ESP__FN void run_stream_end(run_job *j, run_stream *s) {
    if (s->fd < 0) return;
    close(s->fd);
    s->fd = -1;
    if (s->line.end) run_stream_line(j, s, "\n", 1);
    free(s->line.data);
    s->line = (run_queue){0};
}

/* Reads once from the pipe. If the launcher's own output is closed, closes the pipe, so that the rank gets SIGPIPE. */
ESP__FN void run_stream_read(run_job *j, run_stream *s) {
    static char data[1 << 16]; /* the stack may be small (ulimit -s), and no other thread calls this */
    if (s->sink->broken) {
        run_stream_end(j, s);
        return;
    }
    ssize_t n = read(s->fd, data, sizeof data);
    if (n > 0)
        run_stream_take(j, s, data, (size_t)n);
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        run_stream_end(j, s);
}

ESP__FN bool run_stream_wanted(const run_stream *s) { return s->fd >= 0 && run_sink_waiting(s->sink) < RUN_QUEUE_MAX; }
