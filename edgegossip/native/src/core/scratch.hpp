// Memory that is written before it is read: not cleared, unlike a vector, which for small tensors took longer than coding.
#pragma once

#include <cstdint>
#include <memory>

namespace edgegossip::coding {

template <class T>
class Scratch {
public:
    Scratch() = default;
    explicit Scratch(int64_t size) { need(size); }

    // Room for this many; what was there may be lost.
    void need(int64_t size) {
        if (size <= size_) return;
        data_.reset(new T[size_t(size)]);
        size_ = size;
    }
    T* data() const { return data_.get(); }

private:
    std::unique_ptr<T[]> data_;
    int64_t size_ = 0;
};

}  // namespace edgegossip::coding
