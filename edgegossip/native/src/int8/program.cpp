#include "int8/program.hpp"

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "runtime/parallel.hpp"
#include "int8/forward.hpp"
#include "int8/work.hpp"

namespace edgegossip {

namespace {

constexpr int64_t LINE = 64;
constexpr int64_t MOST_TOGETHER = 64;
constexpr int64_t NEAR_WEIGHTS = 32 << 10;  // bytes; larger ones are worth fetching only for BLOCK_PIXELS pixels
constexpr int64_t MOST_MEMORY = 8 << 20;    // bytes of a thread; large maps go one by one

int64_t lines(int64_t bytes) { return (bytes + LINE - 1) / LINE * LINE; }

std::vector<float> copied(const float* from, int64_t count) { return from == nullptr ? std::vector<float>() : std::vector<float>(from, from + count); }

}  // namespace

// int8: q, then a scale and a zero point, of all samples one after the other.
int64_t Program::Made::bytes() const { return floats ? lines(size * int64_t(sizeof(float))) : lines(size) + LINE; }

// Some samples on their way: where what flows of them lies.
class Program::Chunk {
public:
    Chunk(const Program& of, char* memory, const float* x, float* out, int64_t samples)
        : of_(of), memory_(memory), x_(x), out_(out), samples_(samples) {}

    int64_t samples() const { return samples_; }
    const float* floats(Value v) const { return v == 0 ? x_ : into(v); }
    float* into(Value v) const { return v == of_.result_ ? out_ : reinterpret_cast<float*>(at(v)); }
    int8_t* q(Value v) const { return reinterpret_cast<int8_t*>(at(v)); }
    float* scale(Value v) const { return reinterpret_cast<float*>(at(v) + samples_ * lines(of_.values_[size_t(v)].size)); }
    int32_t* zero(Value v) const { return reinterpret_cast<int32_t*>(scale(v) + samples_); }
    Maps maps(Value v) const { return {q(v), scale(v), zero(v)}; }
    void same_scales(Value from, Value to) const {
        std::copy_n(scale(from), samples_, scale(to));
        std::copy_n(zero(from), samples_, zero(to));
    }

private:
    char* at(Value v) const { return memory_ + samples_ * of_.values_[size_t(v)].place; }

