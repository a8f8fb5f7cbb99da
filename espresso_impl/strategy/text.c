/* text.c: reads and prints the text of a strategy. Error texts have the file, the line and what was expected there. */
#include "espresso_impl/strategy/text.h"
#include <ctype.h>

/* ---- lines and words ---- */
/* The state of reading a strategy. Its text has a split tensor's line before the lines of its chunks, and a group's
 * line after those of its tensors. */
typedef struct esp__reading {
    const esp_ctx *ctx;
    const char *name;
    const esp__text_tensors *tensors; /* the model's tensors, or NULL to accept any */
    const esp__strategy_lines *to;
    char *at;                      /* the text that is not read yet */
    char where[ESP__SPEC_MAX * 2]; /* "FILE:LINE" */
    int line;
    uint32_t n_tensors, n_units;
    uint64_t n_elements;
    const char *last; /* the last tensor's name; `count` is its number of elements */
    uint64_t count;
    uint32_t n_chunks; /* chunks of the split tensor being read, or 0 */
    uint32_t chunk;    /* number of its chunks that were read */
    uint64_t cut;      /* elements of the chunks that were read */
    uint32_t members;  /* tensors of the group being read */
    uint64_t member_elements;
} esp__reading;

/* Sets *out to the next line that is not empty or a comment, or to NULL at the end. */
static esp_status esp__reading_next(esp__reading *r, char **out) {
    for (*out = NULL; *r->at;) {
        char *start = r->at, *end = start + strcspn(start, "\n"), *hash;
        r->at = *end ? end + 1 : end;
        *end = 0;
        snprintf(r->where, sizeof r->where, "%s:%d", r->name, ++r->line);
        if ((hash = strchr(start, '#')) != NULL) {
            end = hash;
            *hash = 0;
        }
        while (isspace((unsigned char)*start)) start++;
        while (end > start && isspace((unsigned char)end[-1])) *--end = 0;
        for (const char *c = start; *c; c++)
            if ((unsigned char)*c < ' ' && *c != '\t')
                return esp__fail(r->ctx, ESP_E_ARG, "%s: there is a control character in it: this is no strategy file",
                                 r->where);
        if (*start) return *out = start, ESP_OK;
    }
    return ESP_OK;
}

static char *esp__word(char **p) {
    char *start = *p + strspn(*p, " \t"), *end = start + strcspn(start, " \t");
    *p = *end ? end + 1 : end;
    *end = 0;
    return start;
}

static bool esp__number(const char *word, uint64_t *out) {
    uint64_t x = 0;
    if (!*word) return false;
    for (; isdigit((unsigned char)*word); word++) {
        uint64_t digit = (uint64_t)(*word - '0');
        if (x > (UINT64_MAX - digit) / 10) return false;
        x = x * 10 + digit;
    }
    *out = x;
    return !*word;
}

static const char *esp__word_wrong(const char *word, size_t most) {
    if (!*word) return "it is empty";
    if (strlen(word) > most) return "it is too long";
    for (const char *c = word; *c; c++)
        if ((unsigned char)*c <= ' ' || *c == '#') return "it has blanks, '#' or control characters";
    return NULL;
}

