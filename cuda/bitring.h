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

#define BITRING_ABI 2

enum { BITRING_OK = 0, BITRING_BAD_ARGUMENT = 1, BITRING_NOT_FINITE = 2, BITRING_NO_DEVICE = 3, BITRING_DEVICE_ERROR = 4 };

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

/* Bytes of the codes of a row of `entries`: ceil(entries bits / 8); for 32 bits, the floats themselves. */
int64_t bitring_code_bytes(int64_t entries, int bits);

/* Quantise `count` messages (rounding.h) into one buffer: gather, min/max, rounding, packing.
 * Message i is row row[i] of x [*, D]: all of it (mask NULL, kept = D), or the `kept` entries at which row
 * mask_row[i] of mask [*, D] is 1. It has bits[i] of 1, 2, 4, 8 or 32 (its floats as they are, no metadata);
 * 4 bytes of metadata go to out + meta_place[i], its codes to out + code_place[i].
 * where[i] and key: its noise. range (may be NULL): max - min of each message.
 * BITRING_NOT_FINITE: message *bad, the first of fewer bits than 32 to do so, holds a NaN or an infinity; *bad is -1
 * otherwise. */
int bitring_quantise_f32(int64_t count, int64_t D, int64_t kept, const float *x, const int64_t *row,
                         const uint8_t *mask, const int64_t *mask_row, const uint8_t *bits,
                         const int64_t *meta_place, const int64_t *code_place, const uint64_t *where, uint64_t key,
                         uint8_t *out, float *range, int64_t *bad, int threads);
int bitring_quantise_bf16(int64_t count, int64_t D, int64_t kept, const uint16_t *x, const int64_t *row,
                          const uint8_t *mask, const int64_t *mask_row, const uint8_t *bits,
                          const int64_t *meta_place, const int64_t *code_place, const uint64_t *where, uint64_t key,
                          uint8_t *out, float *range, int64_t *bad, int threads);

/* Back again, into row row[i] of out [*, D]: written (zero where the mask is 0), or added with accumulate != 0.
 * Messages of one row must stand together: group g is messages group_first[g] up to group_first[g + 1], added
 * in that order. group_first NULL: every message is a group (groups = count), its row its own. */
int bitring_dequantise_f32(int64_t count, int64_t D, int64_t kept, const uint8_t *in, const int64_t *row,
                           const uint8_t *mask, const int64_t *mask_row, const uint8_t *bits,
                           const int64_t *meta_place, const int64_t *code_place, int64_t groups,
                           const int64_t *group_first, int accumulate, float *out, int threads);

/* The same on a CUDA device: libbitring_cuda.so (make -C cuda cuda), bit for bit what the CPU computes; and, for
 * tests without a device, libbitring_emulated.so (make -C cuda emulated), where device pointers are the host's.
 *
 * Every pointer is of the current device; stream is a cudaStream_t, NULL the default one. A call allocates
 * nothing and waits for nothing: what it returns tells of sizes, of pointers that are NULL, and of the launch
 * (BITRING_DEVICE_ERROR: a later cudaGetLastError() won't report it again). D is at most 65536.
 * The contents of bits, row, places and group_first lie on the device and are not checked: values that the
 * CPU would refuse are undefined here.
 * *bad must be -1 before quantise, and BITRING_NOT_FINITE is not returned: once the stream has come that far,
 * *bad is -1 still, or the first message that holds a NaN or an infinity; codes of such messages are undefined.
 * Several calls may share one `bad`: it then holds the least message number of all. */
int bitring_cuda_abi(void);

/* Devices of this machine. BITRING_NO_DEVICE, and *count = 0: none, or a driver older than the library's CUDA. */
int bitring_cuda_device_count(int *count);

int bitring_cuda_quantise_f32(int64_t count, int64_t D, int64_t kept, const float *x, const int64_t *row,
                              const uint8_t *mask, const int64_t *mask_row, const uint8_t *bits,
                              const int64_t *meta_place, const int64_t *code_place, const uint64_t *where,
                              uint64_t key, uint8_t *out, float *range, int64_t *bad, void *stream);
int bitring_cuda_quantise_bf16(int64_t count, int64_t D, int64_t kept, const uint16_t *x, const int64_t *row,
                               const uint8_t *mask, const int64_t *mask_row, const uint8_t *bits,
                               const int64_t *meta_place, const int64_t *code_place, const uint64_t *where,
                               uint64_t key, uint8_t *out, float *range, int64_t *bad, void *stream);
int bitring_cuda_dequantise_f32(int64_t count, int64_t D, int64_t kept, const uint8_t *in, const int64_t *row,
                                const uint8_t *mask, const int64_t *mask_row, const uint8_t *bits,
                                const int64_t *meta_place, const int64_t *code_place, int64_t groups,
                                const int64_t *group_first, int accumulate, float *out, void *stream);

#ifdef __cplusplus
}
#endif
#endif