    const Program& of_;
    char* memory_;
    const float* x_;
    float* out_;
    int64_t samples_;
};

Program::Program(const Int8& kernels, int64_t size) : kernels_(kernels), values_{{size, true, 0, 0}} {}

const Program::Made& Program::check(Value x, bool floats) const {
    if (x < 0 || x >= int64_t(values_.size())) throw std::invalid_argument("no step made this value");
    const Made& made = values_[size_t(x)];
    if (made.floats != floats) throw std::invalid_argument(floats ? "the step takes floats" : "the step takes int8 maps");
    return made;
}

const Program::Made& Program::check(Value x, bool floats, int64_t size) const {
    const Made& made = check(x, floats);
    if (made.size != size) throw std::invalid_argument("the step takes values of another size");
    return made;
}

Program::Value Program::make(int64_t size, bool floats, std::vector<Value> of, Step step) {
    if (has_ended()) throw std::invalid_argument("the program has ended");
    const int64_t at = int64_t(steps_.size());
    for (const Value v : of) values_[size_t(v)].last = at;
    values_.push_back({size, floats, at, 0});
    steps_.push_back(std::move(step));
    needs_.push_back(std::move(of));
    return at + 1;
}

Program::Value Program::quantise(Value x) {
    const int64_t size = check(x, true).size;
    return make(size, false, {x}, [this, x, size, to = Value(values_.size())](const Chunk& c) {
        quantise_maps(kernels_, c.floats(x), c.samples(), size, c.q(to), c.scale(to), c.zero(to), 1);
    });
}

Program::Value Program::conv(Value x, ConvShape s, const float* weight, const float* bias, bool as_floats) {
    check(x, false, s.in_size());
    s.batch = MOST_TOGETHER;
    const auto packed = std::make_shared<const PackedConv>(kernels_, s, weight, 1);
    if (s.weights() > NEAR_WEIGHTS) together_ = std::max(together_, packed->together());
    return make(s.out_size(), as_floats, {x}, [x, packed, shift = copied(bias, s.out), as_floats, to = Value(values_.size())](const Chunk& c) {
        const ConvOutput out = as_floats ? ConvOutput{nullptr, nullptr, nullptr, c.into(to)} : ConvOutput{c.q(to), c.scale(to), c.zero(to), nullptr};
        const int64_t together = packed->together();
        for (int64_t first = 0; first < c.samples(); first += together)
            packed->run(c.maps(x), first, std::min(together, c.samples() - first), shift.empty() ? nullptr : shift.data(), out);
    });
}

Program::Value Program::evonorm(Value y, NormShape s, const NormParameters& with) {
    check(y, false, s.size());
    return make(s.size(), false, {y},
                [this, y, s, v = copied(with.v, s.channels), gamma = copied(with.gamma, s.channels), beta = copied(with.beta, s.channels),
                 to = Value(values_.size())](const Chunk& c) {
                    NormShape some = s;
                    some.batch = c.samples();
                    evonorm_forward(kernels_, some, c.maps(y), {v.data(), gamma.data(), beta.data()}, c.q(to), c.scale(to), c.zero(to), 1);
                });
}

Program::Value Program::add(Value a, Value b) {
    const int64_t size = check(a, false).size;
    check(b, false, size);
    return make(size, false, {a, b}, [this, a, b, size, to = Value(values_.size())](const Chunk& c) {
        add_maps(kernels_, c.maps(a), c.maps(b), c.samples(), size, c.q(to), c.scale(to), c.zero(to), 1);
    });
}

Program::Value Program::relu(Value x) {
    const int64_t size = check(x, false).size;
    return make(size, false, {x}, [x, size, to = Value(values_.size())](const Chunk& c) {
        for (int64_t n = 0; n < c.samples(); n++) relu_map(c.q(x) + n * size, size, c.zero(x)[n], c.q(to) + n * size);
        c.same_scales(x, to);
    });
}

Program::Value Program::max_pool(Value x, PoolShape s) {
    check(x, false, s.in_size());
    return make(s.out_size(), false, {x}, [this, x, s, to = Value(values_.size())](const Chunk& c) {
        PoolShape some = s;
        some.batch = c.samples();
        Pooled<uint8_t> taps;  // which nobody asks for
        taps.need(some.batch * s.out_size());
        edgegossip::max_pool(kernels_, some, Tie::FIRST, c.q(x), c.q(to), taps.data(), 1);
        c.same_scales(x, to);
    });
}

Program::Value Program::average_pool(Value x, PoolShape s, bool count_padding) {
    check(x, false, s.in_size());
    return make(s.out_size(), true, {x}, [x, s, count_padding, to = Value(values_.size())](const Chunk& c) {
        PoolShape some = s;
        some.batch = c.samples();
        edgegossip::average_pool(some, c.maps(x), count_padding, c.into(to), 1);
    });
}

Program::Value Program::pad(Value x, PadShape s) {
    check(x, false, s.in_size());
    return make(s.out_size(), false, {x}, [x, s, to = Value(values_.size())](const Chunk& c) {
        PadShape some = s;
        some.batch = c.samples();
        pad_maps(some, c.q(x), c.zero(x), c.q(to), 1);
        c.same_scales(x, to);
    });
}

Program::Value Program::slice(Value x, SliceShape s) {
    check(x, false, s.in_size());
    return make(s.out_size(), false, {x}, [x, s, to = Value(values_.size())](const Chunk& c) {
        for (int64_t n = 0; n < c.samples(); n++) slice_map(s, c.q(x) + n * s.in_size(), c.q(to) + n * s.out_size());
        c.same_scales(x, to);
    });
}

Program::Value Program::flatten(Value x, int64_t channels) {
    const int64_t size = check(x, false).size;
    if (channels < 1 || size % channels != 0) throw std::invalid_argument("the channels must divide the values");
    return make(size, false, {x}, [x, size, channels, to = Value(values_.size())](const Chunk& c) {
        for (int64_t n = 0; n < c.samples(); n++) flatten_map(c.q(x) + n * size, size / channels, channels, c.q(to) + n * size);
        c.same_scales(x, to);
    });
}

int64_t Program::end(Value floats) {
    if (has_ended() || floats == 0) throw std::invalid_argument("a program ends once, with what a step made");
    const int64_t size = check(floats, true).size;
    result_ = floats;
    find_places();
    together_ = std::clamp<int64_t>(MOST_MEMORY / std::max<int64_t>(memory_, 1), 1, together_);
    return size;
}

// First fit among what is still needed when a step runs; the input and the result lie elsewhere.
void Program::find_places() {
    std::vector<Value> there;
    for (size_t k = 0; k < steps_.size(); k++) {
        const Value made = Value(k) + 1;
        if (made == result_) continue;
        there.erase(std::remove_if(there.begin(), there.end(), [&](Value v) { return values_[size_t(v)].last < int64_t(k); }), there.end());
        std::sort(there.begin(), there.end(), [&](Value a, Value b) { return values_[size_t(a)].place < values_[size_t(b)].place; });
        Made& to = values_[size_t(made)];
        for (const Value v : there) {
            const Made& other = values_[size_t(v)];
            if (to.place + to.bytes() <= other.place) break;
            to.place = std::max(to.place, other.place + other.bytes());
        }
        memory_ = std::max(memory_, to.place + to.bytes());
        there.push_back(made);
    }
}

void Program::run(const float* x, int64_t batch, float* out, int threads) const {
    // As many times all threads as it takes, and each time alike.
    const int64_t times = (batch + threads * together_ - 1) / (threads * together_), tasks = threads * times;
    const int64_t together = (batch + tasks - 1) / tasks;
    parallel_for((batch + together - 1) / together, threads, [&](int64_t k) {
        const int64_t first = k * together, samples = std::min(together, batch - first);
        Pooled<char> bytes;  // given back with the last model
        bytes.need(samples * memory_);
        const Chunk chunk(*this, bytes.data(), x + first * in_size(), out + first * out_size(), samples);
        for (const Step& step : steps_) step(chunk);
    });
}

}  // namespace edgegossip
