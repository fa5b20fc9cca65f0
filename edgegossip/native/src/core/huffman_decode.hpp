// The huffman stage, decoded: two blocks side by side, of one tensor or of two.
#pragma once

#include <cstdint>
#include <optional>

#include "block_tasks.hpp"
#include "target.hpp"

namespace edgegossip::coding {

// The last block of a tensor that has an odd number of them waits for that of a later tensor with the same table: two take little
// longer than one, and most tensors have one block.
class HuffmanWork {
public:
    // Decodes a tensor, but for a block that waits. 0 or a SectionError.
    int64_t add(const Target& target, Range payload, const Body& body, const StaticTables& tables, LastTable* last, int threads, int64_t index);

    // Decodes what still waits. The first error among blocks that waited, 0 when there is none, and the index of its tensor.
    struct Result {
        int64_t error, index;
    };
    Result run();

private:
    struct Waiting {
        Target target;
        const uint8_t* p;
        int64_t first, n;  // values
        int64_t index;     // of its tensor among the caller's
    };
    // Decodes it, and `other` with it if there is one. The error of `other`.
    int64_t decode(const Waiting& waiting, const Waiting* other);

    std::optional<Waiting> waiting_;
    CodeLengths lengths_;  // of its table
    const uint8_t* end_ = nullptr;  // of what may be read
    Result found_{0, 0};
};

}  // namespace edgegossip::coding
