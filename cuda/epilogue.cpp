/* Bias, LayerNorm, ReLU and dropout between two graph layers: one pass forward, one backward.
 *
 * Backward needs no mask: an entry of out is positive exactly where ReLU let it through and dropout
 * kept it, and the gradient is zero elsewhere.
 */
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "bitring.h"
#include "dispatch.h"

namespace {

constexpr int64_t kBlockRows = 256;  // rows whose column sums are formed together
constexpr int64_t kLanes = 16;

/* Sums in 16 lanes, then over the lanes in order: the same bits in every instruction set. */
BITRING_INLINE float fold(const float *lanes) {
    float total = 0.0f;
    for (int64_t i = 0; i < kLanes; ++i) total += lanes[i];
    return total;
}

BITRING_CLONES void forward_rows(int64_t first, int64_t past, int64_t D, const float *z, const float *bias,
                                 const float *gamma, const float *beta, float eps, const uint8_t *mask, float scale,
                                 float *out, float *mean, float *rstd) {
    const int64_t whole = D / kLanes * kLanes;
    for (int64_t v = first; v < past; ++v) {
        const float *row = z + v * D;
        float *result = out + v * D;
        float mu = 0.0f, inverse = 1.0f;
        if (gamma) {
            float lanes[kLanes] = {0.0f};
            for (int64_t c = 0; c < whole; c += kLanes)
                for (int64_t i = 0; i < kLanes; ++i) lanes[i] += row[c + i] + bias[c + i];
            float sum = fold(lanes);
            for (int64_t c = whole; c < D; ++c) sum += row[c] + bias[c];
            mu = sum / static_cast<float>(D);
            float squares[kLanes] = {0.0f};
            for (int64_t c = 0; c < whole; c += kLanes)
                for (int64_t i = 0; i < kLanes; ++i) {
                    const float d = row[c + i] + bias[c + i] - mu;
                    squares[i] += d * d;
                }
            float variance = fold(squares);
            for (int64_t c = whole; c < D; ++c) {
                const float d = row[c] + bias[c] - mu;
                variance += d * d;
            }
            inverse = 1.0f / std::sqrt(variance / static_cast<float>(D) + eps);
            mean[v] = mu;
            rstd[v] = inverse;
            for (int64_t c = 0; c < D; ++c) result[c] = (row[c] + bias[c] - mu) * inverse * gamma[c] + beta[c];
        } else {
            for (int64_t c = 0; c < D; ++c) result[c] = row[c] + bias[c];
        }
        if (mask) {
            const uint8_t *kept = mask + v * D;
            for (int64_t c = 0; c < D; ++c) result[c] = result[c] <= 0.0f || !kept[c] ? 0.0f : result[c] * scale;
        } else {
            for (int64_t c = 0; c < D; ++c) result[c] = result[c] <= 0.0f ? 0.0f : result[c];  // a NaN stays one
        }
    }
}

BITRING_CLONES void backward_rows(int64_t first, int64_t past, int64_t D, const float *grad, const float *z,
                                  const float *bias, const float *gamma, float scale, const float *out,
                                  const float *mean, const float *rstd, float *grad_z, float *sums) {
    const int64_t whole = D / kLanes * kLanes;
    float *to_bias = sums, *to_gamma = sums + D, *to_beta = sums + 2 * D;
    for (int64_t c = 0; c < 3 * D; ++c) sums[c] = 0.0f;
    for (int64_t v = first; v < past; ++v) {
        const float *g = grad + v * D, *row = z + v * D, *passed = out + v * D;
        float *to = grad_z + v * D;
        for (int64_t c = 0; c < D; ++c) to[c] = passed[c] > 0.0f ? g[c] * scale : 0.0f;
        if (gamma) {
            const float mu = mean[v], inverse = rstd[v];
            float lanes[kLanes] = {0.0f}, along[kLanes] = {0.0f};
            for (int64_t c = 0; c < whole; c += kLanes)
                for (int64_t i = 0; i < kLanes; ++i) {
                    const float hat = (row[c + i] + bias[c + i] - mu) * inverse, t = to[c + i] * gamma[c + i];
                    to_gamma[c + i] += to[c + i] * hat;
                    to_beta[c + i] += to[c + i];
                    lanes[i] += t;
                    along[i] += t * hat;
                }
            float total = fold(lanes), inner = fold(along);
            for (int64_t c = whole; c < D; ++c) {
                const float hat = (row[c] + bias[c] - mu) * inverse, t = to[c] * gamma[c];
                to_gamma[c] += to[c] * hat;
                to_beta[c] += to[c];
                total += t;
                inner += t * hat;
            }
            const float a = total / static_cast<float>(D), b = inner / static_cast<float>(D);
            for (int64_t c = 0; c < D; ++c) {
                const float hat = (row[c] + bias[c] - mu) * inverse;
                to[c] = (to[c] * gamma[c] - a - hat * b) * inverse;
            }
        }
        for (int64_t c = 0; c < D; ++c) to_bias[c] += to[c];
    }
}

int64_t blocks_of(int64_t n) { return (n + kBlockRows - 1) / kBlockRows; }

}  // namespace

