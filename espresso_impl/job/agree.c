/* agree.c: before any gradient is sent, all ranks compare what they are about to do, line by line, and all report the first
 * difference. For this file a line is only a text. */
#include "espresso_impl/job/job.h"

typedef struct esp__digest {
    uint64_t hash, bytes;
} esp__digest;
_Static_assert(sizeof(esp__digest) <= ESP__JOB_ROOM, "a digest must fit into the room of a rank");

ESP__FN esp_status esp__agree_ok(esp_ctx *ctx, esp_status mine) {
    esp_status *all = esp__job_of(ctx)->room;
    esp_status s = esp__peers_allgather(esp__job_of(ctx)->peers, NULL, esp__job_of(ctx)->size, &mine, all, sizeof mine);
    if (s) return s; /* the text is that of the exchange: this rank's own error probably has the same cause */
    for (int32_t r = 0; r < esp__job_of(ctx)->size && !s && !mine; r++)
        if (all[r]) s = esp__fail(ctx, all[r], "rank %d failed (%s): see its own error", r, esp_status_text(all[r]));
    return mine ? mine : s;
}

ESP__FN esp_status esp__agree_latest(esp_ctx *ctx, uint64_t *v, uint64_t n, uint64_t *room) {
    const esp__job *job = esp__job_of(ctx);
    esp_status s = esp__peers_allgather(job->peers, NULL, job->size, v, room, n * sizeof *v);
    for (int32_t r = 0; r < job->size && !s; r++) esp__later(v, room + (uint64_t)r * n, n);
    return s;
}

static size_t esp__line_length(const char *s) { return strcspn(s, "\n"); }

/* The error for texts[size][bytes] that differ: names the first line that differs from rank 0's, and the ranks. */
static esp_status esp__agree_report(esp_ctx *ctx, const char *texts, uint64_t bytes) {
    const char *a = texts, *b = NULL;
    int32_t other = -1;
    esp__text ranks = {.ctx = ctx};
    /* the first differing line over all ranks decides, and all ranks that differ in it are named */
    for (int line = 0;; line++, a += esp__line_length(a) + (a[esp__line_length(a)] == '\n')) {
        for (int32_t r = 1; r < esp__job_of(ctx)->size; r++) {
            const char *x = texts + (uint64_t)r * bytes;
            for (int k = 0; k < line; k++) x += esp__line_length(x) + (x[esp__line_length(x)] == '\n');
            if (esp__line_length(x) == esp__line_length(a) && !memcmp(x, a, esp__line_length(a))) continue;
            if (other < 0) other = r, b = x;
            esp__text_add(&ranks, "%s%d", ranks.len ? ", " : "", r);
        }
        if (other >= 0 || !*a) break;
    }
    esp_status s = esp__fail(
        ctx, ESP_E_MISMATCH,
        "ranks disagree: rank 0 has '%.*s', rank %d has '%.*s' (differing ranks: %s). Every rank must "
        "add the same tensors in the same order, with the same codec, strategy and seed",
        (int)esp__line_length(a), a, other, b ? (int)esp__line_length(b) : 0, b ? b : "", ranks.data ? ranks.data : "");
    esp__text_free(&ranks);
    return s;
}

ESP__FN esp_status esp__agree_lines(esp_ctx *ctx, esp__text *lines, esp_status status) {
    esp__digest mine = {0, 0}, *all = esp__job_of(ctx)->room;
    char own[ESP__ERROR_MAX];
    snprintf(own, sizeof own, "%s", status ? esp_last_error(ctx) : "");
    if (lines->failed && !status) {
        status = ESP_E_NOMEM;
        snprintf(own, sizeof own, "no memory to compare the ranks' settings");
    }
    if (status)
        mine.bytes = UINT64_MAX - (uint32_t)-status;
    else
        mine.bytes = lines->len + 1, mine.hash = esp__hash64(ESP__HASH0, lines->data, lines->len);
    uint64_t longest = status ? 0 : mine.bytes; /* the own text must fit, whatever the others say */
    int differ = 0;
    esp_status s = esp__peers_allgather(esp__job_of(ctx)->peers, NULL, esp__job_of(ctx)->size, &mine, all, sizeof mine);
    for (int32_t r = 0; r < esp__job_of(ctx)->size && !s; r++) {
        if (all[r].bytes > UINT64_MAX - 1000) {
            s = (esp_status) - (int32_t)(UINT64_MAX - all[r].bytes);
            if (status)
                esp__fail(ctx, status, "%s", own);
            else
                esp__fail(ctx, s, "rank %d could not start (%s): see its own error", r, esp_status_text(s));
            if (status) s = status;
        } else {
            differ |= all[r].hash != all[0].hash;
            if (all[r].bytes > longest) longest = all[r].bytes;
        }
    }
    if (!s && differ) {
        char *in = esp__alloc(ctx, longest), *texts = esp__alloc(ctx, longest * (uint64_t)esp__job_of(ctx)->size);
        s = esp__agree_ok(
            ctx, in && texts ? ESP_OK
                             : esp__fail(ctx, ESP_E_NOMEM, "ranks disagree, and there is no memory to say on what"));
        if (!s) {
            memcpy(in, lines->data, lines->len + 1);
            s = esp__peers_allgather(esp__job_of(ctx)->peers, NULL, esp__job_of(ctx)->size, in, texts, longest);
            for (int32_t r = 0; r < esp__job_of(ctx)->size && !s; r++) texts[(uint64_t)(r + 1) * longest - 1] = 0;
            if (!s) s = esp__agree_report(ctx, texts, longest);
        }
        esp__free(ctx, in);
        esp__free(ctx, texts);
    }
    esp__text_free(lines);
    return s;
}
