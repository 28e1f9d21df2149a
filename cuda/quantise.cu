/* Quantised messages on a CUDA device: those of quantise.cpp, bit for bit. One warp a message.
 *
 * The arithmetic is rounding.h's. A row is read twice, for its range and for its codes; the second time it
 * lies in the L1 cache. Under a mask a warp looks at 32 columns at a time, a ballot tells every kept entry
 * its place, and the codes wait in shared memory, a byte each, until they are packed.
 * g++ compiles the same source over emulated_cuda.h: that is how it is tested where there is no device.
 */
#ifdef __CUDACC__
#include <cuda_runtime.h>
#define BITRING_SHARED(name) extern __shared__ uint8_t name[]
#else
#include "emulated_cuda.h"
#endif

#include <algorithm>
#include <type_traits>

#include "bitring.h"
#include "rounding.h"

#ifndef BITRING_MOST_BLOCKS
#define BITRING_MOST_BLOCKS (1 << 20)
#endif

namespace {

using namespace bitring;

constexpr int kLanes = 32;
constexpr unsigned kAll = 0xFFFFFFFFu;
constexpr int kWarps = 8;                 // of a block
constexpr int64_t kWidest = 1 << 16;      // entries: their codes fit into the shared memory of any device
constexpr int64_t kPlainShared = 48 << 10; // bytes a block has without asking

/* What a message is made of; see bitring.h. */
struct Messages {
    int64_t count, D, kept;
    const int64_t *row;
    const uint8_t *mask;
    const int64_t *mask_row;
    const uint8_t *bits;
    const int64_t *meta_place, *code_place;
};

__device__ float load(const float *x) { return *x; }
__device__ float load(const uint16_t *x) { return float_of(static_cast<uint32_t>(*x) << 16); }

__device__ float4 load4(const float *x) { return *reinterpret_cast<const float4 *>(x); }
__device__ float4 load4(const uint16_t *x) {
    const ushort4 four = *reinterpret_cast<const ushort4 *>(x);
    return {load(&four.x), load(&four.y), load(&four.z), load(&four.w)};
}

__device__ bool is_aligned(const void *place, size_t bytes) { return reinterpret_cast<uintptr_t>(place) % bytes == 0; }

/* Messages begin at any byte; a device moves words only to and from whole words. */
__device__ void store_word(uint8_t *place, uint32_t value) {
    if (is_aligned(place, 4)) *reinterpret_cast<uint32_t *>(place) = value;
    else
        for (int i = 0; i < 4; ++i) place[i] = static_cast<uint8_t>(value >> (8 * i));
}

__device__ uint32_t load_word(const uint8_t *place) {
    if (is_aligned(place, 4)) return *reinterpret_cast<const uint32_t *>(place);
    uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value |= static_cast<uint32_t>(place[i]) << (8 * i);
    return value;
}

/* visit(j, column) at the j-th kept column of a row, for the first e of them. */
template <typename Visit>
__device__ void visit_kept(const uint8_t *mask, int D, int e, int lane, Visit visit) {
    int before = 0;
    for (int first = 0; first < D; first += kLanes) {
        const int c = first + lane;
        const bool keep = c < D && mask[c];
        const unsigned votes = __ballot_sync(kAll, keep);
        const int j = before + __popc(votes & ((1u << lane) - 1));
        if (keep && j < e) visit(j, c);  // a mask that keeps more than it says harms no other message
        before += __popc(votes);
    }
}

/* Least and largest entry, and the largest magnitude as bits. Lanes may end with zeros of either sign:
 * scale_of makes them one. */
struct Range {
    float low, high;
    uint32_t largest;

