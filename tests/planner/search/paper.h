/* paper.h has the two clusters and three codecs of the Espresso paper with their published costs, as planner input,
 * for tests with numbers computed by hand. */
#ifndef TESTS_PLANNER_PAPER_H
#define TESTS_PLANNER_PAPER_H
#include <stdint.h>
#include <string.h>

enum { PAPER_DGC = 0, PAPER_RANDOMK, PAPER_EFSIGN, PAPER_CODECS, PAPER_CPU_POINTS = 17 };
typedef struct paper_input {
    esp_plan_system system;
    esp_plan_codec codecs[PAPER_CODECS];
    esp_cost_point cpu[PAPER_CODECS][2][PAPER_CPU_POINTS], gpu[PAPER_CODECS][2];
} paper_input;

/* Machines have 8 ranks. With NVLink, a rank has 50 GB/s and a NIC 10 GB/s; with PCIe, both have 2.5 GB/s. Latencies
 * are 30 us inside a machine and 150 us between machines. */
static inline void paper_system(esp_plan_system *s, int nvlink, uint32_t machines) {
    memset(s, 0, sizeof *s);
    s->name = nvlink ? "paper-nvlink" : "paper-pcie";
    s->machines = machines, s->ranks_per_machine = 8;
    s->devices = 1u << ESP_ON_CPU | 1u << ESP_ON_GPU;
    s->intra.alpha_ns = 30e3, s->inter.alpha_ns = 150e3;
    s->intra.bytes_per_us = nvlink ? 50000 : 2500;
    s->inter.bytes_per_us = nvlink ? 10000 : 2500;
}

/* Times (us) of codecs on the CPU for 2^10, 2^11, ... 2^26 elements. */
static const uint32_t paper_cpu_us[PAPER_CODECS][2][PAPER_CPU_POINTS] = {
    {{13, 15, 19, 28, 46, 79, 150, 287, 585, 1139, 2312, 4547, 9307, 17000, 32924, 65359, 134170},
     {4, 4, 4, 5, 6, 9, 14, 27, 52, 102, 211, 424, 1900, 4517, 9645, 18731, 38245}},
    {{16, 17, 20, 26, 72, 64, 110, 212, 430, 672, 1236, 2421, 4816, 9632, 21112, 43156, 92372},
     {7, 7, 7, 9, 9, 14, 22, 37, 66, 118, 285, 531, 903, 3652, 10068, 18968, 38427}},
    {{16, 17, 19, 22, 32, 50, 81, 148, 375, 555, 1094, 2161, 4298, 8585, 17353, 34964, 71289},
     {5, 5, 6, 8, 11, 17, 27, 52, 124, 187, 359, 712, 1428, 2862, 5853, 11816, 24972}}};

static inline void paper_open(paper_input *in, int nvlink, uint32_t machines) {
    static const char *const spec[] = {"dgc:ratio=0.01", "randomk:ratio=0.01", "efsignsgd"};
    static const double header[] = {0, 0, 4}, unit[] = {8, 4, 1}, units[] = {0.01, 0.01, 0.125};
    static const double gpu_us[][2] = {{356, 34}, {54, 34}, {130, 140}};
    memset(in, 0, sizeof *in);
    paper_system(&in->system, nvlink, machines);
    for (int c = 0; c < PAPER_CODECS; c++) {
        esp_plan_codec *k = &in->codecs[c];
        k->spec = spec[c];
        k->header_bytes = header[c], k->unit_bytes = unit[c], k->units = units[c];
        for (int way = 0; way < 2; way++) {
            esp_cost_curve *curve = way ? k->decompress : k->compress;
            for (int i = 0; i < PAPER_CPU_POINTS; i++) {
                in->cpu[c][way][i].size = (double)((uint64_t)1024 << i);
                in->cpu[c][way][i].ns = 1000.0 * paper_cpu_us[c][way][i];
            }
            in->gpu[c][way].size = 1048576; /* constant below this size, in proportion above */
            in->gpu[c][way].ns = 1000.0 * gpu_us[c][way];
            curve[ESP_ON_CPU] = (esp_cost_curve){in->cpu[c][way], PAPER_CPU_POINTS, 1};
            curve[ESP_ON_GPU] = (esp_cost_curve){&in->gpu[c][way], 1, 0};
        }
    }
}
#endif
