/* crc32c.h: CRC-32C (Castagnoli), the checksum of iSCSI (RFC 3720), by the processor's instruction where it has one. */
#ifndef ESP__CRC32C_H
#define ESP__CRC32C_H
#include "espresso_impl/base/private.h"

/* The checksum of `before`, the bytes whose checksum is `crc`, and `bytes` bytes more; begin with crc 0. */
ESP__FN uint32_t esp__crc32c(uint32_t crc, const void *data, uint64_t bytes);
ESP__FN uint32_t esp__crc32c_table(uint32_t crc, const void *data, uint64_t bytes); /* without the instruction */
#endif
