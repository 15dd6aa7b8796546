// The walk of residency over the order of eviction, and the search for what it left without a slot, per instruction set.
//
// Rules: an entry goes to exactly one of the two lists, in order; every variant finds the same; stores may run SLACK words past
// what counts, loads never leave an array.  Included by variant.cpp alone (see variant.h for what that forbids).
#pragma once
#include <cstring>

#include "variant.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

using i32 = std::int32_t;
using i64 = std::int64_t;
using u32 = std::uint32_t;

struct Lists {
    i32 *hit_positions, *hit_slots, *rest_positions, *rest_slots;  // [hot + SLACK], order kept
    i32* open;                                                     // [k + SLACK], entries of asked that the walk found no slot for
    i64 hits = 0, rest = 0, opened = 0, misses = 0;
    bool dropped = false;

    explicit Lists(const Residency& r) {
        i32** by_hot[] = {&hit_positions, &hit_slots, &rest_positions, &rest_slots};
        i32* w = r.work;
        for (i32** part : by_hot) *part = w, w += r.hot + SLACK;
        open = w;
    }
};

inline void move_words(i32* to, const i32* from, i64 n) {
    if (n > 0) std::memcpy(to, from, sizeof(i32) * static_cast<std::size_t>(n));
}

inline void blank_words(i32* to, i64 n) {
    if (n > 0) std::memset(to, 0xff, sizeof(i32) * static_cast<std::size_t>(n));
}

template <class T>
inline bool is_token(const Residency& r, T position) {
    return position >= 0 && static_cast<i64>(position) < r.length;
}

// Marks each position with where it is asked; backwards, so that the first of several stays.
template <class T>
void mark_asked(const Residency& r, const T* asked) {
    for (i64 i = r.k; i-- > 0;)
        if (is_token(r, asked[i])) r.mark[asked[i]] = r.base + static_cast<u32>(i);
}

// One entry of the order; without a branch, for which list it belongs to is hard to predict.
inline void walk_one(const Residency& r, Lists& l, i64 at) {
    i32 p = r.positions[at];
    const i32 s = r.slots[at];
    const bool kept = p >= 0 && p < r.keep;
    l.dropped |= p >= 0 && !kept;
    p = kept ? p : -1;
    const u32 d = kept ? r.mark[p] - r.base : ~u32{0};
    const bool hit = d < static_cast<u32>(r.k);
    l.hit_positions[l.hits] = p;
    l.hit_slots[l.hits] = s;
    l.rest_positions[l.rest] = p;
    l.rest_slots[l.rest] = s;
    if (hit) r.out[d] = s;
    l.hits += hit;
    l.rest += !hit;
}

template <class T>
inline void open_one(const Residency& r, const T* asked, Lists& l, i64 i) {
    l.open[l.opened] = static_cast<i32>(i);
    l.opened += is_token(r, asked[i]) && r.out[i] < 0;
}

#if defined(__AVX2__)

constexpr i64 BLOCK = 64, LOOK_AHEAD = 256;  // entries

// Marks of a block of the order, 0 past its end.  Loads one by one, well before the vector load of what they stored, are faster
// than the gather instructions of the CPUs at hand (which is also why these files are compiled without auto-vectorisation).
// The order of a row and layer was last touched a step ago: it is asked for ahead, across the pages where hardware stops.
inline void load_marks(const Residency& r, i64 at, u32* marks) {
    const i64 n = r.hot - at < BLOCK ? r.hot - at : BLOCK;
    const u32 keep = static_cast<u32>(r.keep);
    for (i64 j = 0; j < n; ++j) {
        const u32 p = static_cast<u32>(r.positions[at + j]);
        marks[j] = r.mark[p < keep ? p : 0];
    }
    for (i64 j = 0; j < n; j += 16) {
        __builtin_prefetch(r.positions + at + LOOK_AHEAD + j);
        __builtin_prefetch(r.slots + at + LOOK_AHEAD + j);
    }
}

#endif

#if defined(__AVX512F__)

void walk(const Residency& r, Lists& l) {
    const __m512i base = _mm512_set1_epi32(static_cast<i32>(r.base)), none = _mm512_set1_epi32(-1);
    const __m512i k = _mm512_set1_epi32(static_cast<i32>(r.k)), keep = _mm512_set1_epi32(static_cast<i32>(r.keep));
    alignas(64) u32 marks[BLOCK] = {};
    __mmask16 dropped = 0;
    for (i64 at = 0; at < r.hot; at += 16) {
        if (at % BLOCK == 0) load_marks(r, at, marks);
        const i64 left = r.hot - at;
        const __mmask16 in = left >= 16 ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
        __m512i p = _mm512_mask_loadu_epi32(none, in, r.positions + at);
        const __m512i s = _mm512_maskz_loadu_epi32(in, r.slots + at);
        const __mmask16 kept = _mm512_cmplt_epu32_mask(p, keep);  // unsigned: -1 is never kept
        dropped |= _mm512_mask_cmpge_epi32_mask(static_cast<__mmask16>(~kept), p, _mm512_setzero_si512());
        p = _mm512_mask_mov_epi32(none, kept, p);
        const __m512i d = _mm512_sub_epi32(_mm512_load_si512(marks + at % BLOCK), base);
        const __mmask16 hit = _mm512_mask_cmplt_epu32_mask(kept, d, k);
        const __mmask16 rest = static_cast<__mmask16>(in & ~hit);
        if (hit) {
            _mm512_mask_i32scatter_epi32(r.out, hit, d, s, 4);
            _mm512_storeu_si512(l.hit_positions + l.hits, _mm512_maskz_compress_epi32(hit, p));
            _mm512_storeu_si512(l.hit_slots + l.hits, _mm512_maskz_compress_epi32(hit, s));
            l.hits += __builtin_popcount(hit);
        }
        _mm512_storeu_si512(l.rest_positions + l.rest, _mm512_maskz_compress_epi32(rest, p));
        _mm512_storeu_si512(l.rest_slots + l.rest, _mm512_maskz_compress_epi32(rest, s));
        l.rest += __builtin_popcount(rest);
    }
    l.dropped = dropped != 0;
}

