// Tensor -> section. Everything works on blocks of 65536 values, which are quantised into a scratch that stays in a core's
// cache and coded from there. What to code with is decided from all symbols of a small tensor and from a fixed sample of
// a large one.
#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/parallel.hpp"
#include "codec/block.hpp"
#include "codec/codes.hpp"
#include "codec/elias.hpp"
#include "codec/plan.hpp"
#include "codec/runs.hpp"
#include "codec/quantised.hpp"
#include "codec/scales.hpp"
#include "runtime/scratch.hpp"

namespace edgegossip::coding {
namespace {

constexpr int64_t TASKS_A_THREAD = 8;  // in one round of several threads

// Scratch of one task.
struct Slot {
    Scratch<float> scales;
    Scratch<uint8_t> symbols, coded;
    Scratch<uint32_t> items;
    int64_t bytes = 0;  // coded; 0: it would not fit; negative: why there are none
};

struct Writer {
    const Kernels& kernels;
    const Source& source;
    const Symbols& symbols;
    uint8_t* scales;  // where the section has them

    // What a block has at most: nothing that was worked out already.
    int64_t block_values() const { return symbols.all ? 0 : std::min(BLOCK_VALUES, source.n); }
    int64_t block_symbols() const { return symbol_bytes(block_values(), source.q.bits); }
    int64_t block_scales() const { return scale_count(block_values(), source.q.bucket); }

