#include "codec/huffman_decode.hpp"

#include <algorithm>
#include <cstring>

#include "codec/bits.hpp"

namespace edgegossip::coding {
namespace {

constexpr size_t MOST_WAITING = 1024;  // blocks: what they take is little beside a tensor of their values

bool same(const CodeLengths& a, const CodeLengths& b) { return std::memcmp(a.bits, b.bits, sizeof a.bits) == 0; }

// Values of a decoded block. 0 or a SectionError.
int64_t take(const Target& t, const CodedBlock& block, int64_t first, float* room) {
    if (block.error != 0) return block.error;
    if (t.checks()) return block.checked || are_codes(t.q, block.symbols, block.n) ? 0 : int64_t(BAD_CODE);
    return t.write(block.symbols, first, block.n, room, block.checked) ? 0 : int64_t(BAD_CODE);
}

}  // namespace

int64_t HuffmanWork::add(const Target& t, Range r, const Body& body, const StaticTables& tables, LastTable* last, int64_t index) {
    CodeLengths lengths;
    const int used = read_table(r.p, r.end, symbol_alphabet(t.q), *last, tables, t.n, &lengths);
    if (used == 0) return BAD_TABLE;
    *last = {1, lengths};
    std::vector<const uint8_t*> starts;
    const auto size_of = [&t](const uint8_t* p, const uint8_t* end, int64_t n) { return block_size(p, end, n, t.q.bits); };
    if (const int64_t error = find_blocks({r.p + used, r.end}, t.n, size_of, &starts)) return error;
    if (blocks_.size() >= MOST_WAITING || (!blocks_.empty() && !same(lengths, lengths_))) found_ = run();
    lengths_ = lengths;
    end_ = body.data + body.size;
    tensors_.push_back({t, index});
    for (size_t k = 0; k < starts.size(); k++) {
        const int64_t first = int64_t(k) * BLOCK_VALUES;
        const uint8_t* const end = k + 1 < starts.size() ? starts[k + 1] : r.end;
        blocks_.push_back({tensors_.size() - 1, starts[k], end, first, std::min(BLOCK_VALUES, t.n - first)});
    }
    return 0;
}

// The longest first, so that those side by side are of about the same length.
std::vector<HuffmanWork::Group> HuffmanWork::groups() {
    std::stable_sort(blocks_.begin(), blocks_.end(), [](const Block& a, const Block& b) { return a.n > b.n; });
    std::vector<Group> all;
    const Block *begin = blocks_.data(), *const end = begin + blocks_.size();
    int streams = HUFFMAN_MOST_STREAMS;
    for (const Block* b = begin; b != end; b++) {
        const int more = streams_of(symbol_bytes(b->n, tensors_[b->tensor].target.q.bits));
        if (streams + more > HUFFMAN_MOST_STREAMS) {
            all.push_back({b, b});
            streams = 0;
        }
        all.back().end = b + 1;
        streams += more;
    }
    return all;
}

// Reads and writes that follow: of the group's values and of the blocks of the next one.
Soon HuffmanWork::soon_after(Group group, Group next) const {
    Soon soon{};
    int part = 0;
    for (const Block* b = next.begin; b != next.end && part < GROUP_BLOCKS; b++) soon.parts[part++] = {b->p, b->end - b->p};
    for (const Block* b = group.begin; b != group.end && part < Soon::PARTS; b++) {
        const Target& t = tensors_[b->tensor].target;
        if (!t.checks()) soon.parts[part++] = {reinterpret_cast<const uint8_t*>(t.out + b->first), b->n * int64_t(sizeof(float))};
    }
    return soon;
}

void HuffmanWork::decode(Group group, Group next, const DecodeTable& table, Reached* found) const {
    const Tensor& any = tensors_[group.begin->tensor];
    const Quantiser& q = any.target.q;
    Slot& slot = slot_of_thread();
    int64_t room = 0;
    for (const Block* b = group.begin; b != group.end; b++) room += symbol_bytes(b->n, q.bits);
    slot.need(q, group.begin->n);  // for the longest block's scales
    slot.symbols.need(room);
    CodedBlock coded[HUFFMAN_MOST_STREAMS];
    uint8_t* symbols = slot.symbols.data();
    for (const Block* b = group.begin; b != group.end; b++) {
        coded[b - group.begin] = {b->p, b->n, symbols, false, 0};
        symbols += symbol_bytes(b->n, q.bits);
    }
    decode_blocks(any.target.kernels.entropy, coded, int(group.end - group.begin), end_, q, table, soon_after(group, next));
    for (const Block* b = group.begin; b != group.end; b++) {
        const Tensor& tensor = tensors_[b->tensor];
        const int64_t error = take(tensor.target, coded[b - group.begin], b->first, slot.scales.data());
        if (error != 0 && (found->position == 0 || tensor.index < found->tensor)) *found = {tensor.index, error};
    }
}

Reached HuffmanWork::run() {
    if (blocks_.empty()) return found_;
    const std::vector<Group> all = groups();
    const DecodeTable table = symbol_table(lengths_, blocks_.front().n);
    const int64_t count = int64_t(all.size()), lanes = std::min<int64_t>(threads_, count);
    std::vector<Reached> found(size_t(lanes), found_);
    parallel_for(lanes, threads_, [&](int64_t lane) {
        for (int64_t g = count * lane / lanes, end = count * (lane + 1) / lanes; g < end; g++)
            decode(all[size_t(g)], g + 1 < end ? all[size_t(g + 1)] : Group{}, table, &found[size_t(lane)]);
    });
    for (const Reached& one : found)
        if (one.position != 0 && (found_.position == 0 || one.tensor < found_.tensor)) found_ = one;
    blocks_.clear();
    tensors_.clear();
    return found_;
}

}  // namespace edgegossip::coding
