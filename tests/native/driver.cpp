// Runs the native kernels over memory of exactly the size that they are told, for a sanitizer to watch, and compares instruction
// sets and thread counts with the portable, single-threaded one.  Exit code 0 and "N cases" if all agree.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "tidegate.h"

namespace {

using i32 = std::int32_t;
using i64 = std::int64_t;
std::mt19937 random_bits(20);
int cases = 0;

i64 below(i64 n) { return static_cast<i64>(random_bits() % static_cast<std::uint32_t>(n)); }

void check(bool good, const char* what) {
    ++cases;
    if (!good) {
        std::printf("wrong: %s\n", what);
        std::exit(1);
    }
}

std::vector<i64> sets() {
    std::vector<i64> found;
    for (i64 isa : {TG_PORTABLE, TG_AVX2, TG_AVX512})
        if (tg_isas() >> isa & 1) found.push_back(isa);
    return found;
}

struct Table {
    i64 rows, hot;
    std::vector<i32> positions, slots;
    std::vector<i64> attempts;

    Table(i64 r, i64 h) : rows(r), hot(h), positions(r * h, -1), slots(r * h), attempts(r, 0) {
        for (i64 i = 0; i < r * h; ++i) slots[i] = static_cast<i32>(i % h);
    }
    bool operator==(const Table& o) const { return positions == o.positions && slots == o.slots && attempts == o.attempts; }
};

template <class T>
struct Asked {
    i64 n, k;
    std::vector<T> asked;
    std::vector<i64> rows, lengths, nonces, keep;

    Asked(const Table& t, i64 entries, i64 wanted, i64 context) : n(entries), k(wanted), asked(n * k) {
        for (T& p : asked) p = static_cast<T>(below(context + 4) - 2);
        for (i64 e = 0; e < n; ++e) {
            rows.push_back((e + 1) % t.rows);
            lengths.push_back(below(context + 1));
            nonces.push_back(1 + below(2));
            keep.push_back(below(context + 2));
        }
    }
};

struct Said {
    i32 code;
    std::vector<i32> slots, miss_positions, miss_slots, counts;

