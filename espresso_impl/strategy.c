/* strategy.c: which option and codec every tensor gets, and the order of collectives: from a built-in name or the text of
 * a strategy file, and back to text. Knows nothing of memory and of how ops are executed. */
#include "context.h"
#include <ctype.h>
#include <errno.h>

#define ESP__STRATEGY_MAGIC "espresso-strategy 1"

ESP__FN esp_status esp__order_make(esp_ctx *ctx);

/* Only with the same number (over one) of ranks on each of several machines do intra and inter mean something. */
static int esp__hierarchical(const esp_ctx *ctx) { return ctx->topo.n_machines > 1 && ctx->topo.n_local > 1; }

/* The best option without compression that moves each byte once over every link. */
static const char *esp__raw_option(const esp_ctx *ctx) {
    return esp__hierarchical(ctx) ? "intra.reduce_scatter > inter.allreduce > intra.allgather" : "flat.allreduce";
}

/* The codec's default option, or its like in the flat tree where there is only that. */
static const char *esp__codec_option(const esp_ctx *ctx, const esp_codec *codec) {
    int reducible = (codec->caps & ESP_CODEC_REDUCIBLE) != 0;
    const char *text = codec->default_option;
    if (!esp__hierarchical(ctx))
        return reducible ? "comp@cpu > flat.allreduce > decomp@cpu" : "comp@cpu > flat.allgather > decomp@cpu";
    if (text && strncmp(text, "flat.", 5) && !strstr(text, " flat.")) return text;
    return "intra.reduce_scatter > comp@cpu > inter.allgather > decomp@cpu > intra.allgather";
}

/* Gives tensor `t` an option, if this topology and the codec allow it. `where` opens the message. */
static esp_status esp__tensor_assign(esp_ctx *ctx, esp__tensor *t, const char *spec, const char *option,
                                     const char *where) {
    esp_status s;
    const char *codec_spec = t->want_codec ? t->want_codec : spec ? spec : "none";
    if (t->flags & ESP_RAW) codec_spec = "none";
    s = esp__codec_get(ctx, codec_spec, &t->codec);
    if (s) return esp__fail(ctx, s, "%s: tensor '%s': %s", where, t->name, esp_last_error(ctx));
    if (t->want_option) option = t->want_option;
    if (!option) option = esp__codec_option(ctx, t->codec->table);
    s = esp__option_parse(ctx, option, &t->option);
    if (s) return esp__fail(ctx, s, "%s: tensor '%s': %s", where, t->name, esp_last_error(ctx));
    if (t->flags & ESP_RAW && esp__option_uses(&t->option, ESP__COMP)) {
        s = esp__option_parse(ctx, esp__raw_option(ctx), &t->option);
        if (s) return s;
    }
    if (!esp__option_is_flat(&t->option) && !esp__hierarchical(ctx))
        return esp__fail(ctx, ESP_E_ARG,
                         "%s: tensor '%s': option '%s' needs several machines with the same number (over one) of ranks "
                         "each; here are %d ranks on %d machine(s): use a flat option such as flat.allreduce",
                         where, t->name, option, ctx->size, ctx->topo.n_machines);
    for (uint32_t i = 0; i < t->option.n; i++)
        if (t->option.steps[i].summed && !(t->codec->table->caps & ESP_CODEC_REDUCIBLE))
            return esp__fail(ctx, ESP_E_ARG,
                             "%s: tensor '%s': codec '%s' has no payloads that can be summed undecoded, so '%s' cannot "
                             "be used with it: use allgather or alltoall there",
                             where, t->name, t->codec->spec, option);
    if (esp__option_uses(&t->option, ESP__COMP) && t->codec->table->caps & ESP_CODEC_NEEDS_MATRIX && !t->rows)
        return esp__fail(ctx, ESP_E_ARG, "%s: tensor '%s': codec '%s' needs rows and cols in its description", where,
                         t->name, t->codec->spec);
    return ESP_OK;
}

static esp_status esp__strategy_builtin(esp_ctx *ctx, const char *name) {
    int raw = !strcmp(name, "fp32");
    char where[ESP__NAME_MAX];
    snprintf(where, sizeof where, "strategy %s", name);
    for (uint32_t i = 0; i < ctx->n_tensors; i++) {
        esp_status s = esp__tensor_assign(ctx, &ctx->tensors[i], raw ? "none" : ctx->codec_spec,
                                          raw ? esp__raw_option(ctx) : NULL, where);
        if (s) return s;
    }
    return esp__order_make(ctx);
}

/* ---- the text form ------------------------------------------------------------------------------------------ */
typedef struct esp__lines {
    const char *name, *at;
    int number;
    char line[ESP__TEXT_MAX * 4];
} esp__lines;

