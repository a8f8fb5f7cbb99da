/* put.c: JSON's words for numbers and strings. Knows nothing of what is written. */

/* The length of the UTF-8 character at p, or 0 where there is none. */
static size_t files_utf8(const unsigned char *p) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t n = *p < 0x80 ? 1 : (*p & 0xe0) == 0xc0 ? 2 : (*p & 0xf0) == 0xe0 ? 3 : (*p & 0xf8) == 0xf0 ? 4 : 0;
    uint32_t c = n > 1 ? *p & (0xffu >> (n + 1)) : *p;
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (p[i] & 0x3fu);
    }
    return n && c >= least[n] && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff) ? n : 0;
}

/* With the quotes. Bytes that are no UTF-8 become U+FFFD, so that the file stays JSON. */
static void files_put_string(esp__text *t, const char *s) {
    const unsigned char *p = (const unsigned char *)s, *from = p;
    esp__text_add(t, "\"");
    for (size_t n; *p; p += n ? n : 1) {
        n = files_utf8(p);
        if (n && *p >= ' ' && *p != '"' && *p != '\\') continue;
        esp__text_add(t, "%.*s", (int)(p - from), (const char *)from);
        from = p + 1;
        if (!n)
            esp__text_add(t, "\\ufffd");
        else if (*p == '\n')
            esp__text_add(t, "\\n");
        else
            esp__text_add(t, *p < ' ' ? "\\u%04x" : "\\%c", *p);
    }
    esp__text_add(t, "%s\"", (const char *)from);
}

/* The shortest decimal text that reads back as x / unit, and then times `unit` gives x. */
static void files_put_scaled(esp__text *t, double x, double unit) {
    char buf[40];
    double down = x / unit, near[3] = {down, nextafter(down, -INFINITY), nextafter(down, INFINITY)};
    for (int k = 0; k < 3; k++)
        for (int digits = 15; digits <= 17; digits++) {
            snprintf(buf, sizeof buf, "%.*g", digits, near[k]);
            if (strtod(buf, NULL) * unit == x) goto found;
        }
    snprintf(buf, sizeof buf, "%.17g", down); /* not the product of any: as near as it gets */
found:
    for (char *p = buf; *p; p++)
        if (*p == ',') *p = '.'; /* the program's locale is no concern of a file's */
    esp__text_add(t, "%s", buf);
}

static void files_put_number(esp__text *t, double x) { files_put_scaled(t, x, 1.0); }
static void files_put_us(esp__text *t, double ns) { files_put_scaled(t, ns, 1000.0); }

/* `indent`"key": "text",\n; nothing where there is no text */
static void files_put_text_line(esp__text *t, const char *indent, const char *key, const char *text) {
    if (!text) return;
    esp__text_add(t, "%s\"%s\": ", indent, key);
    files_put_string(t, text);
    esp__text_add(t, ",\n");
}

static void files_put_us_line(esp__text *t, const char *indent, const char *key, double ns) {
    esp__text_add(t, "%s\"%s\": ", indent, key);
    files_put_us(t, ns);
    esp__text_add(t, ",\n");
}

/* Ends the last line without its comma. */
static void files_put_no_comma(esp__text *t) {
    if (!t->failed && t->len >= 2 && !strcmp(t->data + t->len - 2, ",\n")) t->len -= 2, t->data[t->len] = 0;
    esp__text_add(t, "\n");
}

/* Hands over what a printer wrote. */
static esp_status files_output_text(const char *path, esp__text *t) {
    esp_status s = t->failed ? esp__fail(NULL, ESP_E_NOMEM, "%s: out of memory", path)
                             : esp__output_write(path, t->data ? t->data : "", t->len);
    esp__text_free(t);
    return s;
}
