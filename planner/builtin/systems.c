/* systems.c: systems known by name. Each source states which numbers were published and which are estimates. Knows
 * nothing of codecs.
 *
 *   paper-*       the two testbeds of Espresso (EuroSys 2023, section 5.1): 8 machines x 8 V100. Rates and the latency
 *                 between machines are those of the authors' artifact: 0.02 (NVLink) and 0.4 (PCIe) us per 1000 bytes
 *                 within a machine; 0.8 us per 1000 bytes and rank between them, a NIC of 10 GB/s for 8 ranks. Our
 *                 estimates: 30 us within a machine, the 25 Gbit/s NIC at 80%, host copies at the rate within the
 *                 machine, packing at the speed of the V100's memory.
 *   cloud-h100    8 x H100 SXM, NVLink 4 (450 GB/s each way), one 400 Gbit/s NIC a machine. 360 GB/s is the usual bus
 *                 bandwidth of nccl-tests' all_reduce_perf with rings (460 to 480 with NVLink SHARP, which the formulas
 *                 do not model); the NIC at 90%. Latencies per hop: NCCL's own constants (src/graph/tuning.cc, hwLat,
 *                 Simple): NVLink 4, network 14 us.
 *   commodity-10g 4 GPUs (RTX 3090) a machine on PCIe without peer access, 10 Gbit/s Ethernet at 90%. PCIe: 5.7 us per
 *                 hop (the same constants, ring). TCP through the kernel usually takes 40 us per hop.
 *   one-box       8 ranks that train on one machine's CPUs over shared memory; its cores also compress. Latency and
 *                 rate are those of bench/results/peers/coll.csv for large buffers, halved because 8 ranks share
 *                 one memory. */
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
     "host and "
     "packing: estimate"},
    {{ESP__SYSTEM, .machines = 8, .ranks_per_machine = 8, .devices = ESP__BOTH, .name = "paper-pcie",
      .intra = {.alpha_ns = 30e3, .bytes_per_us = 2500.0}, .inter = {.alpha_ns = 150e3, .bytes_per_us = 2500.0},
      .host_bytes_per_us = 2500.0, .pack_ns = 10e3, .pack_bytes_per_us = 400000.0},
     "V100",
     48,
     "Espresso (EuroSys 2023), PCIe testbed, with the numbers of its artifact; alpha within a machine, 25 Gbit/s at "
     "80%, "
     "copies to the host and packing: estimate"},
    {{ESP__SYSTEM, .machines = 8, .ranks_per_machine = 8, .devices = ESP__BOTH, .name = "cloud-h100",
      .intra = {.alpha_ns = 4e3, .bytes_per_us = 360000.0, .alpha_is = ESP_ALPHA_HOP},
      .inter = {.alpha_ns = 14e3, .bytes_per_us = 45000.0, .alpha_is = ESP_ALPHA_HOP}, .host_bytes_per_us = 50000.0,
      .pack_ns = 10e3, .pack_bytes_per_us = 1500000.0},
     "H100",
     48,
     "8 x H100 SXM with NVLink 4 and one 400 Gbit/s NIC a machine: usual nccl-tests bus bandwidth, 90% of the NIC, "
     "NCCL's "
     "latency constants (src/graph/tuning.cc); PCIe 5, packing: estimate"},
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
