// Copies rows that lie anywhere: each is asked for a few rows ahead of its copy.  Included by variant.cpp alone.
#pragma once
#include <cstring>

#include "tidegate.h"
#include "variant.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

constexpr std::int64_t LINE = 64;  // bytes
constexpr std::int64_t AHEAD = 6;  // rows between the prefetch of a row and its copy

inline void prefetch(const char* from, std::int64_t size) {
    for (std::int64_t o = 0; o < size; o += LINE) __builtin_prefetch(from + o);
}

inline void copy(char* to, const char* from, std::int64_t size) {
#if defined(__AVX512F__)
    std::int64_t o = 0;
    for (; o + 64 <= size; o += 64) _mm512_storeu_si512(to + o, _mm512_loadu_si512(from + o));
    if (o < size) {
        const __mmask64 in = (__mmask64{1} << (size - o)) - 1;
        _mm512_mask_storeu_epi8(to + o, in, _mm512_maskz_loadu_epi8(in, from + o));
    }
#elif defined(__AVX2__)
    std::int64_t o = 0;
    for (; o + 32 <= size; o += 32)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + o), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + o)));
    if (o < size) std::memcpy(to + o, from + o, static_cast<std::size_t>(size - o));
#else
    std::memcpy(to, from, static_cast<std::size_t>(size));
#endif
}

void copy_rows(const tg_part* parts, std::int64_t n_parts, const RowPair* pairs, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) {
        if (i + AHEAD < n)
            for (std::int64_t p = 0; p < n_parts; ++p)
                prefetch(parts[p].source + pairs[i + AHEAD].source * parts[p].source_stride, parts[p].size);
        for (std::int64_t p = 0; p < n_parts; ++p)
            copy(parts[p].target + pairs[i].target * parts[p].target_stride,
                 parts[p].source + pairs[i].source * parts[p].source_stride, parts[p].size);
    }
}

}  // namespace