    Said(i64 n, i64 k) : code(0), slots(n * k), miss_positions(n * k), miss_slots(n * k), counts(3 * n) {}
    bool operator==(const Said& o) const {
        if (code || o.code) return code == o.code;  // on an error nothing is said
        return slots == o.slots && miss_positions == o.miss_positions && miss_slots == o.miss_slots && counts == o.counts;
    }
};

template <class T>
Said step(Table& t, const Asked<T>& a, i64 isa, i64 threads) {
    Said said(a.n, a.k);
    tg_step s{t.positions.data(), t.slots.data(), t.attempts.data(), t.rows, t.hot, a.asked.data(), sizeof(T), a.n, a.k,
              a.rows.data(), a.lengths.data(), a.nonces.data(), a.keep.data(), said.slots.data(), said.miss_positions.data(),
              said.miss_slots.data(), said.counts.data(), isa, threads, {}};
    said.code = tg_residency_step(&s);
    return said;
}

std::vector<char> bytes(i64 n) {
    std::vector<char> b(n);
    for (char& c : b) c = static_cast<char>(random_bits());
    return b;
}

// What a step missed, from a paged pool of two parts of `k_size` and `v_size` bytes a row.
std::vector<char> fetch(const Table& t, const std::vector<i64>& rows, const Said& said, i64 k, i64 threads) {
    const i64 n = static_cast<i64>(rows.size()), block = 3, width = 30, k_size = 100, v_size = 17;
    static const std::vector<char> pool_k = bytes(width * block * k_size), pool_v = bytes(width * block * v_size);
    std::vector<i32> table(n * width);
    for (i64 i = 0; i < n * width; ++i) table[i] = static_cast<i32>((7 * i) % width);
    std::vector<char> hot(t.rows * t.hot * (k_size + v_size));
    const tg_part parts[] = {{hot.data(), pool_k.data(), k_size, k_size, k_size},
                             {hot.data() + t.rows * t.hot * k_size, pool_v.data(), v_size, v_size, v_size}};
    tg_misses m{parts, 2, rows.data(), said.miss_positions.data(), said.miss_slots.data(), said.counts.data() + n, n, k, t.hot,
                table.data(), 4, width, block, t.rows * t.hot, width * block, threads, {}};
    check(tg_fetch_misses(&m) == TG_OK, "fetch of misses");
    return hot;
}

template <class T>
void lives(i64 rows, i64 hot, i64 k, i64 steps) {
    const i64 context = 80;
    std::vector<Table> tables;
    for (i64 i = 0; i < static_cast<i64>(sets().size()) * 2; ++i) tables.emplace_back(rows, hot);
    for (i64 i = 0; i < steps; ++i) {
        const Asked<T> asked(tables[0], 1 + below(rows), k, context);
        const Said want = step(tables[0], asked, TG_PORTABLE, 1);
        std::vector<char> moved;
        if (want.code == TG_OK) moved = fetch(tables[0], asked.rows, want, k, 1);
        i64 which = 1;
        for (i64 isa : sets())
            for (i64 threads : {1, 4}) {
                if (isa == TG_PORTABLE && threads == 1) continue;
                Table& t = tables[which++];
                check(step(t, asked, isa, threads) == want && t == tables[0], "residency");
                if (want.code == TG_OK) check(fetch(t, asked.rows, want, k, threads) == moved, "bytes of the misses");
            }
        if (i % 3 == 2)
            for (Table& t : tables) {
                tg_truncate_args a{t.positions.data(), t.slots.data(), t.attempts.data(), rows, hot, asked.n, asked.rows.data(),
                                   asked.nonces.data(), asked.keep.data(), {}};
                check(tg_truncate(&a) == TG_OK && t == tables[0], "truncate");
            }
    }
}

void appends(i64 size, i64 n) {
    std::vector<i64> slots;
    for (i64 i = 0; i < n; ++i) slots.push_back(below(30) - 1);
    const std::vector<char> rows = bytes(n * size);
    std::vector<char> want;
        for (i64 threads : {1, 2, 4}) {
            std::vector<char> pool(29 * size);
            const tg_part part{pool.data(), rows.data(), size, size, size};
            tg_rows r{&part, 1, slots.data(), nullptr, n, 29, n, 1, threads, {}};
            check(tg_copy_rows(&r) == TG_OK, "append");
            if (want.empty()) want = pool;
            check(pool == want, "bytes appended");
        }
    std::vector<char> pool(29 * size);
    const tg_part part{pool.data(), rows.data(), size, size, size};
    for (i64 bad : {i64{29}, i64{-2}, i64{1} << 62, -(i64{1} << 62)}) {
        slots.back() = bad;
        tg_rows r{&part, 1, slots.data(), nullptr, n, 29, n, 1, 2, {}};
        check(tg_copy_rows(&r) == TG_TARGET_OUTSIDE && r.bad[0] == n - 1 && r.bad[1] == bad, "a slot outside");
    }
    check(pool == std::vector<char>(29 * size), "nothing written on an error");
}

void ranges() {
    const std::vector<char> source = bytes(3 << 20);
    const std::vector<i64> from{0, 1 << 20, (1 << 20) + 700000, 5, 9}, to{9, 2 << 20, (2 << 20) + 700000, 900000, 100},
        size{800000, 700000, 3000, 0, 1};  // the last into the first
    std::vector<char> want;
    for (i64 isa : sets())
        for (i64 threads = 1; threads <= 4; ++threads) {
        std::vector<char> target(3 << 20);
        check(tg_copy_ranges(target.data(), source.data(), to.data(), from.data(), size.data(), 5, isa, threads) == 3, "copies");
        if (want.empty()) want = target;
        check(target == want, "bytes of ranges");
    }
    check(tg_copy_ranges(nullptr, nullptr, nullptr, nullptr, nullptr, 0, TG_PORTABLE, 2) == 0, "no ranges");
    const i64 big = INT64_MAX;
    const std::vector<i64> at{0, 4, big, 3}, wide{4, 4, big, 1}, spans{0, 4, 4, 8};
    check(tg_first_outside(at.data(), at.data(), wide.data(), 2, 8, 8) == -1, "ranges inside");
    check(tg_first_outside(at.data(), at.data(), wide.data(), 4, 8, 8) == 2, "a range outside");
    check(tg_first_astray(at.data(), wide.data(), 2, spans.data(), 2) == -1, "ranges in spans");
    check(tg_first_astray(at.data(), wide.data(), 4, spans.data(), 2) == 2, "a range astray");
    check(tg_first_astray(at.data(), wide.data(), 1, nullptr, 0) == 0, "no spans");
}

template <class T>
void lic8(i64 n, i64 width) {
    const std::vector<char> raw = bytes(n * width * static_cast<i64>(sizeof(T)));
    std::vector<T> source(n * width);
    std::memcpy(source.data(), raw.data(), raw.size());
    std::vector<std::int8_t> want;
    std::vector<std::uint16_t> want_scales;
    std::vector<float> want_back;
    for (i64 isa : sets())
        for (i64 threads : {1, 4}) {
            std::vector<std::int8_t> rows(n * width);
            std::vector<std::uint16_t> scales(n);
            std::vector<float> back(n * width);
            const i64 size = sizeof(T);
            const tg_quantize_args q{reinterpret_cast<const char*>(source.data()), rows.data(), scales.data(), size, size * width, n, width,
                                     isa, threads};
            tg_quantize(&q);
            const tg_dequantize_args d{rows.data(), scales.data(), back.data(), width, 1, n, width, isa, threads};
            tg_dequantize(&d);
            if (want.empty()) want = rows, want_scales = scales, want_back = back;
            check(rows == want && scales == want_scales, "rows in 8 bits");
            check(std::memcmp(back.data(), want_back.data(), back.size() * sizeof(float)) == 0, "rows out of 8 bits");
        }
}

}  // namespace

