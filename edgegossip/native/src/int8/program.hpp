// A model's prediction as one list of steps. A few samples go through all of them before the next ones start: what flows between layers stays
// in the cache of the thread that does it, weights are laid out once, and threads meet once a batch. The bits are those of the layers one by one.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "int8/norm.hpp"
#include "int8/pooling.hpp"
#include "int8/shaping.hpp"

namespace edgegossip {

class Program {
public:
    using Value = int64_t;  // what a step makes; value 0 is the input

    // The input has `size` float32 values a sample. Shapes of steps: their batch counts for nothing.
    Program(const Int8& kernels, int64_t size);
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    // Each takes values that are there and returns what it makes: int8 maps, or floats where it says so. Parameters are copied.
    // std::invalid_argument for a value that is not there, or not what the step takes.
    Value quantise(Value floats);
    Value conv(Value x, ConvShape shape, const float* weight, const float* bias, bool as_floats);
    Value evonorm(Value y, NormShape shape, const NormParameters& with);
    Value add(Value a, Value b);
    Value relu(Value x);
    Value max_pool(Value x, PoolShape shape);
    Value average_pool(Value x, PoolShape shape, bool count_padding);  // floats
    Value pad(Value x, PadShape shape);
    Value slice(Value x, SliceShape shape);
    Value flatten(Value x, int64_t channels);

    // What the program gives: floats, and how many a sample. Nothing may follow.
    int64_t end(Value floats);

    // out float[batch][what end() said] from x float[batch][size].
    void run(const float* x, int64_t batch, float* out, int threads) const;

    bool has_ended() const { return result_ > 0; }
    int64_t in_size() const { return values_[0].size; }
    int64_t out_size() const { return values_[size_t(result_)].size; }
    // Samples that go through together, at most.
    int64_t together() const { return together_; }

private:
    struct Made {
        int64_t size;  // values a sample
        bool floats;
        int64_t last;   // step that needs it
        int64_t place;  // in a thread's memory, in bytes a sample
        int64_t bytes() const;
    };
    class Chunk;
    using Step = std::function<void(const Chunk&)>;

    const Made& check(Value x, bool floats, int64_t size) const;
    const Made& check(Value x, bool floats) const;
    Value make(int64_t size, bool floats, std::vector<Value> of, Step step);
    void find_places();

    const Int8& kernels_;
    std::vector<Made> values_;
    std::vector<Step> steps_;  // step k makes value k + 1
    std::vector<std::vector<Value>> needs_;
    Value result_ = 0;
    int64_t together_ = 1, memory_ = 0;
};

}  // namespace edgegossip
