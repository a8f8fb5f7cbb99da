/* model.c: implements model.h. */
#include "model.h"
#include <string.h>

const char *const param_names[PARAMS] = {"tied.weight", "first.weight", "second.weight"};
const int param_of[LAYERS] = {0, 1, 2, 0};

static float noise(unsigned n) { return (float)((n * 2654435761u >> 16) % 2001u) / 1000.0f - 1.0f; }

void model_init(model *m) {
    memset(m, 0, sizeof *m);
    for (int p = 0; p < PARAMS; p++)
        for (int i = 0; i < WEIGHTS; i++)
            m->weights[p][i] = (i % (WIDTH + 1) == 0 ? 0.9f : 0.0f) + 0.05f * noise((unsigned)(p * WEIGHTS + i));
}

float model_forward(model *m, int sample) {
    float loss = 0;
    memset(m->grads, 0, sizeof m->grads);
    for (int i = 0; i < WIDTH; i++) m->input[0][i] = noise((unsigned)(sample * WIDTH + i) + 77u);
    for (int layer = 0; layer < LAYERS; layer++)
        for (int row = 0; row < WIDTH; row++) {
            float sum = 0;
            for (int k = 0; k < WIDTH; k++) sum += m->weights[param_of[layer]][row * WIDTH + k] * m->input[layer][k];
            m->input[layer + 1][row] = sum;
        }
    for (int i = 0; i < WIDTH; i++) { /* the model learns to return its input */
        m->back[i] = m->input[LAYERS][i] - m->input[0][i];
        loss += 0.5f * m->back[i] * m->back[i];
    }
    return loss;
}

void model_backward(model *m, int layer) {
    float below[WIDTH] = {0};
    for (int row = 0; row < WIDTH; row++)
        for (int k = 0; k < WIDTH; k++) {
            m->grads[param_of[layer]][row * WIDTH + k] += m->back[row] * m->input[layer][k];
            below[k] += m->back[row] * m->weights[param_of[layer]][row * WIDTH + k];
        }
    memcpy(m->back, below, sizeof below);
}

void model_update(model *m, float rate) {
    for (int p = 0; p < PARAMS; p++)
        for (int i = 0; i < WEIGHTS; i++) m->weights[p][i] -= rate * m->grads[p][i];
}
