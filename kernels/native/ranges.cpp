// Copies byte ranges between two regions that do not overlap; the ranges were checked by the caller (kernels/copy.py).
//
// Ranges that continue each other on both sides are one copy, past the caches if it is long.  Several workers
// share the bytes evenly, unless two ranges have a target byte in common: then their order counts, and one worker copies.
#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "tidegate.h"
#include "variant.h"
#include "workers.h"

namespace {

using i64 = std::int64_t;

struct Run {
    i64 target, source, size;
};

constexpr i64 WORTH_STREAMING = 1 << 14;  // bytes
constexpr i64 WORTH_A_THREAD = 1 << 18;  // bytes; below it starting a thread takes longer than the copy

std::vector<Run> coalesced(const i64* target, const i64* source, const i64* size, i64 n) {
    std::vector<Run> runs;
    for (i64 i = 0; i < n; ++i) {
        if (size[i] == 0) continue;
        if (!runs.empty()) {
            Run& last = runs.back();
            if (target[i] == last.target + last.size && source[i] == last.source + last.size) {
                last.size += size[i];
                continue;
            }
        }
        runs.push_back({target[i], source[i], size[i]});
    }
    return runs;
}

bool targets_are_disjoint(std::vector<Run> runs) {
    std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.target < b.target; });
    for (std::size_t i = 1; i < runs.size(); ++i)
        if (runs[i].target < runs[i - 1].target + runs[i - 1].size) return false;
    return true;
}

// Bytes first..end of all runs, laid end to end.
void copy_share(char* target, const char* source, const std::vector<Run>& runs, i64 first, i64 end, const Variant& how) {
    i64 at = 0;
    for (const Run& r : runs) {
        const i64 from = std::max(first, at) - at, to = std::min(end, at + r.size) - at;
        if (to - from >= WORTH_STREAMING)
            how.stream(target + r.target + from, source + r.source + from, to - from);
        else if (from < to)
            std::memcpy(target + r.target + from, source + r.source + from, static_cast<std::size_t>(to - from));
        at += r.size;
    }
}

i64 copy_ranges(char* target, const char* source, const std::vector<Run>& runs, i64 threads, const Variant& how) {
    i64 total = 0;
    for (const Run& r : runs) total += r.size;
    i64 workers = std::max<i64>(1, std::min(threads, total / WORTH_A_THREAD));
    if (workers > 1 && !targets_are_disjoint(runs)) workers = 1;
    const i64 share = ((total + workers - 1) / workers + 63) / 64 * 64;
    run_workers(workers, [&](i64 worker) {
        copy_share(target, source, runs, std::min(total, worker * share), std::min(total, (worker + 1) * share), how);
    });
    return static_cast<i64>(runs.size());
}

}  // namespace

std::int64_t tg_copy_ranges(char* target, const char* source, const std::int64_t* target_offsets,
                            const std::int64_t* source_offsets, const std::int64_t* lengths, std::int64_t n,
                            std::int64_t isa, std::int64_t threads) {
    try {
        return copy_ranges(target, source, coalesced(target_offsets, source_offsets, lengths, n), threads, variant(isa));
    } catch (const std::bad_alloc&) {
        return -1;
    }
}

std::int64_t tg_first_outside(const std::int64_t* target_offsets, const std::int64_t* source_offsets, const std::int64_t* lengths,
                              std::int64_t n, std::int64_t target_size, std::int64_t source_size) {
    for (i64 i = 0; i < n; ++i) {
        const i64 size = lengths[i];  // offset > buffer - size, since offset + size could pass 2^63
        if (size < 0 || target_offsets[i] < 0 || source_offsets[i] < 0 || size > target_size || size > source_size ||
            target_offsets[i] > target_size - size || source_offsets[i] > source_size - size)
            return i;
    }
    return -1;
}

std::int64_t tg_first_astray(const std::int64_t* target_offsets, const std::int64_t* lengths, std::int64_t n,
                             const std::int64_t* spans, std::int64_t span_count) {
    struct Span {
        i64 first, last;
    };
    const Span* const begin = reinterpret_cast<const Span*>(spans);
    const Span* const end = begin + span_count;
    for (i64 i = 0; i < n; ++i) {
        if (lengths[i] <= 0) continue;
        const i64 at = target_offsets[i];
        const Span* after = std::upper_bound(begin, end, at, [](i64 value, const Span& span) { return value < span.first; });
        if (after == begin || at > (after - 1)->last - lengths[i]) return i;
    }
    return -1;
}
