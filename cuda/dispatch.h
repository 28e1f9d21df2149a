/* One source, three instruction sets, chosen when the library is loaded. Results are the same bits:
 * the order of every sum is fixed, and -ffp-contract=off keeps products and sums apart. */
#ifndef BITRING_DISPATCH_H
#define BITRING_DISPATCH_H

#if !defined(BITRING_ONE_TARGET) && defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define BITRING_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define BITRING_CLONES
#endif
#define BITRING_INLINE static inline __attribute__((always_inline))

#endif