inline __mmask16 tokens(const i32* asked, __mmask16 in, __m512i length) {
    return _mm512_mask_cmplt_epu32_mask(in, _mm512_maskz_loadu_epi32(in, asked), length);
}

inline __mmask16 tokens(const i64* asked, __mmask16 in, __m512i length) {
    const __m512i wide = _mm512_and_si512(length, _mm512_set1_epi64(0xffffffff));
    const __mmask8 low = static_cast<__mmask8>(in), high = static_cast<__mmask8>(in >> 8);
    const __mmask8 a = _mm512_mask_cmplt_epu64_mask(low, _mm512_maskz_loadu_epi64(low, asked), wide);
    const __mmask8 b = _mm512_mask_cmplt_epu64_mask(high, _mm512_maskz_loadu_epi64(high, asked + 8), wide);
    return static_cast<__mmask16>(a | b << 8);
}

template <class T>
void find_open(const Residency& r, const T* asked, Lists& l) {
    __m512i index = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i zero = _mm512_setzero_si512(), length = _mm512_set1_epi32(static_cast<i32>(r.length));
    for (i64 i = 0; i < r.k; i += 16, index = _mm512_add_epi32(index, _mm512_set1_epi32(16))) {
        const i64 left = r.k - i;
        const __mmask16 in = left >= 16 ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
        const __mmask16 found_none = _mm512_mask_cmplt_epi32_mask(in, _mm512_maskz_loadu_epi32(in, r.out + i), zero);
        const __mmask16 open = found_none ? tokens(asked + i, found_none, length) : 0;
        _mm512_storeu_si512(l.open + l.opened, _mm512_maskz_compress_epi32(open, index));
        l.opened += __builtin_popcount(open);
    }
}

#elif defined(__AVX2__)

struct Compress {
    i32 lane[256][8];
};

constexpr Compress compress_table() {
    Compress t{};
    for (int mask = 0; mask < 256; ++mask)
        for (int bit = 0, n = 0; bit < 8; ++bit)
            if (mask >> bit & 1) t.lane[mask][n++] = bit;
    return t;
}

constexpr Compress COMPRESS = compress_table();

inline __m256i load(const i32* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }

inline void store_some(i32* to, __m256i x, int mask) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(x, load(COMPRESS.lane[mask])));
}

inline int lanes(__m256i mask) { return _mm256_movemask_ps(_mm256_castsi256_ps(mask)); }

void walk(const Residency& r, Lists& l) {
    const __m256i base = _mm256_set1_epi32(static_cast<i32>(r.base)), none = _mm256_set1_epi32(-1);
    const __m256i last = _mm256_set1_epi32(static_cast<i32>(r.k - 1)), keep = _mm256_set1_epi32(static_cast<i32>(r.keep));
    alignas(32) u32 marks[BLOCK] = {};
    alignas(32) i32 where[8], slot[8];
    int dropped = 0;
    i64 at = 0;
    for (; r.k > 0 && at + 8 <= r.hot; at += 8) {
        if (at % BLOCK == 0) load_marks(r, at, marks);
        __m256i p = load(r.positions + at);
        const __m256i s = load(r.slots + at), there = _mm256_cmpgt_epi32(p, none);
        const __m256i kept = _mm256_and_si256(there, _mm256_cmpgt_epi32(keep, p));
        dropped |= lanes(_mm256_andnot_si256(kept, there));
        p = _mm256_blendv_epi8(none, p, kept);
        const __m256i d = _mm256_sub_epi32(load(reinterpret_cast<const i32*>(marks) + at % BLOCK), base);
        const int hit = lanes(_mm256_and_si256(kept, _mm256_cmpeq_epi32(_mm256_min_epu32(d, last), d)));
        const int rest = ~hit & 0xff;
        if (hit) {
            _mm256_store_si256(reinterpret_cast<__m256i*>(where), d);
            _mm256_store_si256(reinterpret_cast<__m256i*>(slot), s);
            for (int bits = hit; bits; bits &= bits - 1) r.out[where[__builtin_ctz(bits)]] = slot[__builtin_ctz(bits)];
            store_some(l.hit_positions + l.hits, p, hit);
            store_some(l.hit_slots + l.hits, s, hit);
            l.hits += __builtin_popcount(hit);
        }
        store_some(l.rest_positions + l.rest, p, rest);
        store_some(l.rest_slots + l.rest, s, rest);
        l.rest += __builtin_popcount(rest);
    }
    l.dropped = dropped != 0;
    for (; at < r.hot; ++at) walk_one(r, l, at);
}

template <class T>
void find_open(const Residency& r, const T* asked, Lists& l) {
    const __m256i none = _mm256_set1_epi32(-1);
    i64 i = 0;
    for (; i + 8 <= r.k; i += 8) {
        int missing = ~lanes(_mm256_cmpgt_epi32(load(r.out + i), none)) & 0xff;
        for (; missing; missing &= missing - 1) open_one(r, asked, l, i + __builtin_ctz(missing));
    }
    for (; i < r.k; ++i) open_one(r, asked, l, i);
}

#else

void walk(const Residency& r, Lists& l) {
    for (i64 at = 0; at < r.hot; ++at) walk_one(r, l, at);
}

template <class T>
void find_open(const Residency& r, const T* asked, Lists& l) {
    for (i64 i = 0; i < r.k; ++i) open_one(r, asked, l, i);
}

#endif

}  // namespace