/* Next line without comment and blanks around it; 0 at the end, -1 if one is too long. */
static int esp__lines_next(esp__lines *l) {
    while (*l->at) {
        size_t len = strcspn(l->at, "\n"), keep = len;
        const char *start = l->at, *hash;
        l->at += len + (l->at[len] == '\n');
        l->number++;
        hash = memchr(start, '#', len);
        if (hash) keep = (size_t)(hash - start);
        while (keep && isspace((unsigned char)*start)) start++, keep--;
        while (keep && isspace((unsigned char)start[keep - 1])) keep--;
        if (keep >= sizeof l->line) return -1;
        memcpy(l->line, start, keep);
        l->line[keep] = 0;
        if (keep) return 1;
    }
    return 0;
}

/* Cuts the next word off *p. */
static char *esp__word(char **p) {
    char *start = *p + strspn(*p, " \t"), *end = start + strcspn(start, " \t");
    *p = *end ? end + 1 : end;
    *end = 0;
    return start;
}

static esp_status esp__strategy_tensor_line(esp_ctx *ctx, esp__lines *l, char *rest, uint32_t i) {
    char where[ESP__SPEC_MAX * 2], *end;
    char *name = esp__word(&rest), *elements = esp__word(&rest), *codec = esp__word(&rest);
    unsigned long long count = strtoull(elements, &end, 10);
    char *option = rest + strspn(rest, " \t");
    snprintf(where, sizeof where, "%s:%d", l->name, l->number);
    if (!*elements || *end || !*codec || !*option)
        return esp__fail(ctx, ESP_E_ARG, "%s: expected 'tensor NAME ELEMENTS CODEC OPTION'", where);
    if (i >= ctx->n_tensors)
        return esp__fail(
            ctx, ESP_E_ARG,
            "%s: tensor '%s' is one too many: this model has %u tensors. The strategy was made for another "
            "model: make it anew",
            where, name, ctx->n_tensors);
    esp__tensor *t = &ctx->tensors[i];
    if (strcmp(t->name, name) || t->count != count)
        return esp__fail(
            ctx, ESP_E_ARG,
            "%s: tensor %u is '%s' with %llu elements in the strategy, but '%s' with %llu in this model. The "
            "strategy was made for another model, or tensors were added in another order: make it anew",
            where, i, name, count, t->name, (unsigned long long)t->count);
    return esp__tensor_assign(ctx, t, codec, option, where);
}

/* "order 3:1 0:2 ...": link steps as tensor:step. */
static esp_status esp__strategy_order_line(esp_ctx *ctx, esp__lines *l, char *rest, uint64_t *cap) {
    char *word;
    while (*(word = esp__word(&rest))) {
        char *end;
        unsigned long tensor = strtoul(word, &end, 10), step = 0;
        if (*end == ':') step = strtoul(end + 1, &end, 10);
        if (*end || tensor >= ctx->n_tensors || step >= ctx->tensors[tensor].option.n ||
            ctx->tensors[tensor].option.steps[step].kind != ESP__COLL)
            return esp__fail(ctx, ESP_E_ARG,
                             "%s:%d: order: '%s' names no collective; expected TENSOR:STEP, both from 0", l->name,
                             l->number, word);
        uint32_t *grown = esp__grow(ctx, ctx->order, cap, (ctx->n_order + 1) * sizeof *ctx->order);
        if (!grown) return esp__fail(ctx, ESP_E_NOMEM, "%s: out of memory", l->name);
        ctx->order = grown;
        ctx->order[ctx->n_order++] = (uint32_t)(tensor << 8 | step);
    }
    return ESP_OK;
}

/* Every collective once, and a tensor's own in its option's sequence. */
static esp_status esp__order_check(esp_ctx *ctx, const char *name) {
    for (uint32_t i = 0; i < ctx->n_tensors; i++) ctx->tensors[i].pc = 0;
    for (uint32_t k = 0; k < ctx->n_order; k++) {
        esp__tensor *t = &ctx->tensors[ctx->order[k] >> 8];
        while (t->pc < t->option.n && t->option.steps[t->pc].kind != ESP__COLL) t->pc++;
        if (t->pc != (ctx->order[k] & 255u))
            return esp__fail(ctx, ESP_E_ARG, "%s: order: %u:%u stands where %u:%u must come first", name,
                             ctx->order[k] >> 8, ctx->order[k] & 255u, ctx->order[k] >> 8, t->pc);
        t->pc++;
    }
    for (uint32_t i = 0; i < ctx->n_tensors; i++) {
        esp__tensor *t = &ctx->tensors[i];
        while (t->pc < t->option.n && t->option.steps[t->pc].kind != ESP__COLL) t->pc++;
        if (t->pc < t->option.n) return esp__fail(ctx, ESP_E_ARG, "%s: order: %u:%u is missing", name, i, t->pc);
        t->pc = 0;
    }
    return ESP_OK;
}

