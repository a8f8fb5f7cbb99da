/* show_state.c: `espresso state` shows what is in a state file, and checks that it is complete and undamaged.
 * espresso_impl/context/state.c defines the file's format. */
#include "tools/inspect/inspect.h"
#include "espresso_impl/context/state.h"
#include "espresso_impl/strategy/strategy.h"
#include <errno.h>
#include <glob.h>
#include <math.h>

typedef struct state_reader {
    const tool_command *command;
    const char *path;
    FILE *file;
    esp__state_head head;
    uint64_t left, sum; /* bytes not yet read; checksum of those read */
    /* buffer for a piece of a large array; of type double, so that it is aligned */
    double *pieces;
} state_reader;

enum { STATE_PIECE = 1 << 16, STATE_LINES = 12, STATE_WIDTH = 110 };

static int state_damaged(const state_reader *r, const char *what) {
    return tool_fail(r->command, "%s: %s", r->path, what);
}

/* Reads `n` bytes (at most STATE_PIECE) and the padding after them. Returns false if the file is too short. */
static bool state_take(state_reader *r, void *out, uint64_t n) {
    uint64_t padded = esp__state_padded(n);
    if (padded > r->left || padded > STATE_PIECE) return false;
    if (fread(r->pieces, 1, padded, r->file) != padded) return false;
    r->sum = esp__state_sum(r->sum, r->pieces, padded);
    r->left -= padded;
    if (out) memcpy(out, r->pieces, n);
    return true;
}

static bool state_norm(state_reader *r, uint64_t count, double *norm) {
    double sum = 0;
    while (count) {
        uint64_t n = count < STATE_PIECE / sizeof(float) ? count : STATE_PIECE / sizeof(float);
        if (!state_take(r, NULL, n * sizeof(float))) return false;
        for (uint64_t i = 0; i < n; i++) {
            float x;
            memcpy(&x, (const char *)r->pieces + i * sizeof x, sizeof x);
            sum += (double)x * (double)x;
        }
        count -= n;
    }
    *norm = sqrt(sum);
    return true;
}

static bool state_skip(state_reader *r, uint64_t bytes) {
    for (; bytes > STATE_PIECE; bytes -= STATE_PIECE)
        if (!state_take(r, NULL, STATE_PIECE)) return false;
    return state_take(r, NULL, bytes);
}

static int state_read_head(state_reader *r) {
    esp__state_head *h = &r->head;
    if (fread(h, sizeof *h, 1, r->file) != 1 || memcmp(h->magic, esp__state_magic, sizeof h->magic) != 0)
        return state_damaged(r, "this is no espresso state");
    if (h->version != ESP__STATE_VERSION)
        return tool_fail(r->command, "%s: format version %u; this command reads version %d", r->path, h->version,
                         (int)ESP__STATE_VERSION);
    if (h->head_sum != esp__state_sum(0, h, offsetof(esp__state_head, head_sum)))
        return state_damaged(r, "the state is damaged (the checksum of its head is wrong)");
    r->left = h->body_bytes;
    r->sum = esp__state_sum(0, h, sizeof *h);
    printf("%s: rank %d of %d, step %llu, seed %llu, strategy %016llx\n", r->path, (int)h->rank, (int)h->size,
           (unsigned long long)h->step, (unsigned long long)h->seed, (unsigned long long)h->strategy_hash);
    return TOOL_OK;
}

/* Prints the first lines of the strategy's text, without the order of collectives. Cuts long lines. */
static bool state_print_text(state_reader *r) {
    const uint64_t n = r->head.text_bytes;
    uint32_t lines = 0, left_out = 0;
    if (n > r->left) return false;
    char *text = tool_realloc(NULL, n + 1);
    for (uint64_t at = 0, piece; at < n; at += piece) {
        piece = n - at < STATE_PIECE ? n - at : STATE_PIECE;
        if (!state_take(r, text + at, piece)) {
            free(text);
            return false;
        }
    }
    for (uint64_t i = 0; i < n; i++)
        if (text[i] != '\n' && (unsigned char)text[i] < ' ') text[i] = '?';
    text[n] = 0;
    for (const char *at = text; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        int length = (int)strcspn(at, "\n");
        if (lines == STATE_LINES || strncmp(at, "order ", 6) == 0)
            left_out++;
        else
            lines++, printf("  %.*s%s\n", length < STATE_WIDTH ? length : STATE_WIDTH, at,
                            length > STATE_WIDTH ? "..." : "");
    }
    if (left_out) printf("  ... and %u more line%s\n", left_out, left_out == 1 ? "" : "s");
    free(text);
    return true;
}

static bool state_print_tensor(state_reader *r, char **name, uint64_t *count) {
    esp__state_tensor t;
    double norm;
    if (!state_take(r, &t, sizeof t) || t.name_bytes > r->left || t.name_bytes > STATE_PIECE) return false;
    *name = tool_realloc(NULL, t.name_bytes + 1u);
    (*name)[t.name_bytes] = 0;
    if (!state_take(r, *name, t.name_bytes)) return false;
    *count = t.count;
    printf("tensor %s: %llu elements", *name, (unsigned long long)t.count);
    if (t.has_pending && t.count > r->left / sizeof(float)) return false;
    if (t.has_pending && !state_norm(r, t.count, &norm)) return false;
    if (t.has_pending) printf(", carried to the next push: norm %g", norm);
    putchar('\n');
    return true;
}

