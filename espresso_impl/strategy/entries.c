/* entries.c: reads, prints and checks the order in which a strategy file wants its collectives and other ops to run. */
#include "espresso_impl/strategy/text.h"
#include <ctype.h>

ESP__FN bool esp__order_entry_read(const char *word, uint32_t n_units, esp__order_entry *e) {
    char *end;
    memset(e, 0, sizeof *e);
    e->what = ESP__ENTRY_BACKWARD;
    if (!strcmp(word, "b")) return true;
    if (!isdigit((unsigned char)*word)) return false;
    unsigned long unit = strtoul(word, &end, 10), step;
    if (*end != ':' || unit >= n_units) return false;
    e->unit = (uint32_t)unit;
    e->what = end[1] == 'p' ? ESP__ENTRY_PACK : ESP__ENTRY_UNPACK;
    if (end[1] == 'p' || end[1] == 'u') return !end[2];
    if (!isdigit((unsigned char)end[1])) return false;
    step = strtoul(end + 1, &end, 10);
    if (step >= ESP__MAX_STEPS) return false;
    e->step = (uint8_t)step;
    e->what = *end == 'd' ? ESP__ENTRY_DOWN : *end == 'u' ? ESP__ENTRY_UP : ESP__ENTRY_STEP;
    return !end[e->what != ESP__ENTRY_STEP];
}

ESP__FN const char *esp__order_entry_word(const esp__order_entry *e, char buf[ESP__ENTRY_MAX]) {
    static const char *const marks[] = {"", "d", "u", "p", "u"};
    if (e->what == ESP__ENTRY_BACKWARD)
        snprintf(buf, ESP__ENTRY_MAX, "b");
    else if (e->what == ESP__ENTRY_PACK || e->what == ESP__ENTRY_UNPACK)
        snprintf(buf, ESP__ENTRY_MAX, "%u:%s", e->unit, marks[e->what]);
    else
        snprintf(buf, ESP__ENTRY_MAX, "%u:%u%s", e->unit, (unsigned)e->step, marks[e->what]);
    return buf;
}

ESP__FN esp_status esp__order_entry_fail(const esp_ctx *ctx, const char *where, const char *word) {
    return esp__fail(ctx, ESP_E_ARG,
                     "%s: order: '%s' names no collective or other op; expected UNIT:STAGE, both from 0, or b, "
                     "UNIT:STAGEd, UNIT:STAGEu, UNIT:p, UNIT:u",
                     where, word);
}

ESP__FN bool esp__order_entry_fits(const esp__order_entry *e, const esp__order_units *units) {
    int group;
    if (e->what == ESP__ENTRY_BACKWARD) return true;
    const esp__option *o = units->option(units->user, e->unit, &group);
    if (e->what == ESP__ENTRY_PACK || e->what == ESP__ENTRY_UNPACK) return group;
    return e->step < o->n && (e->what == ESP__ENTRY_STEP || o->steps[e->step].kind != ESP__STAGE_COLLECTIVE);
}

/* The stages of an option in the order in which they run; a codec such as PowerSGD runs some of them several times. */
typedef struct esp__order_chain {
    const esp__option *option;
    uint32_t n;
    esp__chain_step step[ESP__CHAIN_MAX];
} esp__order_chain;

static void esp__order_chain_of(const esp__order_units *units, uint32_t unit, esp__order_chain *out) {
    int group;
    out->option = units->option(units->user, unit, &group);
    out->n = esp__option_chain(out->option, 0, units->rounds ? units->rounds(units->user, unit) : 1, out->step);
}

static uint32_t esp__order_next(const esp__order_chain *c, uint32_t at) {
    return esp__chain_collective(c->option, c->step, c->n, at);
}

