// Work that is cut into independent tasks, on one thread or several. How it is cut never depends on the threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

#include "thread_team.hpp"

namespace edgegossip {

constexpr int MAX_THREADS = 256;

// Calls task(0) .. task(count - 1), each once, in any order, on up to `threads` threads (this one included; fewer where the
// system gives no more). The first exception of a task is thrown here once all threads are done.
template <class Task>
void parallel_for(int64_t count, int threads, const Task& task) {
    std::atomic<int64_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error;
    const auto work = [&] {
        try {
            for (int64_t k = next++; k < count; k = next++) task(k);
        } catch (...) {
            if (!failed.exchange(true)) error = std::current_exception();
            next = count;
        }
    };
    if (threads > 1 && count > 1)
        work_together([](const void* with) { (*static_cast<decltype(&work)>(with))(); }, &work,
                      int(count < threads ? count : threads) - 1, threads);
    else
        work();
    if (error) std::rethrow_exception(error);
}

}  // namespace edgegossip
