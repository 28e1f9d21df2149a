/* Quantised messages on the CPU: gather, min/max, rounding and packing in one pass over the rows, and back.
 *
 * Codes of b bits are planar within a row: byte k of B = ceil(e b / 8) holds columns k, k + B, k + 2B, ...,
 * the first in its lowest bits. So every load is contiguous, for any e.
 */
#include <omp.h>

#include <algorithm>
#include <cstring>

#include "bitring.h"
#include "dispatch.h"
#include "rounding.h"

#ifdef BITRING_AVX512
#include <immintrin.h>
#endif

namespace {

using namespace bitring;

constexpr int64_t kWidest = 1 << 16;   // entries: a row lies on the stack
constexpr int64_t kMessagesPerChunk = 64;
constexpr int64_t kLanes = 16;
constexpr int64_t kAhead = 4;          // messages whose rows are prefetched

/* What a message is made of; see bitring.h. */
struct Messages {
    int64_t count, D, kept;
    const int64_t *row;
    const uint8_t *mask;
    const int64_t *mask_row;
    const uint8_t *bits;
    const int64_t *meta_place, *code_place;
};

/* A thread's scratch, on its stack. */
struct Work {
    float entries[kWidest + kLanes];     // whole vectors are read and written behind the last kept entry
    uint8_t codes[kWidest + 8 * kLanes];  // whole planes and whole lanes
};

BITRING_INLINE float load(const float *x) { return *x; }
BITRING_INLINE float load(const uint16_t *x) { return float_of(static_cast<uint32_t>(*x) << 16); }

/* No branch: which columns are kept can't be predicted. */
BITRING_INLINE float kept_or_zero(float value, uint8_t kept) {
    return float_of(bits_of(value) & -static_cast<uint32_t>(kept));
}

/* The kept entries of a row, close together. */
template <typename T>
BITRING_INLINE void compress_plain(const T *row, const uint8_t *mask, int64_t first, int64_t D, float *entries) {
    int64_t count = 0;
    for (int64_t c = first; c < D; ++c) {
        entries[count] = load(row + c);
        count += mask[c];
    }
}

/* Entries back to their columns, zeros between; or added. */
template <bool kAdd>
BITRING_INLINE void expand_plain(const float *entries, const uint8_t *mask, int64_t first, int64_t D, float *row) {
    int64_t count = 0;
    for (int64_t c = first; c < D; ++c) {
        const float value = kept_or_zero(entries[count], mask[c]);
        row[c] = kAdd ? row[c] + value : value;
        count += mask[c];
    }
}

BITRING_PORTABLE void compress(const float *row, const uint8_t *mask, int64_t D, float *entries) {
    compress_plain(row, mask, 0, D, entries);
}
BITRING_PORTABLE void expand(const float *entries, const uint8_t *mask, int64_t D, float *row) {
    expand_plain<false>(entries, mask, 0, D, row);
}
BITRING_PORTABLE void expand_add(const float *entries, const uint8_t *mask, int64_t D, float *row) {
    expand_plain<true>(entries, mask, 0, D, row);
}

#ifdef BITRING_AVX512
/* AVX-512 moves 16 columns an instruction. */
BITRING_AVX512 inline __mmask16 mask_of(const uint8_t *mask) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(mask));
    return _mm_test_epi8_mask(bytes, bytes);
}
BITRING_AVX512 void compress(const float *row, const uint8_t *mask, int64_t D, float *entries) {
    int64_t c = 0;
    for (; c + kLanes <= D; c += kLanes) {
        const __mmask16 kept = mask_of(mask + c);
        _mm512_storeu_ps(entries, _mm512_maskz_compress_ps(kept, _mm512_loadu_ps(row + c)));
        entries += __builtin_popcount(kept);
    }
    compress_plain(row, mask, c, D, entries);
}
BITRING_AVX512 void expand(const float *entries, const uint8_t *mask, int64_t D, float *row) {
    int64_t c = 0;
    for (; c + kLanes <= D; c += kLanes) {
        const __mmask16 kept = mask_of(mask + c);
        _mm512_storeu_ps(row + c, _mm512_maskz_expand_ps(kept, _mm512_loadu_ps(entries)));
        entries += __builtin_popcount(kept);
    }
    expand_plain<false>(entries, mask, c, D, row);
}
BITRING_AVX512 void expand_add(const float *entries, const uint8_t *mask, int64_t D, float *row) {
    int64_t c = 0;
    for (; c + kLanes <= D; c += kLanes) {
        const __mmask16 kept = mask_of(mask + c);
        const __m512 values = _mm512_maskz_expand_ps(kept, _mm512_loadu_ps(entries));
        _mm512_storeu_ps(row + c, _mm512_add_ps(_mm512_loadu_ps(row + c), values));
        entries += __builtin_popcount(kept);
    }
    expand_plain<true>(entries, mask, c, D, row);
}
#endif

