/* Dropout keyed by node: toolkit/keyed.py, bit for bit.
 *
 * A row keeps the `kept` columns with the smallest hashes. The hashes are distinct, so the threshold
 * is a number t with exactly `kept` hashes <= t; bisection with counting finds it, and counting runs
 * 16 columns an instruction. Hashes are even over 32 bits, so the first guesses are close.
 */
#include <omp.h>

#include <algorithm>
#include <cstring>

#include "bitring.h"
#include "dispatch.h"
#include "keyed.h"

namespace {

constexpr int64_t kWidest = 1 << 16;  // columns: their hashes lie on the stack
constexpr int64_t kRowsPerChunk = 64;

BITRING_INLINE void hash_row(uint32_t low, uint32_t high, int64_t D, uint32_t column_bits, uint32_t *hashes) {
    for (int64_t c = 0; c < D; ++c)
        hashes[c] = (bitring::hash(low, high, static_cast<uint32_t>(c)) & ~column_bits) | static_cast<uint32_t>(c);
}

BITRING_INLINE int64_t count_up_to(const uint32_t *hashes, int64_t D, uint32_t threshold) {
    uint32_t count = 0;
    for (int64_t c = 0; c < D; ++c) count += hashes[c] <= threshold;
    return count;
}

/* A t with exactly `kept` of the distinct hashes <= t, 0 < kept < D. */
BITRING_INLINE uint32_t find_threshold(const uint32_t *hashes, int64_t D, int64_t kept) {
    int64_t low = -1, high = 0xFFFFFFFFll;       // count(low) < kept <= count(high)
    int64_t below = 0, above = D;                // the counts there
    for (int step = 0; above != kept; ++step) {
        const int64_t width = high - low;
        int64_t guess = low + width / 2;
        if (step % 3 != 2)  // interpolate: hashes are even; every third step halves, so that it ends
            guess = low + static_cast<int64_t>(static_cast<double>(width) * (static_cast<double>(kept - below) + 0.5) /
                                               static_cast<double>(above - below + 1));
        guess = std::min(std::max(guess, low + 1), high - 1);
        const int64_t count = count_up_to(hashes, D, static_cast<uint32_t>(guess));
        if (count >= kept) high = guess, above = count;
        else low = guess, below = count;
    }
    return static_cast<uint32_t>(high);
}

BITRING_CLONES void mask_rows(int64_t first, int64_t past, int64_t D, int64_t kept, const int64_t *nodes, uint64_t key,
                              uint32_t column_bits, uint32_t *hashes, uint8_t *mask) {
    for (int64_t v = first; v < past; ++v) {
        const uint64_t state = bitring::mix(static_cast<uint64_t>(nodes[v]) ^ key);
        hash_row(static_cast<uint32_t>(state), static_cast<uint32_t>(state >> 32), D, column_bits, hashes);
        const uint32_t threshold = find_threshold(hashes, D, kept);
        uint8_t *row = mask + v * D;
        for (int64_t c = 0; c < D; ++c) row[c] = hashes[c] <= threshold;
    }
}

BITRING_CLONES void drop_range(int64_t first, int64_t past, const float *x, const uint8_t *mask, float scale, float *out) {
    for (int64_t i = first; i < past; ++i) out[i] = mask[i] ? x[i] * scale : 0.0f;
}

}  // namespace

extern "C" int bitring_dropout_mask(int64_t rows, int64_t D, int64_t kept, const int64_t *nodes, uint64_t key,
                                    uint8_t *mask, int threads) {
    if (rows < 0 || D < 1 || D > kWidest || kept < 1 || threads < 1) return BITRING_BAD_ARGUMENT;
    if (rows && (!nodes || !mask)) return BITRING_BAD_ARGUMENT;
    if (kept >= D) {
        std::memset(mask, 1, static_cast<size_t>(rows * D));
        return BITRING_OK;
    }
    uint32_t column_bits = 1;
    while (column_bits < static_cast<uint32_t>(D)) column_bits <<= 1;
    --column_bits;
    const int64_t chunks = (rows + kRowsPerChunk - 1) / kRowsPerChunk;
#pragma omp parallel num_threads(threads) if (chunks > 1)
    {
        uint32_t hashes[kWidest];
#pragma omp for schedule(static)
        for (int64_t chunk = 0; chunk < chunks; ++chunk)
            mask_rows(chunk * kRowsPerChunk, std::min(rows, (chunk + 1) * kRowsPerChunk), D, kept, nodes, key,
                      column_bits, hashes, mask);
    }
    return BITRING_OK;
}

extern "C" int bitring_drop_f32(int64_t n, int64_t D, const float *x, const uint8_t *mask, float scale, float *out,
                                int threads) {
    if (n < 0 || D < 0 || threads < 1 || (n && D && (!x || !mask || !out))) return BITRING_BAD_ARGUMENT;
    const int64_t total = n * D, block = 1 << 14, chunks = (total + block - 1) / block;
#pragma omp parallel for schedule(static) num_threads(threads) if (chunks > 1)
    for (int64_t chunk = 0; chunk < chunks; ++chunk)
        drop_range(chunk * block, std::min(total, (chunk + 1) * block), x, mask, scale, out);
    return BITRING_OK;
}
