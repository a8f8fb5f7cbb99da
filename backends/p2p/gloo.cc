/* gloo.cc: backend "gloo", for ranks on up to 32 machines that TCP connects, without MPI. The p2p transport runs the
 * collectives; this file sends its messages with the library gloo. gloo's calls block until a message completes, so
 * each message in transit has a thread that waits for it. That is 16 threads per member of the group, which suits small
 * clusters only. */
#include "backends/p2p/p2p.h"
#include "espresso_impl/base/limits.h"
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#define GLOO_NAME "gloo"
enum { GLOO_RANKS = 32, GLOO_STACK = 128 * 1024, GLOO_RESOLVES = 100 /* in 10 s */ };

namespace {
using Buffer = gloo::transport::UnboundBuffer;
const std::chrono::milliseconds gloo_forever = std::chrono::hours(24 * 365);

/* ---- addresses of the ranks -------------------------------------------------------------------------------------- */
/* What a rank sends to the others while they connect. */
struct Head {
    int32_t status; /* an error ends connecting on all ranks */
    int32_t last;   /* 1 if this rank has connected */
    uint64_t bytes; /* of the addresses that follow */
};
/* gloo requires a store of keys and values: each rank sets its addresses in it and reads those of the others. It is
 * implemented by exchanges between the ranks, all of one size. A rank that fails between two of them sends its status
 * in the next one, so that all ranks make as many. */
class Store : public gloo::rendezvous::Store {
  public:
    Store(const esp_group *g, uint64_t bytes)
        : group(g), most(bytes), mine(bytes + sizeof(Head)), all((bytes + sizeof(Head)) * (uint64_t)g->size) {}
    void set(const std::string &, const std::vector<char> &data) override {
        if (data.size() > most) throw std::runtime_error("an address is too long");
        exchange({ESP_OK, 0, data.size()}, data.data());
        if (failed != ESP_OK) throw std::runtime_error("another rank could not connect");
    }
    std::vector<char> get(const std::string &key) override { /* a key of gloo ends with the rank */
        const size_t digits = key.find_last_not_of("0123456789") + 1;
        const uint64_t q = digits < key.size() ? std::stoull(key.substr(digits)) : UINT64_MAX;
        if (q >= (uint64_t)group->size) throw std::runtime_error("a key that is no rank: " + key);
        const char *at = &all[q * mine.size()] + sizeof(Head);
        return std::vector<char>(at, at + head(q).bytes);
    }
    void wait(const std::vector<std::string> &) override {}
    void wait(const std::vector<std::string> &, const std::chrono::milliseconds &) override {}
    /* Returns the same status on all ranks, given this one's. */
    esp_status end(esp_status own) {
        if (failed == ESP_OK) exchange({own, 1, 0}, NULL);
        return own != ESP_OK && failed != ESP_E_PEER ? own : failed;
    }
    esp_status failed = ESP_OK; /* the error of the first rank that could not connect */
    int failed_rank = -1;       /* that rank, or -1 if the exchange itself failed */

  private:
    Head head(uint64_t q) const {
        Head h;
        memcpy(&h, &all[q * mine.size()], sizeof h);
        return h;
    }
    void exchange(Head h, const char *data) {
        memcpy(mine.data(), &h, sizeof h);
        if (h.bytes) memcpy(mine.data() + sizeof h, data, h.bytes);
        failed = group->oob_allgather(group->user, mine.data(), all.data(), mine.size());
        for (int q = 0; q < group->size && failed == ESP_OK; q++) {
            const Head their = head((uint64_t)q);
            failed = (esp_status)their.status;
            if (failed == ESP_OK && h.status == ESP_OK && (their.last != h.last || their.bytes > most))
                failed = ESP_E_MISMATCH; /* ranks have different versions of gloo */
            if (failed != ESP_OK) failed_rank = q;
        }
    }
    const esp_group *group;
    const uint64_t most;
    std::vector<char> mine, all;
};

/* True if all ranks are on one host and see its network. */
bool gloo_one_host(const esp_group *g) {
    struct Host {
        char boot[64], network[64];
    } own = {};
    std::vector<Host> all((size_t)g->size);
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!f || !fgets(own.boot, sizeof own.boot, f)) gethostname(own.boot, sizeof own.boot - 1);
    if (f) fclose(f);
    if (readlink("/proc/self/ns/net", own.network, sizeof own.network - 1) < 0) own.network[0] = 0;
    if (g->oob_allgather(g->user, &own, all.data(), sizeof own) != ESP_OK) return false;
    for (const Host &p : all)
        if (memcmp(&p, &all[0], sizeof p) != 0) return false;
    return true;
}

