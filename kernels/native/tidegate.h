// The C ABI that kernels/library.py loads with ctypes; no exception crosses it.
//
// Rules: a function checks everything that it was given before it writes the first byte, and on an error has written nothing
// but `bad`; sizes and offsets are 64-bit; results depend neither on `threads` nor on `isa`.  Pointers are trusted to point
// at as much memory as the sizes beside them say: that is the caller's part, in Python.
#pragma once
#include <cstdint>

#define TG_API extern "C" __attribute__((visibility("default")))

enum : std::int64_t { TG_PORTABLE = 0, TG_AVX2 = 1, TG_AVX512 = 2 };

enum : std::int32_t {
    TG_OK = 0,
    TG_NO_MEMORY = 1,
    TG_ROW_OUTSIDE = 2,     // bad: {entry, row}
    TG_ROW_TWICE = 3,       // bad: {entry, row}
    TG_LENGTH_OUTSIDE = 4,  // bad: {entry, length}
    TG_KEEP_NEGATIVE = 5,   // bad: {entry, keep}
    TG_NO_ATTEMPT = 6,      // bad: {entry, attempt}
    TG_TOO_MANY = 7,        // bad: {entry, distinct positions asked}
    TG_TARGET_OUTSIDE = 8,  // bad: {entry, destination row}
    TG_SOURCE_OUTSIDE = 9,  // bad: {entry, source row}
    TG_MISS_OUTSIDE = 10,   // bad: {entry, position, slot}
    TG_TABLE_SHORT = 11,    // bad: {entry, position}
    TG_BLOCK_OUTSIDE = 12,  // bad: {entry, position, block}
};

// One step of LRU residency for n rows of a table.  counts is [3][n]: hits, misses, evictions.
struct tg_step {
    std::int32_t *positions, *slots;  // [table_rows][hot], next victim first; position -1 is an empty entry
    std::int64_t* attempts;           // [table_rows]
    std::int64_t table_rows, hot;
    const void* asked;  // [n][k] of asked_size bytes each
    std::int64_t asked_size, n, k;
    const std::int64_t *rows, *lengths, *nonces, *keep;  // [n]
    std::int32_t *out_slots, *miss_positions, *miss_slots;  // [n][k]
    std::int32_t* counts;
    std::int64_t isa, threads;
    std::int64_t bad[3];
};

// Drops entries at positions >= keep from n rows of a table, and rows whose attempt is not the nonce altogether.
struct tg_truncate_args {
    std::int32_t *positions, *slots;
    const std::int64_t* attempts;
    std::int64_t table_rows, hot, n;
    const std::int64_t *rows, *nonces, *keep;  // [n]
    std::int64_t bad[3];
};

// One part of a row (K, or V): where it lies on both sides, and how long it is.
struct tg_part {
    char* target;
    const char* source;
    std::int64_t target_stride, source_stride, size;
};

// Row target_rows[i] becomes row source_rows[i], or row i where source_rows is null; target row -1 is skipped if skip is set.
struct tg_rows {
    const tg_part* parts;
    std::int64_t n_parts;
    const std::int64_t *target_rows, *source_rows;
    std::int64_t n, targets, sources, skip, threads;
    std::int64_t bad[3];
};

// The misses of a step, from a paged pool: position p of entry e lies in row table[e][p / block] * block + p % block.
struct tg_misses {
    const tg_part* parts;
    std::int64_t n_parts;
    const std::int64_t* rows;
    const std::int32_t *miss_positions, *miss_slots, *misses;
    std::int64_t n, k, hot;
    const void* table;  // [n][table_width] of table_size bytes each
    std::int64_t table_size, table_width, block;
    std::int64_t targets, sources, threads;
    std::int64_t bad[3];
};

// Rows of source_size bytes an element (4: float, 2: bfloat16) become rows of int8 [n][width], each with a scale.
struct tg_quantize_args {
    const char* source;
    std::int8_t* rows;
    std::uint16_t* scales;  // [n], half
    std::int64_t source_size, source_stride;  // bytes
    std::int64_t n, width, isa, threads;
};

// And such rows become floats [n][width]; strides in elements.
struct tg_dequantize_args {
    const std::int8_t* rows;
    const std::uint16_t* scales;
    float* target;
    std::int64_t row_stride, scale_stride;
    std::int64_t n, width, isa, threads;
};

TG_API std::int64_t tg_sizes(std::int64_t i);  // bytes of the structures above, in their order
TG_API std::int64_t tg_isas();              // bit i set: instruction set i was compiled and this CPU has it
TG_API std::int32_t tg_residency_step(tg_step* s);
TG_API std::int32_t tg_truncate(tg_truncate_args* s);
TG_API std::int32_t tg_copy_rows(tg_rows* s);
TG_API std::int32_t tg_fetch_misses(tg_misses* s);
TG_API void tg_quantize(const tg_quantize_args* s);
TG_API void tg_dequantize(const tg_dequantize_args* s);
// The number of copies after coalescing, or -1 where memory ran out (nothing is copied then).
TG_API std::int64_t tg_copy_ranges(char* target, const char* source, const std::int64_t* target_offsets,
                                   const std::int64_t* source_offsets, const std::int64_t* lengths, std::int64_t n,
                                   std::int64_t isa, std::int64_t threads);
// The first of n ranges that has a negative number in it or leaves a buffer of so many bytes; -1 if none does.
TG_API std::int64_t tg_first_outside(const std::int64_t* target_offsets, const std::int64_t* source_offsets,
                                     const std::int64_t* lengths, std::int64_t n, std::int64_t target_size,
                                     std::int64_t source_size);
// The first of n ranges that is not empty and not wholly in one of the spans [first, last), in order and apart; -1 if none is.
TG_API std::int64_t tg_first_astray(const std::int64_t* target_offsets, const std::int64_t* lengths, std::int64_t n,
                                    const std::int64_t* spans, std::int64_t span_count);