/* bfloat16 rows are rare on a CPU. */
BITRING_INLINE void compress(const uint16_t *row, const uint8_t *mask, int64_t D, float *entries) {
    compress_plain(row, mask, 0, D, entries);
}

/* Least and largest entry; whether all are finite. */
BITRING_INLINE bool range_of(const float *entries, int64_t e, float *low, float *high) {
    float lows[kLanes], highs[kLanes];
    uint32_t largest[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) lows[i] = highs[i] = entries[0], largest[i] = 0;
    const int64_t whole = e / kLanes * kLanes;
    for (int64_t c = 0; c < whole; c += kLanes)
        for (int64_t i = 0; i < kLanes; ++i) {
            const float h = entries[c + i];
            lows[i] = h < lows[i] ? h : lows[i];
            highs[i] = h > highs[i] ? h : highs[i];
            largest[i] = std::max(largest[i], bits_of(h) & kMagnitude);
        }
    for (int64_t c = whole; c < e; ++c) {
        lows[0] = entries[c] < lows[0] ? entries[c] : lows[0];
        highs[0] = entries[c] > highs[0] ? entries[c] : highs[0];
        largest[0] = std::max(largest[0], bits_of(entries[c]) & kMagnitude);
    }
    for (int64_t half = kLanes / 2; half > 0; half /= 2)
        for (int64_t i = 0; i < half; ++i) {
            lows[i] = lows[i + half] < lows[i] ? lows[i + half] : lows[i];
            highs[i] = highs[i + half] > highs[i] ? highs[i + half] : highs[i];
            largest[i] = std::max(largest[i], largest[i + half]);
        }
    *low = lows[0];
    *high = highs[0];
    return largest[0] < kExponent;
}

/* Codes of `kCount` entries, from column `first` on: four vectors at a time hide each other's latencies. */
template <int64_t kCount>
BITRING_INLINE void round_lanes(const float *entries, int64_t first, const Scale &scale, float levels, uint32_t low,
                                uint32_t high, uint8_t *codes) {
    for (int64_t i = 0; i < kCount; ++i)
        codes[i] = static_cast<uint8_t>(
            quantise(entries[i], scale, levels, hash(low, high, static_cast<uint32_t>(first + i))));
}

/* Codes of a row, one a byte, then zeros up to a whole number of planes. */
BITRING_INLINE void round_row(const float *entries, int64_t e, int64_t padded, const Scale &scale, float levels,
                              uint64_t state, uint8_t *codes) {
    const uint32_t low = static_cast<uint32_t>(state), high = static_cast<uint32_t>(state >> 32);
    const int64_t whole = e / kLanes * kLanes;
    int64_t c = 0;
    for (; c + 4 * kLanes <= e; c += 4 * kLanes)
        round_lanes<4 * kLanes>(entries + c, c, scale, levels, low, high, codes + c);
    for (; c < whole; c += kLanes) round_lanes<kLanes>(entries + c, c, scale, levels, low, high, codes + c);
    if (whole < e) {
        float rest[kLanes] = {0.0f};
        for (c = whole; c < e; ++c) rest[c - whole] = entries[c];
        round_lanes<kLanes>(rest, whole, scale, levels, low, high, codes + whole);
    }
    for (c = e; c < padded; ++c) codes[c] = 0;
}

template <int kBits>
BITRING_INLINE void pack(const uint8_t *codes, int64_t B, uint8_t *packed) {
    for (int64_t k = 0; k < B; ++k) {
        uint8_t byte = codes[k];
        for (int p = 1; p < 8 / kBits; ++p) byte = static_cast<uint8_t>(byte | codes[k + p * B] << (p * kBits));
        packed[k] = byte;
    }
}

template <int kBits>
BITRING_INLINE void unpack(const uint8_t *packed, int64_t B, uint8_t *codes) {
    constexpr uint8_t kLevels = static_cast<uint8_t>((1u << kBits) - 1);
    for (int p = 0; p < 8 / kBits; ++p)
        for (int64_t k = 0; k < B; ++k) codes[k + p * B] = static_cast<uint8_t>(packed[k] >> (p * kBits)) & kLevels;
}