/* Returns this host's address in the network that reaches `root` (HOST:PORT), or "" if it is unknown. The host's own
 * name will not do: it often resolves to a loopback address. Sends nothing. */
std::string gloo_address_towards(const char *root) {
    const char *colon = root ? strrchr(root, ':') : NULL;
    if (!colon || !strncmp(root, "unix:", 5)) return "";
    std::string host(root, (size_t)(colon - root)), found;
    if (host.size() > 2 && host[0] == '[') host = host.substr(1, host.size() - 2);
    addrinfo hints = {}, *list = NULL;
    hints.ai_socktype = SOCK_DGRAM;
    /* rank 0's name may not be known here yet, even after all ranks have met */
    for (int tries = 0; getaddrinfo(host.c_str(), colon + 1, &hints, &list) != 0; tries++) {
        if (tries == GLOO_RESOLVES) return "";
        usleep(100000);
    }
    for (addrinfo *a = list; a && found.empty(); a = a->ai_next) {
        sockaddr_storage own = {};
        socklen_t bytes = sizeof own;
        char text[NI_MAXHOST] = "";
        const int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0 && getsockname(fd, (sockaddr *)&own, &bytes) == 0 &&
            getnameinfo((sockaddr *)&own, bytes, text, sizeof text, NULL, 0, NI_NUMERICHOST) == 0)
            found = text;
        if (fd >= 0) close(fd);
    }
    freeaddrinfo(list);
    return found;
}

/* Returns an address of this host that others may reach, or "" if gloo should look up the host's own name. That name
 * will not do if it is unknown here, or is a loopback address, as on Debian. */
std::string gloo_own_address() {
    char name[NI_MAXHOST] = "", text[NI_MAXHOST] = "";
    addrinfo hints = {}, *list = NULL;
    hints.ai_socktype = SOCK_STREAM;
    gethostname(name, sizeof name - 1);
    bool usable = false;
    if (getaddrinfo(name, NULL, &hints, &list) == 0) {
        for (addrinfo *a = list; a && !usable; a = a->ai_next)
            usable = a->ai_family == AF_INET && ntohl(((sockaddr_in *)a->ai_addr)->sin_addr.s_addr) >> 24 != 127;
        freeaddrinfo(list);
    }
    ifaddrs *own = NULL;
    if (usable || getifaddrs(&own) != 0) return "";
    for (ifaddrs *a = own; a && !text[0]; a = a->ifa_next)
        if (a->ifa_addr && a->ifa_addr->sa_family == AF_INET && a->ifa_flags & IFF_UP && !(a->ifa_flags & IFF_LOOPBACK))
            getnameinfo(a->ifa_addr, sizeof(sockaddr_in), text, sizeof text, NULL, 0, NI_NUMERICHOST);
    freeifaddrs(own);
    return text;
}

/* While an object of this type exists, its thread gets EPIPE instead of SIGPIPE when gloo writes to a socket that a
 * peer has closed. */
struct Held {
    esp__held_signals signals;
    Held() { esp__signals_hold(&signals); }
    ~Held() { esp__signals_release(&signals); }
};
/* Threads that start while it exists leave signals to the program's own threads. */
struct Blocked {
    sigset_t before;
    Blocked() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, NULL); }
};

/* ---- messages ---------------------------------------------------------------------------------------------------- */
struct Wire;

enum Work { NONE, SEND, RECEIVE, END_THREAD };

/* A message in transit, and the thread that waits for it. gloo sends it as two messages, its length and its bytes,
 * since a receiver makes room for the longest message and must learn the length. */
struct Place {
    Wire *wire;
    uint32_t number;
    std::unique_ptr<Buffer> head, body;
    uint64_t length;
    Work work;
    pthread_t thread;
    pthread_cond_t go;
};

struct Wire {
    const esp_host *host;
    p2p_comm *comm;
    std::unique_ptr<gloo::rendezvous::Context> context;
    std::vector<Place> places;
    std::vector<uint32_t> done; /* ring buffer of completed messages */
    uint32_t n_threads, n_done, first, active;
    bool failed, cancelled;
    char why[256];
    pthread_mutex_t lock;
};

