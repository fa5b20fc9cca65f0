#include <thread>

#include "codec/huffman.hpp"
#include "codec/quantised.hpp"
#include "driver.hpp"

namespace {

using namespace edgegossip;
using namespace edgegossip::coding;

// Marginals of 16 codes, sign << 3 | level.
constexpr uint8_t STATIC[32] = {255, 70, 21, 8, 5, 3, 0, 0, 0, 70, 21, 8, 5, 3, 0, 0,
                                235, 235, 185, 124, 91, 35, 0, 0, 0, 235, 185, 124, 91, 35, 0, 0};

struct Hashes {
    drive::Hash bodies, values;
};

// All sections of a body at once, as a sum and stored, on one thread and on three.
void all_at_once(const Isa& isa, const std::vector<uint8_t>& bytes, const std::vector<int64_t>& offsets, const Quantiser& q,
                 const StaticTables& tables, drive::Hash* values) {
    const Body body{bytes.data(), int64_t(bytes.size())};
    std::vector<float> out(size_t(offsets.back()), 0.25f);
    for (const int threads : {1, 3})
        for (const Mode mode : {Mode::CHECK, Mode::ADD, Mode::STORE}) {
            TableState state{};
            const Reached reached = decode_sections(*isa.kernels, body, {0, 0}, q, offsets.data(), int64_t(offsets.size()) - 1, tables, &state,
                                                    mode, 0.3f, mode == Mode::CHECK ? nullptr : out.data(), threads);
            values->add(&reached, sizeof reached);
            values->add(out.data(), 4 * out.size());
        }
}

// A body of these tensors, every section decoded as a sum and stored.
void round_trip(const Isa& isa, const std::vector<float>& x, const std::vector<int64_t>& offsets, const Quantiser& q, Choice choice,
                Hashes* hashes) {
    const StaticTables tables{q.kind == FP4 ? STATIC : nullptr, q.kind == FP4 ? 2 : 0, q.kind == FP4 ? 1 : -1};
    TableState state{}, received{};
    std::vector<uint8_t> whole;
    for (size_t t = 0; t + 1 < offsets.size(); t++) {
        const int64_t n = offsets[t + 1] - offsets[t];
        if (n == 0) continue;
        const float k = 1.5f;
        const bool given = q.kind == FP4 || q.kind == SIGN;
        const Source source{x.data() + offsets[t], n, q, 0x9e3779b97f4a7c15ull * (t + 1), int32_t(t & 1), given ? &k : nullptr};
        std::vector<uint8_t> room(size_t(section_bound(n, q, choice)));
        const int64_t size = encode_section(*isa.kernels, source, choice, tables, &state, room.data(), 1 + int(t & 1));
        const Body body{room.data(), size};
        hashes->bodies.add(room.data(), size_t(size));
        std::vector<float> out(size_t(n), 0.25f);
        int64_t end = decode_section(*isa.kernels, body, 0, q, n, tables, &received, Mode::ADD, 0.3f, out.data(), 2);
        hashes->values.add(&end, sizeof end);
        hashes->values.add(out.data(), 4 * out.size());
        end = decode_section(*isa.kernels, body, 0, q, n, tables, &received, Mode::STORE, 1.0f, out.data(), 1);
        hashes->values.add(&end, sizeof end);
        hashes->values.add(out.data(), 4 * out.size());
        whole.insert(whole.end(), room.begin(), room.begin() + size);
    }
    all_at_once(isa, whole, offsets, q, tables, &hashes->values);
}

// Every 40th value, so that the runs and Elias coders are chosen.
std::vector<float> thinned(const std::vector<float>& x) {
    std::vector<float> out(x.size(), 0.0f);
    for (size_t i = 0; i < x.size(); i += 40 + i % 7) out[i] = x[i];
    return out;
}

// Rows of bytes of several lengths and laws, with codes of 1 to 14 bits: eight of them may be longer than a word.
void huffman_rows(const Isa& isa) {
    drive::Hash hash;
    for (const uint32_t slope : {0u, 3u, 20u, 120u}) {
        uint64_t weights[256];
        for (uint32_t s = 0; s < 256; s++) weights[s] = 1 + (uint64_t(1) << 40 >> (s * slope / 128 % 40));
        CodeLengths lengths;
        code_lengths(weights, &lengths);
        EncodeEntry table[256];
        make_encode_table(lengths, table);
        for (const int64_t m : {0, 1, 63, 255, 256, 257, 1000, 9001}) {
            std::vector<uint8_t> symbols(size_t(m), 0), out(size_t(2 * m + 16), 0);
            uint32_t state = 1 + slope, counts[256] = {};
            for (uint8_t& symbol : symbols) {
                state = state * 1664525u + 1013904223u;
                symbol = uint8_t((state >> 24) >> (m % 2 == 0 ? state >> 16 & 7 : 0));
            }
            const int64_t bytes = isa.kernels->entropy.encode(symbols.data(), m, table, out.data());
            isa.kernels->entropy.histogram(symbols.data(), m, counts);
            hash.add(out.data(), size_t(bytes));
            hash.add(counts, sizeof counts);
        }
    }
    drive::report(isa, "huffman_encode", hash);
}

// Many short tensors of one law, which share a table and so are decoded side by side; on a thread of their own, whose
// room is what they asked for and no longer tensor's.
void short_ones(const Isa& isa, const Quantiser& q, Hashes* hashes) {
    drive::Random random;
    std::vector<float> x;
    std::vector<int64_t> offsets = {0};
    while (offsets.size() < 40) {
        const uint64_t length = offsets.size() % 3 == 0 ? 9 : 200 + random.next() % 700;
        for (uint64_t i = 0; i < length; i++) {
            float sum = 0.0f;
            for (int k = 0; k < 4; k++) sum += float(random.next() % 1024) - 511.5f;
            x.push_back(sum);
        }
        offsets.push_back(int64_t(x.size()));
    }
    std::thread([&] { round_trip(isa, x, offsets, q, Choice::HUFFMAN, hashes); }).join();
}

void run(const Isa& isa) {
    huffman_rows(isa);
    const drive::Tensors t = drive::make_tensors();
    const float list[] = {0.0f, 0.05f, 0.2f, 0.5f, 1.0f};
    const Quantiser quantisers[] = {
        {UNIFORM, 2, 1, 0, nullptr, 0}, {UNIFORM, 4, 7, 512, nullptr, 0}, {UNIFORM, 6, 31, 64, nullptr, 0}, {UNIFORM, 12, 2047, 0, nullptr, 0},
        {LOG2, 4, 6, 8, nullptr, 0},    {LEVELS, 5, 0, 512, list, 5},     {FP4, 4, 0, 0, nullptr, 0},       {SIGN, 1, 0, 0, nullptr, 0},
    };
    const std::vector<int64_t> some(t.offsets.begin(), t.offsets.begin() + 90), whole = {0, 70000};  // above one block
    const std::vector<float> thin = thinned(t.x);
    std::vector<float> longer;  // above 2^18 values, of which a sample decides
    while (longer.size() < 300000) longer.insert(longer.end(), t.x.begin(), t.x.end());
    const std::vector<int64_t> long_whole = {0, 300000};
    Hashes hashes;
    for (const Quantiser& q : quantisers) short_ones(isa, q, &hashes);
    for (const Quantiser& q : quantisers)
        for (const Choice choice : {Choice::RAW, Choice::HUFFMAN, Choice::ELIAS, Choice::AUTO}) {
            round_trip(isa, t.x, some, q, choice, &hashes);
            round_trip(isa, thin, whole, q, choice, &hashes);
            if (q.bits == 4) round_trip(isa, longer, long_whole, q, choice, &hashes);
        }
    drive::report(isa, "section_encode", hashes.bodies);
    drive::report(isa, "section_decode", hashes.values);
}

const drive::Part part(run);

}  // namespace
