/* manual.c: implements manual.h. Pages are written in the macros of man(7). */
#include "tools/common/manual.h"

/* Prints text so that roff does not read it as requests or escapes; "-" remains a hyphen that can be searched for. */
static void manual_text(const char *text) {
    bool line_start = true;
    for (; *text; text++) {
        if (line_start && (*text == '.' || *text == '\'')) fputs("\\&", stdout);
        if (*text == '\\')
            fputs("\\e", stdout);
        else if (*text == '-')
            fputs("\\-", stdout);
        else
            putchar(*text);
        line_start = *text == '\n';
    }
}

static void manual_begin(const char *name, const char *summary) {
    printf(".TH ESPRESSO%s%s 1 \"\" \"espresso %s\" \"User Commands\"\n", *name ? "-" : "", name, ESPRESSO_VERSION);
    printf(".SH NAME\nespresso%s%s \\- ", *name ? "\\-" : "", name);
    manual_text(summary);
    printf("\n.SH SYNOPSIS\n.B espresso%s%s\n", *name ? " " : "", name);
}

ESP__FN void manual_page(const tool_command *c) {
    manual_begin(c->name, c->summary);
    manual_text(c->synopsis);
    if (tool_flags(c)) puts("\n.SH OPTIONS");
    for (size_t i = 0; i < tool_flags(c); i++) {
        const tool_flag *f = tool_flag_at(c, i);
        fputs(".TP\n\\fB", stdout);
        manual_text(f->name);
        fputs("\\fR ", stdout);
        if (f->value) manual_text(f->value);
        putchar('\n');
        manual_text(f->help);
        putchar('\n');
    }
    if (c->details) { /* its lines are laid out already */
        puts("\n.SH DESCRIPTION\n.nf");
        manual_text(c->details);
        puts("\n.fi");
    }
    puts(".SH EXIT STATUS\n0 done, 1 failed, 2 wrong usage.\n.SH SEE ALSO\n.BR espresso (1)");
}

ESP__FN void manual_overview(const tool_command *const *commands, int n) {
    manual_begin("", "Plans, runs and measures compressed synchronization of gradients.");
    puts("SUBCOMMAND [flags]\n.SH SUBCOMMANDS");
    for (int i = 0; i < n; i++) {
        printf(".TP\n\\fB%s\\fR\n", commands[i]->name);
        manual_text(commands[i]->summary);
        printf(" See\n.BR espresso\\-%s (1).\n", commands[i]->name);
    }
    puts(".SH EXIT STATUS\n0 done, 1 failed, 2 wrong usage.");
}

ESP__FN void manual_completion(const tool_command *const *commands, int n) {
    puts("# bash completion of espresso: subcommands, then their flags, else files\n"
         "_espresso() {\n"
         "    local word=${COMP_WORDS[COMP_CWORD]} words=\n"
         "    case $COMP_CWORD,${COMP_WORDS[1]} in");
    for (int pass = 0; pass < 2; pass++) { /* the word after `espresso help`, then after `espresso` */
        fputs(pass ? "    1,*) words=\"" : "    2,help) words=\"", stdout);
        for (int i = 0; i < n; i++) printf("%s%s", i ? " " : "", commands[i]->name);
        puts("\" ;;");
    }
    for (int i = 0; i < n; i++) {
        printf("    *,%s) words=\"", commands[i]->name);
        for (size_t k = 0; k < tool_flags(commands[i]); k++) printf("%s ", tool_flag_at(commands[i], k)->name);
        puts("--help\" ;;");
    }
    puts("    esac\n"
         "    # shellcheck disable=SC2207\n"
         "    if [[ $COMP_CWORD -le 2 || $word == -* ]]; then COMPREPLY=($(compgen -W \"$words\" -- \"$word\")); fi\n"
         "}\n"
         "complete -o default -F _espresso espresso");
}
