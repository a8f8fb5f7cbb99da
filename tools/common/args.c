/* args.c: reads flags, prints usage texts and suggests names, for all subcommands. */
#include "tools/common/args.h"
#include "espresso_impl/base/text.h"
#include <errno.h>

static void tool_error(const tool_command *c, const char *fmt, va_list ap) {
    fprintf(stderr, "espresso %s: ", c->name);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
}

ESP__FN _Noreturn void tool_usage(const tool_command *c, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    tool_error(c, fmt, ap);
    fprintf(stderr, "See 'espresso help %s'.\n", c->name);
    exit(TOOL_USAGE);
}

ESP__FN int tool_fail(const tool_command *c, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    tool_error(c, fmt, ap);
    va_end(ap);
    return TOOL_FAILED;
}

ESP__FN void *tool_realloc(void *p, size_t bytes) {
    void *q = realloc(p, bytes ? bytes : 1);
    if (!q) {
        fputs("espresso: out of memory\n", stderr);
        exit(TOOL_FAILED);
    }
    return q;
}

ESP__FN void *tool_zeroed(size_t bytes) { return memset(tool_realloc(NULL, bytes), 0, bytes); }

ESP__FN bool tool_number(const char *text, long low, long high, long *out) {
    char *end;
    errno = 0;
    long v = strtol(text, &end, 10);
    if (end == text || *end || errno || v < low || v > high || *text == ' ') return false;
    *out = v;
    return true;
}

ESP__FN long tool_whole(const tool_command *c, const char *flag, const char *value, long low, long high) {
    long v;
    if (!tool_number(value, low, high, &v))
        tool_usage(c, "%s %s: expected a whole number from %ld to %ld", flag, value, low, high);
    return v;
}

ESP__FN int tool_listed(const char **at, const char *const *names) {
    const size_t n = strcspn(*at, ",");
    for (int i = 0; names[i]; i++) {
        if (strlen(names[i]) != n || strncmp(*at, names[i], n) != 0) continue;
        *at += n + ((*at)[n] == ',');
        return i;
    }
    return -1;
}

ESP__FN void tool_quote(esp__text *t, const char *word) {
    esp__text_add(t, "'");
    for (; *word; word++)
        if (*word == '\'')
            esp__text_add(t, "'\\''");
        else
            esp__text_add(t, "%c", *word);
    esp__text_add(t, "'");
}

ESP__FN size_t tool_flags(const tool_command *c) { return c->n_common + c->n_flags; }
ESP__FN const tool_flag *tool_flag_at(const tool_command *c, size_t i) {
    return i < c->n_common ? &c->common[i] : &c->flags[i - c->n_common];
}

ESP__FN const char *tool_meant(const char *guess) {
    static char text[300];
    text[0] = 0;
    if (guess) snprintf(text, sizeof text, ": did you mean '%.250s'?", guess);
    return text;
}

ESP__FN void tool_help(const tool_command *c) {
    printf("usage: espresso %s %s\n\n%s\n", c->name, c->synopsis, c->summary);
    if (tool_flags(c)) putchar('\n');
    for (size_t i = 0; i < tool_flags(c); i++) {
        const tool_flag *f = tool_flag_at(c, i);
        char left[48];
        snprintf(left, sizeof left, "%s%s%s", f->name, f->value ? " " : "", f->value ? f->value : "");
        printf("  %-27s %s\n", left, f->help);
    }
    if (c->details) printf("\n%s\n", c->details);
}

_Noreturn static void tool_unknown_flag(const tool_command *c, const char *word) {
    unsigned best = 3;
    const char *guess = NULL;
    for (size_t i = 0; i < tool_flags(c); i++) {
        const char *known = tool_flag_at(c, i)->name;
        if (esp__suggests(word + strspn(word, "-"), known + strspn(known, "-"), &best)) guess = known;
        if (!known[2] && strncmp(word, known, 2) == 0 && !guess) guess = known; /* suggests -n for -np */
    }
    tool_usage(c, "unknown flag '%s'%s", word, tool_meant(guess));
}

/* Returns whether `word` is this flag, and sets *value to the value in it, or NULL: "--flag=value", "-n8". */
static bool tool_is_flag(const tool_flag *f, const char *word, const char **value) {
    size_t n = strlen(f->name);
    *value = NULL;
    if (strncmp(word, f->name, n) != 0) return false;
    if (!word[n]) return true;
    if (!f->value) return false;
    if (f->name[1] == '-') {
        *value = word + n + 1;
        return word[n] == '=';
    }
    *value = word + n + (word[n] == '=');
    return word[n] == '=' || (word[n] >= '0' && word[n] <= '9');
}

ESP__FN int tool_next(const tool_command *c, int argc, char **argv, int *at, const char **value) {
    if (*at >= argc) return -1;
    const char *word = argv[*at];
    if (strcmp(word, "--") == 0) {
        ++*at;
        return -1;
    }
    if (word[0] != '-' || !word[1]) return -1;
    if (strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0) {
        tool_help(c);
        exit(TOOL_OK);
    }
    for (size_t i = 0; i < tool_flags(c); i++) {
        const tool_flag *f = tool_flag_at(c, i);
        if (!tool_is_flag(f, word, value)) continue;
        ++*at;
        if (!f->value || *value) return (int)i;
        if (*at >= argc || strcmp(argv[*at], "--") == 0)
            tool_usage(c, "%s wants a value: %s %s", word, f->name, f->value);
        *value = argv[(*at)++];
        return (int)i;
    }
    tool_unknown_flag(c, word);
}

ESP__FN void tool_flags_only(const tool_command *c, int argc, char **argv, tool_take *take, void *job) {
    const char *value;
    int at = 0, flag;
    while ((flag = tool_next(c, argc, argv, &at, &value)) >= 0) take(job, flag, value);
    if (at < argc) tool_usage(c, "'%s': takes flags only", argv[at]);
}
