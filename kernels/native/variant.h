// What is compiled once per instruction set: the inner loops, behind a table of functions.
//
// Rule: variant.cpp is compiled with flags that the machine may not have, so nothing in it may have external linkage but its
// table: no std:: templates, whose copies the linker would merge with those that every machine runs.
#pragma once
#include <cstdint>

struct Residency {
    std::int32_t *positions, *slots;  // [hot], changed in place
    std::int64_t hot, keep;           // entries at positions >= keep are dropped
    const void* asked;                // [k]; asked as 8-byte integers if wide
    bool wide;
    std::int64_t k, length;
    std::uint32_t* mark;  // [length, and at least 1]; every word is below base
    std::uint32_t base;   // base + k does not pass 2^32
    std::int32_t *out, *miss_positions, *miss_slots;  // [k]
    std::int32_t* work;                               // [work_words(hot, k)]
    std::int32_t hits, misses, evictions;
};

struct Variant {
    void (*residency)(Residency& r);
    void (*stream)(char* target, const char* source, std::int64_t size);  // a copy that leaves the caches as they are
    void (*quantize)(const void* x, bool wide, std::int64_t width, std::int8_t* q, std::uint16_t* scale);
    void (*dequantize)(const std::int8_t* q, std::uint16_t scale, std::int64_t width, float* x);
};

// Vector stores run up to 15 words past what counts.
constexpr std::int64_t SLACK = 16;
constexpr std::int64_t work_words(std::int64_t hot, std::int64_t k) { return 4 * (hot + SLACK) + (k + SLACK); }

extern const Variant portable_variant, avx2_variant, avx512_variant;
const Variant& variant(std::int64_t isa);  // dispatch.cpp
