// Work that is cut into independent tasks, on one thread or several. How it is cut never depends on the threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace edgegossip {

constexpr int MAX_THREADS = 256;

// Calls task(0) .. task(count - 1), each once, in any order, on up to `threads` threads (this one included).
template <class Task>
void parallel_for(int64_t count, int threads, const Task& task) {
    std::atomic<int64_t> next{0};
    const auto work = [&] {
        for (int64_t k = next++; k < count; k = next++) task(k);
    };
    std::vector<std::thread> others;
    for (int t = 1; t < threads && t < count; t++) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
}

}  // namespace edgegossip