    __device__ void add(float h) {
        low = fminf(low, h);
        high = fmaxf(high, h);
        const uint32_t magnitude = bits_of(h) & kMagnitude;
        largest = magnitude > largest ? magnitude : largest;
    }
};

template <typename T>
__device__ Range range_of(const T *row, const uint8_t *mask, int D, int lane) {
    Range range = {float_of(kExponent), -float_of(kExponent), 0};
    if (mask) {
        for (int c = lane; c < D; c += kLanes)
            if (mask[c]) range.add(load(row + c));
    } else if (D % 4 == 0 && is_aligned(row, 4 * sizeof(T))) {
        for (int c = 4 * lane; c < D; c += 4 * kLanes) {
            const float4 four = load4(row + c);
            range.add(four.x), range.add(four.y), range.add(four.z), range.add(four.w);
        }
    } else {
        for (int c = lane; c < D; c += kLanes) range.add(load(row + c));
    }
    for (int step = kLanes / 2; step; step /= 2) {
        range.low = fminf(range.low, __shfl_xor_sync(kAll, range.low, step));
        range.high = fmaxf(range.high, __shfl_xor_sync(kAll, range.high, step));
    }
    return range;
}

/* Byte k holds entries k, k + B, k + 2B, ... (quantise.cpp); code_of(entry) gives their codes. */
template <int kBits, typename CodeOf>
__device__ void pack_planes(int e, int lane, uint8_t *codes, CodeOf code_of) {
    constexpr int kPlanes = 8 / kBits;
    const int B = static_cast<int>(code_bytes(e, kBits));
    for (int k = lane; k < B; k += kLanes) {
        uint32_t byte = 0;
        for (int p = 0; p < kPlanes; ++p)
            if (k + p * B < e) byte |= code_of(k + p * B) << (p * kBits);
        codes[k] = static_cast<uint8_t>(byte);
    }
}

template <typename CodeOf>
__device__ void pack(int bits, int e, int lane, uint8_t *codes, CodeOf code_of) {
    switch (bits) {
        case 1: pack_planes<1>(e, lane, codes, code_of); break;
        case 2: pack_planes<2>(e, lane, codes, code_of); break;
        case 4: pack_planes<4>(e, lane, codes, code_of); break;
        default: pack_planes<8>(e, lane, codes, code_of);
    }
}

template <typename T, bool kMasked>
__global__ void __launch_bounds__(kWarps * kLanes)
quantise_messages(Messages m, const T *x, const uint64_t *where, uint64_t key, uint8_t *out, float *ranges,
                  unsigned long long *bad, int stage_bytes) {
    BITRING_SHARED(stages);
    const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes, warps = blockDim.x / kLanes;
    const int D = static_cast<int>(m.D), e = static_cast<int>(m.kept);
    uint8_t *stage = stages + warp * stage_bytes;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * warps + warp; i < m.count;
         i += static_cast<int64_t>(gridDim.x) * warps) {
        const T *row = x + m.row[i] * m.D;
        const uint8_t *mask = kMasked ? m.mask + m.mask_row[i] * m.D : nullptr;
        const Range range = range_of(row, mask, D, lane);
        const bool infinite = __ballot_sync(kAll, range.largest >= kExponent) != 0;
        if (lane == 0) {
            if (infinite && m.bits[i] != 32) atomicMin(bad, static_cast<unsigned long long>(i));
            if (ranges) ranges[i] = (range.high + 0.0f) - (range.low + 0.0f);
        }
        uint8_t *codes = out + m.code_place[i];
        const int bits = m.bits[i];
        if (bits == 32) {
            const auto copy = [&](int j, int c) { store_word(codes + 4 * j, bits_of(load(row + c))); };
            if (kMasked) visit_kept(mask, D, e, lane, copy);
            else
                for (int c = lane; c < D; c += kLanes) copy(c, c);
            continue;
        }
        const Scale scale = scale_of(range.low, range.high, bits);
        if (lane == 0) store_word(out + m.meta_place[i], scale.meta);
        if (scale.constant) {
            const int B = static_cast<int>(code_bytes(e, bits));
            for (int k = lane; k < B; k += kLanes) codes[k] = static_cast<uint8_t>(k ? 0 : scale.last_bit);
            continue;
        }
        const uint64_t state = mix(where[i] ^ key);
        const uint32_t low = static_cast<uint32_t>(state), high = static_cast<uint32_t>(state >> 32);
        const float levels = static_cast<float>((1 << bits) - 1);
        const auto code = [&](int j, int c) {
            return quantise(load(row + c), scale, levels, hash(low, high, static_cast<uint32_t>(j)));
        };
        if (kMasked) {
            visit_kept(mask, D, e, lane, [&](int j, int c) { stage[j] = static_cast<uint8_t>(code(j, c)); });
            __syncwarp();
            pack(bits, e, lane, codes, [&](int j) { return static_cast<uint32_t>(stage[j]); });
            __syncwarp();  // before the next message's codes: a ballot orders no memory
        } else {
            pack(bits, e, lane, codes, [&](int c) { return code(c, c); });
        }
    }
}

