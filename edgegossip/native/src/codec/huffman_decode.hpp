// The Huffman coder, decoded: blocks with one table side by side, of one tensor or of several.
#pragma once

#include <cstdint>
#include <vector>

#include "codec/block_tasks.hpp"
#include "codec/target.hpp"

namespace edgegossip::coding {

// Blocks that wait until there are all of them, or until another table takes the place of theirs: eight streams side by side take
// little longer than four, and most tensors have one block, many of them a small one.
class HuffmanWork {
public:
    explicit HuffmanWork(int threads) : threads_(threads) {}

    // A tensor, some or all of whose blocks wait. 0 or a SectionError: none of its own waits then.
    int64_t add(const Target& target, Range payload, const Body& body, const StaticTables& tables, LastTable* last, int64_t index);

    // Decodes what still waits. The first tensor with an error and that, where one has one among all that waited; else the error is 0.
    Reached run();

private:
    struct Tensor {
        Target target;
        int64_t index;  // among the caller's
    };
    struct Block {
        size_t tensor;  // of tensors_
        const uint8_t *p, *end;
        int64_t first, n;  // values
    };
    struct Group {
        const Block *begin, *end;
    };

    std::vector<Group> groups();
    Soon soon_after(Group group, Group next) const;
    // An error comes to `found` where it is of an earlier tensor than what is there.
    void decode(Group group, Group next, const DecodeTable& table, Reached* found) const;

    int threads_;
    std::vector<Tensor> tensors_;
    std::vector<Block> blocks_;
    CodeLengths lengths_;  // of their table
    const uint8_t* end_ = nullptr;  // of what may be read
    Reached found_{0, 0};  // of those that are decoded
};

}  // namespace edgegossip::coding
