/* relay.c emulates a network cable between two TAP devices, for hosts.sh on kernels without netem. Usage: relay
 * DEVICE DEVICE MICROSECONDS. Only packets from the first device to the second are delayed. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { PACKETS = 4096, PACKET_MAX = 9216 }; /* with PACKETS under way, others are dropped */

typedef struct packet {
    int64_t due_ns;
    ssize_t bytes;
    char data[PACKET_MAX];
} packet;

typedef struct direction {
    int from, to;
    int64_t delay_ns;
    packet *ring;
    unsigned begin, end;
} direction;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * (int64_t)1000000000 + t.tv_nsec;
}

static int open_tap(const char *name) {
    struct ifreq request;
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    memset(&request, 0, sizeof request);
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", name);
    if (fd >= 0 && ioctl(fd, TUNSETIFF, &request) == 0) return fd;
    fprintf(stderr, "relay: %s: %s\n", name, strerror(errno));
    exit(1);
}

/* Reads new packets, and writes those that are due. Returns the time at which the next one is due, or 0 for none. */
static int64_t move(direction *d) {
    while (d->end - d->begin < PACKETS) {
        packet *p = &d->ring[d->end % PACKETS];
        if ((p->bytes = read(d->from, p->data, sizeof p->data)) <= 0) break;
        p->due_ns = now_ns() + d->delay_ns;
        d->end++;
    }
    for (; d->begin != d->end && d->ring[d->begin % PACKETS].due_ns <= now_ns(); d->begin++) {
        const packet *p = &d->ring[d->begin % PACKETS];
        if (write(d->to, p->data, (size_t)p->bytes) < 0 && errno == EAGAIN) break;
    }
    return d->begin != d->end ? d->ring[d->begin % PACKETS].due_ns : 0;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: relay DEVICE DEVICE MICROSECONDS\n");
        return 2;
    }
    const int taps[2] = {open_tap(argv[1]), open_tap(argv[2])};
    direction d[2];
    prctl(PR_SET_TIMERSLACK, 1000UL); /* in ns; the default of 50 us would delay packets */
    for (int i = 0; i < 2; i++)
        d[i] = (direction){.from = taps[i], .to = taps[!i], .ring = malloc(PACKETS * sizeof(packet))};
    d[0].delay_ns = strtol(argv[3], NULL, 10) * 1000;
    if (!d[0].ring || !d[1].ring) return 1;
    for (;;) {
        struct pollfd p[2] = {{.fd = taps[0], .events = POLLIN}, {.fd = taps[1], .events = POLLIN}};
        int64_t due[2], next, left;
        for (int i = 0; i < 2; i++) due[i] = move(&d[i]);
        next = !due[0] || (due[1] && due[1] < due[0]) ? due[1] : due[0];
        left = next ? next - now_ns() : 0;
        if (left < 0) left = 0;
        struct timespec wait = {.tv_nsec = left % 1000000000, .tv_sec = left / 1000000000};
        ppoll(p, 2, next ? &wait : NULL, NULL);
    }
}