/* put(entry, value) for every entry of a message. */
template <int kBits, typename Put>
__device__ void unpack_planes(const uint8_t *codes, const Restore &restore, int e, int lane, Put put) {
    constexpr int kPlanes = 8 / kBits;
    constexpr uint32_t kLevels = (1u << kBits) - 1;
    const int B = static_cast<int>(code_bytes(e, kBits));
    for (int k = lane; k < B; k += kLanes) {
        const uint32_t byte = codes[k];
        for (int p = 0; p < kPlanes; ++p)
            if (k + p * B < e) put(k + p * B, dequantise((byte >> (p * kBits)) & kLevels, restore));
    }
}

template <typename Put>
__device__ void unpack(int bits, const uint8_t *codes, const Restore &restore, int e, int lane, Put put) {
    if (bits == 32)
        for (int c = lane; c < e; c += kLanes) put(c, float_of(load_word(codes + 4 * c)));
    else if (restore.constant)
        for (int c = lane; c < e; c += kLanes) put(c, restore.zero);
    else if (bits == 1) unpack_planes<1>(codes, restore, e, lane, put);
    else if (bits == 2) unpack_planes<2>(codes, restore, e, lane, put);
    else if (bits == 4) unpack_planes<4>(codes, restore, e, lane, put);
    else unpack_planes<8>(codes, restore, e, lane, put);
}

/* The same under a mask: put(column, value) for every column, 0 where the mask is. */
template <typename Put>
__device__ void unpack_kept(int bits, const uint8_t *codes, const Restore &restore, int e, const uint8_t *mask, int D,
                            int lane, Put put) {
    const int B = static_cast<int>(code_bytes(e, bits));
    const uint32_t levels = (1u << bits % 32) - 1;
    int before = 0;
    for (int first = 0; first < D; first += kLanes) {
        const int c = first + lane;
        const bool keep = c < D && mask[c];
        const unsigned votes = __ballot_sync(kAll, keep);
        const int j = before + __popc(votes & ((1u << lane) - 1));
        before += __popc(votes);
        float value = 0.0f;
        if (keep && bits == 32) value = float_of(load_word(codes + 4 * j));
        else if (keep && restore.constant) value = restore.zero;
        else if (keep) {
            int plane = 0, k = j;  // j / B and j % B: of 8 planes at most, so without a division
            for (int step = 4; step; step /= 2)
                if (k >= step * B) plane += step, k -= step * B;
            value = dequantise((static_cast<uint32_t>(codes[k]) >> (plane * bits)) & levels, restore);
        }
        if (c < D) put(c, value);
    }
}

template <bool kMasked, bool kAdd>
__global__ void __launch_bounds__(kWarps * kLanes)
dequantise_groups(Messages m, const uint8_t *in, int64_t groups, const int64_t *group_first, float *out) {
    const int lane = threadIdx.x % kLanes, warp = threadIdx.x / kLanes, warps = blockDim.x / kLanes;
    const int D = static_cast<int>(m.D), e = static_cast<int>(m.kept);
    for (int64_t g = static_cast<int64_t>(blockIdx.x) * warps + warp; g < groups;
         g += static_cast<int64_t>(gridDim.x) * warps) {
        const int64_t past = group_first ? group_first[g + 1] : g + 1;
        for (int64_t i = group_first ? group_first[g] : g; i < past; ++i) {
            float *row = out + m.row[i] * m.D;
            const uint8_t *codes = in + m.code_place[i];
            const int bits = m.bits[i];
            const Restore restore = bits == 32 ? Restore{} : restore_of(load_word(in + m.meta_place[i]), codes[0]);
            const auto put = [&](int c, float value) { row[c] = kAdd ? row[c] + value : value; };
            if (kMasked) unpack_kept(bits, codes, restore, e, m.mask + m.mask_row[i] * m.D, D, lane, put);
            else unpack(bits, codes, restore, e, lane, put);
            __syncwarp();  // another lane may add the next message at the same column
        }
    }
}

/* A warp a task, `stage` bytes of shared memory a warp. */
template <typename... P>
int launch(void (*kernel)(P...), int64_t tasks, int stage, void *stream, std::common_type_t<P>... arguments) {
    const int warps = stage ? static_cast<int>(std::clamp<int64_t>(kPlainShared / stage, 1, kWarps)) : kWarps;
    const int64_t blocks = std::min<int64_t>((tasks + warps - 1) / warps, BITRING_MOST_BLOCKS);
    const int64_t shared = static_cast<int64_t>(warps) * stage;
#ifdef __CUDACC__
    const void *function = reinterpret_cast<const void *>(kernel);
    cudaError_t status = cudaSuccess;
    if (shared > kPlainShared)
        status = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    void *pointers[] = {&arguments...};
    if (status == cudaSuccess)
        status = cudaLaunchKernel(function, dim3(static_cast<unsigned>(blocks)), dim3(warps * kLanes), pointers,
                                  static_cast<size_t>(shared), static_cast<cudaStream_t>(stream));
    if (status == cudaSuccess) return BITRING_OK;
    (void)cudaGetLastError();  // it is told by our code: the caller's next check must not find it again
    return BITRING_DEVICE_ERROR;
#else
    (void)stream;
    return emulated::launch(kernel, blocks, warps * kLanes, shared, arguments...) ? BITRING_DEVICE_ERROR : BITRING_OK;
#endif
}

