// Work that is cut into independent tasks, on one thread or several. How it is cut never depends on the threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>

#include "runtime/thread_team.hpp"

namespace edgegossip {

constexpr int MAX_THREADS = 256;

// Tasks that one thread takes first, in order.
struct alignas(64) TaskRange {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
};

// Calls task(0) .. task(count - 1), each once, in any order, on up to `threads` threads (this one included; fewer where the
// system gives no more). The first exception of a task is thrown here once all threads are done.
//
// Each thread begins with a range of its own, the calling one with the first, and goes on with what is left of the others'.
// So a sample mostly meets the same core in every layer, which still has it in its cache.
template <class Task>
void parallel_for(int64_t count, int threads, const Task& task) {
    const int64_t lanes = count < threads ? count : threads;
    if (lanes <= 1) {
        for (int64_t k = 0; k < count; k++) task(k);
        return;
    }
    const std::unique_ptr<TaskRange[]> ranges(new TaskRange[size_t(lanes)]);
    for (int64_t lane = 0; lane < lanes; lane++) {
        ranges[size_t(lane)].next = lane * count / lanes;
        ranges[size_t(lane)].end = (lane + 1) * count / lanes;
    }
    std::atomic<int64_t> others{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error;
    const std::thread::id caller = std::this_thread::get_id();
    const auto work = [&] {
        const int64_t own = std::this_thread::get_id() == caller ? 0 : ++others;
        try {
            for (int64_t lane = own; lane < own + lanes; lane++) {
                TaskRange& range = ranges[size_t(lane % lanes)];
                for (int64_t k = range.next++; k < range.end && !failed; k = range.next++) task(k);
            }
        } catch (...) {
            if (!failed.exchange(true)) error = std::current_exception();
        }
    };
    work_together([](const void* with) { (*static_cast<decltype(&work)>(with))(); }, &work, int(lanes) - 1, threads);
    if (error) std::rethrow_exception(error);
}

}  // namespace edgegossip
