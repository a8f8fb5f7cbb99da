/* frame.c: the messages between the launcher and its agents on other hosts: a type, a number and some bytes each, the numbers with
 * the low byte first. Must not know what a message means. No call here blocks. */
#include "tools/run/run.h"

enum { RUN_FRAME_HEAD = 9, RUN_FRAME_MAX = 1 << 24 };

/* What an agent says first, on a line of its own: the version behind it must be the launcher's. */
static const char run_greeting[] = "espresso-agent 1 ";

enum run_frame_type {
    /* from the launcher */
    RUN_TASK = 'T',   /* bytes: what to start, see task.c                                       */
    RUN_GO = 'G',     /* bytes: where the ranks meet. Start them                                */
    RUN_SIGNAL = 'S', /* value: a signal for all ranks of the host                              */
    RUN_INPUT = 'I',  /* bytes for rank 0; none: the end of its input                           */
    RUN_CREDIT = 'C', /* value: so many bytes of output have been forwarded                     */
    /* from the agent */
    RUN_READY = 'R', /* value: the port that is kept free for the meeting, or 0                */
    RUN_OUT = 'O',   /* value: a rank; bytes of its output                                     */
    RUN_ERR = 'E',   /* value: a rank; bytes of its error output                               */
    RUN_GONE = 'X',  /* value: a rank that ended; bytes: its pid, status and signal, as text   */
    RUN_MORE = 'M',  /* value 0: input was taken. 1: rank 0 reads no more                      */
    /* from both */
    RUN_CLOSED = 'K', /* value: rank * 2 (+ 1 for error output): this stream has ended, or nobody reads it */
    RUN_BEAT = 'B'    /* I am here                                                              */
};

typedef struct run_frame {
    int type;
    uint32_t value, bytes;
    const char *data; /* inside the queue: valid until the next frame is taken                  */
} run_frame;

static void run_frame_u32(unsigned char *at, uint32_t v) {
    for (int i = 0; i < 4; i++) at[i] = (unsigned char)(v >> 8 * i);
}

static uint32_t run_frame_read_u32(const char *at) {
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) v |= (uint32_t)(unsigned char)at[i] << 8 * i;
    return v;
}

static void run_frame_add(run_queue *q, enum run_frame_type type, uint32_t value, const void *data, size_t bytes) {
    unsigned char head[RUN_FRAME_HEAD] = {(unsigned char)type};
    run_frame_u32(head + 1, value);
    run_frame_u32(head + 5, (uint32_t)bytes);
    run_queue_add(q, head, sizeof head);
    run_queue_add(q, data, bytes);
}

/* Takes the next frame: 1 if it is there as a whole, 0 if not yet, -1 if these bytes are no frame. */
static int run_frame_next(run_queue *q, run_frame *f) {
    const char *at = q->data + q->begin;
    if (run_queue_waiting(q) < RUN_FRAME_HEAD) return 0;
    *f = (run_frame){.type = (unsigned char)at[0],
                     .value = run_frame_read_u32(at + 1),
                     .bytes = run_frame_read_u32(at + 5),
                     .data = at + RUN_FRAME_HEAD};
    if (f->bytes > RUN_FRAME_MAX) return -1;
    if (run_queue_waiting(q) < RUN_FRAME_HEAD + f->bytes) return 0;
    q->begin += RUN_FRAME_HEAD + f->bytes;
    return 1;
}

/* Writes what `fd`, which does not block, takes now. 0: nobody reads it any more. */
static int run_queue_write(run_queue *q, int fd) {
    while (run_queue_waiting(q)) {
        ssize_t n = write(fd, q->data + q->begin, run_queue_waiting(q));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno == EAGAIN;
        q->begin += (size_t)n;
    }
    q->begin = q->end = 0;
    return 1;
}

/* Reads once from `fd`, which does not block. 0: it has ended. */
static int run_queue_read(run_queue *q, int fd) {
    char data[1 << 16];
    ssize_t n = read(fd, data, sizeof data);
    if (n > 0) run_queue_add(q, data, (size_t)n);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}
