/* validate.c: refuses a plugin's table that contradicts itself, or uses bits that this library does not know. Each
 * message names the member. */
#include "espresso_impl/registry/registry.h"

typedef struct esp__checked {
    esp_ctx *ctx;
    const char *from, *kind, *name;
} esp__checked;

static esp_status esp__refuse(const esp__checked *x, esp_status s, const char *member, const char *fmt, ...) {
    char why[ESP__ERROR_MAX / 2];
    va_list args;
    va_start(args, fmt);
    vsnprintf(why, sizeof why, fmt, args);
    va_end(args);
    return esp__fail(x->ctx, s, "%s: %s \"%s\": %s: %s", x->from, x->kind, x->name, member, why);
}

/* Refuses unknown capabilities below bit 32. The library may ignore those above. */
static esp_status esp__refuse_caps(const esp__checked *x, uint64_t caps, uint64_t known) {
    const uint64_t unknown = caps & 0xFFFFFFFFu & ~known;
    return unknown ? esp__refuse(x, ESP_E_UNSUPPORTED, "caps",
                                 "this library does not know the capability 0x%llx: use a newer library, or an older "
                                 "version of the plugin",
                                 (unsigned long long)unknown)
                   : ESP_OK;
}

static esp_status esp__refuse_bits(const esp__checked *x, const char *member, uint32_t bits, uint32_t known,
                                   uint32_t needed, const char *needs) {
    if (bits & ~known)
        return esp__refuse(x, ESP_E_UNSUPPORTED, member, "this library does not know the bit 0x%x",
                           (unsigned)(bits & ~known));
    if ((bits & needed) != needed) return esp__refuse(x, ESP_E_UNSUPPORTED, member, "0x%x: %s", (unsigned)bits, needs);
    return ESP_OK;
}

static const uint32_t esp__all_dtypes =
    ESP_BIT(ESP_F32) | ESP_BIT(ESP_F16) | ESP_BIT(ESP_BF16) | ESP_BIT(ESP_I8) | ESP_BIT(ESP_I16) | ESP_BIT(ESP_I32);
static const uint32_t esp__all_reduces = ESP_BIT(ESP_REDUCE_SUM) | ESP_BIT(ESP_REDUCE_MAX) | ESP_BIT(ESP_REDUCE_MIN);

/* ---- codecs ---- */
enum {
    ESP__CODEC_CAPS = ESP_CODEC_HAS_STATE | ESP_CODEC_REDUCIBLE | ESP_CODEC_OWN_FEEDBACK | ESP_CODEC_DETERMINISTIC |
                      ESP_CODEC_NEEDS_MATRIX | ESP_CODEC_FUSED_RESIDUAL | ESP_CODEC_NO_FEEDBACK | ESP_CODEC_LISTS |
                      ESP_CODEC_WRAPPER
};

static esp_status esp__refuse_round(const esp__checked *x, const esp_codec *c, uint32_t i) {
    const esp_round *r = &c->rounds[i];
    const bool last = i + 1 == c->n_rounds;
    char member[32];
    snprintf(member, sizeof member, "rounds[%u]", (unsigned)i);
    if (r->op > ESP_REDUCE_MIN || (r->op && !(r->dtype < 32 && esp__all_dtypes >> r->dtype & 1u)))
        return esp__refuse(x, ESP_E_UNSUPPORTED, member, "op %u and dtype %u: use ESP_REDUCE_* and ESP_F32 to ESP_I32",
                           (unsigned)r->op, (unsigned)r->dtype);
    if (r->flags & ~(uint32_t)ESP_ROUND_ALLREDUCE || r->reserved0)
        return esp__refuse(x, ESP_E_UNSUPPORTED, member, "this library does not know the flags 0x%x (reserved0 %u)",
                           (unsigned)r->flags, (unsigned)r->reserved0);
    if (!last && !r->op) return esp__refuse(x, ESP_E_ABI, member, "op is 0: every round but the last must be reduced");
    if (last && !r->op != !(c->caps & ESP_CODEC_REDUCIBLE))
        return esp__refuse(x, ESP_E_ABI, member, "op is %u, but caps %s ESP_CODEC_REDUCIBLE: set both or none",
                           (unsigned)r->op, c->caps & ESP_CODEC_REDUCIBLE ? "has" : "lacks");
    return ESP_OK;
}