bool sane(const Messages &m, const void *x, const void *wire) {
    if (m.count < 0 || m.D < 1 || m.D > kWidest || m.kept < 1 || m.kept > m.D) return false;
    if (m.mask ? !m.mask_row : m.kept != m.D) return false;
    return m.count == 0 || (x && wire && m.row && m.bits && m.meta_place && m.code_place);
}

template <typename T>
int quantise_all(const Messages &m, const T *x, const uint64_t *where, uint64_t key, uint8_t *out, float *range,
                 int64_t *bad, void *stream) {
    if (!sane(m, x, out) || !bad || (m.count && !where)) return BITRING_BAD_ARGUMENT;
    if (m.count == 0) return BITRING_OK;
    const int stage = m.mask ? static_cast<int>(m.kept) : 0;
    auto *first_bad = reinterpret_cast<unsigned long long *>(bad);  // as unsigned, -1 lies above every message
    return launch(m.mask ? quantise_messages<T, true> : quantise_messages<T, false>, m.count, stage, stream, m, x, where,
                  key, out, range, first_bad, stage);
}

}  // namespace

extern "C" int bitring_cuda_abi(void) { return BITRING_ABI; }

extern "C" int bitring_cuda_device_count(int *count) {
    if (!count) return BITRING_BAD_ARGUMENT;
    *count = 1;
#ifdef __CUDACC__
    const cudaError_t status = cudaGetDeviceCount(count);
    if (status != cudaSuccess) {
        *count = 0;
        (void)cudaGetLastError();
        const bool none = status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver;
        return none ? BITRING_NO_DEVICE : BITRING_DEVICE_ERROR;
    }
#endif
    return *count ? BITRING_OK : BITRING_NO_DEVICE;
}

extern "C" int bitring_cuda_quantise_f32(int64_t count, int64_t D, int64_t kept, const float *x, const int64_t *row,
                                         const uint8_t *mask, const int64_t *mask_row, const uint8_t *bits,
                                         const int64_t *meta_place, const int64_t *code_place, const uint64_t *where,
                                         uint64_t key, uint8_t *out, float *range, int64_t *bad, void *stream) {
    const Messages m = {count, D, kept, row, mask, mask_row, bits, meta_place, code_place};
    return quantise_all(m, x, where, key, out, range, bad, stream);
}

extern "C" int bitring_cuda_quantise_bf16(int64_t count, int64_t D, int64_t kept, const uint16_t *x, const int64_t *row,
                                          const uint8_t *mask, const int64_t *mask_row, const uint8_t *bits,
                                          const int64_t *meta_place, const int64_t *code_place, const uint64_t *where,
                                          uint64_t key, uint8_t *out, float *range, int64_t *bad, void *stream) {
    const Messages m = {count, D, kept, row, mask, mask_row, bits, meta_place, code_place};
    return quantise_all(m, x, where, key, out, range, bad, stream);
}

extern "C" int bitring_cuda_dequantise_f32(int64_t count, int64_t D, int64_t kept, const uint8_t *in, const int64_t *row,
                                           const uint8_t *mask, const int64_t *mask_row, const uint8_t *bits,
                                           const int64_t *meta_place, const int64_t *code_place, int64_t groups,
                                           const int64_t *group_first, int accumulate, float *out, void *stream) {
    const Messages m = {count, D, kept, row, mask, mask_row, bits, meta_place, code_place};
    if (!sane(m, out, in) || groups < 0 || (!group_first && groups != count)) return BITRING_BAD_ARGUMENT;
    if (groups == 0 || count == 0) return BITRING_OK;
    const auto kernel = mask ? accumulate ? dequantise_groups<true, true> : dequantise_groups<true, false>
                             : accumulate ? dequantise_groups<false, true> : dequantise_groups<false, false>;
    return launch(kernel, groups, 0, stream, m, in, groups, group_first, out);
}
