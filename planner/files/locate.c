/* locate.c: finds the place of a value in a JSON text, and the value at a place: jansson does not keep the lines of values. Accepts
 * any text: invalid JSON only ends the walk early. Must not know what any key means. */

enum { FILES_JSON_PATH = 32, FILES_JSON_DEPTH = 2200 }; /* jansson stops at a depth of 2048 */
typedef struct files_json_step {
    const char *key; /* as in the text, with escapes; NULL in a list */
    size_t len, index;
} files_json_step;
/* A walk over all values in the order of the text. */
typedef struct files_json_walk {
    const char *text;
    size_t len, at;
    size_t value;                          /* where the value found last begins */
    uint32_t depth, value_depth;           /* number of open containers: now; around that value */
    files_json_step path[FILES_JSON_PATH]; /* [value_depth] path of the value, cut off at FILES_JSON_PATH */
    uint8_t object[FILES_JSON_DEPTH];      /* by level: 0 a list, 1 an object, 2 an object that expects a key */
} files_json_walk;

static void files_json_walk_init(files_json_walk *w, const char *text, size_t len) {
    memset(w, 0, sizeof *w);
    w->text = text;
    w->len = len;
}

/* The place after the string whose opening quote is at `at`. */
static size_t files_json_skip_string(const char *text, size_t len, size_t at) {
    for (at++; at < len && text[at] != '"'; at++)
        if (text[at] == '\\') at++;
    return at < len ? at + 1 : len;
}

static void files_json_open(files_json_walk *w, int object) {
    w->object[w->depth] = object ? 2 : 0;
    if (w->depth < FILES_JSON_PATH) memset(&w->path[w->depth], 0, sizeof *w->path);
    w->depth++;
}

/* Reads a key if one is expected here; returns 1 if it did. */
static int files_json_take_key(files_json_walk *w) {
    size_t from = w->at + 1;
    if (!w->depth || w->object[w->depth - 1] != 2) return 0;
    w->object[w->depth - 1] = 1;
    w->at = files_json_skip_string(w->text, w->len, w->at);
    if (w->depth > FILES_JSON_PATH) return 1;
    w->path[w->depth - 1].key = w->text + from;
    w->path[w->depth - 1].len = w->at > from ? w->at - from - 1 : 0;
    return 1;
}

static void files_json_comma(files_json_walk *w) {
    if (!w->depth) return;
    if (w->object[w->depth - 1])
        w->object[w->depth - 1] = 2;
    else if (w->depth <= FILES_JSON_PATH)
        w->path[w->depth - 1].index++;
}

/* Finds the next value, which may be a container or in one; 0 at the end. */
static int files_json_next(files_json_walk *w) {
    while (w->at < w->len) {
        char c = w->text[w->at];
        if (c == '"' && files_json_take_key(w)) continue;
        if (strchr(" \t\r\n:,]}", c)) { /* strchr finds NUL too: invalid, but it must not stop the loop */
            if (c == ',') files_json_comma(w);
            if ((c == '}' || c == ']') && w->depth) w->depth--;
            w->at++;
            continue;
        }
        w->value = w->at;
        w->value_depth = w->depth;
        if (c == '{' || c == '[') {
            if (w->depth == FILES_JSON_DEPTH) return 0;
            files_json_open(w, c == '{');
            w->at++;
        } else if (c == '"') {
            w->at = files_json_skip_string(w->text, w->len, w->at);
        } else {
            while (w->at < w->len && !strchr(" \t\r\n:,]}", w->text[w->at])) w->at++;
        }
        return 1;
    }
    return 0;
}

/* Four hex digits, or -1. */
static int32_t files_json_hex4(const char *p, const char *end) {
    int32_t v = 0;
    if (end - p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        const char *digits = "0123456789abcdef0123456789ABCDEF", *d = p[i] ? strchr(digits, p[i]) : NULL;
        if (!d) return -1;
        v = v * 16 + (int32_t)((d - digits) % 16);
    }
    return v;
}

/* Decodes one character of a string at *p into UTF-8; returns its bytes. */
static size_t files_json_char(const char **p, const char *end, char out[4]) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    const char *named;
    int32_t c, low;
    if (**p != '\\' || end - *p < 2) return *out = *(*p)++, 1;
    *p += 2;
    if ((*p)[-1] != 'u' || (c = files_json_hex4(*p, end)) < 0) {
        named = (*p)[-1] ? strchr(from, (*p)[-1]) : NULL;
        return *out = named ? to[named - from] : (*p)[-1], 1;
    }
    *p += 4;
    if (c >= 0xd800 && c < 0xdc00 && end - *p >= 6 && (low = files_json_hex4(*p + 2, end)) >= 0xdc00) {
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
        *p += 6;
    }
    if (c < 0x80) return *out = (char)c, 1;
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6) out[i] = (char)(0x80 | (c & 0x3f));
    *out = (char)(c | (n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0));
    return n;
}

/* Does the step's key, once decoded, equal `key`? */
static int files_json_key_is(const files_json_step *s, const char *key) {
    const char *p = s->key, *end = p + s->len;
    size_t have = strlen(key), n;
    char c[4];
    if (!memchr(p, '\\', s->len)) return s->len == have && !memcmp(p, key, have);
    for (; p < end; key += n, have -= n) {
        n = files_json_char(&p, end, c);
        if (n > have || memcmp(c, key, n) != 0) return 0;
    }
    return !have;
}

static int files_json_line(const char *text, size_t at) {
    int line = 1;
    for (const char *p = text; (p = memchr(p, '\n', at - (size_t)(p - text))) != NULL; p++) line++;
    return line;
}