/* ---- units ---- */
static esp_status esp__read_name(esp__reading *r, const char *name, uint64_t count) {
    const esp__text_tensors *m = r->tensors;
    const char *wrong = esp__word_wrong(name, ESP__TENSOR_NAME_MAX);
    uint64_t want_count;
    if (m && r->n_tensors >= m->n)
        return esp__fail(r->ctx, ESP_E_ARG,
                         "%s: tensor '%s' is one too many: this model has %u tensors. The strategy was made for "
                         "another model: make a new one",
                         r->where, name, m->n);
    const char *want = m ? m->name(m->user, r->n_tensors, &want_count) : NULL;
    if (want && (strcmp(want, name) != 0 || want_count != count))
        return esp__fail(
            r->ctx, ESP_E_ARG,
            "%s: tensor %u is '%s' with %llu elements in the strategy, but '%s' with %llu in this model. The strategy "
            "was made for another model, or tensors were added in another order: make a new one",
            r->where, r->n_tensors, name, (unsigned long long)count, want, (unsigned long long)want_count);
    if (wrong) return esp__fail(r->ctx, ESP_E_ARG, "%s: tensor '%.60s': %s", r->where, name, wrong);
    if (!count || count > ESP__ELEMENTS_MAX - r->n_elements || r->n_tensors == ESP__UNITS_MAX)
        return esp__fail(r->ctx, ESP_E_ARG,
                         "%s: tensor '%s' with %llu elements: expected at least one element, and in all tensors at "
                         "most 2^58; and at most %d tensors",
                         r->where, name, (unsigned long long)count, (int)ESP__UNITS_MAX);
    r->n_elements += count;
    r->n_tensors++;
    r->last = name;
    r->count = count;
    return r->to->tensor ? r->to->tensor(r->to->user, r->where, name, count) : ESP_OK;
}

static esp_status esp__read_unit(esp__reading *r, const esp__unit_line *u) {
    const char *wrong = esp__word_wrong(u->codec, ESP__SPEC_MAX - 1);
    if (!strcmp(u->codec, "split") || !strcmp(u->codec, "group")) wrong = "expected a codec";
    if (wrong) return esp__fail(r->ctx, ESP_E_ARG, "%s: codec '%.60s': %s", r->where, u->codec, wrong);
    if (r->n_units == ESP__UNITS_MAX)
        return esp__fail(r->ctx, ESP_E_ARG, "%s: expected at most %d tensors, chunks and groups", r->where,
                         (int)ESP__UNITS_MAX);
    r->n_units++;
    return r->to->unit ? r->to->unit(r->to->user, r->where, u) : ESP_OK;
}

/* Reads "tensor NAME ELEMENTS CODEC OPTION", "tensor NAME ELEMENTS split N" or "tensor NAME ELEMENTS group". */
static esp_status esp__read_tensor(esp__reading *r, char *rest) {
    char *name = esp__word(&rest), *elements = esp__word(&rest), *codec = esp__word(&rest);
    char *option = rest + strspn(rest, " \t");
    const bool member = !strcmp(codec, "group") && !*option;
    uint64_t count, chunks = 0;
    if (!esp__number(elements, &count) || !*codec || (!*option && !member))
        return esp__fail(r->ctx, ESP_E_ARG, "%s: expected 'tensor NAME ELEMENTS CODEC OPTION' (or split N, or group)",
                         r->where);
    if (r->members && !member)
        return esp__fail(r->ctx, ESP_E_ARG,
                         "%s: the group of tensor '%s' is not closed: expected 'group ELEMENTS CODEC OPTION', or "
                         "another 'tensor NAME ELEMENTS group'",
                         r->where, r->last);
    esp_status s = esp__read_name(r, name, count);
    if (s) return s;
    if (member) return r->members++, r->member_elements += count, ESP_OK;
    if (!strcmp(codec, "split")) {
        if (!esp__number(option, &chunks) || chunks < 2 || chunks > count || chunks > ESP__UNITS_MAX)
            return esp__fail(r->ctx, ESP_E_ARG,
                             "%s: tensor '%s': 'split %s': expected a number of chunks from 2 to its %llu elements",
                             r->where, name, option, (unsigned long long)count);
        r->n_chunks = (uint32_t)chunks;
        r->chunk = 0;
        r->cut = 0;
        return ESP_OK;
    }
    esp__unit_line whole = {r->n_tensors - 1, 1, 0, count, 0, 1, codec, option};
    return esp__read_unit(r, &whole);
}

