// The loops that the kernels are compared with: nothing but the copies.
#include <cstdint>
#include <cstring>

// Rows of two parts in one loop, each asked for six rows ahead.
extern "C" void bare_rows(const char* pool_k, const char* pool_v, const std::int64_t* from, char* hot_k, char* hot_v,
                          const std::int64_t* to, std::int64_t n, std::int64_t k_size, std::int64_t v_size) {
    for (std::int64_t i = 0; i < n; ++i) {
        if (i + 6 < n) {
            for (std::int64_t o = 0; o < k_size; o += 64) __builtin_prefetch(pool_k + from[i + 6] * k_size + o);
            for (std::int64_t o = 0; o < v_size; o += 64) __builtin_prefetch(pool_v + from[i + 6] * v_size + o);
        }
        std::memcpy(hot_k + to[i] * k_size, pool_k + from[i] * k_size, static_cast<std::size_t>(k_size));
        std::memcpy(hot_v + to[i] * v_size, pool_v + from[i] * v_size, static_cast<std::size_t>(v_size));
    }
}

extern "C" void bare_ranges(char* target, const char* source, const std::int64_t* to, const std::int64_t* from,
                            const std::int64_t* size, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) std::memcpy(target + to[i], source + from[i], static_cast<std::size_t>(size[i]));
}
