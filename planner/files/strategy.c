/* strategy.c: a strategy taken apart into tensors, units and order, from its text and to its text. Knows the form only: whether
 * options, codecs and order make sense is for the library to say. */

typedef struct files_tensor {
    const char *name;
    uint64_t elements;
} files_tensor;
typedef struct files_strategy {
    files_tensor *tensors;
    esp_plan_unit *units;
    const char **comments, **order; /* comments: without "# "; all move to the head */
    uint32_t n_tensors, n_units, n_comments, n_order;
    uint32_t room_tensors, room_units, room_comments, room_order;
    uint32_t next;            /* the tensor that the next unit begins with or is a chunk of */
    uint64_t total;           /* elements of all tensors */
    uint64_t done;            /* elements of it that chunks have taken      */
    uint32_t members, chunks; /* of the text: of the group or split that is open */
    esp__pool pool;
    esp__text *out;
} files_strategy;

static void *files_more(esp__pool *pool, void *list, uint32_t n, uint32_t *room, size_t size) {
    if (n < *room) return list;
    void *grown = esp__pool_get(pool, (*room = *room ? *room * 2 : 64) * size);
    return n ? memcpy(grown, list, n * size) : grown;
}

/* NULL, or what is wrong with it. */
static const char *files_add_tensor(files_strategy *s, const char *name, uint64_t elements) {
    if ((s->total += elements) > 1000000000000000u) return "expected at most 1e15 elements in all";
    s->tensors = files_more(&s->pool, s->tensors, s->n_tensors, &s->room_tensors, sizeof *s->tensors);
    s->tensors[s->n_tensors].name = esp__pool_text(&s->pool, name);
    s->tensors[s->n_tensors++].elements = elements;
    return NULL;
}

static void files_add_word(files_strategy *s, const char ***list, uint32_t *n, uint32_t *room, const char *word) {
    *list = files_more(&s->pool, (void *)*list, *n, room, sizeof **list);
    (*list)[(*n)++] = esp__pool_text(&s->pool, word);
}

/* The next unit: `n` tensors, or a chunk of one. NULL, or what is wrong with it. */
static const char *files_add_unit(files_strategy *s, uint32_t n, uint64_t elements, const char *codec,
                                  const char *option) {
    esp_plan_unit u = {
        s->next, n, s->done, elements, esp__pool_text(&s->pool, codec), esp__pool_text(&s->pool, option)};
    uint64_t all = 0;
    if (!strcmp(codec, "split") || !strcmp(codec, "group")) return "expected a codec, not 'split' or 'group'";
    if (!n || n > s->n_tensors - s->next) return "expected a tensor that no unit before it has taken";
    for (uint32_t i = 0; i < n; i++) all += s->tensors[s->next + i].elements;
    if (n > 1 && s->done) return "expected the other chunks of the tensor before a group begins";
    if (n > 1 && elements != all) return "expected the sum of the elements of the group's tensors";
    if (!elements || elements > all - s->done) return "expected no more elements than the tensor has left";
    s->units = files_more(&s->pool, s->units, s->n_units, &s->room_units, sizeof *s->units);
    s->units[s->n_units++] = u;
    s->done += elements;
    if (s->done == all) s->next += n, s->done = 0;
    return NULL;
}

/* An entry of the order: b, U:S, U:Sd, U:Su, U:p, U:u, with a unit that is there. */
static int files_is_entry(const files_strategy *s, const char *word) {
    char *end;
    if (!strcmp(word, "b")) return 1;
    if (!isdigit((unsigned char)*word) || strtoul(word, &end, 10) >= s->n_units || *end != ':') return 0;
    if (!strcmp(end, ":p") || !strcmp(end, ":u")) return 1;
    if (!isdigit((unsigned char)end[1]) || strtoul(end + 1, &end, 10) >= ESP__MAX_STEPS) return 0;
    return !*end || !strcmp(end, "d") || !strcmp(end, "u");
}

/* ---- reading text -------------------------------------------------------------------------------------------------- */
_Noreturn static void files_line_fail(files_input *in, int line, const char *fmt, ...) ESP__PRINTF(3, 4);
_Noreturn static void files_line_fail(files_input *in, int line, const char *fmt, ...) {
    char text[ESP__ERROR_MAX / 2];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    in->status = esp__fail(NULL, ESP_E_ARG, "%s:%d: %s", in->name, line, files_printable(text));
    longjmp(in->fail, 2);
}

