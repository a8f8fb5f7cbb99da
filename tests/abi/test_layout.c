/* test_layout.c compares sizes and offsets of every ABI struct, and the ABI's numbers, with layout.golden. Within major
 * version 1 only members at the end of growable structs, new structs and new numbers may be added:
 *     ESPRESSO_GOLDEN=grow build/tests/abi/test_layout         adds them to the file, and refuses any other change */
#include "tests/lib/test.h"
#include "tests/abi/layout_rows.h"

static const char golden[] = "tests/abi/layout.golden";

enum { ROWS = sizeof rows / sizeof *rows, NUMBERS = sizeof numbers / sizeof *numbers, LINES = 1024, LINE = 128 };
/* A layout as lines: "NAME SIZE" of a struct, "    MEMBER OFFSET SIZE" of its members, "NAME = VALUE" of a number. */
typedef struct layout {
    int n;
    char line[LINES][LINE];
} layout;

static void add(layout *l, const char *line) {
    if (l->n == LINES) fail_msg("more than %d lines", (int)LINES);
    snprintf(l->line[l->n++], LINE, "%s", line);
}

static void layout_now(layout *l) {
    char line[LINE];
    l->n = 0;
    for (int i = 0; i < ROWS; i++) {
        if (rows[i].offset == SIZE_MAX)
            snprintf(line, sizeof line, "%s %zu", rows[i].name, rows[i].size);
        else
            snprintf(line, sizeof line, "%s %zu %zu", rows[i].name, rows[i].offset, rows[i].size);
        add(l, line);
    }
    for (int i = 0; i < NUMBERS; i++) {
        snprintf(line, sizeof line, "%s = %lld", numbers[i].name, (long long)numbers[i].value);
        add(l, line);
    }
}

static void layout_read(layout *l) {
    char line[LINE];
    FILE *f = fopen(golden, "r");
    if (!f) fail_msg("%s: run in the project's root", golden);
    for (l->n = 0; fgets(line, sizeof line, f);) line[strcspn(line, "\n")] = 0, add(l, line);
    fclose(f);
}

static int is_member(const char *line) { return line[0] == ' '; }

/* Returns the index in `l` of a line that begins with the first word of `line`, or -1. */
static int find(const layout *l, const char *line) {
    const size_t word = strcspn(line, " ") + 1;
    for (int i = 0; i < l->n; i++)
        if (!strncmp(l->line[i], line, word)) return i;
    return -1;
}

/* Returns the first incompatible line of `now`, or NULL if the layout only grew. */
static const char *broken(const layout *frozen, const layout *now) {
    for (int i = 0; i < frozen->n;) {
        const char *line = frozen->line[i++];
        int at = find(now, line), growable = i < frozen->n && !strncmp(frozen->line[i], "    struct_size ", 16);
        if (at < 0) return line;
        if (!growable && strcmp(now->line[at], line) != 0) return line;
        for (at++; i < frozen->n && is_member(frozen->line[i]); i++, at++)
            if (at >= now->n || strcmp(now->line[at], frozen->line[i]) != 0) return frozen->line[i];
        if (!growable && at < now->n && is_member(now->line[at])) return line;
    }
    return NULL;
}

TEST(test_layout) {
    static layout frozen, now;
#if !defined(__x86_64__)
    test_skip("the golden file is of 64-bit x86");
#endif
    layout_read(&frozen);
    layout_now(&now);
    if (broken(&frozen, &now)) fail_msg("%s: the ABI is frozen, but this changed: %s", golden, broken(&frozen, &now));
    for (int i = 0; i < now.n; i++)
        if (i >= frozen.n || strcmp(frozen.line[i], now.line[i]) != 0)
            fail_msg("\"%s\" is new: add it with ESPRESSO_GOLDEN=grow %s", now.line[i], "build/tests/abi/test_layout");
    assert_int_equal(frozen.n, now.n);
}

static void lines(layout *l, const char *text) {
    for (l->n = 0; *text; text += strcspn(text, "\n") + 1) {
        char line[LINE];
        snprintf(line, sizeof line, "%.*s", (int)strcspn(text, "\n"), text);
        add(l, line);
    }
}

TEST(test_growth) {
    static layout frozen, now;
    static const struct {
        const char *text, *broken;
    } cases[] = {
        {"cold 8\n    a 0 8\nwarm 8\n    struct_size 0 4\n    b 4 4\nONE = 1\n", NULL},
        {"cold 8\n    a 0 8\nwarm 16\n    struct_size 0 4\n    b 4 4\n    c 8 8\nnew 4\n    a 0 4\nONE = 1\nTWO = 2\n",
         NULL},
        {"cold 16\n    a 0 8\n    c 8 8\nwarm 8\n    struct_size 0 4\n    b 4 4\nONE = 1\n", "cold 8"},
        {"cold 8\n    a 0 4\n    c 4 4\nwarm 8\n    struct_size 0 4\n    b 4 4\nONE = 1\n", "    a 0 8"},
        {"cold 8\n    a 0 8\nwarm 12\n    struct_size 0 4\n    c 4 4\n    b 8 4\nONE = 1\n", "    b 4 4"},
        {"cold 8\n    a 0 8\nwarm 4\n    struct_size 0 4\nONE = 1\n", "    b 4 4"},
        {"warm 8\n    struct_size 0 4\n    b 4 4\nONE = 1\n", "cold 8"},
        {"cold 8\n    a 0 8\nwarm 8\n    struct_size 0 4\n    b 4 4\nONE = 2\n", "ONE = 1"},
        {"cold 8\n    a 0 8\nwarm 8\n    struct_size 0 4\n    b 4 4\n", "ONE = 1"},
    };
    lines(&frozen, cases[0].text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        lines(&now, cases[i].text);
        const char *what = broken(&frozen, &now);
        if (!what != !cases[i].broken || (what && strcmp(what, cases[i].broken) != 0))
            fail_msg("case %zu: \"%s\" instead of \"%s\"", i, what ? what : "", cases[i].broken ? cases[i].broken : "");
    }
}

/* Every byte of a struct belongs to a member, because padding could differ between compilers or be uninitialised. */
TEST(test_no_padding) {
    size_t end = 0, size = 0;
    const char *name = "";
    for (size_t i = 0; i <= ROWS; i++) {
        const row *r = i < ROWS ? &rows[i] : NULL;
        if (!r || r->offset == SIZE_MAX) {
            if (end != size) fail_msg("%s: %zu bytes, but its members end at %zu", name, size, end);
            if (!r) break;
            name = r->name, size = r->size, end = 0;
        } else {
            if (r->offset != end) fail_msg("%s: a gap before%s", name, r->name);
            end = r->offset + r->size;
        }
    }
}

static int grow(void) {
    static layout frozen, now;
    FILE *f;
    layout_read(&frozen);
    layout_now(&now);
    if (broken(&frozen, &now)) {
        fprintf(stderr, "test_layout: %s is not written: the ABI is frozen, and this changed: %s\n", golden,
                broken(&frozen, &now));
        return 1;
    }
    f = fopen(golden, "w");
    if (!f) return 1;
    for (int i = 0; i < now.n; i++) fprintf(f, "%s\n", now.line[i]);
    return fclose(f) != 0;
}

int main(void) {
    const char *mode = getenv("ESPRESSO_GOLDEN");
    if (mode && !strcmp(mode, "grow")) return grow();
    return test_main();
}
