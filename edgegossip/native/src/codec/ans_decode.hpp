// The ans coder, decoded: blocks of one or several tensors side by side, as most tensors have too few blocks to be so alone.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "codec/ans.hpp"
#include "codec/target.hpp"

namespace edgegossip::coding {

// A tensor with this coder.
struct AnsTensor {
    Target target;
    AnsShape shape;
    AnsTable table;
    uint32_t filling;
    int64_t index;  // among the caller's tensors
};

// Blocks that wait until there are all of them.
class AnsWork {
public:
    explicit AnsWork(int threads) : threads_(threads) {}

    // A tensor whose payload is p .. end. 0 or a SectionError: nothing of it waits then.
    int64_t add(const Target& target, const uint8_t* p, const uint8_t* end, int64_t index);

    // Decodes what waits. The first tensor with an error and that; the error is 0 where there is none.
    Reached run();

private:
    struct Block {
        const AnsTensor* tensor;
        const uint8_t* p;
        int64_t first, n;  // values
    };
    class Slot;
    class Lane;

    int threads_;
    std::deque<AnsTensor> tensors_;  // which stay where they are
    std::vector<Block> blocks_;
};

}  // namespace edgegossip::coding
