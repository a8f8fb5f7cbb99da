/* agree.c: before they send gradients, ranks compare their settings line by line, and report the first difference. */
#include "espresso_impl/job/job.h"

typedef struct esp__digest {
    uint64_t hash;
    uint64_t lines; /* number of lines, or UINT64_MAX - n after error -n */
} esp__digest;
_Static_assert(sizeof(esp__digest) <= ESP__JOB_ROOM, "a digest must fit into the room of a rank");

typedef struct esp__differing {
    uint64_t hash;
    char text[504];
} esp__differing;

ESP__FN esp_status esp__agree_ok(esp_ctx *ctx, esp_status mine) {
    esp_status *all = esp__job_of(ctx)->room;
    esp_status s = esp__peers_allgather(esp__job_of(ctx)->peers, NULL, esp__job_of(ctx)->size, &mine, all, sizeof mine);
    if (s) return s; /* not `mine`, which probably has the same cause */
    for (int32_t r = 0; r < esp__job_of(ctx)->size && !s && !mine; r++)
        if (all[r]) s = esp__fail(ctx, all[r], "rank %d failed (%s): see its own error", r, esp_status_text(all[r]));
    return mine ? mine : s;
}

ESP__FN esp_status esp__agree_latest(esp_ctx *ctx, uint64_t *v, uint64_t n, uint64_t *room) {
    const esp__job *job = esp__job_of(ctx);
    esp_status s = esp__peers_allgather(job->peers, NULL, job->size, v, room, n * sizeof *v);
    for (int32_t r = 0; r < job->size && !s; r++) esp__raise_to(v, room + (uint64_t)r * n, n);
    return s;
}

static const char *esp__line(const char *text, uint64_t k, size_t *length) {
    for (; k && *text; k--) {
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    *length = strcspn(text, "\n");
    return text;
}

/* Finds the first line that differs between ranks: they compare hashes of the lines up to a middle one, and bisect. */
static esp_status esp__agree_first(esp_ctx *ctx, const char *text, uint64_t lines, uint64_t *first) {
    const esp__job *job = esp__job_of(ctx);
    const uint64_t *all = job->room;
    uint64_t last = lines ? lines - 1 : 0;
    esp_status s = ESP_OK;
    for (*first = 0; *first < last && !s;) {
        const uint64_t middle = (*first + last) / 2;
        size_t length;
        const char *line = esp__line(text, middle, &length);
        const uint64_t mine = esp__hash64(ESP__HASH0, text, (uint64_t)(line - text) + length);
        bool differ = false;
        s = esp__peers_allgather(job->peers, NULL, job->size, &mine, job->room, sizeof mine);
        for (int32_t r = 1; r < job->size && !s; r++) differ |= all[r] != all[0];
        if (differ)
            last = middle;
        else
            *first = middle + 1;
    }
    return s;
}

static esp_status esp__agree_report(esp_ctx *ctx, const char *text, uint64_t lines) {
    const esp__job *job = esp__job_of(ctx);
    esp__differing mine = {0}, *all = esp__alloc(ctx, (uint64_t)job->size * sizeof mine);
    esp__text ranks = {.ctx = ctx};
    uint64_t first = 0;
    size_t length;
    int32_t other = 0;
    esp_status s = esp__agree_ok(
        ctx, all ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "ranks disagree, and there is no memory to find out on what"));
    if (!s) s = esp__agree_first(ctx, text, lines, &first);
    const char *line = esp__line(text, first, &length);
    mine.hash = esp__hash64(ESP__HASH0, line, length);
    memcpy(mine.text, line, length < sizeof mine.text ? length : sizeof mine.text - 1);
    if (!s) s = esp__peers_allgather(job->peers, NULL, job->size, &mine, all, sizeof mine);
    for (int32_t r = 0; r < job->size && !s; r++) {
        all[r].text[sizeof mine.text - 1] = 0;
        if (all[r].hash == all[0].hash) continue;
        if (!other) other = r;
        esp__text_add(&ranks, "%s%d", ranks.len ? ", " : "", r);
    }
    if (!s)
        s = esp__fail(
            ctx, ESP_E_MISMATCH,
            "ranks disagree: rank 0 has '%s', rank %d has '%s' (differing ranks: %s). Every rank must have the same "
            "backend and link, and add the same tensors in the same order, with the same codec, strategy and seed",
            all[0].text, other, all[other].text, ranks.data ? ranks.data : "");
    esp__text_free(&ranks);
    esp__free(ctx, all);
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
        mine.lines = UINT64_MAX - (uint32_t)-status;
    else
        mine.hash = esp__hash64(ESP__HASH0, lines->data, lines->len);
    for (size_t i = 0; i < lines->len && !status; i++) mine.lines += lines->data[i] == '\n';
    uint64_t most = 0;
    bool differ = false;
    esp_status s = esp__peers_allgather(esp__job_of(ctx)->peers, NULL, esp__job_of(ctx)->size, &mine, all, sizeof mine);
    for (int32_t r = 0; r < esp__job_of(ctx)->size && !s; r++) {
        if (all[r].lines > UINT64_MAX - 1000) {
            s = (esp_status) - (int32_t)(UINT64_MAX - all[r].lines);
            if (status)
                esp__fail(ctx, status, "%s", own);
            else
                esp__fail(ctx, s, "rank %d could not start (%s): see its own error", r, esp_status_text(s));
            if (status) s = status;
        } else {
            differ |= all[r].hash != all[0].hash;
            if (all[r].lines > most) most = all[r].lines;
        }
    }
    if (!s && differ) s = esp__agree_report(ctx, lines->data ? lines->data : "", most);
    esp__text_free(lines);
    return s;
}