    // Symbols and scales of a block; the scales go to their place. Null when it is not finite.
    const uint8_t* quantise(int64_t first, int64_t n, Slot* slot, uint8_t* place) const {
        const int64_t bucket = source.q.bucket;
        if (symbols.all) return symbols.data.data() + symbol_bytes(first, source.q.bits);
        if (!symbols.quantise(first, n, slot->scales.data(), place)) return nullptr;
        if (bucket > 0 && source.scales == nullptr)
            put_short(slot->scales.data(), scale_count(n, bucket), scales + 2 * (first / bucket));
        return place;
    }
};

int64_t encode_raw(const Writer& w, uint8_t* out, int threads) {
    const int bits = w.source.q.bits;
    const int64_t n = w.source.n, blocks = (n + BLOCK_VALUES - 1) / BLOCK_VALUES;
    std::atomic<bool> good{true};
    std::vector<Slot> slots(size_t(std::min<int64_t>(threads, blocks)));
    const int64_t lanes = int64_t(slots.size());
    parallel_for(lanes, threads, [&](int64_t lane) {
        Slot& slot = slots[size_t(lane)];
        slot.scales.need(w.block_scales());
        slot.symbols.need(is_dense(bits) ? 0 : w.block_symbols());
        for (int64_t b = lane; b < blocks; b += lanes) {
            const int64_t first = b * BLOCK_VALUES, count = std::min(BLOCK_VALUES, n - first);
            uint8_t* const to = out + dense_bytes(first, bits);
            const uint8_t* from = w.quantise(first, count, &slot, is_dense(bits) ? to : slot.symbols.data());
            if (from == nullptr) {
                good = false;
                return;
            }
            if (!is_dense(bits))
                pack_dense(from, count, bits, to);
            else if (from != to)
                std::memcpy(to, from, size_t(symbol_bytes(count, bits)));
        }
    });
    return good ? dense_bytes(n, bits) : int64_t(NOT_FINITE);
}

// Runs tasks into slots, round by round, and puts what they coded one after the other. The bytes, or 0 when it would not fit in
// `room`, or of the first task that has a negative result that.
template <class Task>
int64_t gather(const Writer& w, int64_t tasks, int threads, uint8_t* out, int64_t room, const Task& task) {
    const int64_t round = threads == 1 ? 1 : std::min(tasks, threads * TASKS_A_THREAD);
    static thread_local Slot kept;  // for the next tensor: the system would take back its memory and clear it each time
    std::vector<Slot> more(static_cast<size_t>(round - 1));
    const auto slot_of = [first = &kept, &more](int64_t k) { return k == 0 ? first : &more[size_t(k - 1)]; };
    int64_t bytes = 0;
    for (int64_t start = 0; start < tasks; start += round) {
        const int64_t count = std::min(round, tasks - start);
        parallel_for(count, threads, [&](int64_t k) {
            Slot& slot = *slot_of(k);
            slot.scales.need(w.block_scales());
            slot.symbols.need(w.block_symbols());
            slot.bytes = task(start + k, &slot);
        });
        for (int64_t k = 0; k < count; k++) {
            const Slot& slot = *slot_of(k);
            if (slot.bytes < 0) return slot.bytes;
            if (slot.bytes == 0 || bytes + slot.bytes > room) return 0;
            std::memcpy(out + bytes, slot.coded.data(), size_t(slot.bytes));
            bytes += slot.bytes;
        }
    }
    return bytes;
}

int64_t encode_huffman(const Writer& w, const TableChoice& table, uint8_t* out, int64_t room, int threads) {
    const EncodeEntry* const codes = encode_table(table.lengths);
    const int bits = w.source.q.bits;
    const int64_t n = w.source.n, blocks = (n + BLOCK_VALUES - 1) / BLOCK_VALUES;
    if (room < table.transport_bytes) return 0;
    std::memcpy(out, table.transport, size_t(table.transport_bytes));
    const int64_t bytes = gather(w, blocks, threads, out + table.transport_bytes, room - table.transport_bytes, [&](int64_t b, Slot* slot) {
        const int64_t first = b * BLOCK_VALUES, count = std::min(BLOCK_VALUES, n - first);
        slot->coded.need(coded_block_bound(symbol_bytes(std::min(BLOCK_VALUES, n), bits)));
        const uint8_t* symbols = w.quantise(first, count, slot, slot->symbols.data());
        if (symbols == nullptr) return int64_t(NOT_FINITE);
        return encode_block(w.kernels.entropy, symbols, count, bits, codes, slot->coded.data());
    });
    return bytes <= 0 ? bytes : bytes + table.transport_bytes;
}

constexpr int64_t OTHER_SIGN = INT64_MIN;  // no SectionError: a sample had none of this sign

int64_t encode_runs_as(const Writer& w, const RunsPlan& plan, const RunShape& shape, uint8_t* out, int64_t room, int threads) {
    RunEntry codes[256];
    make_run_table(plan.table.lengths, shape, codes);
    const Runs& kernels = w.kernels.runs;
    const int64_t n = w.source.n, blocks = (n + BLOCK_VALUES - 1) / BLOCK_VALUES, head = 1 + plan.table.transport_bytes;
    if (room < head) return 0;
    out[0] = shape_byte(shape);
    std::memcpy(out + 1, plan.table.transport, size_t(plan.table.transport_bytes));
    const int64_t bytes = gather(w, blocks, threads, out + head, room - head, [&](int64_t b, Slot* slot) {
        const int64_t first = b * BLOCK_VALUES, count = std::min(BLOCK_VALUES, n - first);
        const uint32_t* items = plan.items.data();
        RunItems found;
        if (w.symbols.all) {
            found = plan.blocks[size_t(b)];
            for (int64_t before = 0; before < b; before++) items += plan.blocks[size_t(before)].all();
        } else {
            slot->items.need(run_items_bound(BLOCK_VALUES));
            const uint8_t* symbols = w.quantise(first, count, slot, slot->symbols.data());
            if (symbols == nullptr) return int64_t(NOT_FINITE);
            found = find_items(kernels, symbols, count, shape, slot->items.data(), nullptr);
            items = slot->items.data();
            if (shape.signs != SIGNS_BESIDE && !take_signs(slot->items.data(), found.all(), shape.signs)) return OTHER_SIGN;
        }
        slot->coded.need(coded_run_bound(found.all()));
        return write_run_block(kernels, items, found, count, codes, slot->coded.data());
    });
    return bytes <= 0 ? bytes : bytes + head;
}

int64_t encode_runs(const Writer& w, const RunsPlan& plan, uint8_t* out, int64_t room, int threads) {
    const int64_t bytes = encode_runs_as(w, plan, plan.shape, out, room, threads);
    if (bytes != OTHER_SIGN) return bytes;
    RunShape shape = plan.shape;
    shape.signs = SIGNS_BESIDE;
    return encode_runs_as(w, plan, shape, out, room, threads);
}

// Words are written a few bytes ahead of their end.
constexpr int64_t ELIAS_AHEAD = 24;

int64_t encode_elias_words(const Writer& w, uint8_t* out, int64_t room) {
    const int bits = w.source.q.bits;
    const int64_t n = w.source.n;
    Slot slot;
    slot.scales.need(w.block_scales());
    slot.symbols.need(w.block_symbols());
    EliasWriter writer{BitWriter{out + 4}};
    for (int64_t first = 0; first < n; first += BLOCK_VALUES) {
        const int64_t count = std::min(BLOCK_VALUES, n - first);
        const uint8_t* symbols = w.quantise(first, count, &slot, slot.symbols.data());
        if (symbols == nullptr) return NOT_FINITE;
        if (!writer.put(symbols, count, bits, out + room - ELIAS_AHEAD)) return 0;
    }
    std::memcpy(out, &writer.nonzeros, 4);
    return writer.out.finish() - out;
}

int64_t encode_elias(const Writer& w, uint8_t* out, int64_t room) {
    constexpr int64_t SMALL = 4096;  // bytes, of which those ahead would be many
    if (room >= SMALL) return encode_elias_words(w, out, room);
    uint8_t words[SMALL + ELIAS_AHEAD + 8];
    const int64_t bytes = encode_elias_words(w, words, room + ELIAS_AHEAD);
    if (bytes > room) return 0;
    if (bytes > 0) std::memcpy(out, words, size_t(bytes));
    return bytes;
}

}  // namespace

int64_t section_bound(int64_t n, const Quantiser& q, Choice choice) {
    if (n == 0) return 0;
    int64_t payload = dense_bytes(n, q.bits);
    if (choice == Choice::ELIAS && q.bits > 1) payload = (n * (2 + int64_t(omega(uint64_t(max_level(q))).count)) + 7) / 8;
    return 1 + scale_bytes(n, q.bucket) + payload + 64;
}

int64_t encode_section(const Kernels& kernels, const Source& source, Choice choice, const StaticTables& tables,
                       TableState* state, uint8_t* out, int threads) {
    const Quantiser& q = source.q;
    const int64_t head = 1 + scale_bytes(source.n, q.bucket), raw = dense_bytes(source.n, q.bits);
    float whole = 0;
    static thread_local Scratch<uint8_t> kept;  // as in gather()
    Symbols symbols(kernels, source, &whole, kept);
    if (q.bucket == 0 && source.scales == nullptr && !kernels.quantise.norms(source.x, source.n, 0, source.norm, &whole))
        return NOT_FINITE;
    if (q.bucket == 0)
        std::memcpy(out + 1, source.scales != nullptr ? source.scales : &whole, 4);
    else if (source.scales != nullptr)
        put_short(source.scales, scale_count(source.n, q.bucket), out + 1);
    Plan plan{};
    if (choice == Choice::ELIAS && q.bits > 1) {
        plan.coder = CODER_ELIAS;
    } else if (choice != Choice::RAW && q.bits > 1) {
        if (!symbols.collect(out + 1)) return NOT_FINITE;
        plan = make_plan(symbols, source, choice, tables, *state);
    }
    const Writer writer{kernels, source, symbols, out + 1};
    uint8_t* const payload = out + head + 4;
    const bool must = choice == Choice::ELIAS;
    const int64_t most = must ? section_bound(source.n, q, choice) - head - 4 : raw - 5;  // 4 bytes say the payload's size
    const int64_t room = std::min<int64_t>(most, UINT32_MAX);
    int64_t bytes = 0;
    if (plan.coder == CODER_HUFFMAN) bytes = encode_huffman(writer, plan.huffman, payload, room, threads);
    if (plan.coder == CODER_RUNS) bytes = encode_runs(writer, plan.runs, payload, room, threads);
    if (plan.coder == CODER_ELIAS) bytes = encode_elias(writer, payload, room);
    if (bytes < 0) return bytes;
    if (bytes == 0) {  // it would not be smaller
        out[0] = CODER_RAW;
        const int64_t dense = encode_raw(writer, out + head, threads);
        return dense < 0 ? dense : head + dense;
    }
    if (plan.coder == CODER_HUFFMAN) state->symbols = {1, plan.huffman.lengths};
    if (plan.coder == CODER_RUNS) state->tokens = {1, plan.runs.table.lengths};
    out[0] = plan.coder;
    const uint32_t size = uint32_t(bytes);
    std::memcpy(out + head, &size, 4);
    return head + 4 + bytes;
}

}  // namespace edgegossip::coding
