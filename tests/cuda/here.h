/* here.h: backend "here", of one rank, which like NCCL enqueues its work on the caller's CUDA stream. A collective is a
 * copy on the device. */
#ifndef CUDA_HERE_H
#define CUDA_HERE_H
#include "espresso_impl/registry/registry.h"

static const esp_backend *loop;
static const esp_host *here_host;
static int here_request;
static esp_status here_open(const esp_host *h, const esp_group *g, const char *params, void **comm) {
    here_host = h;
    return loop->open(h, g, params, comm);
}
static esp_status here_start(void *comm, const esp_coll *c, esp_stream s, void **req) {
    const esp_device_table *table;
    void *self;
    if (s.dev.kind != ESP_CUDA) return loop->start(comm, c, s, req);
    *req = &here_request;
    if (!c->src.ptr || !c->dst.ptr || c->src.ptr == c->dst.ptr) return ESP_OK;
    const esp_status st = here_host->device(here_host->user, s.dev, &table, &self);
    return st ? st : table->copy(self, c->dst.ptr, c->src.ptr, c->src.bytes, s);
}
static esp_status here_test(void *comm, void *req) { return req == &here_request ? ESP_OK : loop->test(comm, req); }
static const esp_plugin *here_plugin(const esp_host *h) {
    static esp_backend b;
    static const esp_backend *const list[] = {&b};
    static const esp_plugin p = {.struct_size = sizeof p, .n_backends = 1, .backends = list};
    loop = esp__registry_backend(h->user, "loop");
    b = *loop;
    b.caps = ESP_BACKEND_NEEDS_PROGRESS | ESP_BACKEND_SCALE | ESP_BACKEND_STREAM_ORDERED;
    b.devices |= ESP_BIT(ESP_CUDA);
    b.name = "here", b.params = NULL;
    b.open = here_open, b.start = here_start, b.test = here_test, b.straggler = NULL;
    return &p;
}
#endif