static esp_status esp__refuse_rounds(const esp__checked *x, const esp_codec *c) {
    esp_status s = ESP_OK;
    if (c->n_rounds < 1 || c->n_rounds > ESP_ROUNDS_MAX)
        return esp__refuse(x, ESP_E_UNSUPPORTED, "n_rounds", "%u: it must be 1 to %d", (unsigned)c->n_rounds,
                           (int)ESP_ROUNDS_MAX);
    if (c->n_rounds > 1 && !c->rounds)
        return esp__refuse(x, ESP_E_ABI, "rounds", "NULL, but n_rounds is %u: give [n_rounds] of them",
                           (unsigned)c->n_rounds);
    if (c->n_rounds > 1 && !(c->caps & ESP_CODEC_FUSED_RESIDUAL))
        return esp__refuse(x, ESP_E_ABI, "caps",
                           "lacks ESP_CODEC_FUSED_RESIDUAL, but n_rounds is %u: what such a codec loses is known only "
                           "to itself, so it must read and write args->residual",
                           (unsigned)c->n_rounds);
    if (!c->rounds && c->caps & ESP_CODEC_REDUCIBLE)
        return esp__refuse(x, ESP_E_ABI, "rounds", "NULL, but caps has ESP_CODEC_REDUCIBLE: give [n_rounds] of them");
    for (uint32_t i = 0; c->rounds && i < c->n_rounds && !s; i++) s = esp__refuse_round(x, c, i);
    return s;
}

ESP__FN esp_status esp__codec_validate(esp_ctx *ctx, const esp_codec *c, const char *from) {
    const esp__checked x = {ctx, from, "codec", c->name};
    esp_status s = esp__refuse_caps(&x, c->caps, ESP__CODEC_CAPS);
    if (!s && !c->wire_version)
        s = esp__refuse(&x, ESP_E_ABI, "wire_version", "0: count versions of the body's format from 1");
    if (!s)
        s = esp__refuse_bits(&x, "dtypes", c->dtypes, esp__all_dtypes, ESP_BIT(ESP_F32),
                             "the library calls codecs with f32: set ESP_BIT(ESP_F32)");
    if (!s && c->devices & ~ESP_BIT(ESP_CPU) && !(c->caps & ESP_CODEC_FUSED_RESIDUAL))
        s = esp__refuse(&x, ESP_E_UNSUPPORTED, "caps",
                        "lacks ESP_CODEC_FUSED_RESIDUAL, and devices is 0x%x: on other devices than the CPU a codec "
                        "must read and write the residual itself",
                        (unsigned)c->devices);
    if (!s && c->reserved0) s = esp__refuse(&x, ESP_E_UNSUPPORTED, "reserved0", "%u: it must be 0", c->reserved0);
    if (!s) s = esp__refuse_rounds(&x, c);
    if (!s && c->caps & ESP_CODEC_OWN_FEEDBACK && c->caps & ESP_CODEC_NO_FEEDBACK && !(c->caps & ESP_CODEC_WRAPPER))
        s = esp__refuse(&x, ESP_E_ABI, "caps",
                        "ESP_CODEC_OWN_FEEDBACK and ESP_CODEC_NO_FEEDBACK contradict each other");
    if (!s && c->caps & ESP_CODEC_WRAPPER && !ESP_HAS(esp_codec, c, traits))
        s = esp__refuse(&x, ESP_E_ABI, "traits",
                        "NULL, but caps has ESP_CODEC_WRAPPER: a wrapper is what its codec is");
    return s;
}

ESP__FN esp_status esp__tables_validate(esp_ctx *ctx, const esp_codec *c, const char *from, const esp_codec *other,
                                        const char *other_from) {
    const esp__checked x = {ctx, from, "codec", c->name};
    const char *const a = c->params ? c->params : "", *const b = other->params ? other->params : "";
    const char *member = NULL;
    if (c->wire_version != other->wire_version) member = "wire_version";
    if (c->n_rounds != other->n_rounds) member = "n_rounds";
    if (!member && (!c->rounds != !other->rounds ||
                    (c->rounds && memcmp(c->rounds, other->rounds, c->n_rounds * sizeof *c->rounds))))
        member = "rounds";
    if (strcmp(a, b)) member = "params";
    if ((c->caps ^ other->caps) & ~(uint64_t)ESP__CALL_CAPS) member = "caps";
    if (!ESP_HAS(esp_codec, c, finalize) != !ESP_HAS(esp_codec, other, finalize)) member = "finalize";
    return member ? esp__refuse(&x, ESP_E_ABI, member,
                                "it differs from the table for other devices, of %s: tables of one codec must agree in "
                                "wire_version, rounds, params, caps and finalize",
                                other_from)
                  : ESP_OK;
}

