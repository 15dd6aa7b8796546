// Runs f(worker) for each of `workers`, on threads of its own but for the first.
//
// A call starts its threads and joins them: a pool would be faster by some 20 us, but would not survive fork, and idle spinning
// on a machine with as many runnable threads as cores costs milliseconds.  Where no thread can be had the caller does the work.
#pragma once
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

template <class F>
void run_workers(std::int64_t workers, const F& f) {
    std::vector<std::thread> threads;
    std::int64_t begun = 1;
    if (workers > 1) threads.reserve(static_cast<std::size_t>(workers - 1));
    try {
        for (; begun < workers; ++begun) threads.emplace_back([&f, begun] { f(begun); });
    } catch (const std::system_error&) {
    }
    f(std::int64_t{0});
    for (std::int64_t worker = begun; worker < workers; ++worker) f(worker);
    for (std::thread& t : threads) t.join();
}