template <typename T>
BITRING_INLINE int64_t quantise_messages(int64_t first, int64_t past, const Messages &m, const T *x,
                                         const uint64_t *where, uint64_t key, uint8_t *out, float *range, Work &work) {
    float *entries = work.entries;
    int64_t bad = -1;
    for (int64_t i = first; i < past; ++i) {
        if (i + kAhead < past) {
            const T *next = x + m.row[i + kAhead] * m.D;
            for (int64_t c = 0; c < m.D; c += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(next + c);
        }
        const T *row = x + m.row[i] * m.D;
        const float *source = entries;
        if (m.mask) compress(row, m.mask + m.mask_row[i] * m.D, m.D, entries);
        else if constexpr (sizeof(T) == 4) source = row;
        else
            for (int64_t c = 0; c < m.D; ++c) entries[c] = load(row + c);
        uint8_t *codes = out + m.code_place[i];
        const int bits = m.bits[i];
        float low = 0.0f, high = 0.0f;
        if (bits != 32 || range) {
            const bool finite = range_of(source, m.kept, &low, &high);
            if (!finite && bits != 32 && bad < 0) bad = i;
            if (range) range[i] = high - low;
        }
        if (bits == 32) {
            std::memcpy(codes, source, static_cast<size_t>(m.kept) * 4);
            continue;
        }
        const Scale scale = scale_of(low, high, bits);
        std::memcpy(out + m.meta_place[i], &scale.meta, kMetaBytes);
        if (scale.constant) {
            std::memset(codes, 0, static_cast<size_t>(code_bytes(m.kept, bits)));
            codes[0] = static_cast<uint8_t>(scale.last_bit);
            continue;
        }
        const int64_t B = code_bytes(m.kept, bits);
        const float levels = static_cast<float>((1 << bits) - 1);
        round_row(source, m.kept, B * (8 / bits), scale, levels, mix(where[i] ^ key), work.codes);
        switch (bits) {
            case 1: pack<1>(work.codes, B, codes); break;
            case 2: pack<2>(work.codes, B, codes); break;
            case 4: pack<4>(work.codes, B, codes); break;
            default: std::memcpy(codes, work.codes, static_cast<size_t>(B));
        }
    }
    return bad;
}

BITRING_CLONES int64_t quantise_f32(int64_t first, int64_t past, const Messages &m, const float *x, const uint64_t *where,
                                    uint64_t key, uint8_t *out, float *range, Work &work) {
    return quantise_messages(first, past, m, x, where, key, out, range, work);
}

BITRING_CLONES int64_t quantise_bf16(int64_t first, int64_t past, const Messages &m, const uint16_t *x,
                                     const uint64_t *where, uint64_t key, uint8_t *out, float *range, Work &work) {
    return quantise_messages(first, past, m, x, where, key, out, range, work);
}

/* One message's entries as floats. */
BITRING_INLINE void restore_message(int64_t i, const Messages &m, const uint8_t *in, Work &work, float *entries) {
    const uint8_t *codes = in + m.code_place[i];
    const int bits = m.bits[i];
    if (bits == 32) {
        std::memcpy(entries, codes, static_cast<size_t>(m.kept) * 4);
        return;
    }
    uint32_t meta;
    std::memcpy(&meta, in + m.meta_place[i], kMetaBytes);
    const Restore restore = restore_of(meta, codes[0]);
    if (restore.constant) {
        for (int64_t c = 0; c < m.kept; ++c) entries[c] = restore.zero;
        return;
    }
    const int64_t B = code_bytes(m.kept, bits);
    const uint8_t *single = work.codes;
    switch (bits) {
        case 1: unpack<1>(codes, B, work.codes); break;
        case 2: unpack<2>(codes, B, work.codes); break;
        case 4: unpack<4>(codes, B, work.codes); break;
        default: single = codes;
    }
    const int64_t whole = m.kept / kLanes * kLanes;
    for (int64_t c = 0; c < whole; c += kLanes)
        for (int64_t l = 0; l < kLanes; ++l) entries[c + l] = dequantise(single[c + l], restore);
    for (int64_t c = whole; c < m.kept; ++c) entries[c] = dequantise(single[c], restore);
}

BITRING_CLONES void dequantise_groups(int64_t first, int64_t past, const Messages &m, const int64_t *group_first,
                                      const uint8_t *in, int accumulate, float *out, Work &work) {
    float *entries = work.entries;
    for (int64_t g = first; g < past; ++g)
        for (int64_t i = group_first ? group_first[g] : g; i < (group_first ? group_first[g + 1] : g + 1); ++i) {
            float *row = out + m.row[i] * m.D;
            if (!m.mask && !accumulate) {
                restore_message(i, m, in, work, row);
                continue;
            }
            restore_message(i, m, in, work, entries);
            if (!m.mask) {
                for (int64_t c = 0; c < m.D; ++c) row[c] += entries[c];
                continue;
            }
            const uint8_t *mask = m.mask + m.mask_row[i] * m.D;
            if (accumulate) expand_add(entries, mask, m.D, row);
            else expand(entries, mask, m.D, row);
        }
}

bool sane(const Messages &m, const void *x, const void *wire, int threads) {
    if (m.count < 0 || m.D < 1 || m.D > kWidest || m.kept < 1 || m.kept > m.D || threads < 1) return false;
    if (m.count == 0) return true;
    if (m.mask ? !m.mask_row : m.kept != m.D) return false;
    if (!x || !wire || !m.row || !m.bits || !m.meta_place || !m.code_place) return false;
    for (int64_t i = 0; i < m.count; ++i) {
        const int b = m.bits[i];
        if (b != 1 && b != 2 && b != 4 && b != 8 && b != 32) return false;
        if (m.row[i] < 0 || m.code_place[i] < 0 || (b != 32 && m.meta_place[i] < 0)) return false;
        if (m.mask && m.mask_row[i] < 0) return false;
    }
    return true;
}

template <typename T, typename Run>
int quantise_all(const Messages &m, const T *x, const uint64_t *where, uint8_t *out, int64_t *bad, int threads, Run run) {
    if (!sane(m, x, out, threads) || !bad || (m.count && !where)) return BITRING_BAD_ARGUMENT;
    const int64_t chunks = (m.count + kMessagesPerChunk - 1) / kMessagesPerChunk;
    int64_t worst = m.count;
#pragma omp parallel num_threads(threads) if (chunks > 1) reduction(min : worst)
    {
        Work work;
#pragma omp for schedule(static)
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            const int64_t found =
                run(chunk * kMessagesPerChunk, std::min(m.count, (chunk + 1) * kMessagesPerChunk), work);
            if (found >= 0) worst = std::min(worst, found);
        }
    }
    *bad = worst == m.count ? -1 : worst;
    return worst == m.count ? BITRING_OK : BITRING_NOT_FINITE;
}

}  // namespace

