// Rows of several parts from one place to another: appends to a pool, and fetches of missing rows out of one.
//
// Every pair (target row, source row) is worked out and checked before the first byte moves.  Of several writes to one target
// row the last stays, whatever the number of workers: a target row belongs to one worker, which keeps the order of its pairs.
// memcpy chooses its instructions at run time as we would, and no loop of ours was faster.
#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "tidegate.h"
#include "workers.h"

namespace {

using i64 = std::int64_t;

constexpr i64 LINE = 64;  // bytes
constexpr i64 AHEAD = 6;  // rows between the prefetch of a row, which may lie anywhere, and its copy

struct RowPair {
    i64 target, source;
};

inline void prefetch(const tg_part& part, i64 row) {
    const char* from = part.source + row * part.source_stride;
    for (i64 o = 0; o < part.size; o += LINE) __builtin_prefetch(from + o);
}

// One or two parts at a time, held in locals: read through a pointer they would be read again after every copy, which costs a
// quarter of the speed.
template <int N>
void copy_parts(const tg_part* parts, const std::vector<RowPair>& pairs) {
    tg_part part[N];
    for (int p = 0; p < N; ++p) part[p] = parts[p];
    const i64 n = static_cast<i64>(pairs.size());
    for (i64 i = 0; i < std::min(n, AHEAD); ++i)
        for (int p = 0; p < N; ++p) prefetch(part[p], pairs[static_cast<std::size_t>(i)].source);
    for (i64 i = 0; i < n; ++i) {
        if (i + AHEAD < n)
            for (int p = 0; p < N; ++p) prefetch(part[p], pairs[static_cast<std::size_t>(i + AHEAD)].source);
        const RowPair row = pairs[static_cast<std::size_t>(i)];
        for (int p = 0; p < N; ++p)
            std::memcpy(part[p].target + row.target * part[p].target_stride, part[p].source + row.source * part[p].source_stride,
                        static_cast<std::size_t>(part[p].size));
    }
}

void copy_pairs(const tg_part* parts, i64 n_parts, const std::vector<RowPair>& pairs) {
    for (; n_parts >= 2; parts += 2, n_parts -= 2) copy_parts<2>(parts, pairs);
    if (n_parts) copy_parts<1>(parts, pairs);
}

class Plan {
public:
    explicit Plan(i64 workers) : pairs_(static_cast<std::size_t>(std::max<i64>(1, workers))) {}

    void reserve(i64 n) {
        for (auto& list : pairs_) list.reserve(static_cast<std::size_t>(n / workers() + 8));
    }

    // By groups of 8 target rows, so that two workers seldom write to one cache line.
    void add(i64 target, i64 source) {
        const i64 worker = workers() == 1 ? 0 : (target >> 3) % workers();
        pairs_[static_cast<std::size_t>(worker)].push_back({target, source});
    }

    void carry_out(const tg_part* parts, i64 n_parts) const {
        run_workers(workers(), [&](i64 worker) { copy_pairs(parts, n_parts, pairs_[static_cast<std::size_t>(worker)]); });
    }

private:
    i64 workers() const { return static_cast<i64>(pairs_.size()); }
    std::vector<std::vector<RowPair>> pairs_;
};

std::int32_t fail(i64* bad, std::int32_t code, i64 a, i64 b, i64 c = 0) {
    bad[0] = a, bad[1] = b, bad[2] = c;
    return code;
}

std::int32_t copy_rows(tg_rows* s) {
    Plan plan(std::min(s->threads, s->n));
    plan.reserve(s->n);
    for (i64 i = 0; i < s->n; ++i) {
        const i64 target = s->target_rows[i], source = s->source_rows ? s->source_rows[i] : i;
        if (target == -1 && s->skip) continue;
        if (target < 0 || target >= s->targets) return fail(s->bad, TG_TARGET_OUTSIDE, i, target);
        if (source < 0 || source >= s->sources) return fail(s->bad, TG_SOURCE_OUTSIDE, i, source);
        plan.add(target, source);
    }
    plan.carry_out(s->parts, s->n_parts);
    return TG_OK;
}

template <class T>
std::int32_t plan_misses(tg_misses* s, Plan& plan) {
    const T* table = static_cast<const T*>(s->table);
    for (i64 e = 0; e < s->n; ++e, table += s->table_width) {
        const i64 row = s->rows[e];
        if (row < 0 || row >= s->targets / s->hot) return fail(s->bad, TG_ROW_OUTSIDE, e, row);
        for (i64 i = e * s->k; i < e * s->k + s->misses[e]; ++i) {
            const i64 position = s->miss_positions[i], slot = s->miss_slots[i];
            if (position < 0 || slot < 0 || slot >= s->hot) return fail(s->bad, TG_MISS_OUTSIDE, e, position, slot);
            if (position / s->block >= s->table_width) return fail(s->bad, TG_TABLE_SHORT, e, position);
            const i64 block = table[position / s->block];
            if (block < 0 || block >= s->sources / s->block) return fail(s->bad, TG_BLOCK_OUTSIDE, e, position, block);
            plan.add(row * s->hot + slot, block * s->block + position % s->block);
        }
    }
    return TG_OK;
}

std::int32_t fetch_misses(tg_misses* s) {
    i64 total = 0;
    for (i64 e = 0; e < s->n; ++e) {
        if (s->misses[e] < 0 || s->misses[e] > s->k) return fail(s->bad, TG_MISS_OUTSIDE, e, s->misses[e], -1);
        total += s->misses[e];
    }
    Plan plan(std::min(s->threads, total));
    plan.reserve(total);
    const std::int32_t code = s->table_size == 8 ? plan_misses<i64>(s, plan) : plan_misses<std::int32_t>(s, plan);
    if (code == TG_OK) plan.carry_out(s->parts, s->n_parts);
    return code;
}

template <class S>
std::int32_t guarded(std::int32_t (*f)(S*), S* s) {
    try {
        return f(s);
    } catch (const std::bad_alloc&) {
        return TG_NO_MEMORY;
    }
}

}  // namespace

std::int32_t tg_copy_rows(tg_rows* s) { return guarded(copy_rows, s); }
std::int32_t tg_fetch_misses(tg_misses* s) { return guarded(fetch_misses, s); }
