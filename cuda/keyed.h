/* Randomness keyed by (what, where), never by draw order: toolkit/keyed.py, bit for bit, for host and device. */
#ifndef BITRING_KEYED_H
#define BITRING_KEYED_H

#include <stdint.h>

#ifdef __CUDACC__
#define BITRING_BOTH __host__ __device__ __forceinline__
#else
#define BITRING_BOTH static inline __attribute__((always_inline))
#endif

namespace bitring {

/* 64 bits of a key, well mixed: their halves are the two keys of a row. */
BITRING_BOTH uint64_t mix(uint64_t state) {
    state += 0x9E3779B97F4A7C15ull;
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9ull;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBull;
    return state ^ (state >> 31);
}

/* 32 bits for one column of a row. */
BITRING_BOTH uint32_t hash(uint32_t low, uint32_t high, uint32_t column) {
    uint32_t x = column * 0x9E3779B9u ^ low;
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x += high;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    return x ^ (x >> 16);
}

}  // namespace bitring
#endif