extern "C" int bitring_epilogue_f32(int64_t n, int64_t D, const float *z, const float *bias, const float *gamma,
                                    const float *beta, float eps, const uint8_t *mask, float scale, float *out,
                                    float *mean, float *rstd, int threads) {
    if (n < 0 || D < 1 || threads < 1 || !bias || (n && (!z || !out))) return BITRING_BAD_ARGUMENT;
    if (gamma && (!beta || (n && (!mean || !rstd)))) return BITRING_BAD_ARGUMENT;
    const int64_t blocks = blocks_of(n);
#pragma omp parallel for schedule(static) num_threads(threads) if (blocks > 1)
    for (int64_t block = 0; block < blocks; ++block)
        forward_rows(block * kBlockRows, std::min(n, (block + 1) * kBlockRows), D, z, bias, gamma, beta, eps, mask,
                     scale, out, mean, rstd);
    return BITRING_OK;
}

extern "C" int64_t bitring_epilogue_work(int64_t n, int64_t D) { return blocks_of(n) * 3 * D; }

extern "C" int bitring_epilogue_backward_f32(int64_t n, int64_t D, const float *grad, const float *z, const float *bias,
                                             const float *gamma, float scale, const float *out, const float *mean,
                                             const float *rstd, float *grad_z, float *grad_bias, float *grad_gamma,
                                             float *grad_beta, float *work, int threads) {
    if (n < 0 || D < 1 || threads < 1 || !bias || !grad_bias) return BITRING_BAD_ARGUMENT;
    if (n && (!grad || !z || !out || !grad_z || !work)) return BITRING_BAD_ARGUMENT;
    if (gamma && (!grad_gamma || !grad_beta || (n && (!mean || !rstd)))) return BITRING_BAD_ARGUMENT;
    const int64_t blocks = blocks_of(n);
#pragma omp parallel for schedule(static) num_threads(threads) if (blocks > 1)
    for (int64_t block = 0; block < blocks; ++block)
        backward_rows(block * kBlockRows, std::min(n, (block + 1) * kBlockRows), D, grad, z, bias, gamma, scale, out,
                      mean, rstd, grad_z, work + block * 3 * D);
    float *results[3] = {grad_bias, gamma ? grad_gamma : nullptr, gamma ? grad_beta : nullptr};
    for (int64_t which = 0; which < 3; ++which) {
        if (!results[which]) continue;
        for (int64_t c = 0; c < D; ++c) results[which][c] = 0.0f;
        for (int64_t block = 0; block < blocks; ++block)
            for (int64_t c = 0; c < D; ++c) results[which][c] += work[block * 3 * D + which * D + c];
    }
    return BITRING_OK;
}
