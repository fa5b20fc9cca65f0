#include "huffman_decode.hpp"

#include <cstring>

#include "bits.hpp"

namespace edgegossip::coding {
namespace {

bool same(const CodeLengths& a, const CodeLengths& b) { return std::memcmp(a.bits, b.bits, sizeof a.bits) == 0; }

// Values of a decoded block. 0 or a SectionError.
int64_t take(const Target& t, const CodedBlock& block, int64_t first, float* room) {
    if (block.error != 0) return block.error;
    const bool good = t.checks() ? block.checked || are_codes(t.q, block.symbols, block.n) : t.write(block.symbols, first, block.n, room);
    return good ? 0 : int64_t(BAD_CODE);
}

// Whether a block has so many streams that another's are worth waiting for.
bool may_wait(const uint8_t* p, int64_t n, const Quantiser& q) { return read16(p) != RAW_BLOCK && streams_of(symbol_bytes(n, q.bits)) > 1; }

}  // namespace

int64_t HuffmanWork::add(const Target& t, Range r, const Body& body, const StaticTables& tables, LastTable* last, int threads, int64_t index) {
    const int bits = t.q.bits;
    CodeLengths lengths;
    const int used = read_table(r.p, r.end, symbol_alphabet(t.q), *last, tables, t.n, &lengths);
    if (used == 0) return BAD_TABLE;
    *last = {1, lengths};
    std::vector<const uint8_t*> starts;
    const auto size_of = [bits](const uint8_t* p, const uint8_t* end, int64_t n) { return block_size(p, end, n, bits); };
    if (const int64_t error = find_blocks({r.p + used, r.end}, t.n, size_of, &starts)) return error;
    const int64_t all = blocks_of(t.n), last_first = (all - 1) * BLOCK_VALUES, last_n = t.n - last_first;
    const bool waits = all % GROUP_BLOCKS != 0 && may_wait(starts.back(), last_n, t.q);
    const int64_t groups = (all - waits + GROUP_BLOCKS - 1) / GROUP_BLOCKS;
    if (waiting_ && !same(lengths, lengths_)) {  // before another table takes the place of its own
        decode(*waiting_, nullptr);
        waiting_.reset();
    }
    const DecodeTable table = symbol_table(lengths, t.n);
    end_ = body.data + body.size;
    const int64_t error = each_task(groups, threads, t.q, t.n, [&](int64_t g, Slot* slot) {
        CodedBlock blocks[GROUP_BLOCKS];
        const int64_t b = g * GROUP_BLOCKS;
        const int count = int(std::min<int64_t>(GROUP_BLOCKS, all - waits - b));
        for (int k = 0; k < count; k++) {
            const int64_t first = (b + k) * BLOCK_VALUES;
            uint8_t* const symbols = slot->symbols.data() + symbol_bytes(k * BLOCK_VALUES, bits);
            blocks[k] = {starts[size_t(b + k)], std::min(BLOCK_VALUES, t.n - first), symbols, t.soon(first), false, 0};
        }
        decode_blocks(t.kernels.entropy, blocks, count, end_, t.q, table);
        for (int k = 0; k < count; k++)
            if (const int64_t found = take(t, blocks[k], (b + k) * BLOCK_VALUES, slot->scales.data())) return found;
        return int64_t(0);
    });
    if (error != 0 || !waits) return error;
    const Waiting block{t, starts.back(), last_first, last_n, index};
    if (!waiting_) {
        waiting_.emplace(block);
        lengths_ = lengths;
        return 0;
    }
    const int64_t of_this = decode(*waiting_, &block);
    waiting_.reset();
    return of_this;
}

int64_t HuffmanWork::decode(const Waiting& waiting, const Waiting* other) {
    const int count = other == nullptr ? 1 : 2;
    static_assert(GROUP_BLOCKS >= 2);
    const Waiting* const both[] = {&waiting, other};
    const Quantiser& q = waiting.target.q;
    Slot& slot = slot_of_thread();
    slot.need(q, count == 2 ? BLOCK_VALUES + other->n : waiting.n);
    CodedBlock blocks[2];
    for (int k = 0; k < count; k++)
        blocks[k] = {both[k]->p, both[k]->n, slot.symbols.data() + symbol_bytes(k * BLOCK_VALUES, q.bits),
                     both[k]->target.soon(both[k]->first), false, 0};
    decode_blocks(waiting.target.kernels.entropy, blocks, count, end_, q, symbol_table(lengths_, std::max(waiting.n, both[count - 1]->n)));
    int64_t errors[2] = {0, 0};
    for (int k = 0; k < count; k++) errors[k] = take(both[k]->target, blocks[k], both[k]->first, slot.scales.data());
    if (found_.error == 0 && errors[0] != 0) found_ = {errors[0], waiting.index};
    return errors[1];
}

HuffmanWork::Result HuffmanWork::run() {
    if (waiting_) decode(*waiting_, nullptr);
    waiting_.reset();
    return found_;
}

}  // namespace edgegossip::coding
