/* One source, three instruction sets, chosen when the library is loaded. Results are the same bits:
 * the order of every sum is fixed, and -ffp-contract=off keeps products and sums apart. */
#ifndef BITRING_DISPATCH_H
#define BITRING_DISPATCH_H

#if !defined(BITRING_ONE_TARGET) && defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define BITRING_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
/* For the few functions that are written twice, with intrinsics for AVX-512. */
#define BITRING_PORTABLE __attribute__((target("default")))
#define BITRING_AVX512 __attribute__((target("arch=x86-64-v4")))
#else
#define BITRING_CLONES
#define BITRING_PORTABLE
#endif
#define BITRING_INLINE static inline __attribute__((always_inline))

#endif
