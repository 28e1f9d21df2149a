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
constexpr int64_t kShort = 96;         // entries: the rows that ...
constexpr int64_t kTogether = 8;       // ... are taken together

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

/* 16 lanes that the compiler keeps in registers, whatever their size: arrays of lanes it folds one by one. */
typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
static_assert(kLanes == 16, "the two halves of fold()");

template <typename V, typename T>
BITRING_INLINE V load_lanes(const T *from) {
    V lanes;
    std::memcpy(&lanes, from, sizeof lanes);
    return lanes;
}

template <typename V>
BITRING_INLINE V least(V a, V b) { return b < a ? b : a; }
template <typename V>
BITRING_INLINE V most(V a, V b) { return b > a ? b : a; }

/* 16 lanes become one: halves, quarters, then one by one. */
template <typename V, typename Choose>
BITRING_INLINE auto fold(V x, Choose choose) {
    const auto eight = choose(__builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7),
                              __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15));
    const auto four =
        choose(__builtin_shufflevector(eight, eight, 0, 1, 2, 3), __builtin_shufflevector(eight, eight, 4, 5, 6, 7));
    const auto two = choose(__builtin_shufflevector(four, four, 0, 1, 0, 1), __builtin_shufflevector(four, four, 2, 3, 2, 3));
    return choose(two, __builtin_shufflevector(two, two, 1, 0, 1, 0))[0];
}

/* A row in whole vectors: e entries are the `whole` of `body`, then those of `rest`, filled up with the row's first. */
struct Lanes {
    const float *body, *rest;
    int64_t whole, e;
};

/* Least and largest entry; whether all are finite: NaNs and infinities have the largest bits. */
BITRING_INLINE bool range_of(const Lanes &row, float *low, float *high) {
    const float *last = row.whole < row.e ? row.rest : row.body;
    Floats lows = load_lanes<Floats>(last), highs = lows;
    Words largest = load_lanes<Words>(last) & kMagnitude;
    for (int64_t c = 0; c < row.whole; c += kLanes) {
        const Floats h = load_lanes<Floats>(row.body + c);
        lows = least(lows, h);
        highs = most(highs, h);
        largest = most(largest, load_lanes<Words>(row.body + c) & kMagnitude);
    }
    *low = fold(lows, [](auto a, auto b) __attribute__((always_inline)) { return least(a, b); });
    *high = fold(highs, [](auto a, auto b) __attribute__((always_inline)) { return most(a, b); });
    return fold(largest, [](auto a, auto b) __attribute__((always_inline)) { return most(a, b); }) < kExponent;
}

/* Codes of `kCount` entries, from column `first` on: four vectors at a time hide each other's latencies. */
template <int64_t kCount>
BITRING_INLINE void round_lanes(const float *entries, int64_t first, const Scale &scale, float levels, uint32_t low,
                                uint32_t high, uint8_t *codes) {
    uint32_t code[kCount]; /* one size of lane: where the stores are bytes, 16 lanes become four short vectors */
#pragma GCC unroll 1
    for (int64_t i = 0; i < kCount; ++i)
        code[i] = quantise(entries[i], scale, levels, hash(low, high, static_cast<uint32_t>(first + i)));
#pragma GCC unroll 1
    for (int64_t i = 0; i < kCount; ++i) codes[i] = static_cast<uint8_t>(code[i]);
}

/* Codes of a row, one a byte, then zeros up to a whole number of planes: 7 at most. */
BITRING_INLINE void round_row(const Lanes &row, const Scale &scale, float levels, uint64_t state, uint8_t *codes) {
    const uint32_t low = static_cast<uint32_t>(state), high = static_cast<uint32_t>(state >> 32);
    int64_t c = 0;
    for (; c + 4 * kLanes <= row.whole; c += 4 * kLanes)
        round_lanes<4 * kLanes>(row.body + c, c, scale, levels, low, high, codes + c);
    for (; c < row.whole; c += kLanes) round_lanes<kLanes>(row.body + c, c, scale, levels, low, high, codes + c);
    if (c < row.e) round_lanes<kLanes>(row.rest, c, scale, levels, low, high, codes + c);
    std::memset(codes + row.e, 0, 8);
}

