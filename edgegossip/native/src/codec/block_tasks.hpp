// The blocks of a tensor as tasks of several threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/parallel.hpp"
#include "codec/kernels/runs.hpp"
#include "codec/block.hpp"
#include "codec/codes.hpp"
#include "codec/quantised.hpp"
#include "codec/scales.hpp"
#include "runtime/scratch.hpp"

namespace edgegossip::coding {

// What one thread decodes with: a block.
struct Slot {
    Scratch<float> scales;
    Scratch<uint8_t> symbols;

    // Room for n values, or for those of a group if these are fewer; and for a block's runs while they are read.
    void need(const Quantiser& q, int64_t n) {
        scales.need(scale_count(std::min(BLOCK_VALUES, n), q.bucket));
        symbols.need(std::max(symbol_bytes(std::min(GROUP_BLOCKS * BLOCK_VALUES, n), q.bits), run_room(std::min(BLOCK_VALUES, n))));
    }
};

// That of a thread, kept for the next tensor.
inline Slot& slot_of_thread() {
    static thread_local Slot kept;
    return kept;
}

// Tasks first, first + step .. until one has an error: that error, 0 when none has one, and which it was.
template <class Task>
int64_t run_tasks(int64_t first, int64_t tasks, int64_t step, const Quantiser& q, int64_t n, const Task& task, int64_t* failed) {
    if (first >= tasks) return 0;
    Slot& slot = slot_of_thread();
    slot.need(q, n);
    for (int64_t t = first; t < tasks; t += step)
        if (const int64_t error = task(t, &slot)) {
            if (failed != nullptr) *failed = t;
            return error;
        }
    return 0;
}

// Calls task(t, slot) for all tasks; the error of the first in order that has one, else 0.
template <class Task>
int64_t each_task(int64_t tasks, int threads, const Quantiser& q, int64_t n, const Task& task) {
    const int64_t lanes = std::min<int64_t>(threads, tasks);
    if (lanes <= 1) return run_tasks(0, tasks, 1, q, n, task, nullptr);
    std::vector<int64_t> errors(size_t(lanes), 0), failed(size_t(lanes), tasks);
    parallel_for(lanes, threads, [&](int64_t lane) {
        errors[size_t(lane)] = run_tasks(lane, tasks, lanes, q, n, task, &failed[size_t(lane)]);
    });
    return errors[size_t(std::min_element(failed.begin(), failed.end()) - failed.begin())];
}

inline int64_t blocks_of(int64_t n) { return (n + BLOCK_VALUES - 1) / BLOCK_VALUES; }

struct Range {
    const uint8_t *p, *end;
};

// Where the blocks of n values start, which fill the range. 0 or a SectionError.
template <class SizeOf>
int64_t find_blocks(Range r, int64_t n, const SizeOf& size_of, std::vector<const uint8_t*>* starts) {
    starts->reserve(size_t(blocks_of(n)));
    for (int64_t first = 0; first < n; first += BLOCK_VALUES) {
        const int64_t size = size_of(r.p, r.end, std::min(BLOCK_VALUES, n - first));
        if (size == 0) return ENDS_EARLY;
        starts->push_back(r.p);
        r.p += size;
    }
    return r.p == r.end ? 0 : int64_t(BAD_STREAM);
}

}  // namespace edgegossip::coding
