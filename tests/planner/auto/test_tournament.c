/* test_tournament.c checks, with made-up step times, which candidate a tournament chooses, how long it takes and what
 * it costs. */
#include "tests/lib/test.h"
#include "espresso_impl/base/quantile.h"

static const double ms = 1e6;
enum { MOST = 8 };

/* A made-up tournament: the candidates' true step times in ms, and how other programs disturb them. Candidate 0 is
 * active and was measured before. */
typedef struct game {
    uint32_t n;
    double truth[MOST], predicted[MOST], loss[MOST], slower[MOST];
    int machine;  /* QUIET, BUSY, PEAKS or BURSTS: how other programs disturb */
    double drift; /* share by which each step is longer than the one before */
    uint64_t seed;
    /* results */
    uint32_t steps, ran[MOST], winner;
    double lost;
    char text[1024];
} game;
enum { QUIET, BUSY, PEAKS, BURSTS };

static double uniform(uint64_t *at) { return ((double)(test_random64(at) >> 11) + 0.5) / 9007199254740992.0; }
static double normal(uint64_t *at) {
    const double u = uniform(at);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * uniform(at));
}

/* Returns a step's time relative to that of an undisturbed step. */
static double disturbed(game *g, int *burst) {
    double x = 1.0 + 0.02 * fabs(normal(&g->seed));
    if (g->machine == BUSY) x *= 1.0 + 0.16 * uniform(&g->seed); /* other programs take up to 16% */
    if (g->machine == PEAKS && uniform(&g->seed) < 0.16) x *= 1.2 + uniform(&g->seed);
    if (g->machine == BURSTS && --*burst < -40) *burst = (int)(20.0 * uniform(&g->seed));
    return g->machine == BURSTS && *burst > 0 ? 1.4 * x : x;
}

static double agreed(const esp__auto_candidate *c, double *spread) {
    double v[ESP__TRY_TIMES];
    const uint32_t n = c->n_times < ESP__TRY_TIMES ? c->n_times : ESP__TRY_TIMES;
    memcpy(v, c->times, n * sizeof *v);
    const double median = esp__median(v, n);
    *spread = esp__quartile_distance(v, n);
    return n <= 3 ? v[0] : median;
}

static void play(game *g) {
    static esp__tournament t;
    double spread, spent = 0.0, best = INFINITY, slowdown = 0.0;
    int burst = 0;
    memset(&t, 0, sizeof t);
    t.n = g->n;
    for (uint32_t i = 0; i < g->n; i++) {
        esp__auto_candidate *c = &t.at[i];
        snprintf(c->name, sizeof c->name, "c%u", i);
        c->predicted_ns = g->predicted[i] * ms;
        c->slower = g->slower[i] > 0.0 ? g->slower[i] : 1.0;
        c->loss = g->loss[i];
        best = fmin(best, g->truth[i] * c->slower);
    }
    esp__auto_candidate *active = &t.at[0];
    for (int k = 0; k < 8; k++) active->times[active->n_times++] = g->truth[0] * ms * disturbed(g, &burst);
    active->ns = agreed(active, &spread);
    active->spread = spread / active->ns;
    active->n = 8;
    active->stale = true;
    esp__tournament_begin(&t, 0, 0.02, active->spread);
    for (int next; (next = esp__tournament_next(&t)) >= 0;) {
        const bool change = (uint32_t)next != t.now;
        double block = change ? 2.0 * ms : 0.0, x = change ? 1.3 : 1.0;
        bool over = false;
        for (t.now = (uint32_t)next; !over; x = 1.0) {
            const double now = disturbed(g, &burst) * (1.0 + g->drift * g->steps++);
            x *= now * g->truth[next] * ms;
            slowdown += now;
            block += x;
            over = esp__tournament_step(&t, x);
        }
        g->ran[next]++;
        spent += block;
        const double ns = agreed(&t.at[next], &spread);
        esp__tournament_block(&t, ns, spread, block);
    }
    g->winner = esp__tournament_winner(&t);
    g->lost = (spent / ms - best * slowdown) / best;
    esp__tournament_text(&t, g->text, sizeof g->text);
}

/* ---- single cases ------------------------------------------------------------------------------------------------ */
TEST(test_fastest) {
    game g = {.n = 4, .truth = {20, 15, 12, 16}, .predicted = {20, 15, 12, 16}, .loss = {0, 0.3, 0.2, 0.1}};
    play(&g);
    assert_int_equal(g.winner, 2);
    assert_non_null(
        strstr(g.text, "chose c2: the fastest of 4 tried; measured, and (predicted), in ms a step: c2 12."));
    assert_true(g.steps < 40);
}

TEST(test_ties_compress_less) {
    static const struct {
        double truth[3];
        uint32_t winner;
    } cases[] = {{{10.1, 10, 10.05}, 0}, {{11, 10, 10.05}, 2}, {{11, 10, 10.8}, 1}};
    for (uint32_t i = 0; i < 3; i++) {
        game g = {.n = 3, .predicted = {10, 10, 10}, .loss = {0, 0.5, 0.1}, .seed = i};
        memcpy(g.truth, cases[i].truth, sizeof cases[i].truth);
        play(&g);
        assert_int_equal(g.winner, cases[i].winner);
        if (!i) assert_non_null(strstr(g.text, "chose c0: within 2% of the fastest of 3 tried (c"));
        if (!i) assert_non_null(strstr(g.text, "and compresses less"));
    }
}