/* The first `count` of 8 bytes: what lies behind a row in a buffer is another's. */
BITRING_INLINE uint64_t read_bytes(const uint8_t *from, int64_t count) {
    uint64_t word = 0;
    if (count >= 8) {
        std::memcpy(&word, from, 8);
        return word;
    }
    uint32_t four = 0;
    uint16_t two = 0;
    int place = 0;
    if (count & 4) std::memcpy(&four, from, 4), word = four, place = 32;
    if (count & 2) std::memcpy(&two, from + place / 8, 2), word |= static_cast<uint64_t>(two) << place, place += 16;
    if (count & 1) word |= static_cast<uint64_t>(from[place / 8]) << place;
    return word;
}

BITRING_INLINE void write_bytes(uint8_t *to, uint64_t word, int64_t count) {
    if (count >= 8) {
        std::memcpy(to, &word, 8);
        return;
    }
    if (count & 4) std::memcpy(to, &word, 4), to += 4, word >>= 32;
    if (count & 2) std::memcpy(to, &word, 2), to += 2, word >>= 16;
    if (count & 1) *to = static_cast<uint8_t>(word);
}

/* Whole vectors, then 8 bytes at a time: codes stay within their bytes, and short rows are the common ones. */
template <int kBits>
BITRING_INLINE void pack(const uint8_t *codes, int64_t B, uint8_t *packed) {
    int64_t k = 0;
    for (; k + 4 * kLanes <= B; k += 4 * kLanes)
        for (int64_t i = k; i < k + 4 * kLanes; ++i) {
            uint8_t byte = codes[i];
            for (int p = 1; p < 8 / kBits; ++p) byte = static_cast<uint8_t>(byte | codes[i + p * B] << (p * kBits));
            packed[i] = byte;
        }
    for (; k < B; k += 8) {
        uint64_t word = 0;
        for (int p = 0; p < 8 / kBits; ++p) {
            uint64_t plane;
            std::memcpy(&plane, codes + k + p * B, 8);
            word |= plane << (p * kBits);
        }
        write_bytes(packed + k, word, B - k);
    }
}

/* Plane by plane: each writes up to 7 bytes into the next one's place. */
template <int kBits>
BITRING_INLINE void unpack(const uint8_t *packed, int64_t B, uint8_t *codes) {
    constexpr uint8_t kLevels = static_cast<uint8_t>((1u << kBits) - 1);
    constexpr uint64_t kEach = 0x0101010101010101ull * kLevels;
    const int64_t whole = B / (4 * kLanes) * (4 * kLanes);
    for (int p = 0; p < 8 / kBits; ++p) {
        int64_t k = 0;
        for (; k < whole; k += 4 * kLanes)
            for (int64_t i = k; i < k + 4 * kLanes; ++i)
                codes[i + p * B] = static_cast<uint8_t>(packed[i] >> (p * kBits)) & kLevels;
        for (; k < B; k += 8) {
            const uint64_t word = read_bytes(packed + k, B - k) >> (p * kBits) & kEach;
            std::memcpy(codes + k + p * B, &word, 8);
        }
    }
}

/* A row's kept entries as floats, in whole vectors: where they lie, or in `entries` (kept and 16 more). */
template <typename T>
BITRING_INLINE Lanes gather(const Messages &m, int64_t i, const T *x, float *entries) {
    const T *row = x + m.row[i] * m.D;
    const int64_t whole = m.kept / kLanes * kLanes;
    const float *body = entries;
    if (m.mask) compress(row, m.mask + m.mask_row[i] * m.D, m.D, entries);
    else if constexpr (sizeof(T) == 4) {
        body = row;
        for (int64_t c = whole; c < m.kept; ++c) entries[c] = row[c];
    } else
        for (int64_t c = 0; c < m.kept; ++c) entries[c] = load(row + c);
    const Floats filling = Floats{} + body[0];
    std::memcpy(entries + m.kept, &filling, sizeof filling);
    return {body, entries + whole, whole, m.kept};
}

/* Codes of one message of up to 8 bits. */
BITRING_INLINE void write_codes(const Lanes &row, const Scale &scale, int bits, uint64_t state, uint8_t *codes,
                                uint8_t *single) {
    const int64_t B = code_bytes(row.e, bits);
    if (scale.constant) {
        std::memset(codes, 0, static_cast<size_t>(B));
        codes[0] = static_cast<uint8_t>(scale.last_bit);
        return;
    }
    round_row(row, scale, static_cast<float>((1 << bits) - 1), state, single);
    switch (bits) {
        case 1: pack<1>(single, B, codes); break;
        case 2: pack<2>(single, B, codes); break;
        case 4: pack<4>(single, B, codes); break;
        default: std::memcpy(codes, single, static_cast<size_t>(B));
    }
}