/* Returns a gloo buffer of all memory, in which an offset is an address: one buffer serves all messages of a thread. */
std::unique_ptr<Buffer> gloo_memory(Wire *w) { return w->context->createUnboundBuffer(NULL, SIZE_MAX); }

void gloo_await(Place *p, Work work) {
    Wire *w = p->wire;
    const char *why = NULL;
    std::string text;
    try {
        const bool done = work == SEND ? p->head->waitSend(NULL, gloo_forever) && p->body->waitSend(NULL, gloo_forever)
                                       : p->head->waitRecv(NULL, gloo_forever) && p->body->waitRecv(NULL, gloo_forever);
        if (!done) why = "cancelled";
    } catch (const std::exception &e) {
        text = e.what();
        why = text.c_str();
    }
    pthread_mutex_lock(&w->lock);
    if (why && !w->failed) {
        w->failed = true;
        snprintf(w->why, sizeof w->why, "%s", why);
    }
    p->work = NONE;
    w->done[(w->first + w->n_done++) % w->done.size()] = p->number;
    pthread_cond_broadcast(&p->go);
    pthread_mutex_unlock(&w->lock);
    p2p_wake(w->comm);
}

void *gloo_thread(void *arg) {
    Place *p = (Place *)arg;
    for (;;) {
        pthread_mutex_lock(&p->wire->lock);
        while (p->work == NONE) pthread_cond_wait(&p->go, &p->wire->lock);
        const Work work = p->work;
        pthread_mutex_unlock(&p->wire->lock);
        if (work == END_THREAD) return NULL;
        gloo_await(p, work);
    }
}

/* Posts a message to gloo, and lets the message's thread wait for it. */
int gloo_post(Wire *w, uint32_t place, Work work, int32_t peer, uint32_t tag, const void *p, uint64_t bytes) {
    Place &at = w->places[place];
    const uint64_t head = (uint64_t)tag * 2, body = head + 1;
    const Held held;
    try {
        if (work == SEND) {
            at.length = bytes;
            at.head->send(peer, head, (size_t)&at.length, sizeof at.length);
            at.body->send(peer, body, (size_t)p, bytes);
        } else {
            at.head->recv(peer, head, (size_t)&at.length, sizeof at.length);
            at.body->recv(peer, body, (size_t)p, bytes);
        }
    } catch (const std::exception &e) {
        return backend_log(w->host, GLOO_NAME, ESP_E_PEER, "a message %s rank %d: %.300s", work == SEND ? "to" : "from",
                           (int)peer, e.what());
    }
    pthread_mutex_lock(&w->lock);
    at.work = work;
    pthread_cond_broadcast(&at.go);
    pthread_mutex_unlock(&w->lock);
    w->active++;
    return 0;
}
int gloo_send(void *self, uint32_t place, int32_t to, uint32_t tag, const void *p, uint64_t bytes) {
    return gloo_post((Wire *)self, place, SEND, to, tag, p, bytes);
}
int gloo_recv(void *self, uint32_t place, int32_t from, uint32_t tag, void *p, uint64_t room) {
    return gloo_post((Wire *)self, place, RECEIVE, from, tag, p, room);
}
int gloo_poll(void *self, uint32_t *places, uint64_t *bytes, uint32_t most) {
    Wire *w = (Wire *)self;
    uint32_t n = 0;
    if (!w->active) return 0;
    pthread_mutex_lock(&w->lock);
    const bool failed = w->failed;
    for (; n < most && w->n_done && !failed; n++, w->n_done--) {
        places[n] = w->done[w->first];
        bytes[n] = w->places[places[n]].length;
        w->first = (w->first + 1) % (uint32_t)w->done.size();
    }
    pthread_mutex_unlock(&w->lock);
    w->active -= n;
    return failed ? backend_log(w->host, GLOO_NAME, ESP_E_PEER, "the connection failed: %.200s", w->why) : (int)n;
}

/* Closes the connections, which ends the wait of every thread. */
void gloo_cancel(void *self) {
    Wire *w = (Wire *)self;
    if (!w->context || w->cancelled) return;
    w->cancelled = true;
    w->context->closeConnections();
    pthread_mutex_lock(&w->lock);
    for (uint32_t k = 0; k < w->n_threads; k++) {
        Place &p = w->places[k];
        if (p.work == NONE) continue;
        for (Buffer *b : {p.head.get(), p.body.get()}) {
            pthread_mutex_unlock(&w->lock);
            b->abortWaitSend();
            b->abortWaitRecv();
            pthread_mutex_lock(&w->lock);
        }
        while (p.work != NONE) pthread_cond_wait(&p.go, &w->lock);
    }
    pthread_mutex_unlock(&w->lock);
}

