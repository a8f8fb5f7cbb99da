/* strategy.c: converts between a strategy's text and lists of its tensors, units and order entries. Must not know the format:
 * espresso_impl/strategy/text.c does. */
#include "espresso_impl/base/json.h"

typedef struct files_tensor {
    const char *name;
    uint64_t elements;
} files_tensor;
typedef struct files_strategy {
    files_tensor *tensors;
    esp_plan_unit *units;
    const char **comments; /* without "# "; written at the head of the text */
    esp__order_entry *order;
    uint32_t n_tensors, n_units, n_comments, n_order;
    uint32_t room_tensors, room_units, room_comments, room_order;
    esp__arena arena;
    esp__text *out;
} files_strategy;

static void *files_more(esp__arena *arena, void *list, uint32_t n, uint32_t *room, size_t size) {
    if (n < *room) return list;
    void *grown = esp__arena_get(arena, (*room = *room ? *room * 2 : 64) * size);
    return n ? memcpy(grown, list, n * size) : grown;
}

static void files_add_tensor(files_strategy *s, const char *name, uint64_t elements) {
    s->tensors = files_more(&s->arena, s->tensors, s->n_tensors, &s->room_tensors, sizeof *s->tensors);
    s->tensors[s->n_tensors++] = (files_tensor){esp__arena_text(&s->arena, name), elements};
}

static void files_add_comment(files_strategy *s, const char *text) {
    s->comments = files_more(&s->arena, (void *)s->comments, s->n_comments, &s->room_comments, sizeof *s->comments);
    s->comments[s->n_comments++] = esp__arena_text(&s->arena, text);
}

static void files_add_unit(files_strategy *s, uint32_t first, uint32_t n, uint64_t begin, uint64_t elements,
                           const char *codec, const char *option) {
    esp__arena *p = &s->arena;
    s->units = files_more(p, s->units, s->n_units, &s->room_units, sizeof *s->units);
    s->units[s->n_units++] =
        (esp_plan_unit){first, n, begin, elements, esp__arena_text(p, codec), esp__arena_text(p, option)};
}

static void files_add_entry(files_strategy *s, const esp__order_entry *e) {
    s->order = files_more(&s->arena, s->order, s->n_order, &s->room_order, sizeof *s->order);
    s->order[s->n_order++] = *e;
}

/* ---- from text ------------------------------------------------------------------------------------------------------ */
static esp_status files_text_comment(void *user, const char *where, const char *text) {
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' && *c != '\t')
            return esp__fail(NULL, ESP_E_ARG, "%s: there is a control character in the comment: leave it out", where);
    files_add_comment((files_strategy *)user, text);
    return ESP_OK;
}

static esp_status files_text_tensor(void *user, const char *where, const char *name, uint64_t elements) {
    (void)where;
    files_add_tensor((files_strategy *)user, name, elements);
    return ESP_OK;
}

static esp_status files_text_unit(void *user, const char *where, const esp__text_unit *u) {
    files_strategy *to = (files_strategy *)user;
    esp__option o;
    esp_status s = esp__option_parse(NULL, u->option, &o);
    if (s) return esp__fail(NULL, s, "%s: tensor '%s': %s", where, to->tensors[u->first].name, esp_last_error(NULL));
    files_add_unit(to, u->first, u->n, u->begin, u->elements, u->codec, u->option);
    return ESP_OK;
}

static esp_status files_text_entry(void *user, const char *where, const esp__order_entry *e) {
    (void)where;
    files_add_entry((files_strategy *)user, e);
    return ESP_OK;
}

static void files_read_strategy_text(files_input *in, const files_place *root, void *out) {
    files_strategy *s = (files_strategy *)out;
    const esp__strategy_lines to = {s, files_text_comment, files_text_tensor, files_text_unit, files_text_entry};
    char *text = esp__arena_text(&s->arena, in->text);
    (void)root;
    for (const unsigned char *p = (const unsigned char *)text; *p; p += esp__utf8_bytes(p))
        if (!esp__utf8_bytes(p)) {
            in->status = esp__fail(NULL, ESP_E_ARG, "%s:%d: expected UTF-8: JSON knows no other text", in->name,
                                   files_json_line(text, (size_t)(p - (const unsigned char *)text)));
            longjmp(in->fail, 2);
        }
    in->status = esp__strategy_read(NULL, in->name, text, NULL, &to);
    if (in->status) longjmp(in->fail, 2);
}

/* ---- to text -------------------------------------------------------------------------------------------------------- */
static const char *files_tensor_name(const void *user, uint32_t i, uint64_t *elements) {
    const files_tensor *t = &((const files_strategy *)user)->tensors[i];
    *elements = t->elements;
    return t->name;
}

static void files_put_strategy_text(const files_strategy *s, esp__text *t) {
    const esp__text_tensors tensors = {s, s->n_tensors, files_tensor_name};
    esp__strategy_put_head(t, "");
    for (uint32_t i = 0; i < s->n_comments; i++)
        esp__text_add(t, "#%s%s\n", *s->comments[i] ? " " : "", s->comments[i]);
    for (uint32_t k = 0; k < s->n_units; k++) {
        const esp_plan_unit *u = &s->units[k];
        esp__text_unit x = {u->first, u->n_tensors, u->begin, u->elements, 0, 1, u->codec, u->option};
        if (u->n_tensors == 1 && u->elements != s->tensors[u->first].elements) {
            x.chunk = u->begin ? 1 : 0;
            for (x.n_chunks = 2;
                 !u->begin && k + x.n_chunks < s->n_units && s->units[k + x.n_chunks].first == u->first;)
                x.n_chunks++;
        }
        esp__strategy_put_unit(t, &tensors, &x);
    }
    for (uint32_t i = 0; i < s->n_order; i++) esp__strategy_put_entry(t, i, s->n_order, &s->order[i]);
}
