#include "pool.hpp"

#include <algorithm>
#include <iterator>
#include <new>

namespace edgegossip {

namespace {

constexpr std::align_val_t ALIGNMENT{64};
constexpr int64_t LEAST = int64_t(1) << 16;  // smaller blocks the C library keeps by itself

void free_all(const std::vector<void*>& blocks) {
    for (void* const block : blocks) ::operator delete(block, ALIGNMENT);
}

}  // namespace

std::vector<void*>& Pool::blocks_of(int64_t size) {
    const auto found = places_.find(size);
    if (found != places_.end()) return found->second->second;
    sizes_.emplace_back(size, std::vector<void*>());
    places_[size] = std::prev(sizes_.end());
    return sizes_.back().second;
}

void* Pool::take(int64_t size) {
    if (size < LEAST) return ::operator new(size_t(size), ALIGNMENT, std::nothrow);
    const std::lock_guard<std::mutex> guard(lock_);
    keeps_ = true;
    std::vector<void*>& blocks = blocks_of(size);
    sizes_.splice(sizes_.end(), sizes_, places_[size]);
    void* block = nullptr;
    if (blocks.empty()) {
        block = ::operator new(size_t(size), ALIGNMENT, std::nothrow);
        if (block == nullptr) return nullptr;
    } else {
        block = blocks.back();
        blocks.pop_back();
        waiting_ -= size;
    }
    used_ += size;
    most_used_ = std::max(most_used_, used_);
    return block;
}

void Pool::put(void* block, int64_t size) {
    if (size < LEAST) return ::operator delete(block, ALIGNMENT);
    const std::lock_guard<std::mutex> guard(lock_);
    used_ -= size;
    if (!keeps_) return ::operator delete(block, ALIGNMENT);
    waiting_ += size;
    blocks_of(size).push_back(block);
    while (waiting_ > 2 * most_used_) free_oldest();
}

void Pool::free_oldest() {
    const auto& [size, blocks] = sizes_.front();
    free_all(blocks);
    waiting_ -= size * int64_t(blocks.size());
    places_.erase(size);
    sizes_.pop_front();
}

void Pool::drop() {
    const std::lock_guard<std::mutex> guard(lock_);
    while (!sizes_.empty()) free_oldest();
    most_used_ = used_;
    keeps_ = false;
}

int64_t Pool::waiting_bytes() const {
    const std::lock_guard<std::mutex> guard(lock_);
    return waiting_;
}

Pool& pool() {
    static Pool* const only = new Pool;
    return *only;
}

}  // namespace edgegossip
