/* safety.c: estimates how a codec affects the loss with the trainer's optimizer, from what the codec declares.
 * docs/use/codecs.md has a table of these effects. */
#include "planner/builtin/builtin.h"

/* Kinds of codecs by what they send of a gradient. They differ in their measured effect on the loss. */
enum {
    ESP__KEEPS_ALL,  /* sends every element, finely rounded */
    ESP__UNBIASED,   /* sends every element, rounded at random, so that it is right on average */
    ESP__KEEPS_MUCH, /* sends 3 bits per element or more, and has error feedback, or as much as gradients need */
    ESP__KEEPS_SOME, /* sends 0.1 bits an element or more */
    ESP__KEEPS_LITTLE,
    ESP__LOW_RANK,   /* sends a low-rank approximation of a matrix */
    ESP__DRAWN,      /* sends random elements, or keeps no residual */
    ESP__FIXED,      /* sends multiples of a constant, however large gradients are */
    ESP__TWICE,      /* applies momentum to gradients, and so does the trainer */
    ESP__UNMEASURED, /* the codec declares nothing */
    ESP__TREATMENTS
};
enum { ESP__MOMENTUM_LOW, ESP__MOMENTUM_HIGH, ESP__ADAM_LOW, ESP__ADAM_HIGH, ESP__OPTIMIZERS };
static const double esp__safety_fine = 0.05;
static const double esp__safety_unbiased = 1.1; /* terngrad's error, the largest that was measured, is 1.01 */
static const double esp__safety_momentum_low = 0.5;

/* The effect of a codec on the loss by its kind and by the optimizer, measured in bench/results/accuracy/accuracy.csv.
 * An entry is safe, which is to say 1, only if the mean final loss of each codec of its kind is at most 5% above fp32's
 * (tests/planner/auto/test_optimizer.c compares them).
 * The text is the range of final losses, against fp32's with the same optimizer. The number says how many times more
 * steps than fp32 reach the same loss: the median, rounded up to half steps, or 1 if the loss does not differ by more
 * than noise. Estimates are the row of ESP__UNMEASURED, entries where most runs diverged, ESP__UNBIASED with
 * ESP__ADAM_LOW, and ESP__TWICE with ESP__ADAM_LOW, which no codec gets. */
static const esp__effect esp__effects[ESP__TREATMENTS][ESP__OPTIMIZERS] = {
    [ESP__KEEPS_ALL] = {{1.0, "within 1% of fp32's"},
                        {1.0, "within 1% of fp32's"},
                        {1.0, "within 3% of fp32's"},
                        {1.0, "within 1% of fp32's"}},
    [ESP__UNBIASED] = {{1.0, "within 3% of fp32's"},
                       {1.0, "within 3% of fp32's"},
                       {1.0, "within 3% of fp32's"},
                       {1.0, "within 3% of fp32's"}},
    [ESP__KEEPS_MUCH] = {{1.0, "within 3% of fp32's"},
                         {1.5, "up to 14% above fp32's"},
                         {1.0, "within 4% of fp32's"},
                         {1.5, "up to 9% above fp32's"}},
    [ESP__KEEPS_SOME] = {{1.0, "within 4% of fp32's"},
                         {4.0, "up to 33% above fp32's, or far more where only signs are sent"},
                         {1.5, "up to 8% above fp32's"},
                         {3.0, "7 to 20% above fp32's"}},
    [ESP__KEEPS_LITTLE] = {{1.5, "6 to 12% above fp32's"},
                           {4.0, "34 to 84% above fp32's"},
                           {5.5, "21 to 31% above fp32's"},
                           {6.0, "27 to 41% above fp32's"}},
    [ESP__LOW_RANK] = {{1.5, "2 to 51% above fp32's, or it diverges"},
                       {2.0, "2 to 105% above fp32's"},
                       {1.5, "1 to 12% above fp32's"},
                       {2.0, "4 to 16% above fp32's"}},
    [ESP__DRAWN] = {{4.0, "17 to 199% above fp32's, or it diverges"},
                    {6.0, "6 to 47% above fp32's, or it diverges"},
                    {3.0, "up to 35% above fp32's"},
                    {3.0, "7 to 40% above fp32's"}},
    [ESP__FIXED] = {{4.5, "30% above fp32's or more"},
                    {4.0, "13% above fp32's or more"},
                    {4.0, "that nobody measured"},
                    {4.0, "18 to 36% above fp32's"}},
    [ESP__TWICE] = {{6.0, "a divergent one, because momentum counts twice: turn the trainer's off"},
                    {6.0, "31% above fp32's or more, because momentum counts twice: turn the trainer's off"},
                    {5.5, "24 to 34% above fp32's, because momentum counts twice: turn the trainer's off"},
                    {5.5, "24 to 34% above fp32's, because momentum counts twice: turn the trainer's off"}},
    [ESP__UNMEASURED] = {{2.0, "that nobody measured"},
                         {2.0, "that nobody measured"},
                         {2.0, "that nobody measured"},
                         {2.0, "that nobody measured"}}};

