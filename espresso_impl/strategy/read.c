/* read.c: makes a strategy from the text of a strategy file. */
#include "espresso_impl/strategy/strategy.h"

static const char *esp__text_tensor(const void *user, uint32_t i, uint64_t *elements) {
    const esp__tensor *t = &esp__model_of(user)->tensors[i];
    *elements = t->count;
    return t->name;
}

ESP__FN esp__text_tensors esp__text_tensors_of(const esp_ctx *ctx) {
    return (esp__text_tensors){ctx, esp__model_of(ctx)->n_tensors, esp__text_tensor};
}

/* Fails if the tensors cannot be one group, for example because their dtypes differ. */
static esp_status esp__load_group_check(const esp_ctx *ctx, const char *where, const esp__unit_line *u) {
    const esp__tensor *a = &esp__model_of(ctx)->tensors[u->first];
    for (const esp__tensor *t = a; t < a + u->n; t++) {
        if (t->dtype != a->dtype)
            return esp__fail(ctx, ESP_E_ARG,
                             "%s: tensor '%s' is %s but '%s' is %s: a group's tensors have one type of numbers", where,
                             a->name, esp__dtype_word(a->dtype), t->name, esp__dtype_word(t->dtype));
        if (t->device != a->device)
            return esp__fail(ctx, ESP_E_ARG,
                             "%s: tensors '%s' and '%s' lie on different devices: they cannot be in one group", where,
                             a->name, t->name);
        if ((t->flags ^ a->flags) & ESP_SUM)
            return esp__fail(ctx, ESP_E_ARG,
                             "%s: of tensors '%s' and '%s' only one wants the sum (ESP_SUM), the other the mean: they "
                             "cannot be in one group",
                             where, a->name, t->name);
        if (t->codec_override || t->option_override)
            return esp__fail(
                ctx, ESP_E_ARG,
                "%s: tensor '%s' has %s of its own ('%s'): it cannot be in a group; give it a line of its own", where,
                t->name, t->codec_override ? "a codec" : "an option",
                t->codec_override ? t->codec_override : t->option_override);
    }
    return ESP_OK;
}

typedef struct esp__loading {
    esp_ctx *ctx;
    esp__strategy *y;
    /* True if the order in the text does not fit, because an esp_tensor_desc replaces an option or codec of the text.
     * Then the library makes a new order. */
    bool own_order;
} esp__loading;

static esp_status esp__load_unit(void *user, const char *where, const esp__unit_line *x) {
    esp__loading *l = user;
    esp_ctx *ctx = l->ctx;
    esp__extent place = {x->first, x->n, x->begin, x->elements};
    esp_status s = x->n > 1 ? esp__load_group_check(ctx, where, x) : ESP_OK;
    if (s) return s;
    esp__unit *u = esp__unit_add(ctx, l->y, place, x->chunk, x->n_chunks);
    if (!u) return esp__fail(ctx, ESP_E_NOMEM, "%s: out of memory", where);
    s = esp__unit_assign(ctx, u, x->codec, x->option, where);
    l->own_order |= u->replaced || (u->codec && u->codec->traits.n_rounds > 1 && strcmp(u->codec->spec, x->codec));
    return s;
}

/* ---- the order ---- */
static const esp__option *esp__order_option(const void *user, uint32_t unit, int *group) {
    const esp__unit *u = &((const esp__strategy *)user)->units[unit];
    *group = esp__unit_is_group(u);
    return &u->option;
}

static const char *esp__order_unit_name(const void *user, uint32_t unit) {
    return ((const esp__strategy *)user)->units[unit].name;
}

static uint32_t esp__order_unit_rounds(const void *user, uint32_t unit) {
    const esp__unit *u = &((const esp__strategy *)user)->units[unit];
    return u->codec->traits.n_rounds - u->first_round;
}

static esp__order_units esp__order_units_of(const esp_ctx *ctx, const esp__strategy *y, uint32_t *at) {
    return (esp__order_units){
        y, y->n_units, esp__model_of(ctx)->n_tensors, esp__order_option, esp__order_unit_name, esp__order_unit_rounds,
        at};
}

static esp_status esp__load_entry(void *user, const char *where, const esp__order_entry *e) {
    const esp__loading *l = user;
    esp_ctx *ctx = l->ctx;
    esp__strategy *y = l->y;
    const esp__order_units units = esp__order_units_of(ctx, y, NULL);
    char word[ESP__ENTRY_MAX];
    if (l->own_order) return ESP_OK;
    if (!esp__order_entry_fits(e, &units)) return esp__order_entry_fail(ctx, where, esp__order_entry_word(e, word));
    esp__order_entry *grown = esp__grow(ctx, y->entries, &y->cap_entries, ((uint64_t)y->n_entries + 1) * sizeof *grown);
    if (!grown) return esp__fail(ctx, ESP_E_NOMEM, "%s: out of memory", where);
    y->entries = grown;
    y->entries[y->n_entries++] = *e;
    if (e->what != ESP__ENTRY_STEP || y->units[e->unit].option.steps[e->step].kind != ESP__STAGE_COLLECTIVE)
        return ESP_OK;
    uint32_t *order = esp__grow(ctx, y->order, &y->cap_order, ((uint64_t)y->n_order + 1) * sizeof *order);
    if (!order) return esp__fail(ctx, ESP_E_NOMEM, "%s: out of memory", where);
    y->order = order;
    y->order[y->n_order++] = e->unit << 8 | e->step;
    return ESP_OK;
}

static esp_status esp__load_order_check(esp_ctx *ctx, const esp__strategy *y, const char *name) {
    uint32_t *at = esp__alloc(ctx, (uint64_t)y->n_units * sizeof *at);
    const esp__order_units units = esp__order_units_of(ctx, y, at);
    esp_status s = at ? esp__order_check(ctx, name, y->entries, y->n_entries, &units)
                      : esp__fail(ctx, ESP_E_NOMEM, "%s: out of memory", name);
    esp__free(ctx, at);
    return s;
}

ESP__FN esp_status esp__strategy_parse(esp_ctx *ctx, esp__strategy *y, const char *name, const char *text) {
    esp__loading l = {ctx, y, false};
    const esp__strategy_lines to = {.user = &l, .unit = esp__load_unit, .entry = esp__load_entry};
    const esp__text_tensors tensors = esp__text_tensors_of(ctx);
    char *words = esp__strdup(ctx, text);
    esp_status s = words ? esp__strategy_read(ctx, name, words, &tensors, &to)
                         : esp__fail(ctx, ESP_E_NOMEM, "%s: out of memory", name);
    esp__free(ctx, words);
    if (s) return s;
    return y->n_entries ? esp__load_order_check(ctx, y, name) : esp__order_make(ctx, y);
}
