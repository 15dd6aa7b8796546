// Copies byte ranges between two regions.  Rules: offsets and lengths are 64-bit and were checked by the caller
// (kernels/copy.py); ranges that continue each other on both sides are copied by one memcpy; regions never overlap.
#include <cstdint>
#include <cstring>

extern "C" __attribute__((visibility("default")))
std::int64_t tg_copy_ranges(char* dst, const char* src, const std::int64_t* dst_off, const std::int64_t* src_off,
                            const std::int64_t* len, std::int64_t n) {
    std::int64_t runs = 0;
    for (std::int64_t i = 0; i < n;) {
        std::int64_t total = len[i], j = i + 1;
        while (j < n && dst_off[j] == dst_off[i] + total && src_off[j] == src_off[i] + total) total += len[j++];
        if (total > 0) {
            std::memcpy(dst + dst_off[i], src + src_off[i], static_cast<std::size_t>(total));
            ++runs;
        }
        i = j;
    }
    return runs;
}