extern "C" int64_t bitring_code_bytes(int64_t entries, int bits) {
    return bits == 32 ? 4 * entries : code_bytes(entries, bits);
}

extern "C" int bitring_quantise_f32(int64_t count, int64_t D, int64_t kept, const float *x, const int64_t *row,
                                    const uint8_t *mask, const int64_t *mask_row, const uint8_t *bits,
                                    const int64_t *meta_place, const int64_t *code_place, const uint64_t *where,
                                    uint64_t key, uint8_t *out, float *range, int64_t *bad, int threads) {
    const Messages m = {count, D, kept, row, mask, mask_row, bits, meta_place, code_place};
    return quantise_all(m, x, where, out, bad, threads, [&](int64_t first, int64_t past, Work &work) {
        return quantise_f32(first, past, m, x, where, key, out, range, work);
    });
}

extern "C" int bitring_quantise_bf16(int64_t count, int64_t D, int64_t kept, const uint16_t *x, const int64_t *row,
                                     const uint8_t *mask, const int64_t *mask_row, const uint8_t *bits,
                                     const int64_t *meta_place, const int64_t *code_place, const uint64_t *where,
                                     uint64_t key, uint8_t *out, float *range, int64_t *bad, int threads) {
    const Messages m = {count, D, kept, row, mask, mask_row, bits, meta_place, code_place};
    return quantise_all(m, x, where, out, bad, threads, [&](int64_t first, int64_t past, Work &work) {
        return quantise_bf16(first, past, m, x, where, key, out, range, work);
    });
}

extern "C" int bitring_dequantise_f32(int64_t count, int64_t D, int64_t kept, const uint8_t *in, const int64_t *row,
                                      const uint8_t *mask, const int64_t *mask_row, const uint8_t *bits,
                                      const int64_t *meta_place, const int64_t *code_place, int64_t groups,
                                      const int64_t *group_first, int accumulate, float *out, int threads) {
    const Messages m = {count, D, kept, row, mask, mask_row, bits, meta_place, code_place};
    if (!sane(m, out, in, threads) || groups < 0 || (group_first ? group_first[groups] != count : groups != count))
        return BITRING_BAD_ARGUMENT;
    const int64_t chunks = (groups + kMessagesPerChunk - 1) / kMessagesPerChunk;
#pragma omp parallel num_threads(threads) if (chunks > 1)
    {
        Work work;
        std::memset(work.entries + kept, 0, kLanes * sizeof(float));  // looked at, never used
#pragma omp for schedule(static)
        for (int64_t chunk = 0; chunk < chunks; ++chunk)
            dequantise_groups(chunk * kMessagesPerChunk, std::min(groups, (chunk + 1) * kMessagesPerChunk), m, group_first,
                              in, accumulate, out, work);
    }
    return BITRING_OK;
}