/* A candidate that is predicted to take over 1.5 times as long as the best one is not tried, unless all others turn out
 * slower than predicted. */
TEST(test_excluded) {
    game g = {.n = 3, .truth = {20, 10, 14}, .predicted = {20, 10, 15.5}};
    play(&g);
    assert_int_equal(g.ran[2], 0);
    assert_non_null(strstr(g.text, "; not tried, because predicted over 1.5 times as slow: c2 15.500"));
    game wrong = {.n = 3, .truth = {20, 22, 14}, .predicted = {20, 10, 15.5}};
    play(&wrong);
    assert_int_equal(wrong.winner, 2);
    game kept = {.n = 3, .truth = {20, 10, 9}, .predicted = {20, 10, 14.5}};
    play(&kept);
    assert_int_equal(kept.winner, 2);
}

TEST(test_more_steps) {
    game g = {.n = 3, .truth = {20, 5, 9}, .predicted = {20, 5, 9}, .slower = {1, 3, 1}, .loss = {0, 0.5, 0.4}};
    play(&g);
    assert_int_equal(g.winner, 2);
    assert_int_equal(g.ran[1], 0); /* 3 x 5 ms exclude it */
    g = (game){.n = 3, .truth = {20, 2, 9}, .predicted = {20, 4, 9}, .slower = {1, 3, 1}, .loss = {0, 0.5, 0.4}};
    play(&g);
    assert_int_equal(g.winner, 1);
    assert_non_null(strstr(g.text, "(4.000) x 3 steps"));
}

/* Candidate 0 was measured before the tournament. It runs again only if this measurement does not clearly exclude it,
 * because the machine may have changed since. */
TEST(test_measured_before) {
    game g = {.n = 2, .truth = {60, 10}, .predicted = {60, 10}, .loss = {0, 0.5}};
    play(&g);
    assert_int_equal(g.ran[0], 0);
    g = (game){.n = 2, .truth = {20, 10}, .predicted = {20, 10}, .loss = {0, 0.5}};
    play(&g);
    assert_true(g.ran[0] > 0 && g.winner == 1);
}

/* A candidate that is far slower than predicted runs for one block of steps. After that loss, only candidates that
 * never ran may run. */
TEST(test_cost) {
    game g = {.n = 6,
              .truth = {10, 100, 10.2, 9.9, 10.1, 9},
              .predicted = {10, 9, 9.5, 10, 10.5, 11},
              .loss = {0, 0.5, 0.4, 0.3, 0.2, 0.1}};
    play(&g);
    assert_int_equal(g.ran[1], 1);
    for (int i = 2; i < 6; i++) assert_int_equal(g.ran[i], 1);
    assert_int_equal(g.winner, 5);
    assert_true(g.lost < 4.0 * 10.2 + 10.0);
    assert_non_null(strstr(g.text, "ended early: trying may cost no more"));
}

/* ---- many cases -------------------------------------------------------------------------------------------------- */
static game drawn(int machine, uint64_t seed) {
    game g = {.machine = machine, .seed = seed * 977 + 1, .drift = seed % 4 ? 0.0 : 0.002};
    const double pays = exp(1.2 * (uniform(&g.seed) - 0.4));
    g.n = 5 + (uint32_t)(3.999 * uniform(&g.seed));
    for (uint32_t i = 0; i < g.n; i++) {
        g.truth[i] = i ? 30.0 * pays * exp(0.3 * normal(&g.seed)) : 30.0;
        g.predicted[i] = i ? g.truth[i] * exp(0.15 * normal(&g.seed)) : 30.0;
        g.loss[i] = 0.1 * i;
    }
    return g;
}

/* For each kind of machine: in at least 97% of the cases, the winner is within 3% of the best candidate. Trying costs
 * at most the time of 20 steps in 90%, and of 30 steps in 99% of the cases. */
TEST(test_many) {
    enum { GAMES = 1000 };
    static const char *const names[] = {"quiet", "busy", "peaks", "bursts"};
    static const int least[] = {99, 98, 97, 97};
    for (int machine = QUIET; machine <= BURSTS; machine++) {
        static double lost[GAMES], steps[GAMES];
        int good = 0;
        for (uint64_t i = 0; i < GAMES; i++) {
            game g = drawn(machine, i);
            play(&g);
            double best = INFINITY;
            for (uint32_t k = 0; k < g.n; k++) best = fmin(best, g.truth[k]);
            good += g.truth[g.winner] <= 1.03 * best;
            lost[i] = g.lost;
            steps[i] = g.steps;
        }
        esp__sort(lost, GAMES);
        esp__sort(steps, GAMES);
        print_message("%s: %.1f%% within 3%% of the best; steps lost: median %.1f, 90%% %.1f, 99%% %.1f; steps: median "
                      "%.0f, most %.0f\n",
                      names[machine], 100.0 * good / GAMES, lost[GAMES / 2], lost[GAMES * 9 / 10],
                      lost[GAMES * 99 / 100], steps[GAMES / 2], steps[GAMES - 1]);
        assert_true(good >= least[machine] * GAMES / 100);
        assert_true(lost[GAMES * 9 / 10] <= 20.0 && lost[GAMES * 99 / 100] <= 30.0);
        assert_true(steps[GAMES - 1] < 300.0);
    }
}
