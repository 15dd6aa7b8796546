// Copies of blocks whose target nobody reads soon: stores that go past the caches, which saves reading the target's lines first.
// Included by variant.cpp alone.
#pragma once
#include <cstring>

#include "variant.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

#if defined(__AVX512F__)
constexpr std::int64_t LANE = 64;
inline void stream_lane(char* to, const char* from) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), _mm512_loadu_si512(from));
}
#elif defined(__AVX2__)
constexpr std::int64_t LANE = 32;
inline void stream_lane(char* to, const char* from) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
#endif

void stream(char* to, const char* from, std::int64_t size) {
#if defined(__AVX2__)
    const std::int64_t head = static_cast<std::int64_t>(-reinterpret_cast<std::uintptr_t>(to) & (LANE - 1));
    if (size >= head + LANE) {
        std::memcpy(to, from, static_cast<std::size_t>(head));
        to += head, from += head, size -= head;
        for (; size >= LANE; to += LANE, from += LANE, size -= LANE) stream_lane(to, from);
        _mm_sfence();  // whoever is told that the copy has ended must see it
    }
#endif
    std::memcpy(to, from, static_cast<std::size_t>(size));
}

}  // namespace