/* Cuts the next word off *p. */
static char *files_word(char **p) {
    char *start = *p + strspn(*p, " \t"), *end = start + strcspn(start, " \t");
    *p = *end ? end + 1 : end;
    *end = 0;
    return start;
}

/* Cuts a number of elements off; 0: it is none. */
static uint64_t files_word_elements(char **p) {
    char *word = files_word(p), *end;
    unsigned long long n = strtoull(word, &end, 10);
    return !isdigit((unsigned char)*word) || *end || n > 1000000000000000u ? 0 : n;
}

/* "CODEC OPTION" at the end of a line: a unit. */
static void files_line_unit(files_input *in, files_strategy *s, int line, uint32_t n, uint64_t elements, char *codec,
                            char *rest) {
    const char *option = rest + strspn(rest, " \t"), *wrong = files_word_wrong(codec);
    if (!*codec || !*option) files_line_fail(in, line, "expected a codec and an option at the end of the line");
    if (wrong) files_line_fail(in, line, "codec '%.60s': %s", codec, wrong);
    wrong = files_add_unit(s, n, elements, codec, option);
    if (wrong) files_line_fail(in, line, "%s", wrong);
}

static void files_line_tensor(files_input *in, files_strategy *s, int line, char *rest) {
    char *name = files_word(&rest);
    uint64_t elements = files_word_elements(&rest);
    char *what = files_word(&rest), *end;
    if (!*name || !elements || !*what)
        files_line_fail(in, line, "expected 'tensor NAME ELEMENTS CODEC OPTION', '... split N' or '... group'");
    if (s->chunks) files_line_fail(in, line, "expected %u more 'chunk' lines first", s->chunks);
    if (s->members && strcmp(what, "group") != 0)
        files_line_fail(in, line, "expected the 'group' line of the tensors before this one first");
    const char *wrong = files_word_wrong(name);
    if (wrong) files_line_fail(in, line, "tensor '%.60s': %s", name, wrong);
    wrong = files_add_tensor(s, name, elements);
    if (wrong) files_line_fail(in, line, "%s", wrong);
    if (!strcmp(what, "group")) {
        s->members++;
    } else if (!strcmp(what, "split")) {
        unsigned long n = strtoul(rest += strspn(rest, " \t"), &end, 10);
        if (!isdigit((unsigned char)*rest) || *end || n < 2 || n > elements || n > 1u << 24)
            files_line_fail(in, line, "split '%s': expected 2 or more chunks, none empty", rest);
        s->chunks = (uint32_t)n;
    } else {
        files_line_unit(in, s, line, 1, elements, what, rest);
    }
}

static void files_line_chunk(files_input *in, files_strategy *s, int line, char *rest) {
    uint64_t elements = files_word_elements(&rest);
    char *codec = files_word(&rest);
    if (!s->chunks || !elements)
        files_line_fail(in, line, "expected 'chunk ELEMENTS CODEC OPTION' after 'tensor ... split'");
    uint64_t left = s->tensors[s->next].elements - s->done;
    if ((s->chunks == 1) != (elements == left))
        files_line_fail(in, line, "%llu elements, where %u chunks with %llu elements in all were left",
                        (unsigned long long)elements, s->chunks, (unsigned long long)left);
    s->chunks--;
    files_line_unit(in, s, line, 1, elements, codec, rest);
}

static void files_line_group(files_input *in, files_strategy *s, int line, char *rest) {
    uint64_t elements = files_word_elements(&rest);
    char *codec = files_word(&rest);
    if (s->members < 2 || !elements)
        files_line_fail(in, line, "expected 'group ELEMENTS CODEC OPTION' after two or more 'tensor ... group'");
    files_line_unit(in, s, line, s->members, elements, codec, rest);
    s->members = 0;
}

static void files_line_order(files_input *in, files_strategy *s, int line, char *rest) {
    char *word;
    if (s->members || s->chunks || !s->n_units) files_line_fail(in, line, "expected all tensors before the order");
    while (*(word = files_word(&rest))) {
        if (!files_is_entry(s, word))
            files_line_fail(in, line, "order: '%s': expected b, UNIT:STEP, UNIT:STEPd, UNIT:STEPu, UNIT:p or UNIT:u",
                            word);
        files_add_word(s, &s->order, &s->n_order, &s->room_order, word);
    }
}

