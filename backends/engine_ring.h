/* engine_ring.h: collectives around a ring, for the emulated link. */
#ifndef ENGINE_RING_H
#define ENGINE_RING_H
#endif
