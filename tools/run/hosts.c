/* hosts.c: reads --hosts and --root: the hosts, the number of ranks on each, and the address of rank 0. */
#include "tools/run/run.h"

/* Reads a host of --hosts: "name", "name:4" or "[address]:4". "user@" before it concerns only the remote shell. */
static void run_host_read(const tool_command *c, const char *text, size_t bytes, run_host *h) {
    const char *end = text + bytes, *colon = memchr(text, ':', bytes), *name = text;
    const bool bracket = *text == '[';
    long ranks = 0;
    char number[16];
    if (bracket) {
        const char *close = memchr(text, ']', bytes);
        if (!close || (close + 1 < end && close[1] != ':'))
            tool_usage(c, "--hosts: '%.*s': write [ADDRESS] or [ADDRESS]:RANKS", (int)bytes, text);
        colon = close + 1 < end ? close + 1 : NULL;
    } else if (colon && memchr(colon + 1, ':', (size_t)(end - colon - 1)))
        tool_usage(c, "--hosts: '%.*s': write an IPv6 address in brackets, as in [::1]:2", (int)bytes, text);
    const size_t n = colon ? (size_t)(colon - text) : bytes;
    snprintf(number, sizeof number, "%.*s", colon ? (int)(end - colon - 1) : 0, colon ? colon + 1 : "");
    if (colon && (end - colon > 15 || !tool_number(number, 1, RUN_RANKS_MAX, &ranks)))
        tool_usage(c, "--hosts: '%.*s': write a number of ranks behind ':', as in node1:4", (int)bytes, text);
    if (!n || *text == '-' || n >= sizeof h->name || memchr(text, ' ', n))
        tool_usage(c, "--hosts: '%.*s' is no name of a host; write them as in node1,node2 or node1:4,node2:4",
                   (int)bytes, text);
    snprintf(h->name, sizeof h->name, "%.*s", bracket ? (int)n - 2 : (int)n, bracket ? text + 1 : text);
    if ((name = strrchr(h->name, '@')) == NULL) name = h->name - 1;
    snprintf(h->address, sizeof h->address, strchr(name + 1, ':') ? "[%s]" : "%s", name + 1);
    h->ranks = (int)ranks;
}

static bool run_is_loopback(const char *address) {
    return !strcmp(address, "localhost") || !strncmp(address, "127.", 4) || !strcmp(address, "[::1]");
}

/* Divides n ranks among the hosts. n is 0 if -n is missing: then --hosts must state each host's number. */
static void run_hosts_divide(run_plan *p, long n) {
    const tool_command *c = p->command;
    long sum = 0, with_number = 0;
    for (int i = 0; i < p->n_hosts; i++) {
        sum += p->hosts[i].ranks;
        with_number += p->hosts[i].ranks > 0;
    }
    if (with_number && with_number < p->n_hosts)
        tool_usage(c, "--hosts: write a number of ranks behind every host, or behind none");
    if (with_number && n && n != sum) tool_usage(c, "-n %ld and --hosts do not agree: its numbers make %ld", n, sum);
    if (!with_number && !n)
        tool_usage(c, "how many ranks? Write -n %d, or a number behind each host, as in %s:2", 2 * p->n_hosts,
                   p->hosts[0].name);
    if (!with_number && n % p->n_hosts)
        tool_usage(c, "%ld ranks do not divide by %d hosts: write how many each has, as in node1:3,node2:2", n,
                   p->n_hosts);
    if (sum > RUN_RANKS_MAX) tool_usage(c, "--hosts: %ld ranks are too many: at most %d", sum, RUN_RANKS_MAX);
    for (int i = 0, first = 0; i < p->n_hosts; i++) {
        run_host *h = &p->hosts[i];
        if (!with_number) h->ranks = (int)(n / p->n_hosts);
        h->first = first;
        first += h->ranks;
        p->n = first;
    }
}

static void run_hosts_root(run_plan *p, const char *root) {
    const tool_command *c = p->command;
    const char *address = p->hosts[0].address, *colon = root ? strrchr(root, ':') : NULL;
    long port;
    if (colon && colon[-1] != ']' && strchr(root, ':') != colon) colon = NULL; /* an IPv6 address without brackets */
    if (root && (!*root || *root == ':' || strlen(root) > 280 || strchr(root, ' ') ||
                 (!colon && strchr(root, ':') && *root != '[') ||
                 (colon && colon > strchr(root, ']') && !tool_number(colon + 1, 1, 65535, &port))))
        tool_usage(c, "--root %s: write HOST or HOST:PORT, as in node1:29400", root);
    if (root && *root == '[' && root[strlen(root) - 1] == ']') colon = NULL;
    snprintf(p->root, sizeof p->root, "%s%s", root ? root : address, colon ? "" : ":");
    for (int i = 1; i < p->n_hosts && !root; i++)
        if (run_is_loopback(address) && !run_is_loopback(p->hosts[i].address))
            tool_usage(
                c,
                "--hosts: %s cannot reach the first host by the name '%s': write its name in the network, or add "
                "--root HOST",
                p->hosts[i].name, address);
}

ESP__FN void run_hosts_read(run_plan *p, const char *text, const char *root, long n) {
    p->hosts = tool_realloc(NULL, (strlen(text) / 2 + 1) * sizeof *p->hosts);
    for (const char *at = text;; at++) {
        run_host *h = &p->hosts[p->n_hosts];
        const size_t bytes = strcspn(at, ",");
        run_host_read(p->command, at, bytes, h);
        for (int i = 0; i < p->n_hosts; i++)
            if (!strcmp(p->hosts[i].address, h->address))
                tool_usage(p->command,
                           "--hosts: %s is there twice: write it once, with the sum of its ranks behind ':'", h->name);
        p->n_hosts++;
        at += bytes;
        if (!*at) break;
    }
    p->machines = p->n_hosts;
    run_hosts_divide(p, n);
    run_hosts_root(p, root);
}
