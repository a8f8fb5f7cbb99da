/* declarations.h uses every declaration and inline function of espresso.h, with the strictest warnings. */
#include "espresso.h"

static int use_declarations(void);
static int use_declarations(void) {
    esp_config cfg = ESP_ZERO;
    esp_tensor_desc desc = ESP_ZERO;
    esp_codec_args args = ESP_ZERO;
    esp_codec codec = ESP_ZERO;
    esp_payload payload = ESP_ZERO;
    esp_payload_header h = ESP_ZERO, back = ESP_ZERO;
    unsigned char bytes[96];
    uint64_t used = 0;
    char key[8], val[8];
    const char *params = "a=1,b=(c=2)";
    int keys = 0;
    payload.data.ptr = bytes;
    payload.data.bytes = sizeof bytes;
    payload.used = &used;
    h.codec = esp_name_hash("none");
    h.count = 4;
    h.body_bytes = 16;
    codec.struct_size = sizeof codec;
    args.payload = &payload;
    if (esp_payload_begin(args.payload, &h) != ESP_OK || used != 80) return 1;
    if (esp_payload_read(args.payload, h.codec, 0, 4, &back) != ESP_OK || back.body_bytes != 16) return 2;
    if (esp_payload_body(&payload) != bytes + ESP_PAYLOAD_HEADER || esp_payload_capacity(33) != 128) return 3;
    while (esp_params_next(&params, key, sizeof key, val, sizeof val) > 0) keys++;
    if (keys != 2 || ESP_HAS(esp_codec, &codec, open) || cfg.size || desc.count) return 4;
    return 0;
}
