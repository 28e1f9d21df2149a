/* The local sparse product: out = A x for CSR A. Memory-bound: every edge reads one row of x.
 *
 * A tile of columns is summed in registers over all entries of a row, so out is written once. Rows
 * that are soon needed are prefetched: their addresses are known from the indices. Work is cut by
 * edges, not rows: degrees are skewed.
 */
#include <omp.h>

#include <algorithm>

#include "bitring.h"
#include "dispatch.h"

namespace {

constexpr int64_t kTile = 128;          // columns summed in registers at a time: 8 AVX-512 vectors
constexpr int64_t kAhead = 8;           // entries prefetched ahead
constexpr int64_t kChunksPerThread = 16;

template <int64_t W>
BITRING_INLINE void sum_tile(int64_t begin, int64_t end, int64_t last, int64_t D, const int32_t *indices,
                             const float *values, const float *x, float *out, int accumulate) {
    float sum[W];
    for (int64_t c = 0; c < W; ++c) sum[c] = accumulate ? out[c] : 0.0f;
    for (int64_t e = begin; e < end; ++e) {
        if (e + kAhead < last) {
            const float *next = x + static_cast<int64_t>(indices[e + kAhead]) * D;
            for (int64_t c = 0; c < W; c += 16) __builtin_prefetch(next + c);
        }
        const float a = values[e];
        const float *row = x + static_cast<int64_t>(indices[e]) * D;
        for (int64_t c = 0; c < W; ++c) sum[c] += a * row[c];
    }
    for (int64_t c = 0; c < W; ++c) out[c] = sum[c];
}

BITRING_INLINE void sum_rest(int64_t begin, int64_t end, int64_t width, int64_t D, const int32_t *indices,
                             const float *values, const float *x, float *out, int accumulate) {
    float sum[16];
    for (int64_t c = 0; c < width; ++c) sum[c] = accumulate ? out[c] : 0.0f;
    for (int64_t e = begin; e < end; ++e) {
        const float a = values[e];
        const float *row = x + static_cast<int64_t>(indices[e]) * D;
        for (int64_t c = 0; c < width; ++c) sum[c] += a * row[c];
    }
    for (int64_t c = 0; c < width; ++c) out[c] = sum[c];
}

BITRING_CLONES void multiply_rows(int64_t first, int64_t past, int64_t D, const int64_t *indptr, const int32_t *indices,
                                  const float *values, const float *x, float *out, int accumulate) {
    const int64_t last = indptr[past];
    for (int64_t v = first; v < past; ++v) {
        const int64_t begin = indptr[v], end = indptr[v + 1];
        float *row = out + v * D;
        int64_t c = 0;
        for (; c + kTile <= D; c += kTile)
            sum_tile<kTile>(begin, end, last, D, indices, values, x + c, row + c, accumulate);
        for (; c + 64 <= D; c += 64) sum_tile<64>(begin, end, last, D, indices, values, x + c, row + c, accumulate);
        for (; c + 16 <= D; c += 16) sum_tile<16>(begin, end, last, D, indices, values, x + c, row + c, accumulate);
        if (c < D) sum_rest(begin, end, D - c, D, indices, values, x + c, row + c, accumulate);
    }
}

/* The row at which a share of entries and rows is reached: cuts the work evenly. */
int64_t cut(int64_t n, const int64_t *indptr, int64_t part, int64_t parts) {
    const double goal = static_cast<double>(indptr[n] + n) * static_cast<double>(part) / static_cast<double>(parts);
    int64_t low = 0, high = n;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (static_cast<double>(indptr[middle] + middle) < goal) low = middle + 1;
        else high = middle;
    }
    return low;
}

}  // namespace

extern "C" int bitring_abi(void) { return BITRING_ABI; }

extern "C" int bitring_spmm_f32(int64_t n, int64_t m, int64_t D, const int64_t *indptr, const int32_t *indices,
                                const float *values, const float *x, float *out, int accumulate, int threads) {
    if (n < 0 || m < 0 || D < 0 || threads < 1 || !indptr || (n && D && !out)) return BITRING_BAD_ARGUMENT;
    if (n == 0 || D == 0) return BITRING_OK;
    if (indptr[0] != 0 || indptr[n] < 0 || (indptr[n] && (!indices || !values || !x))) return BITRING_BAD_ARGUMENT;
    const int64_t parts = threads == 1 ? 1 : std::min<int64_t>(n, threads * kChunksPerThread);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (parts > 1)
    for (int64_t part = 0; part < parts; ++part)
        multiply_rows(cut(n, indptr, part, parts), cut(n, indptr, part + 1, parts), D, indptr, indices, values, x, out,
                      accumulate);
    return BITRING_OK;
}