/* gloo loses data in transit when it closes connections, so ranks first send each other a message (at most 5 s). */
void gloo_final_messages(Wire *w) {
    const uint64_t slot = (uint64_t)1 << 32;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    static char byte;
    const Held held;
    try {
        std::vector<std::unique_ptr<Buffer>> sends, recvs;
        std::vector<char> received((size_t)w->context->size);
        for (int q = 0; q < w->context->size; q++) {
            if (q == w->context->rank) continue;
            sends.push_back(w->context->createUnboundBuffer(&byte, 1));
            recvs.push_back(w->context->createUnboundBuffer(&received[(size_t)q], 1));
            recvs.back()->recv(q, slot);
            sends.back()->send(q, slot);
        }
        for (auto &b : recvs) b->waitRecv(until);
        for (auto &b : sends) b->waitSend(until);
    } catch (const std::exception &) { /* a peer has ended, and needs no data */
    }
}

void gloo_wire_close(void *self, bool failed) {
    Wire *w = (Wire *)self;
    if (w->context && !failed && !w->active) gloo_final_messages(w);
    gloo_cancel(w);
    pthread_mutex_lock(&w->lock);
    for (uint32_t k = 0; k < w->n_threads; k++) {
        w->places[k].work = END_THREAD;
        pthread_cond_broadcast(&w->places[k].go);
    }
    pthread_mutex_unlock(&w->lock);
    for (uint32_t k = 0; k < w->n_threads; k++) pthread_join(w->places[k].thread, NULL);
    w->places.clear();
    w->context.reset();
    pthread_mutex_destroy(&w->lock);
    delete w;
}
const p2p_wire gloo_messages = {gloo_send, gloo_recv, gloo_poll, gloo_cancel, gloo_wire_close};

/* ---- open -------------------------------------------------------------------------------------------------------- */
struct Params {
    std::string address, iface;
};

esp_status gloo_params(const esp_host *h, const char *params, Params *out) {
    char key[32], val[256];
    int more;
    while ((more = esp_params_next(&params, key, sizeof key, val, sizeof val)) > 0) {
        if (!strcmp(key, "address"))
            out->address = val;
        else if (!strcmp(key, "iface"))
            out->iface = val;
        else
            return backend_log(
                h, GLOO_NAME, ESP_E_ARG,
                "does not know %s=%s: it takes address=, this host's in the network between the hosts, or "
                "iface=, as in iface=eth0",
                key, val);
    }
    if (more < 0) return backend_log(h, GLOO_NAME, ESP_E_ARG, "parameters are malformed: write iface=eth0, or none");
    return ESP_OK;
}

/* Where the job's ranks have met, as HOST:PORT, or "" if it is unknown. */
std::string gloo_root() {
    const char *root = getenv("ESPRESSO_ROOT"), *torch = getenv("MASTER_ADDR");
    return root ? root : torch && *torch ? std::string(torch) + ":1" : "";
}

/* Chooses this host's address, if the parameters give none. Every rank of the group must call it. */
void gloo_address(const esp_group *g, Params *own) {
    const bool given = !own->address.empty() || !own->iface.empty(), one_host = gloo_one_host(g);
    if (given) return;
    own->address = one_host ? "127.0.0.1" : gloo_address_towards(gloo_root().c_str());
    if (own->address.empty()) own->address = gloo_own_address();
}

/* Names the limit of the process that may have caused gloo's error. */
const char *gloo_limit(const char *why) {
    return strstr(why, "open files") || strstr(why, "find address") ? " (see ulimit -n)"
           : strstr(why, "temporarily unavailable")                 ? " (see ulimit -u and -v)"
                                                                    : "";
}

std::shared_ptr<gloo::transport::Device> gloo_device(const Params &params) {
    const Blocked blocked; /* gloo starts a thread */
    gloo::transport::tcp::attr attr;
    attr.hostname = params.address, attr.iface = params.iface;
    return gloo::transport::tcp::CreateDevice(attr);
}

