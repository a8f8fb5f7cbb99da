/* plan.c: plans a strategy by C calls, from three tensors, a codec and a cluster. It prints the strategy's text, which
 * you can pass to esp_strategy_set or save in a file that ESPRESSO_STRATEGY names. */
#include "espresso.h"
#include <stdio.h>

int main(void) {
    /* tensors in backward order, with times measured on one machine */
    static const esp_plan_tensor tensors[] = {{"head.weight", 4000000, 5e6, NULL, NULL, 0, 0},
                                              {"body.weight", 30000000, 9e6, NULL, NULL, 0, 0},
                                              {"embed.weight", 1000, 1e6, "fp32", NULL, 0, 0}};
    static const esp_cost_point compress[] = {{1 << 20, 356e3}}, decompress[] = {{1 << 20, 34e3}};
    esp_plan_model model = ESP_ZERO;
    esp_plan_codec codec = ESP_ZERO;
    esp_plan_system cluster = ESP_ZERO;
    esp_plan_report report = ESP_ZERO;
    esp_plan *plan;

    model.name = "mine";
    model.n_tensors = 3;
    model.tensors = tensors;
    model.forward_ns = 7e6;
    codec.spec = "dgc:ratio=0.01"; /* 8 bytes per element that it sends */
    codec.unit_bytes = 8;
    codec.units = 0.01;
    codec.compress[ESP_ON_GPU].points = compress;
    codec.compress[ESP_ON_GPU].n = 1;
    codec.decompress[ESP_ON_GPU].points = decompress;
    codec.decompress[ESP_ON_GPU].n = 1;
    cluster.name = "cluster";
    cluster.machines = 4;
    cluster.ranks_per_machine = 8;
    cluster.devices = 1u << ESP_ON_GPU;
    cluster.intra.alpha_ns = 30e3;
    cluster.intra.bytes_per_us = 50000;
    cluster.inter.alpha_ns = 100e3;
    cluster.inter.bytes_per_us = 1250; /* a NIC of 10 Gbit/s */

    if (esp_plan_make(&model, &codec, 1, &cluster, NULL, &plan) != ESP_OK) {
        fprintf(stderr, "%s\n", esp_last_error(NULL));
        return 1;
    }
    esp_plan_report_read(plan, &report);
    printf("# a step takes %.1f ms instead of %.1f; nothing is faster than %.1f\n%s", report.iteration_ns / 1e6,
           report.fp32_ns / 1e6, report.bound_ns / 1e6, esp_plan_text(plan));
    esp_plan_free(plan);
    return 0;
}