int main() {
    for (i64 rows : {1, 5})
        for (i64 hot : {1, 7, 16, 33, 64, 100})
            for (i64 k : {0, 1, 8, 17, 40, 150}) {
                lives<i32>(rows, hot, k, 6);
                lives<i64>(rows, hot, k, 6);
            }
    for (i64 size : {1, 16, 31, 64, 100, 129, 1152}) appends(size, 40);
    ranges();
    for (i64 width : {1, 5, 8, 15, 16, 17, 31, 128, 130}) lic8<float>(3, width), lic8<std::uint16_t>(3, width);
    lic8<float>(1024, 300);
    // callers on several threads, each with tables of its own
    std::vector<std::thread> callers;
    for (int c = 0; c < 3; ++c)
        callers.emplace_back([] {
            Table a(4, 24), b(4, 24);
            std::mt19937 own(1);
            Asked<i64> asked(a, 0, 0, 1);
            asked.n = 4, asked.k = 20, asked.asked.resize(80);
            asked.rows = {0, 1, 2, 3}, asked.lengths = asked.keep = {70, 60, 50, 40}, asked.nonces = {1, 1, 1, 1};
            for (int i = 0; i < 20; ++i) {
                for (i64& p : asked.asked) p = static_cast<i64>(own() % 75);
                if (!(step(a, asked, sets().back(), 3) == step(b, asked, TG_PORTABLE, 1)) || !(a == b)) std::abort();
            }
        });
    for (std::thread& t : callers) t.join();
    std::printf("%d cases, %zu instruction sets\n", cases, sets().size());
    return 0;
}
