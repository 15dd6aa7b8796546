// LRU residency of many rows: checks, scratch memory and threads around the loops of variant.cpp.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "tidegate.h"
#include "variant.h"
#include "workers.h"

namespace {

using i64 = std::int64_t;
using u32 = std::uint32_t;

// What one worker needs for one row.  It belongs to the calling thread and is kept from call to call, so that the marks stay
// in cache and need no clearing: a row's marks are numbers above all that were used before it.
class Scratch {
public:
    void fit(i64 length, i64 hot, i64 k) {
        if (length >= size_) allocate(length + length / 4 + 1);  // rows grow by a token a step
        work_.resize(std::max(work_.size(), static_cast<std::size_t>(work_words(hot, k))));
    }

    u32 base(i64 k) {
        if (k >= i64{std::numeric_limits<u32>::max()} - next_) allocate(size_);
        const u32 base = next_;
        next_ += static_cast<u32>(k);
        return base;
    }

    u32* mark() { return mark_.get(); }
    std::int32_t* work() { return work_.data(); }

private:
    void allocate(i64 size) {
        mark_.reset();
        size_ = 0;
        mark_.reset(static_cast<u32*>(std::calloc(static_cast<std::size_t>(size), sizeof(u32))));  // zero, and no page touched
        if (!mark_) throw std::bad_alloc();
        size_ = size;
        next_ = 1;
    }

