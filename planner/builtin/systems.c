/* systems.c: the systems that are known by name, with the sources of their numbers.
 *   paper-*       The two testbeds of Espresso (EuroSys 2023, section 5.1), 8 machines with 8 V100 each. The authors'
 *                 artifact has the rates, in us per 1000 bytes: within a machine 0.02 (NVLink) or 0.4 (PCIe); between
 *                 machines 0.8 per rank, so 8 ranks share a network card of 10 GB/s. It also has the latency between
 *                 machines. We estimate 30 us within a machine, 80% of the rate of the 25 Gbit/s card, host copies
 *                 as fast as links within the machine, and packing as fast as the V100's memory.
 *   cloud-h100    8 x H100 SXM with NVLink 4 (450 GB/s each way); a machine has one 400 Gbit/s card, used at 90%.
 *                 nccl-tests' all_reduce_perf usually attains 360 GB/s with rings (460 to 480 with NVLink SHARP, which
 *                 the formulas do not model). A hop takes 4 us (NVLink) or 14 us (network) in NCCL's own constants
 *                 (src/graph/tuning.cc, hwLat, Simple).
 *   commodity-10g 4 RTX 3090 in a machine on PCIe without peer access (5.7 us per hop, in the same constants, ring);
 *                 10 Gbit/s Ethernet at 90%, on which TCP through the kernel usually takes 40 us per hop.
 *   one-box       8 ranks that train on the CPUs of one machine over shared memory; its cores also compress. Latency
 *                 and rate for large buffers come from bench/results/peers/coll.csv. The rate is halved because 8
 *                 ranks share one memory. */
#include "planner/builtin/builtin.h"

#define ESP__SYSTEM .struct_size = sizeof(esp_plan_system)
#define ESP__BOTH (1u << ESP_ON_CPU | 1u << ESP_ON_GPU)
static const esp__known_system esp__known_systems[] = {
    {{ESP__SYSTEM, .machines = 8, .ranks_per_machine = 8, .devices = ESP__BOTH, .name = "paper-nvlink",
      .intra = {.alpha_ns = 30e3, .bytes_per_us = 50000.0}, .inter = {.alpha_ns = 150e3, .bytes_per_us = 10000.0},
      .host_bytes_per_us = 50000.0, .pack_ns = 10e3, .pack_bytes_per_us = 400000.0},
     "V100",
     48,
     "Espresso (EuroSys 2023), NVLink testbed, with the numbers of its artifact; alpha within a machine, copies to the "
     "host and packing: estimate"},
    {{ESP__SYSTEM, .machines = 8, .ranks_per_machine = 8, .devices = ESP__BOTH, .name = "paper-pcie",
      .intra = {.alpha_ns = 30e3, .bytes_per_us = 2500.0}, .inter = {.alpha_ns = 150e3, .bytes_per_us = 2500.0},
      .host_bytes_per_us = 2500.0, .pack_ns = 10e3, .pack_bytes_per_us = 400000.0},
     "V100",
     48,
     "Espresso (EuroSys 2023), PCIe testbed, with the numbers of its artifact; alpha within a machine, 25 Gbit/s at "
     "80%, copies to the host and packing: estimate"},
    {{ESP__SYSTEM, .machines = 8, .ranks_per_machine = 8, .devices = ESP__BOTH, .name = "cloud-h100",
      .intra = {.alpha_ns = 4e3, .bytes_per_us = 360000.0, .alpha_is = ESP_ALPHA_HOP},
      .inter = {.alpha_ns = 14e3, .bytes_per_us = 45000.0, .alpha_is = ESP_ALPHA_HOP}, .host_bytes_per_us = 50000.0,
      .pack_ns = 10e3, .pack_bytes_per_us = 1500000.0},
     "H100",
     48,
     "8 x H100 SXM with NVLink 4 and one 400 Gbit/s NIC a machine: usual nccl-tests bus bandwidth, 90% of the NIC, "
     "NCCL's latency constants (src/graph/tuning.cc); PCIe 5, packing: estimate"},
    {{ESP__SYSTEM, .machines = 8, .ranks_per_machine = 4, .devices = ESP__BOTH, .name = "commodity-10g",
      .intra = {.alpha_ns = 5.7e3, .bytes_per_us = 6000.0, .alpha_is = ESP_ALPHA_HOP},
      .inter = {.alpha_ns = 40e3, .bytes_per_us = 1125.0, .alpha_is = ESP_ALPHA_HOP}, .host_bytes_per_us = 12000.0,
      .pack_ns = 10e3, .pack_bytes_per_us = 400000.0},
     "RTX3090",
     16,
     "4 x RTX 3090 a machine on PCIe without peer access, 10 Gbit/s Ethernet at 90%, TCP; NCCL's latency constant of "
     "PCIe: estimate"},
    {{ESP__SYSTEM, .machines = 1, .ranks_per_machine = 8, .devices = 1u << ESP_ON_CPU, .name = "one-box",
      .intra = {.alpha_ns = 2e3, .bytes_per_us = 4000.0, .alpha_is = ESP_ALPHA_HOP},
      .inter = {.alpha_ns = 2e3, .bytes_per_us = 4000.0, .alpha_is = ESP_ALPHA_HOP}, .pack_ns = 1e3,
      .pack_bytes_per_us = 4000.0, .cores_per_rank = 1},
     NULL,
     16,
     "8 ranks that train on one machine's CPUs over shared memory (bench/results/peers/coll.csv, halved): estimate"},
};
#undef ESP__SYSTEM
#undef ESP__BOTH

ESP__FN const esp__known_system *esp__known_system_at(uint32_t i) {
    return i < sizeof esp__known_systems / sizeof *esp__known_systems ? &esp__known_systems[i] : NULL;
}

ESP__FN const esp__known_system *esp__known_system_find(const char *name) {
    const esp__known_system *k = NULL;
    for (uint32_t i = 0; name && (k = esp__known_system_at(i)) != NULL; i++)
        if (!strcmp(k->system.name, name)) return k;
    return NULL;
}

ESP__FN const esp_plan_system *esp__builtin_system(const char *name) {
    const esp__known_system *k = esp__known_system_find(name);
    return k ? &k->system : NULL;
}
