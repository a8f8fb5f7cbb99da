/* model.h: stands for your trainer's model: four layers y = W x. The first and the last share one W (tied, as
 * embeddings often are). Knows nothing of espresso. */
#ifndef WIRING_MODEL_H
#define WIRING_MODEL_H

enum { LAYERS = 4, PARAMS = 3, WIDTH = 16, WEIGHTS = WIDTH * WIDTH };
extern const char *const param_names[PARAMS];
extern const int param_of[LAYERS]; /* the parameter that a layer uses */

typedef struct model {
    float weights[PARAMS][WEIGHTS]; /* one buffer, parameter by parameter */
    float grads[PARAMS][WEIGHTS];   /* one buffer too; backward adds to it */
    float input[LAYERS + 1][WIDTH]; /* of each layer; the last is the output */
    float back[WIDTH];              /* derivative of the loss by the output of the present layer */
} model;

void model_init(model *m);
/* One sample's forward pass; returns the loss. The gradients are zero afterwards. */
float model_forward(model *m, int sample);
/* Adds one layer's share to the gradient of its parameter. Call it from the last layer to the first. */
void model_backward(model *m, int layer);
void model_update(model *m, float rate);
#endif
