/* agree.c: before anything is sent, all ranks compare what they are about to do, line by line, and all of them learn of
 * the first difference. Knows what the lines say only as text. */
#include "espresso_impl/executor/context.h"

typedef struct esp__digest {
    uint64_t hash, bytes;
} esp__digest;

static void esp__agree_tensor(const esp_ctx *ctx, uint32_t i, esp__text *t) {
    static const char *const dtypes[] = {"?", "f32", "f16", "bf16"};
    const esp__tensor *x = &ctx->model.tensors[i];
    esp__text_add(t, "tensor %u: name %s, dtype %s, %llu elements, %llu x %llu, flags %u", i, x->name,
                  dtypes[x->dtype & 3u], (unsigned long long)x->count, (unsigned long long)x->rows,
                  (unsigned long long)x->cols, x->flags);
}

static void esp__agree_unit(const esp__work_unit *u, esp__text *t) {
    char option[ESP__TEXT_MAX];
    esp__option_print(&u->option, option, sizeof option);
    esp__text_add(t, ", codec %s (wire version %u), option %s\n", u->codec->spec, u->codec->table->wire_version,
                  option);
}

/* Everything that must be the same on all ranks, a line each. */
static void esp__agree_text(const esp_ctx *ctx, const esp__strategy *y, esp__text *t) {
    esp__observers_agree(ctx, t);
    esp__text_add(t, "seed %llu\n", (unsigned long long)ctx->config.seed);
    esp__text_add(t, "ABI %u, flags %u\n", ESP_ABI_MAJOR, ctx->config.flags & ESP_DISCARDABLE);
    esp__text_add(t, "%u tensors\n", ctx->model.n_tensors);
    for (uint32_t i = 0; i < ctx->model.n_tensors; i++) {
        const esp__work_unit *u = &y->units[y->of_tensor[i].first];
        esp__agree_tensor(ctx, i, t);
        if (esp__unit_is_group(u) || esp__unit_is_chunk(ctx, u))
            esp__text_add(t, "\n");
        else
            esp__agree_unit(u, t);
    }
    for (uint32_t i = 0; i < y->n_units; i++) {
        const esp__work_unit *u = &y->units[i];
        if (!esp__unit_is_group(u) && !esp__unit_is_chunk(ctx, u)) continue;
        esp__text_add(t, "unit %u: %s, %llu elements", i, u->name, (unsigned long long)u->place.count);
        esp__agree_unit(u, t);
    }
    esp__text_add(t, "strategy hash %016llx\n", (unsigned long long)y->hash);
}

static size_t esp__line_length(const char *s) { return strcspn(s, "\n"); }

/* The first line in which text `b` of rank `r` differs from rank 0's. */
static esp_status esp__agree_report(esp_ctx *ctx, const char *texts, uint64_t bytes) {
    const char *a = texts, *b = NULL;
    int32_t other = -1;
    esp__text ranks = {0};
    /* the first differing line over all ranks decides, and all ranks that differ in it are named */
    for (int line = 0;; line++, a += esp__line_length(a) + (a[esp__line_length(a)] == '\n')) {
        for (int32_t r = 1; r < ctx->job.size; r++) {
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

/* Collective. `status` is this rank's own result so far: if any rank failed, all do. */
ESP__FN esp_status esp__agree(esp_ctx *ctx, const esp__strategy *y, esp_status status) {
    esp__text t = {0};
    esp__digest mine = {0, 0}, *all = esp__alloc(ctx, (uint64_t)ctx->job.size * sizeof mine);
    char own[ESP__ERROR_MAX];
    snprintf(own, sizeof own, "%s", status ? esp_last_error(ctx) : "");
    if (!status) esp__agree_text(ctx, y, &t);
    if (!all || t.failed) status = status ? status : ESP_E_NOMEM;
    if (status)
        mine.bytes = UINT64_MAX - (uint32_t)-status;
    else
        mine.bytes = t.len + 1, mine.hash = esp__hash64(ESP__HASH0, t.data, t.len);
    uint64_t longest = 0;
    int differ = 0;
    esp_status s =
        all ? esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, &mine, all, sizeof mine) : ESP_E_NOMEM;
    for (int32_t r = 0; r < ctx->job.size && !s; r++) {
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
        char *in = esp__alloc(ctx, longest), *texts = esp__alloc(ctx, longest * (uint64_t)ctx->job.size);
        if (in && texts) {
            memcpy(in, t.data, t.len + 1);
            s = esp__peers_allgather(ctx->job.peers, NULL, ctx->job.size, in, texts, longest);
            if (!s) s = esp__agree_report(ctx, texts, longest);
        } else {
            s = esp__fail(ctx, ESP_E_NOMEM, "ranks disagree, and there is no memory to say on what");
        }
        esp__free(ctx, in);
        esp__free(ctx, texts);
    }
    esp__free(ctx, all);
    esp__text_free(&t);
    return s;
}