    struct Free {
        void operator()(u32* p) const { std::free(p); }
    };
    std::unique_ptr<u32, Free> mark_;
    std::vector<std::int32_t> work_;
    i64 size_ = 0;
    u32 next_ = 1;
};

std::vector<Scratch>& scratch(i64 workers, i64 length, i64 hot, i64 k) {
    static thread_local std::vector<Scratch> all;
    if (static_cast<i64>(all.size()) < workers) all.resize(static_cast<std::size_t>(workers));
    for (i64 w = 0; w < workers; ++w) all[static_cast<std::size_t>(w)].fit(length, hot, k);
    return all;
}

std::int32_t fail(i64* bad, std::int32_t code, i64 a, i64 b) {
    bad[0] = a;
    bad[1] = b;
    return code;
}

template <class S>
std::int32_t check_rows(S* s) {
    std::vector<bool> seen(static_cast<std::size_t>(s->table_rows));
    for (i64 e = 0; e < s->n; ++e) {
        const i64 row = s->rows[e];
        if (row < 0 || row >= s->table_rows) return fail(s->bad, TG_ROW_OUTSIDE, e, row);
        if (seen[static_cast<std::size_t>(row)]) return fail(s->bad, TG_ROW_TWICE, e, row);
        seen[static_cast<std::size_t>(row)] = true;
        if (s->keep[e] < 0) return fail(s->bad, TG_KEEP_NEGATIVE, e, s->keep[e]);
        if (s->nonces[e] < 1) return fail(s->bad, TG_NO_ATTEMPT, e, s->nonces[e]);
    }
    return TG_OK;
}

template <class T>
i64 distinct(const T* asked, i64 k, i64 length, Scratch& one) {
    const u32 base = one.base(1);
    i64 n = 0;
    for (i64 i = 0; i < k; ++i) {
        if (asked[i] < 0 || static_cast<i64>(asked[i]) >= length) continue;
        u32& mark = one.mark()[asked[i]];
        n += mark != base;
        mark = base;
    }
    return n;
}

std::int32_t check_fit(tg_step* s, Scratch& one) {
    for (i64 e = 0; s->k > s->hot && e < s->n; ++e) {
        const i64 n = s->asked_size == 8 ? distinct(static_cast<const i64*>(s->asked) + e * s->k, s->k, s->lengths[e], one)
                                         : distinct(static_cast<const std::int32_t*>(s->asked) + e * s->k, s->k, s->lengths[e], one);
        if (n > s->hot) return fail(s->bad, TG_TOO_MANY, e, n);
    }
    return TG_OK;
}

void step_row(tg_step* s, i64 e, const Variant& how, Scratch& one) {
    const i64 row = s->rows[e];
    Residency r{};
    r.positions = s->positions + row * s->hot;
    r.slots = s->slots + row * s->hot;
    if (s->attempts[row] != s->nonces[e]) {
        for (i64 i = 0; i < s->hot; ++i) r.positions[i] = -1, r.slots[i] = static_cast<std::int32_t>(i);
        s->attempts[row] = s->nonces[e];
    }
    r.hot = s->hot;
    r.keep = std::min(s->keep[e], s->lengths[e]);
    r.asked = static_cast<const char*>(s->asked) + e * s->k * s->asked_size;
    r.wide = s->asked_size == 8;
    r.k = s->k;
    r.length = s->lengths[e];
    r.mark = one.mark();
    r.base = one.base(s->k);
    r.out = s->out_slots + e * s->k;
    r.miss_positions = s->miss_positions + e * s->k;
    r.miss_slots = s->miss_slots + e * s->k;
    r.work = one.work();
    how.residency(r);
    s->counts[e] = r.hits;
    s->counts[s->n + e] = r.misses;
    s->counts[2 * s->n + e] = r.evictions;
}

void truncate_row(std::int32_t* positions, std::int32_t* slots, i64 hot, i64 keep, std::int32_t* work) {
    i64 empty = 0;
    for (i64 i = 0; i < hot; ++i) empty += positions[i] < 0 || positions[i] >= keep;
    i64 to[2] = {empty, 0};
    for (i64 i = 0; i < hot; ++i) {
        const bool gone = positions[i] < 0 || positions[i] >= keep;
        const i64 at = to[gone]++;
        work[at] = gone ? -1 : positions[i];
        work[hot + at] = slots[i];
    }
    std::memcpy(positions, work, sizeof(std::int32_t) * static_cast<std::size_t>(hot));
    std::memcpy(slots, work + hot, sizeof(std::int32_t) * static_cast<std::size_t>(hot));
}

std::int32_t step(tg_step* s) {
    i64 longest = 0;
    for (i64 e = 0; e < s->n; ++e) {
        if (s->lengths[e] < 0 || s->lengths[e] > std::numeric_limits<std::int32_t>::max())
            return fail(s->bad, TG_LENGTH_OUTSIDE, e, s->lengths[e]);
        longest = std::max(longest, s->lengths[e]);
    }
    if (const std::int32_t code = check_rows(s)) return code;
    const i64 workers = std::max<i64>(1, std::min(s->threads, s->n));
    std::vector<Scratch>& all = scratch(workers, longest, s->hot, s->k);
    if (const std::int32_t code = check_fit(s, all[0])) return code;
    const Variant& how = variant(s->isa);
    run_workers(workers, [&](i64 worker) {
        for (i64 e = s->n * worker / workers; e < s->n * (worker + 1) / workers; ++e)
            step_row(s, e, how, all[static_cast<std::size_t>(worker)]);
    });
    return TG_OK;
}

}  // namespace

std::int32_t tg_residency_step(tg_step* s) {
    try {
        return step(s);
    } catch (const std::bad_alloc&) {
        return TG_NO_MEMORY;
    }
}

std::int32_t tg_truncate(tg_truncate_args* s) {
    try {
        if (const std::int32_t code = check_rows(s)) return code;
        std::vector<std::int32_t> work(static_cast<std::size_t>(2 * s->hot));
        for (i64 e = 0; e < s->n; ++e) {
            const i64 row = s->rows[e];
            if (s->attempts[row] == s->nonces[e])
                truncate_row(s->positions + row * s->hot, s->slots + row * s->hot, s->hot, s->keep[e], work.data());
        }
        return TG_OK;
    } catch (const std::bad_alloc&) {
        return TG_NO_MEMORY;
    }
}
