#include "int8/program.hpp"

#include "int8.hpp"

namespace {

using namespace edgegossip;
using drive::floats;

// A residual network with a shortcut that is sliced and padded, all poolings, and linear layers of which one has many weights.
struct Network {
    drive::Random random;
    Program program;

    explicit Network(const Isa& isa) : program(*isa.int8, 9 * 9 * 3) {
        const Program::Value x = program.quantise(0);
        const Program::Value first = convolved(x, {1, 9, 9, 3, 16, 3, 3, 1, 1, 1, 1, 1}, true);
        const Program::Value branch = convolved(first, {1, 9, 9, 16, 32, 3, 3, 2, 2, 1, 1, 1}, false);
        const Program::Value fewer = program.slice(first, {9, 9, 16, {0, 2, 5}, {0, 2, 5}, {0, 1, 16}});
        const Program::Value shortcut = program.pad(fewer, {1, 5, 5, 16, 0, 0, 0, 0, 8, 8});
        const Program::Value sum = program.relu(program.add(branch, shortcut));
        const Program::Value pooled = program.max_pool(sum, {1, 5, 5, 32, 2, 2, 1, 1, 0, 0, 4, 4});
        const Program::Value wide = linear(program.flatten(pooled, 32), 512, 80);
        const Program::Value average = program.average_pool(program.relu(program.quantise(wide)), {1, 4, 4, 5, 3, 3, 2, 2, 1, 1, 2, 2}, true);
        program.end(linear(program.quantise(average), 20, 7));
    }

    Program::Value convolved(Program::Value x, const ConvShape& s, bool bias) {
        const std::vector<float> weight = floats(random, s.weights(), 0.5f), shift = floats(random, s.out, 1.0f);
        const Program::Value y = program.conv(x, s, weight.data(), bias ? shift.data() : nullptr, false);
        const std::vector<float> v = floats(random, s.out, 2.0f), gamma = floats(random, s.out, 1.0f), beta = floats(random, s.out, 1.0f);
        const int64_t chunks = s.pixels() == 81 ? 9 : 5;
        return program.evonorm(y, {1, s.pixels(), s.out, 8, chunks}, {v.data(), gamma.data(), beta.data()});
    }

    Program::Value linear(Program::Value x, int64_t in, int64_t out) {
        const std::vector<float> weight = floats(random, in * out, 0.5f);
        return program.conv(x, {1, 1, 1, in, out, 1, 1, 1, 1, 0, 0, 1}, weight.data(), nullptr, true);
    }
};

void run(const Isa& isa) {
    drive::Hash hash;
    for (const int64_t batch : {1, 5, 70})
        for (const float width : {1.0f, 1e-38f, 3e37f}) {
            Network network(isa);
            const std::vector<float> x = floats(network.random, batch * network.program.in_size(), width);
            std::vector<float> one(size_t(batch * network.program.out_size())), two = one;
            network.program.run(x.data(), batch, one.data(), 1);
            network.program.run(x.data(), batch, two.data(), 2);
            drive::add(hash, one);
            drive::add(hash, two);
        }
    drive::report(isa, "int8_program", hash);
}

const drive::Part part(run);

}  // namespace