/* Returns the same status on all ranks. */
esp_status gloo_connect(Wire *w, const esp_group *g, Params params) {
    const Held held;
    esp_status s = ESP_OK;
    gloo_address(g, &params);
    Store store(g, (uint64_t)g->size * gloo::rendezvous::ContextFactory::kMaxAddressSize);
    try {
        auto device = gloo_device(params);
        w->context.reset(new gloo::rendezvous::Context(g->rank, g->size));
        w->context->connectFullMesh(store, device);
    } catch (const std::exception &e) {
        w->context.reset();
        if (store.failed == ESP_OK)
            s = backend_log(
                w->host, GLOO_NAME, ESP_E_COMM,
                "cannot connect the ranks: %.300s%s. This host's address is taken to be '%s': if that is not "
                "its address in the network between the hosts, set ESPRESSO_BACKEND=gloo:iface=NAME",
                e.what(), gloo_limit(e.what()), params.address.c_str());
    }
    const esp_status all = store.end(s);
    if (s == ESP_OK && store.failed_rank >= 0)
        return backend_log(w->host, GLOO_NAME, all, "rank %d could not open: see its own error", store.failed_rank);
    return all;
}

/* Starts a thread for each message that may be posted. The threads block all signals, since the program's own
 * threads must handle them. */
esp_status gloo_threads(Wire *w) {
    const Blocked blocked;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, GLOO_STACK);
    int rc = 0;
    for (uint32_t k = 0; k < w->places.size() && rc == 0; k++) {
        Place &p = w->places[k];
        p.wire = w, p.number = k, p.work = NONE;
        pthread_cond_init(&p.go, NULL);
        p.head = gloo_memory(w), p.body = gloo_memory(w);
        rc = pthread_create(&p.thread, &attr, gloo_thread, &p);
        if (rc == 0) w->n_threads++;
    }
    pthread_attr_destroy(&attr);
    return rc ? backend_log(w->host, GLOO_NAME, ESP_E_NOMEM, "cannot start %d threads: %s", (int)w->places.size(),
                            esp__strerror(rc))
              : ESP_OK;
}

/* Exchanges the ranks' statuses, so that all ranks of the group fail if one does. */
esp_status gloo_agree(const esp_host *h, const esp_group *g, esp_status mine) {
    int32_t status = mine;
    std::vector<int32_t> all((size_t)g->size);
    esp_status s = g->oob_allgather(g->user, &status, all.data(), sizeof status);
    for (int q = 0; q < g->size && s == ESP_OK; q++)
        if (all[(size_t)q] != ESP_OK)
            s = mine != ESP_OK ? mine
                               : backend_log(h, GLOO_NAME, (esp_status)all[(size_t)q],
                                             "rank %d could not open: see its own error", q);
    return s;
}

esp_status gloo_open(const esp_host *h, const esp_group *g, const char *params, void **comm) {
    p2p_comm *m = NULL;
    Wire *w = NULL;
    Params own;
    *comm = NULL;
    esp_status s = gloo_params(h, params, &own);
    if (s == ESP_OK && g->size > GLOO_RANKS)
        s = backend_log(h, GLOO_NAME, ESP_E_UNSUPPORTED,
                        "%d ranks: at most %d are connected. Use levels, as in levels:intra=(shm),inter=(gloo), or mpi",
                        (int)g->size, (int)GLOO_RANKS);
    if (s == ESP_OK) s = p2p_new(h, g, GLOO_NAME, &m);
    if (s == ESP_OK) {
        w = new (std::nothrow) Wire();
        if (w) {
            w->host = h, w->comm = m;
            pthread_mutex_init(&w->lock, NULL);
            w->places = std::vector<Place>(g->size > 1 ? m->places : 0);
            w->done.resize(m->places);
            m->wire = &gloo_messages, m->self = w;
        } else {
            s = backend_log(h, GLOO_NAME, ESP_E_NOMEM, "no memory for a communicator of %d ranks", (int)g->size);
        }
    }
    if (g->size > 1) {
        s = gloo_agree(h, g, s);
        if (s == ESP_OK) s = gloo_connect(w, g, own);
        if (s == ESP_OK) s = gloo_agree(h, g, gloo_threads(w));
    }
    if (s == ESP_OK)
        *comm = m;
    else if (m)
        m->error = s, p2p_close(m);
    return s;
}

esp_status gloo_probe(const esp_host *, int32_t *score) {
    *score = 1; /* lowest, since all other backends are faster */
    return ESP_OK;
}

const esp_backend gloo_backend =
    P2P_TABLE(gloo, 0, "ranks are processes on hosts that TCP connects, without MPI", "address=,iface=", NULL);
} // namespace

ESP_PLUGIN_BACKEND(gloo, &gloo_backend)
