// Indexer rows as 8-bit integers with one scale a row (LIC8), and back, compiled once per instruction set.
//
// Rules: the scale is a half, the row's greatest size / 127 rounded to nearest even; an element is x / scale, rounded to nearest
// even and held within +-127; a scale of 0 makes a row of zeros; a row with a NaN or an infinity, or one whose scale is no
// finite half, gets a NaN for its scale and reads back as NaN, so that spoilt rows show.  Every operation is exact or rounds once
// as IEEE 754 says, so all variants give the same bits.  Included by variant.cpp alone (see variant.h for what that forbids).
#pragma once
#include <cstring>

#include "variant.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

using i8 = std::int8_t;
using u16 = std::uint16_t;

constexpr u32 SIZE_BITS = 0x7fffffff, INFINITE = 0x7f800000;
constexpr u16 HALF_INFINITE = 0x7c00, HALF_NAN = 0x7e00;

inline u32 bits_of(float x) {
    u32 b;
    std::memcpy(&b, &x, sizeof b);
    return b;
}

inline float float_of(u32 b) {
    float x;
    std::memcpy(&x, &b, sizeof x);
    return x;
}

// Of a finite float that is not negative; the mantissa is rounded by an addition, whose carry goes where it belongs.
inline u16 half_of(float x) {
    const u32 b = bits_of(x);
    if (b >= 0x47800000) return HALF_INFINITE;  // 65536
    if (b < 0x38800000) return static_cast<u16>(bits_of(x + 0.5f) - bits_of(0.5f));  // below 2^-14: multiples of 2^-24
    return static_cast<u16>((b - (u32{112} << 23) + 0xfff + (b >> 13 & 1)) >> 13);  // the exponent's bias is 112 less
}

inline float float_of_half(u16 h) {
    const u32 sign = u32{h} >> 15 << 31, exponent = u32{h} >> 10 & 31, mantissa = h & 0x3ff;
    if (exponent == 0) return float_of(sign | bits_of(static_cast<float>(mantissa) * 0x1p-24f));
    if (exponent == 31) return float_of(sign | INFINITE | mantissa << 13);
    return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

inline float value(float x) { return x; }
inline float value(u16 bfloat16) { return float_of(u32{bfloat16} << 16); }

// ---- lanes: so many elements at a time

#if defined(__AVX512F__)
constexpr i64 WIDE = 16;
using Floats = __m512;
using Words = __m512i;
inline Floats load(const float* x) { return _mm512_loadu_ps(x); }
inline Floats load(const u16* x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x))), 16));
}
inline Words zero() { return _mm512_setzero_si512(); }
inline Words greater_size(Words most, Floats x) {
    return _mm512_max_epi32(most, _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(SIZE_BITS)));
}
inline void store_words(u32* to, Words w) { _mm512_storeu_si512(to, w); }
inline void store_quantized(i8* to, Floats x, float scale) {
    Words w = _mm512_cvtps_epi32(_mm512_div_ps(x, _mm512_set1_ps(scale)));
    w = _mm512_max_epi32(_mm512_min_epi32(w, _mm512_set1_epi32(127)), _mm512_set1_epi32(-127));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(w));
}
inline void store_product(float* to, const i8* q, float scale) {
    const Words w = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
    _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_cvtepi32_ps(w), _mm512_set1_ps(scale)));
}
#elif defined(__AVX2__)
constexpr i64 WIDE = 8;
using Floats = __m256;
using Words = __m256i;
inline Floats load(const float* x) { return _mm256_loadu_ps(x); }
inline Floats load(const u16* x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))), 16));
}
inline Words zero() { return _mm256_setzero_si256(); }
inline Words greater_size(Words most, Floats x) {
    return _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(SIZE_BITS)));
}
inline void store_words(u32* to, Words w) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), w); }
inline void store_quantized(i8* to, Floats x, float scale) {
    const Words w = _mm256_cvtps_epi32(_mm256_div_ps(x, _mm256_set1_ps(scale)));
    __m128i s = _mm_packs_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
    s = _mm_max_epi16(_mm_min_epi16(s, _mm_set1_epi16(127)), _mm_set1_epi16(-127));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(s, s));
}
inline void store_product(float* to, const i8* q, float scale) {
    const Words w = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(q)));
    _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtepi32_ps(w), _mm256_set1_ps(scale)));
}
#endif

// ---- rows

// Sizes compare as their bits do, and a NaN is above infinity.
template <class T>
float greatest_size(const T* x, i64 width) {
    u32 most = 0;
    i64 i = 0;
#if defined(__AVX2__)
    Words lanes = zero();
    for (; i + WIDE <= width; i += WIDE) lanes = greater_size(lanes, load(x + i));
    u32 each[WIDE];
    store_words(each, lanes);
    for (const u32 one : each) most = one > most ? one : most;
#endif
    for (; i < width; ++i) {
        const u32 size = bits_of(value(x[i])) & SIZE_BITS;
        most = size > most ? size : most;
    }
    return float_of(most);
}

inline i8 quantized(float x, float scale) {
    // 1.5 * 2^23: there a float's last bit is worth 1, so the addition rounds, and its low bits are the integer
    const i32 q = static_cast<i32>(bits_of(x / scale + 12582912.0f) - bits_of(12582912.0f));
    return static_cast<i8>(q > 127 ? 127 : q < -127 ? -127 : q);
}

template <class T>
void quantize_row(const T* x, i64 width, i8* q, u16* scale) {
    const float most = greatest_size(x, width);
    const u16 half = bits_of(most) < INFINITE ? half_of(most / 127.0f) : HALF_INFINITE;
    const bool spoilt = half >= HALF_INFINITE;
    *scale = spoilt ? HALF_NAN : half;
    if (spoilt || half == 0) {
        std::memset(q, 0, static_cast<std::size_t>(width));
        return;
    }
    const float s = float_of_half(half);
    i64 i = 0;
#if defined(__AVX2__)
    for (; i + WIDE <= width; i += WIDE) store_quantized(q + i, load(x + i), s);
#endif
    for (; i < width; ++i) q[i] = quantized(value(x[i]), s);
}

void quantize(const void* x, bool wide, i64 width, i8* q, u16* scale) {
    if (wide)
        quantize_row(static_cast<const float*>(x), width, q, scale);
    else
        quantize_row(static_cast<const u16*>(x), width, q, scale);
}

void dequantize(const i8* q, u16 scale, i64 width, float* x) {
    const float s = float_of_half(scale);
    i64 i = 0;
#if defined(__AVX2__)
    for (; i + WIDE <= width; i += WIDE) store_product(x + i, q + i, s);
#endif
    for (; i < width; ++i) x[i] = static_cast<float>(q[i]) * s;
}

}  // namespace
