/* The C interface of bitring's kernels: int64 sizes, raw pointers, error codes out. No torch header.
 *
 * All matrices are row-major and contiguous. Threads: how many OpenMP threads a call may use.
 * A call allocates nothing and keeps nothing.
 */
#ifndef BITRING_H
#define BITRING_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BITRING_ABI 1

enum { BITRING_OK = 0, BITRING_BAD_ARGUMENT = 1 };

/* BITRING_ABI of the library: the caller refuses another one. */
int bitring_abi(void);

/* out[n, D] = A x, or out += A x with accumulate != 0.
 * A is CSR [n, m]: indptr[n + 1], indices[nnz] in [0, m), values[nnz]; x is [m, D].
 * Rows are summed in the order of their entries, whatever the number of threads. */
int bitring_spmm_f32(int64_t n, int64_t m, int64_t D, const int64_t *indptr, const int32_t *indices,
                     const float *values, const float *x, float *out, int accumulate, int threads);

/* mask[rows, D]: 1 at the `kept` columns of each row whose keyed hashes are smallest, else 0.
 * The rule, bit for bit, is that of toolkit/keyed.py; key = mix64(seed, 0xD0, epoch, layer). */
int bitring_dropout_mask(int64_t rows, int64_t D, int64_t kept, const int64_t *nodes, uint64_t key,
                         uint8_t *mask, int threads);

/* out[n, D] = x * mask * scale (mask of 0 and 1). out may be x. */
int bitring_drop_f32(int64_t n, int64_t D, const float *x, const uint8_t *mask, float scale, float *out,
                     int threads);

/* What stands between two graph layers, in one pass over memory:
 *     out = max(0, norm(z + bias)) * mask * scale,   norm(y) = (y - mean) / sqrt(var + eps) * gamma + beta
 * z, out: [n, D]; bias, gamma, beta: [D]; gamma NULL: no normalisation; mask [n, D] NULL: no dropout.
 * mean and rstd ([n], where gamma is given) are kept for backward. */
int bitring_epilogue_f32(int64_t n, int64_t D, const float *z, const float *bias, const float *gamma,
                         const float *beta, float eps, const uint8_t *mask, float scale, float *out, float *mean,
                         float *rstd, int threads);

/* Its mirror image: grad [n, D] of out -> grad_z [n, D] and grad_bias, grad_gamma, grad_beta [D].
 * out is forward's. work: bitring_epilogue_work(n, D) floats. Sums run over fixed blocks of rows, so
 * the number of threads changes no bit. */
int64_t bitring_epilogue_work(int64_t n, int64_t D);
int bitring_epilogue_backward_f32(int64_t n, int64_t D, const float *grad, const float *z, const float *bias,
                                  const float *gamma, float scale, const float *out, const float *mean,
                                  const float *rstd, float *grad_z, float *grad_bias, float *grad_gamma,
                                  float *grad_beta, float *work, int threads);

#ifdef __cplusplus
}
#endif
#endif