static esp_status esp__order_check_collectives(const esp_ctx *ctx, const char *name, const esp__order_entry *entries,
                                               uint32_t n, const esp__order_units *units) {
    uint32_t *at = units->at;
    esp__order_chain c;
    memset(at, 0, units->n_units * sizeof *at);
    for (uint32_t k = 0; k < n; k++) {
        const esp__order_entry *e = &entries[k];
        if (e->what != ESP__ENTRY_STEP) continue;
        esp__order_chain_of(units, e->unit, &c);
        if (c.option->steps[e->step].kind != ESP__STAGE_COLLECTIVE) continue;
        at[e->unit] = esp__order_next(&c, at[e->unit]);
        if (at[e->unit] == c.n)
            return esp__fail(ctx, ESP_E_ARG,
                             "%s: order: %u:%u stands where unit %u has no collective left: it comes %s", name, e->unit,
                             (unsigned)e->step, e->unit,
                             units->rounds && units->rounds(units->user, e->unit) > 1 ? "too often" : "twice");
        if (c.step[at[e->unit]].step != e->step)
            return esp__fail(ctx, ESP_E_ARG, "%s: order: %u:%u stands where %u:%u must come first", name, e->unit,
                             (unsigned)e->step, e->unit, (unsigned)c.step[at[e->unit]].step);
        at[e->unit]++;
    }
    for (uint32_t i = 0; i < units->n_units; i++) {
        esp__order_chain_of(units, i, &c);
        at[i] = esp__order_next(&c, at[i]);
        uint32_t rounds = units->rounds ? units->rounds(units->user, i) : 1;
        char round[64] = "";
        if (at[i] == c.n) continue;
        if (rounds > 1)
            snprintf(round, sizeof round, " in round %u of its codec's %u", c.step[at[i]].round + 1u, rounds);
        return esp__fail(ctx, ESP_E_ARG, "%s: order: %u:%u is missing%s: unit %u is '%s'", name, i,
                         (unsigned)c.step[at[i]].step, round, i, units->name(units->user, i));
    }
    return ESP_OK;
}

/* Numbers a tensor's entries in the sequence in which they must run: pack, each stage with its copies, unpack. An entry
 * that runs several times has several numbers. Returns the smallest number of `e` above `from`, or 0 if there is none.
 * */
static uint32_t esp__order_place(const esp__order_units *units, const esp__order_entry *e, uint32_t from) {
    static const uint32_t within[] = {1, 0, 2};
    esp__order_chain c;
    if (e->what == ESP__ENTRY_PACK) return from ? 0 : 1;
    if (e->what == ESP__ENTRY_UNPACK) return from < UINT32_MAX ? UINT32_MAX : 0;
    esp__order_chain_of(units, e->unit, &c);
    for (uint32_t k = 0; k < c.n; k++) {
        uint32_t place = 2 + 3 * k + within[e->what];
        if (c.step[k].step == e->step && place > from) return place;
    }
    return 0;
}

static esp_status esp__order_check_chains(const esp_ctx *ctx, const char *name, const esp__order_entry *entries,
                                          uint32_t n, const esp__order_units *units) {
    uint32_t backwards = 0;
    char word[ESP__ENTRY_MAX];
    memset(units->at, 0, units->n_units * sizeof *units->at);
    for (uint32_t k = 0; k < n; k++) {
        const esp__order_entry *e = &entries[k];
        if (e->what == ESP__ENTRY_BACKWARD) {
            backwards++;
            continue;
        }
        uint32_t place = esp__order_place(units, e, units->at[e->unit]);
        if (!place)
            return esp__fail(ctx, ESP_E_ARG, "%s: order: %s comes twice, or too late", name,
                             esp__order_entry_word(e, word));
        units->at[e->unit] = place;
    }
    if (backwards && backwards != units->n_tensors)
        return esp__fail(ctx, ESP_E_ARG, "%s: order: 'b' comes %u times, but there are %u tensors", name, backwards,
                         units->n_tensors);
    return ESP_OK;
}

ESP__FN esp_status esp__order_check(const esp_ctx *ctx, const char *name, const esp__order_entry *entries, uint32_t n,
                                    const esp__order_units *units) {
    esp_status s = esp__order_check_collectives(ctx, name, entries, n, units);
    return s ? s : esp__order_check_chains(ctx, name, entries, n, units);
}