/* Reads "chunk ELEMENTS CODEC OPTION". */
static esp_status esp__read_chunk(esp__reading *r, char *rest) {
    char *elements = esp__word(&rest), *codec = esp__word(&rest), *option = rest + strspn(rest, " \t");
    uint64_t count, left = r->count - r->cut;
    if (!r->n_chunks)
        return esp__fail(r->ctx, ESP_E_ARG, "%s: a chunk belongs behind 'tensor NAME ELEMENTS split N'", r->where);
    if (!esp__number(elements, &count) || !count || !*codec || !*option)
        return esp__fail(r->ctx, ESP_E_ARG, "%s: expected 'chunk ELEMENTS CODEC OPTION', with at least one element",
                         r->where);
    if (count > left || (r->chunk + 1 == r->n_chunks && count < left))
        return esp__fail(
            r->ctx, ESP_E_ARG, "%s: the chunks of tensor '%s' add up to %llu elements with this one, but it has %llu",
            r->where, r->last, (unsigned long long)(count > UINT64_MAX - r->cut ? UINT64_MAX : r->cut + count),
            (unsigned long long)r->count);
    if (count == left && r->chunk + 1 < r->n_chunks)
        return esp__fail(r->ctx, ESP_E_ARG, "%s: tensor '%s' has no elements left after chunk %u of %u", r->where,
                         r->last, r->chunk + 1, r->n_chunks);
    esp__unit_line u = {r->n_tensors - 1, 1, r->cut, count, r->chunk, r->n_chunks, codec, option};
    r->cut += count;
    if (++r->chunk == r->n_chunks) r->n_chunks = 0;
    return esp__read_unit(r, &u);
}

/* Reads "group ELEMENTS CODEC OPTION". */
static esp_status esp__read_group(esp__reading *r, char *rest) {
    char *elements = esp__word(&rest), *codec = esp__word(&rest), *option = rest + strspn(rest, " \t");
    uint64_t count;
    if (!r->members)
        return esp__fail(r->ctx, ESP_E_ARG,
                         "%s: a group belongs behind its tensors' lines 'tensor NAME ELEMENTS group'", r->where);
    if (!esp__number(elements, &count) || !*codec || !*option)
        return esp__fail(r->ctx, ESP_E_ARG, "%s: expected 'group ELEMENTS CODEC OPTION'", r->where);
    if (r->members == 1)
        return esp__fail(r->ctx, ESP_E_ARG,
                         "%s: tensor '%s' is alone in its group: expected at least two 'tensor NAME ELEMENTS group' "
                         "lines before it, or 'tensor %s %llu CODEC OPTION' without a group",
                         r->where, r->last, r->last, (unsigned long long)r->count);
    if (count != r->member_elements)
        return esp__fail(r->ctx, ESP_E_ARG, "%s: the group has %llu elements, but its %u tensors add up to %llu",
                         r->where, (unsigned long long)count, r->members, (unsigned long long)r->member_elements);
    esp__unit_line u = {r->n_tensors - r->members, r->members, 0, count, 0, 1, codec, option};
    r->members = 0;
    r->member_elements = 0;
    return esp__read_unit(r, &u);
}

/* Reads "order ENTRY ENTRY ...". */
static esp_status esp__read_order(esp__reading *r, char *rest) {
    char *word, number[16] = "";
    if (r->tensors) snprintf(number, sizeof number, "%u ", r->tensors->n);
    if (r->members || !r->n_units || (r->tensors && r->n_tensors < r->tensors->n))
        return esp__fail(r->ctx, ESP_E_ARG, "%s: 'order' must follow all %stensors, and every group's last line",
                         r->where, number);
    while (*(word = esp__word(&rest))) {
        esp__order_entry e;
        if (!esp__order_entry_read(word, r->n_units, &e)) return esp__order_entry_fail(r->ctx, r->where, word);
        esp_status s = r->to->entry ? r->to->entry(r->to->user, r->where, &e) : ESP_OK;
        if (s) return s;
    }
    return ESP_OK;
}

/* ---- the whole text ---- */
static esp_status esp__read_line(esp__reading *r, char *line) {
    char *rest = line, *word = esp__word(&rest);
    if (r->n_chunks && strcmp(word, "chunk"))
        return esp__fail(r->ctx, ESP_E_ARG, "%s: expected chunk %u of %u of tensor '%s': 'chunk ELEMENTS CODEC OPTION'",
                         r->where, r->chunk + 1, r->n_chunks, r->last);
    if (!strcmp(word, "tensor")) return esp__read_tensor(r, rest);
    if (!strcmp(word, "chunk")) return esp__read_chunk(r, rest);
    if (!strcmp(word, "group")) return esp__read_group(r, rest);
    if (!strcmp(word, "order")) return esp__read_order(r, rest);
    return esp__fail(r->ctx, ESP_E_ARG, "%s: '%s': expected 'tensor', 'chunk', 'group' or 'order'", r->where, word);
}