/* Returns the bits per element that the codec sends. */
static double esp__safety_bits(const esp__codec *c) {
    const uint64_t n = 1u << 20;
    return 8.0 * esp__payload_size(&c->model.sent, n, 0, 0) / (double)n;
}

/* Returns whether the codec says that its method has this class. */
static bool esp__safety_family(const esp__codec *c, const char *family) {
    const esp_codec *t = c->table;
    return ESP_HAS(esp_codec, t, family) && t->family && !strcmp(t->family, family);
}

ESP__FN int esp__safety_rounds(const esp__codec *c, double error) {
    if (!esp__codec_lossy(c)) return 1;
    /* For a codec that compresses only matrices, c->model describes vectors, which it sends uncompressed. */
    const int knows = c->model.error >= 0.0 && !(c->traits.caps & ESP_CODEC_NEEDS_MATRIX);
    /* The errors of hybrid codecs depend on the distribution: with momentum SGD, sketchml ends up to 12% above fp32. */
    if (esp__safety_family(c, "hybrid")) return 0;
    return esp__codec_has_model(c) && (knows ? c->model.error : error) <= esp__safety_fine;
}

/* A codec of its own momentum, and one that forgets a part of its residual, trained the LSTM 6 to 11% worse. */
static bool esp__safety_late(const esp__codec *c) { return c->model.momentum > 0 || (c->feedback && c->beta < 1); }

static int esp__safety_treatment(const esp__codec *c, double error, double momentum) {
    if (esp__safety_rounds(c, error)) return ESP__KEEPS_ALL;
    if (!esp__codec_has_model(c)) return ESP__UNMEASURED;
    if (c->model.momentum > 0.0 && momentum > 0.0) return ESP__TWICE;
    if (c->traits.caps & ESP_CODEC_NEEDS_MATRIX) return ESP__LOW_RANK;
    if (c->model.error < 0 && !esp__safety_family(c, "sparsify")) /* it depends on the gradients */
        return esp__safety_family(c, "hybrid")     ? ESP__KEEPS_MUCH
               : esp__safety_family(c, "quantize") ? ESP__FIXED
                                                   : ESP__UNMEASURED;
    const bool rounds = esp__safety_family(c, "quantize") && c->feedback && c->model.error < 1;
    const bool drawn = !(c->traits.caps & ESP_CODEC_DETERMINISTIC) && !rounds;
    if (drawn && !c->feedback && esp__safety_family(c, "quantize") && c->model.error <= esp__safety_unbiased)
        return ESP__UNBIASED;
    if (drawn || !c->feedback) return ESP__DRAWN;
    const double bits = esp__safety_bits(c);
    return bits >= 3.0 ? ESP__KEEPS_MUCH : bits >= 0.1 ? ESP__KEEPS_SOME : ESP__KEEPS_LITTLE;
}

ESP__FN const esp__effect *esp__safety(const esp__codec *c, double error, uint32_t optimizer, double momentum) {
    static const esp__effect unknown = {1.0, NULL};
    int treatment = esp__safety_treatment(c, error, momentum);
    if (optimizer == ESP_OPTIMIZER_UNKNOWN && treatment > ESP__UNBIASED) return &unknown;
    if (c->model.momentum > momentum) momentum = c->model.momentum;
    const bool adam = optimizer == ESP_OPTIMIZER_ADAM;
    const int column = momentum <= esp__safety_momentum_low ? (adam ? ESP__ADAM_LOW : ESP__MOMENTUM_LOW)
                                                            : (adam ? ESP__ADAM_HIGH : ESP__MOMENTUM_HIGH);
    const bool keeps = treatment == ESP__KEEPS_MUCH || treatment == ESP__KEEPS_SOME;
    if (column == ESP__MOMENTUM_LOW && keeps && esp__safety_late(c)) treatment = ESP__KEEPS_LITTLE;
    return &esp__effects[treatment][column];
}