ESP__FN esp_status esp__strategy_parse(esp_ctx *ctx, const char *name, const char *text) {
    esp__lines l;
    uint32_t n = 0;
    uint64_t cap = 0;
    int more;
    memset(&l, 0, sizeof l);
    l.name = name;
    l.at = text;
    if (esp__lines_next(&l) != 1 || strcmp(l.line, ESP__STRATEGY_MAGIC))
        return esp__fail(ctx, ESP_E_ARG, "%s:%d: expected '%s' in the first line: this is no strategy file", name,
                         l.number ? l.number : 1, ESP__STRATEGY_MAGIC);
    esp__free(ctx, ctx->order);
    ctx->order = NULL;
    ctx->n_order = 0;
    while ((more = esp__lines_next(&l)) == 1) {
        char *rest = l.line, *word = esp__word(&rest);
        esp_status s;
        if (!strcmp(word, "tensor"))
            s = esp__strategy_tensor_line(ctx, &l, rest, n++);
        else if (!strcmp(word, "order"))
            s = n < ctx->n_tensors ? esp__fail(ctx, ESP_E_ARG, "%s:%d: 'order' must follow all %u tensors", name,
                                               l.number, ctx->n_tensors)
                                   : esp__strategy_order_line(ctx, &l, rest, &cap);
        else
            s = esp__fail(ctx, ESP_E_ARG, "%s:%d: '%s': expected 'tensor' or 'order'", name, l.number, word);
        if (s) return s;
    }
    if (more < 0) return esp__fail(ctx, ESP_E_ARG, "%s:%d: the line is too long", name, l.number);
    if (n < ctx->n_tensors)
        return esp__fail(
            ctx, ESP_E_ARG,
            "%s: has %u tensors, but this model has %u; the first without a line is '%s'. The strategy was "
            "made for another model: make it anew",
            name, n, ctx->n_tensors, ctx->tensors[n].name);
    return ctx->n_order ? esp__order_check(ctx, name) : esp__order_make(ctx);
}

/* Reads a whole small file; NULL (and the error) if it cannot be. Freed with free(). */
static char *esp__file_text(const esp_ctx *ctx, const char *path) {
    FILE *f = fopen(path, "rb");
    esp__text t = {0};
    char buf[4096];
    size_t n;
    if (!f) {
        esp__fail(
            ctx, ESP_E_NOT_FOUND,
            "strategy '%s': no built-in strategy (fp32, layerwise) has that name, and opening it as a file failed: %s",
            path, strerror(errno));
        return NULL;
    }
    while ((n = fread(buf, 1, sizeof buf - 1, f)) > 0) {
        buf[n] = 0;
        esp__text_add(&t, "%s", buf);
    }
    fclose(f);
    if (t.failed || !t.data) {
        esp__fail(ctx, t.failed ? ESP_E_NOMEM : ESP_E_ARG, "strategy '%s': %s", path,
                  t.failed ? "out of memory" : "empty file");
        esp__text_free(&t);
        return NULL;
    }
    return t.data;
}

/* Writes ctx->strategy_text and its hash from what is in force. */
static esp_status esp__strategy_print(esp_ctx *ctx) {
    esp__text t = {0};
    char option[ESP__TEXT_MAX];
    esp__text_add(&t, "%s\n", ESP__STRATEGY_MAGIC);
    for (uint32_t i = 0; i < ctx->n_tensors; i++) {
        const esp__tensor *x = &ctx->tensors[i];
        esp__option_print(&x->option, option, sizeof option);
        esp__text_add(&t, "tensor %s %llu %s %s\n", x->name, (unsigned long long)x->count, x->codec->spec, option);
    }
    for (uint32_t k = 0; k < ctx->n_order; k++)
        esp__text_add(&t, "%s%u:%u%s", k % 16 ? " " : "order ", ctx->order[k] >> 8, ctx->order[k] & 255u,
                      k % 16 == 15 || k + 1 == ctx->n_order ? "\n" : "");
    if (t.failed) {
        esp__text_free(&t);
        return esp__fail(ctx, ESP_E_NOMEM, "strategy: out of memory");
    }
    esp__strfree(ctx, ctx->strategy_text);
    ctx->strategy_text = esp__strdup(ctx, t.data);
    ctx->strategy_hash = esp__hash64(ESP__HASH0, t.data, t.len);
    esp__text_free(&t);
    return ctx->strategy_text ? ESP_OK : esp__fail(ctx, ESP_E_NOMEM, "strategy: out of memory");
}

/* Options, codecs and order for all tensors from `spec`: a built-in name, a strategy's text, or (if `files`) a path. */
ESP__FN esp_status esp__strategy_load(esp_ctx *ctx, const char *spec, int files) {
    esp_status s;
    if (!spec) spec = ctx->codec_spec ? "layerwise" : "fp32";
    if (!strcmp(spec, "fp32") || !strcmp(spec, "layerwise")) {
        s = esp__strategy_builtin(ctx, spec);
    } else if (strchr(spec, '\n')) {
        s = esp__strategy_parse(ctx, "strategy", spec);
    } else if (!files) {
        s = esp__fail(ctx, ESP_E_ARG, "strategy '%s': expected fp32, layerwise or the text of a strategy file", spec);
    } else {
        char *text = esp__file_text(ctx, spec);
        if (!text) return ESP_E_NOT_FOUND;
        s = esp__strategy_parse(ctx, spec, text);
        free(text);
    }
    return s ? s : esp__strategy_print(ctx);
}