static esp_status esp__read_end(esp__reading *r) {
    const esp__text_tensors *m = r->tensors;
    uint64_t count;
    if (r->n_chunks)
        return esp__fail(r->ctx, ESP_E_ARG, "%s: the text ends after %u of %u chunks of tensor '%s'", r->where,
                         r->chunk, r->n_chunks, r->last);
    if (m && r->n_tensors < m->n)
        return esp__fail(r->ctx, ESP_E_ARG,
                         "%s: has %u tensors, but this model has %u; the first without a line is '%s'. The strategy "
                         "was made for another model: make a new one",
                         r->name, r->n_tensors, m->n, m->name(m->user, r->n_tensors, &count));
    if (r->members)
        return esp__fail(
            r->ctx, ESP_E_ARG,
            "%s: the text ends before the group of tensor '%s' is closed: expected 'group ELEMENTS CODEC OPTION'",
            r->where, r->last);
    if (!r->n_tensors && !m) return esp__fail(r->ctx, ESP_E_ARG, "%s: expected at least one 'tensor' line", r->where);
    return ESP_OK;
}

ESP__FN esp_status esp__strategy_read(const esp_ctx *ctx, const char *name, char *text,
                                      const esp__text_tensors *tensors, const esp__strategy_lines *to) {
    esp__reading r = {.ctx = ctx, .name = name, .tensors = tensors, .to = to, .at = text};
    char *line;
    snprintf(r.where, sizeof r.where, "%s:1", name);
    esp_status s = esp__reading_next(&r, &line);
    if (s) return s;
    if (!line || strcmp(line, ESP__STRATEGY_MAGIC))
        return esp__fail(ctx, ESP_E_ARG, "%s: expected '%s' in the first line: this is no strategy file", r.where,
                         ESP__STRATEGY_MAGIC);
    while ((s = esp__reading_next(&r, &line)) == ESP_OK && line)
        if ((s = esp__read_line(&r, line)) != ESP_OK) return s;
    return s ? s : esp__read_end(&r);
}

/* ---- printing ---- */
ESP__FN void esp__strategy_put_head(esp__text *t, const char *comments) {
    esp__text_add(t, "%s\n%s", ESP__STRATEGY_MAGIC, comments);
}

ESP__FN void esp__strategy_put_unit(esp__text *t, const esp__text_tensors *tensors, const esp__unit_line *u) {
    unsigned long long elements = u->elements;
    uint64_t count;
    for (uint32_t i = 0; u->n > 1 && i < u->n; i++) {
        const char *name = tensors->name(tensors->user, u->first + i, &count);
        esp__text_add(t, "tensor %s %llu group\n", name, (unsigned long long)count);
    }
    const char *name = tensors->name(tensors->user, u->first, &count);
    if (u->n_chunks > 1 && !u->chunk)
        esp__text_add(t, "tensor %s %llu split %u\n", name, (unsigned long long)count, u->n_chunks);
    if (u->n > 1 || u->n_chunks > 1)
        esp__text_add(t, "%s %llu %s %s\n", u->n > 1 ? "group" : "chunk", elements, u->codec, u->option);
    else
        esp__text_add(t, "tensor %s %llu %s %s\n", name, elements, u->codec, u->option);
}

ESP__FN void esp__strategy_put_entry(esp__text *t, uint32_t i, uint32_t n, const esp__order_entry *e) {
    char word[ESP__ENTRY_MAX];
    esp__text_add(t, "%s%s%s", i % 16 ? " " : "order ", esp__order_entry_word(e, word),
                  i % 16 == 15 || i + 1 == n ? "\n" : "");
}