/* One line, without its end. */
static void files_line(files_input *in, files_strategy *s, int line, char *text) {
    size_t len = strlen(text);
    if (len && text[len - 1] == '\r') text[--len] = 0;
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' && *c != '\t')
            files_line_fail(in, line, "there is a control character in it: this is no strategy file");
    char *comment = strchr(text, '#'), *rest = text, *word;
    if (comment) {
        *comment = 0;
        files_add_word(s, &s->comments, &s->n_comments, &s->room_comments, comment + (comment[1] == ' ' ? 2 : 1));
    }
    for (size_t n = strlen(text); n && isspace((unsigned char)text[n - 1]); n--) text[n - 1] = 0;
    int magic = !strcmp(text, ESP__STRATEGY_MAGIC);
    word = files_word(&rest);
    if (line == 1 && !magic)
        files_line_fail(in, line, "expected '%s' in the first line: this is no strategy file", ESP__STRATEGY_MAGIC);
    if (line == 1 || !*word) return;
    if (!strcmp(word, "tensor"))
        files_line_tensor(in, s, line, rest);
    else if (!strcmp(word, "chunk"))
        files_line_chunk(in, s, line, rest);
    else if (!strcmp(word, "group"))
        files_line_group(in, s, line, rest);
    else if (!strcmp(word, "order"))
        files_line_order(in, s, line, rest);
    else
        files_line_fail(in, line, "'%s': expected 'tensor', 'chunk', 'group' or 'order'", word);
}

static void files_read_strategy_text(files_input *in, const files_place *root, void *out) {
    files_strategy *s = (files_strategy *)out;
    char *text = esp__pool_get(&s->pool, in->len + 1), *end;
    int line = 0;
    (void)root;
    memcpy(text, in->text, in->len);
    if (strlen(text) != in->len) files_line_fail(in, 1, "there is a NUL byte in it: this is no strategy file");
    for (const unsigned char *p = (const unsigned char *)text; *p; p += files_utf8(p))
        if (!files_utf8(p))
            files_line_fail(in, files_json_line(text, (size_t)(p - (const unsigned char *)text)),
                            "expected UTF-8: JSON knows no other text");
    do {
        end = strchr(text, '\n');
        if (end) *end = 0;
        files_line(in, s, ++line, text);
        text = end ? end + 1 : text;
    } while (end);
    if (!s->n_tensors) files_line_fail(in, line, "expected at least one 'tensor' line");
    if (s->chunks) files_line_fail(in, line, "expected %u more 'chunk' lines", s->chunks);
    if (s->members) files_line_fail(in, line, "expected a 'group' line behind the tensors of a group");
}

/* ---- writing text ------------------------------------------------------------------------------------------------------ */
static void files_put_strategy_text(const files_strategy *s, esp__text *t) {
    esp__text_add(t, "%s\n", ESP__STRATEGY_MAGIC);
    for (uint32_t i = 0; i < s->n_comments; i++)
        esp__text_add(t, "#%s%s\n", *s->comments[i] ? " " : "", s->comments[i]);
    for (uint32_t k = 0; k < s->n_units; k++) {
        const esp_plan_unit *u = &s->units[k];
        const files_tensor *x = &s->tensors[u->first];
        uint32_t n = 0;
        if (u->n_tensors > 1) {
            for (uint32_t i = 0; i < u->n_tensors; i++)
                esp__text_add(t, "tensor %s %llu group\n", x[i].name, (unsigned long long)x[i].elements);
            esp__text_add(t, "group %llu %s %s\n", (unsigned long long)u->elements, u->codec, u->option);
        } else if (u->elements == x->elements) {
            esp__text_add(t, "tensor %s %llu %s %s\n", x->name, (unsigned long long)x->elements, u->codec, u->option);
        } else {
            while (k + n < s->n_units && s->units[k + n].first == u->first) n++;
            if (!u->begin) esp__text_add(t, "tensor %s %llu split %u\n", x->name, (unsigned long long)x->elements, n);
            esp__text_add(t, "chunk %llu %s %s\n", (unsigned long long)u->elements, u->codec, u->option);
        }
    }
    for (uint32_t i = 0; i < s->n_order; i++)
        esp__text_add(t, "%s%s%s", i % 16 ? " " : "order ", s->order[i],
                      i % 16 == 15 || i + 1 == s->n_order ? "\n" : "");
}
