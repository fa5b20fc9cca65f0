// How a tensor is to be coded, decided from its symbols or a sample of them.
#pragma once

#include <cstdint>
#include <vector>

#include "codec/huffman.hpp"
#include "codec/runs.hpp"
#include "codec/quantised.hpp"
#include "runtime/scratch.hpp"

namespace edgegossip::coding {

// A tensor's symbols: all of them where it is small, so that it is quantised once; else a fixed sample, pieces at equal
// distances, one after the other.
struct Symbols {
    const Kernels& kernels;
    const Source& source;
    const float* whole;  // the scale, where there is one and the source gives none
    bool all = false;
    int64_t count = 0;  // in `data`
    Scratch<uint8_t>& data;

    Symbols(const Kernels& kernels, const Source& source, const float* whole, Scratch<uint8_t>& data)
        : kernels(kernels), source(source), whole(whole), data(data) {}

    // Symbols of values first .. first + n; the bucket scales go to `scales` unless the source gives them. False when not finite.
    bool quantise(int64_t first, int64_t n, float* scales, uint8_t* symbols) const;

    // Fills `data`; of a small tensor the bucket scales go to `scales_out` (any alignment). False when not finite.
    bool collect(uint8_t* scales_out);
};

struct RunsPlan {
    TableChoice table;
    RunShape shape;                // of a large tensor its signs are those of a sample
    Scratch<uint32_t> items;       // of all blocks of a tensor that is not large, as the shape has them: without signs where all are the same
    std::vector<RunItems> blocks;  // how many of them each has
};

struct Plan {
    Coder coder = CODER_RAW;
    TableChoice huffman;
    RunsPlan runs;
};

// Huffman or runs, or raw; Elias too where the choice is AUTO.
Plan make_plan(const Symbols& symbols, const Source& source, Choice choice, const StaticTables& tables, const TableState& state);

}  // namespace edgegossip::coding