/* A few messages at a time, first all ranges, then all codes: one row after the other, a processor would wait for
 * the end of each one's chain from range to scale to codes. */
template <typename T>
BITRING_INLINE int64_t quantise_messages(int64_t first, int64_t past, const Messages &m, const T *x,
                                         const uint64_t *where, uint64_t key, uint8_t *out, float *range, Work &work) {
    const int64_t stride = m.kept + kLanes;
    const int64_t together = m.kept <= kShort ? kTogether : 1;
    Lanes lanes[kTogether];
    Scale scales[kTogether];
    int64_t bad = -1;
    for (int64_t block = first; block < past; block += together) {
        const int64_t end = std::min(past, block + together);
        for (int64_t i = block; i < end; ++i) {
            if (i + kAhead < past) {
                const T *next = x + m.row[i + kAhead] * m.D;
                for (int64_t c = 0; c < m.D; c += 64 / static_cast<int64_t>(sizeof(T))) __builtin_prefetch(next + c);
            }
            const int64_t slot = i - block;
            const int bits = m.bits[i];
            lanes[slot] = gather(m, i, x, work.entries + slot * stride);
            float low = 0.0f, high = 0.0f;
            if (bits != 32 || range) {
                const bool finite = range_of(lanes[slot], &low, &high);
                if (!finite && bits != 32 && bad < 0) bad = i;
                if (range) range[i] = high - low;
            }
            if (bits != 32) {
                scales[slot] = scale_of(low, high, bits);
                std::memcpy(out + m.meta_place[i], &scales[slot].meta, kMetaBytes);
            }
        }
        for (int64_t i = block; i < end; ++i) {
            const Lanes &row = lanes[i - block];
            uint8_t *codes = out + m.code_place[i];
            if (m.bits[i] != 32) write_codes(row, scales[i - block], m.bits[i], mix(where[i] ^ key), codes, work.codes);
            else {
                std::memcpy(codes, row.body, static_cast<size_t>(row.whole) * 4);
                std::memcpy(codes + row.whole * 4, row.rest, static_cast<size_t>(row.e - row.whole) * 4);
            }
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

/* One message's entries as floats. `slack`: whole vectors may be written. */
BITRING_INLINE void restore_message(int64_t i, const Messages &m, const uint8_t *in, Work &work, float *entries,
                                    bool slack) {
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
    if (slack && whole < m.kept) {
        const uint8_t *rest = single + whole;
        if (bits == 8) { /* what lies behind them in the buffer is another's, or nobody's */
            std::memcpy(work.codes, rest, static_cast<size_t>(m.kept - whole));
            rest = work.codes;
        }
        for (int64_t l = 0; l < kLanes; ++l) entries[whole + l] = dequantise(rest[l], restore);
        return;
    }
    for (int64_t c = whole; c < m.kept; ++c) entries[c] = dequantise(single[c], restore);
}

BITRING_CLONES void dequantise_groups(int64_t first, int64_t past, const Messages &m, const int64_t *group_first,
                                      const uint8_t *in, int accumulate, float *out, Work &work) {
    float *entries = work.entries;
    for (int64_t g = first; g < past; ++g)
        for (int64_t i = group_first ? group_first[g] : g; i < (group_first ? group_first[g + 1] : g + 1); ++i) {
            float *row = out + m.row[i] * m.D;
            if (!m.mask && !accumulate) {
                restore_message(i, m, in, work, row, false);
                continue;
            }
            restore_message(i, m, in, work, entries, true);
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
    constexpr uint64_t kWidths = 1ull << 1 | 1ull << 2 | 1ull << 4 | 1ull << 8 | 1ull << 32;
    int64_t wrong = 0; /* negative, or odd: no branch, this is read before every call */
    for (int64_t i = 0; i < m.count; ++i) {
        const uint64_t b = m.bits[i];
        wrong |= static_cast<int64_t>(b > 32 || !(kWidths >> (b & 63) & 1));
        wrong |= (m.row[i] | m.code_place[i] | (b == 32 ? 0 : m.meta_place[i])) & INT64_MIN;
    }
    if (m.mask)
        for (int64_t i = 0; i < m.count; ++i) wrong |= m.mask_row[i] & INT64_MIN;
    return wrong == 0;
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
