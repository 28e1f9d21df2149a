/* Stochastic rounding of a row to b bits: the arithmetic and the noise, once, for host and device.
 *
 * A message is one row of e entries, e columns of a matrix or the e that a mask keeps. With L = 2^b - 1:
 *
 *     Z = the largest bfloat16 <= min           S = the least bfloat16 with Z + S L >= max, S >= 2^-126
 *     y = (h - Z) / S                           q = floor(y) + [u < y - floor(y)],  u uniform in [0, 1)
 *     h^ = q S + Z                              E[h^] = h
 *
 * Z and S are rounded before quantising: rounded after it, h^ would be biased. A constant row travels
 * bit for bit, told by the sign of S. Rows whose range nears the largest float are computed at 2^-8 of
 * their size, so that max - min does not overflow.
 *
 * Products by powers of two and q S (8 bits by 8 bits) are exact, so a compiler that fuses
 * multiplication and addition gets the same bits as one that does not.
 */
#ifndef BITRING_ROUNDING_H
#define BITRING_ROUNDING_H

#include <stdint.h>
#include <string.h>

#include "keyed.h"

namespace bitring {

constexpr int64_t kMetaBytes = 4;
constexpr float kHuge = 0x1p100f;       /* scales from here on are computed at 2^-8 */
constexpr float kSmallestScale = 0x1p-126f;
constexpr uint32_t kExponent = 0x7F800000u, kMagnitude = 0x7FFFFFFFu;

BITRING_BOTH uint32_t bits_of(float value) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(value);
#else
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
#endif
}

BITRING_BOTH float float_of(uint32_t bits) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(bits);
#else
    float value;
    memcpy(&value, &bits, 4);
    return value;
#endif
}

/* Bytes of a row's codes: ceil(e b / 8). */
BITRING_BOTH int64_t code_bytes(int64_t entries, int bits) { return (entries * bits + 7) / 8; }

/* Uniform in [0, 1), of 24 bits. */
BITRING_BOTH float uniform(uint32_t random) { return (float)(int32_t)(random >> 8) * 0x1p-24f; }

/* The largest bfloat16 <= a finite value, as its upper 16 bits. */
BITRING_BOTH uint32_t bf16_below(float value) {
    const uint32_t bits = bits_of(value);
    return (bits >> 16) + ((bits >> 31) & ((bits & 0xFFFFu) != 0));
}

/* The least bfloat16 >= a positive value. */
BITRING_BOTH uint32_t bf16_above(float value) {
    const uint32_t bits = bits_of(value);
    return (bits >> 16) + ((bits & 0xFFFFu) != 0);
}

/* How a row is written: its 4 bytes of metadata, and what its entries are computed with. */
struct Scale {
    uint32_t meta;    /* Z in the lower half, S in the upper; S negative: constant */
    int constant;
    uint32_t last_bit; /* of a constant row: what does not fit into meta */
    float shrink;     /* 1, or 2^-8 */
    float zero;       /* Z shrink */
    float inverse;    /* 1 / (S shrink) */
};

BITRING_BOTH Scale scale_of(float low, float high, int bits) {
    Scale scale;
    low = low + 0.0f; /* -0 becomes 0: which of two equal minima came first must not matter */
    high = high + 0.0f;
    scale.constant = low == high;
    scale.shrink = 1.0f;
    scale.last_bit = 0;
    if (scale.constant) {
        const uint32_t value = bits_of(low);
        scale.meta = value >> 16 | (0x8000u | (value & 0xFFFFu) >> 1) << 16;
        scale.last_bit = value & 1;
        scale.zero = low;
        scale.inverse = 0.0f;
        return scale;
    }
    const float levels = (float)((1 << bits) - 1);
    uint32_t zero_bits = bf16_below(low);
    if (zero_bits == 0xFF80u) zero_bits = 0xFF7Fu; /* the least float lies below all finite bfloat16: clamp */
    float zero = float_of(zero_bits << 16), top = high;
    if (!(high - zero < 0x1p127f)) {
        scale.shrink = 0x1p-8f;
        zero *= scale.shrink;
        top *= scale.shrink;
    }
    float step = (top - zero) / levels;
    const float least = kSmallestScale;
    if (step < least) step = least;
    uint32_t step_bits = bf16_above(scale.shrink == 1.0f ? step : step * 0x1p8f);
    if (float_of(step_bits << 16) * scale.shrink * levels < top - zero) ++step_bits;
    if (step_bits > 0x7F7Fu) step_bits = 0x7F7Fu; /* one bit over nearly the whole range of floats: clamp */
    scale.meta = zero_bits | step_bits << 16;
    /* a receiver knows only S: it and the sender must choose the same shrinking */
    if (float_of(step_bits << 16) >= kHuge) {
        if (scale.shrink == 1.0f) zero *= 0x1p-8f;
        scale.shrink = 0x1p-8f;
    }
    scale.zero = zero;
    scale.inverse = 1.0f / (float_of(step_bits << 16) * scale.shrink);
    return scale;
}

BITRING_BOTH uint32_t quantise(float value, const Scale &scale, float levels, uint32_t random) {
    float y = (value * scale.shrink - scale.zero) * scale.inverse;
    y = y < levels ? y : levels;
    const int32_t whole = (int32_t)y;
    return (uint32_t)(whole + (uniform(random) < y - (float)whole));
}

/* The receiver's side of a row. */
struct Restore {
    int constant;
    float zero, step, grow; /* h^ = (q step + zero) grow */
};

BITRING_BOTH Restore restore_of(uint32_t meta, uint32_t first_code_byte) {
    Restore restore;
    const uint32_t upper = meta >> 16;
    restore.constant = (upper & 0x8000u) != 0;
    restore.grow = 1.0f;
    if (restore.constant) {
        restore.zero = float_of((meta & 0xFFFFu) << 16 | (upper & 0x7FFFu) << 1 | (first_code_byte & 1));
        restore.step = 0.0f;
        return restore;
    }
    restore.zero = float_of(meta << 16);
    restore.step = float_of(upper << 16);
    if (restore.step >= kHuge) {
        restore.zero *= 0x1p-8f;
        restore.step *= 0x1p-8f;
        restore.grow = 0x1p8f;
    }
    return restore;
}

BITRING_BOTH float dequantise(uint32_t code, const Restore &restore) {
    const float value = ((float)(int32_t)code * restore.step + restore.zero) * restore.grow;
    const float most = 0x1.fffffep127f; /* Z + S L may lie a little above the largest float */
    return value < most ? value : most;
}

}  // namespace bitring
#endif
