/* only compiled: the loop that waits for several backends is the library's own */
#include <poll.h>

#include "lib.h"
void wait_for(const esp_backend *backend, void *comm, void *request, struct pollfd *fds, nfds_t several);
void wait_for(const esp_backend *backend, void *comm, void *request, struct pollfd *fds, nfds_t several) { BLOCK; }