/* Prints what is synchronized as one, such as "fc.weight (elements 5 to 9)" or "fc.weight to fc.bias". */
static bool state_print_extent(const state_reader *r, const esp__extent *e, char *const *names,
                               const uint64_t *counts) {
    if (!e->n || e->first >= r->head.n_tensors || e->n > r->head.n_tensors - e->first) return false;
    printf("%s", names[e->first]);
    if (e->n > 1) printf(" to %s", names[e->first + e->n - 1]);
    if (e->n == 1 && e->elements != counts[e->first])
        printf(" (elements %llu to %llu)", (unsigned long long)e->begin,
               (unsigned long long)(e->begin + e->elements - 1));
    return true;
}

static bool state_print_comp(state_reader *r, char *const *names, const uint64_t *counts) {
    esp__state_comp c;
    double norm;
    if (!state_take(r, &c, sizeof c)) return false;
    printf("Comp %u of ", c.comp_index);
    if (!state_print_extent(r, &c.place, names, counts)) return false;
    printf(": %llu elements from %llu on%s", (unsigned long long)c.count, (unsigned long long)c.offset,
           c.raw ? ", the rank's own gradient" : "");
    if (c.has & ESP__STATE_RESIDUAL) {
        if (c.count > r->left / sizeof(float) || !state_norm(r, c.count, &norm)) return false;
        printf(", residual of norm %g", norm);
    }
    if (c.has & ESP__STATE_CODEC) {
        if (c.state_bytes > r->left || !state_skip(r, c.state_bytes)) return false;
        printf(", codec state of %llu bytes", (unsigned long long)c.state_bytes);
    }
    putchar('\n');
    return true;
}

static int state_print(state_reader *r) {
    uint64_t stored;
    int status = state_read_head(r), whole = 1;
    if (status != TOOL_OK) return status;
    if (r->head.n_tensors > r->left / sizeof(esp__state_tensor) ||
        r->head.n_feedback > r->left / sizeof(esp__state_comp))
        return state_damaged(r, "the state is damaged (it ends too early)");
    char **names = tool_realloc(NULL, r->head.n_tensors * sizeof *names);
    uint64_t *counts = tool_realloc(NULL, r->head.n_tensors * sizeof *counts);
    for (uint32_t i = 0; i < r->head.n_tensors; i++) names[i] = NULL;
    whole = state_print_text(r);
    for (uint32_t i = 0; whole && i < r->head.n_tensors; i++) whole = state_print_tensor(r, &names[i], &counts[i]);
    for (uint32_t i = 0; whole && i < r->head.n_feedback; i++) whole = state_print_comp(r, names, counts);
    for (uint32_t i = 0; i < r->head.n_tensors; i++) free(names[i]);
    free(names);
    free(counts);
    if (!whole || r->left) return state_damaged(r, "the state is damaged (it ends too early)");
    if (fread(&stored, sizeof stored, 1, r->file) != 1 || stored != r->sum)
        return state_damaged(r, "the state is damaged (its checksum is wrong)");
    if (fgetc(r->file) != EOF) return state_damaged(r, "the state is damaged (something follows its end)");
    printf("whole; tensors: %u, Comps: %u, bytes: %llu\n", r->head.n_tensors, r->head.n_feedback,
           (unsigned long long)(sizeof r->head + r->head.body_bytes + sizeof stored));
    return TOOL_OK;
}

/* Prints why the file cannot be opened. Suggests rank 0's file, since each rank saves a file of its own. */
static int state_cannot_open(const tool_command *c, const char *path) {
    char pattern[4096];
    glob_t found;
    int error = errno, status;
    snprintf(pattern, sizeof pattern, "%s.r0of*", path);
    if (error == ENOENT && glob(pattern, GLOB_NOSORT, NULL, &found) == 0) {
        status =
            tool_fail(c, "%s: no such file; each rank has one of its own: did you mean %s?", path, found.gl_pathv[0]);
        globfree(&found);
        return status;
    }
    return tool_fail(c, "%s: %s", path, strerror(error));
}

static int state_main(const tool_command *self, int argc, char **argv) {
    state_reader r = {.command = self};
    const char *value;
    int at = 0, status = TOOL_OK;
    (void)tool_next(self, argc, argv, &at, &value); /* handles --help */
    if (at == argc) tool_usage(self, "expected a state file");
    r.pieces = tool_realloc(NULL, STATE_PIECE);
    for (; at < argc && status == TOOL_OK; at++) {
        r.path = argv[at];
        r.file = fopen(r.path, "rbe");
        status = r.file ? state_print(&r) : state_cannot_open(self, r.path);
        if (r.file) fclose(r.file);
    }
    free(r.pieces);
    return status;
}

const tool_command state_command = {
    .name = "state",
    .summary = "Shows what a saved state holds, and checks that it is whole.",
    .synopsis = "FILE...",
    .run = state_main,
    .details = "FILE is one rank's: esp_state_save(ctx, \"run\") of 4 ranks writes run.r0of4 to run.r3of4.",
};
