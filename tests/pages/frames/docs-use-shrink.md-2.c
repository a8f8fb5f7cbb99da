#include "lib.h"
/* compiled only: a job that this rank could join is not there */
void join(void);
void join(void) {
    esp_config config = ESP_ZERO;
    BLOCK;
}
