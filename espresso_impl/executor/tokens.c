/* tokens.c: lets no more ranks of a machine compress at once than it has cores. An op takes a token before it
 * compresses: a byte in a pipe that the launcher made, as GNU make's jobserver does (ESPRESSO_TOKENS=read,write,inode).
 * Waits are limited, because a rank that died may have kept its token. */
#include "espresso_impl/executor/executor.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ESP__TOKEN_LEAST = 4096, ESP__TOKEN_LOOK_MS = 20, ESP__TOKEN_GIVE_UP_MS = 10000 };

/* True if `fd` is an end of the launcher's pipe. A program may have closed it and reused its number. */
static bool esp__token_end(int fd, unsigned long long inode) {
    struct stat st;
    return fd >= 0 && fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode) && (unsigned long long)st.st_ino == inode;
}

ESP__FN void esp__tokens_open(esp_ctx *ctx) {
    const char *text = getenv("ESPRESSO_TOKENS");
    int r, w, flags;
    unsigned long long inode;
    ctx->lanes.tokens[0] = ctx->lanes.tokens[1] = -1;
    if (!text || sscanf(text, "%d,%d,%llu", &r, &w, &inode) != 3) return;
    if (!esp__token_end(r, inode) || !esp__token_end(w, inode)) {
        esp__log(ctx, ESP_LOG_INFO, "tokens", "ESPRESSO_TOKENS=%s: the pipe did not come through: no tokens", text);
        return;
    }
    flags = fcntl(r, F_GETFL);
    if (flags < 0 || !(flags & O_NONBLOCK)) return;
    fcntl(r, F_SETFD, FD_CLOEXEC);
    fcntl(w, F_SETFD, FD_CLOEXEC);
    ctx->lanes.tokens[0] = r;
    ctx->lanes.tokens[1] = w;
}

static bool esp__token_given_up(esp_ctx *ctx) {
    pthread_mutex_lock(&ctx->lanes.lock);
    const bool up = ctx->health.fatal || ctx->lanes.stopping;
    pthread_mutex_unlock(&ctx->lanes.lock);
    return up;
}

ESP__FN bool esp__token_wait(esp_ctx *ctx, uint64_t longest_ms) {
    char byte;
    uint64_t since = 0;
    for (;;) {
        ssize_t n = read(ctx->lanes.tokens[0], &byte, 1);
        if (n == 1) return true;
        if (n == 0 || (errno != EAGAIN && errno != EINTR)) break;
        if (!since) since = esp__now_ns();
        if (esp__token_given_up(ctx)) return false;
        if (esp__now_ns() - since > longest_ms * 1000000u) break;
        struct pollfd p = {ctx->lanes.tokens[0], POLLIN, 0};
        poll(&p, 1, ESP__TOKEN_LOOK_MS);
    }
    ctx->lanes.tokens[0] = ctx->lanes.tokens[1] = -1; /* later ops wait for no token */
    esp__log(ctx, ESP_LOG_WARN, "tokens", "no token came in %u ms: ranks no longer take turns compressing",
             (unsigned)longest_ms);
    return false;
}

ESP__FN bool esp__token_take(esp_ctx *ctx, uint64_t elements) {
    return ctx->lanes.tokens[0] >= 0 && elements >= ESP__TOKEN_LEAST && esp__token_wait(ctx, ESP__TOKEN_GIVE_UP_MS);
}

ESP__FN void esp__token_put(esp_ctx *ctx, bool token) {
    ssize_t n;
    if (!token) return;
    do n = write(ctx->lanes.tokens[1], "+", 1);
    while (n < 0 && errno == EINTR);
}
