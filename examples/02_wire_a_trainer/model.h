/* model.h: an example of a trainer's model. It has four layers y = W x, and the first and the last share one W (tied
 * weights, as embeddings often are). It does not use espresso. */
#ifndef WIRING_MODEL_H
#define WIRING_MODEL_H

enum { LAYERS = 4, PARAMS = 3, WIDTH = 16, WEIGHTS = WIDTH * WIDTH };
extern const char *const param_names[PARAMS];
extern const int param_of[LAYERS]; /* which parameter each layer uses */

typedef struct model {
    float weights[PARAMS][WEIGHTS]; /* one buffer, parameter by parameter */
    float grads[PARAMS][WEIGHTS];   /* one buffer too; backward adds to it */
    float input[LAYERS + 1][WIDTH]; /* input of each layer; the last entry is the output */
    float back[WIDTH];              /* derivative of the loss by the current layer's output */
} model;

void model_init(model *m);
/* Runs the forward pass for one sample, sets the gradients to zero, and returns the loss. */
float model_forward(model *m, int sample);
/* Adds one layer's contribution to the gradient of its parameter. Call it from the last layer to the first. */
void model_backward(model *m, int layer);
void model_update(model *m, float rate);
#endif