/* ---- devices ---- */
ESP__FN esp_status esp__device_validate(esp_ctx *ctx, const esp_device_table *d, const char *from) {
    const esp__checked x = {ctx, from, "device", d->name};
    esp_status s = esp__refuse_caps(&x, d->caps, ESP_DEVICE_HOST_ACCESS);
    if (!s && d->kind == ESP_CPU)
        s = esp__refuse(&x, ESP_E_UNSUPPORTED, "kind", "1 is the CPU, which is part of the library");
    if (!s && d->kind != ESP_CUDA && (d->kind < ESP_DEVKIND_OWN || d->kind > 31))
        s = esp__refuse(&x, ESP_E_UNSUPPORTED, "kind", "%u: use ESP_CUDA, or %d to 31 for a kind of your own",
                        (unsigned)d->kind, (int)ESP_DEVKIND_OWN);
    return s;
}

/* ---- backends ---- */
enum {
    ESP__BACKEND_CAPS = ESP_BACKEND_STREAM_ORDERED | ESP_BACKEND_NEEDS_PROGRESS | ESP_BACKEND_VARLEN |
                        ESP_BACKEND_SCALE | ESP_BACKEND_PACED | ESP_BACKEND_CALLER,
    ESP__ALL_COLLS = ESP_BIT(ESP_COLL_ALLREDUCE) | ESP_BIT(ESP_COLL_ALLGATHER) | ESP_BIT(ESP_COLL_ALLTOALL) |
                     ESP_BIT(ESP_COLL_REDUCE_SCATTER) | ESP_BIT(ESP_COLL_BROADCAST) | ESP_BIT(ESP_COLL_GATHER) |
                     ESP_BIT(ESP_COLL_REDUCE)
};

/* Refuses a table that has only one of two functions which need each other. */
static esp_status esp__refuse_halves(const esp__checked *x, const esp_backend *b) {
    const bool progress = ESP_HAS(esp_backend, b, progress), wake = ESP_HAS(esp_backend, b, wake);
    const bool reg = ESP_HAS(esp_backend, b, reg), dereg = ESP_HAS(esp_backend, b, dereg);
    if (progress != wake)
        return esp__refuse(x, ESP_E_ABI, progress ? "wake" : "progress",
                           "NULL: progress() sleeps and wake() ends the sleep, so set both or none");
    if (ESP_HAS(esp_backend, b, wait_fd) && !progress)
        return esp__refuse(x, ESP_E_ABI, "progress",
                           "NULL: progress() makes the descriptor of wait_fd() unreadable, so set both, or no wait_fd");
    if (reg != dereg)
        return esp__refuse(x, ESP_E_ABI, reg ? "dereg" : "reg",
                           "NULL: reg() announces memory and dereg() takes it back, so set both or none");
    return ESP_OK;
}

ESP__FN esp_status esp__backend_validate(esp_ctx *ctx, const esp_backend *b, const char *from) {
    const esp__checked x = {ctx, from, "backend", b->name};
    esp_status s = esp__refuse_caps(&x, b->caps, ESP__BACKEND_CAPS);
    if (!s)
        s = esp__refuse_bits(&x, "colls", b->colls, ESP__ALL_COLLS,
                             ESP_BIT(ESP_COLL_ALLREDUCE) | ESP_BIT(ESP_COLL_BROADCAST),
                             "no job works without ESP_COLL_ALLREDUCE and ESP_COLL_BROADCAST");
    if (!s)
        s = esp__refuse_bits(&x, "devices", b->devices, UINT32_MAX, ESP_BIT(ESP_CPU),
                             "the library has no other device than the CPU here: set ESP_BIT(ESP_CPU)");
    if (!s)
        s = esp__refuse_bits(&x, "dtypes", b->dtypes, esp__all_dtypes, ESP_BIT(ESP_F32),
                             "gradients are summed as f32: set ESP_BIT(ESP_F32)");
    if (!s)
        s = esp__refuse_bits(&x, "reduces", b->reduces, esp__all_reduces, ESP_BIT(ESP_REDUCE_SUM),
                             "gradients are summed: set ESP_BIT(ESP_REDUCE_SUM)");
    if (!s && b->reserved0) s = esp__refuse(&x, ESP_E_UNSUPPORTED, "reserved0", "%u: it must be 0", b->reserved0);
    return s ? s : esp__refuse_halves(&x, b);
}
