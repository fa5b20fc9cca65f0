#include "codec/ans_decode.hpp"

#include <algorithm>
#include <cstring>
#include <memory>

#include "runtime/parallel.hpp"
#include "codec/bits.hpp"
#include "codec/codes.hpp"
#include "runtime/scratch.hpp"

namespace edgegossip::coding {
namespace {

uint32_t code_at(const uint8_t* symbols, int64_t i) { return symbols[i / 2] >> (4 * (i & 1)) & 15u; }

// Puts strays where they belong, slice by slice.
struct Strays {
    const uint8_t *p, *end;
    int64_t at, error;  // the value after the last one; 0 or a SectionError

    // Those among values first .. last of n, whose symbols these are.
    void put(const AnsTensor& tensor, int64_t first, int64_t last, int64_t n, uint8_t* symbols) {
        while (error == 0 && p < end) {
            const uint32_t stray = read16(p), code = stray & 15;
            const int64_t gap = stray >> 4, to = at + gap;
            if (gap == ANS_MOST_GAP && code == 0) {
                error = p + 2 == end ? int64_t(BAD_STREAM) : 0;
            } else {
                if (gap != ANS_MOST_GAP && to >= last && last < n) return;
                const int64_t i = to - first;
                if (gap == ANS_MOST_GAP || to >= n || code_at(symbols, i) != tensor.filling)
                    error = BAD_STREAM;
                else if (!is_code(tensor.target.q, code) || tensor.shape.share[code] != 0)
                    error = BAD_CODE;
                else
                    symbols[i / 2] = uint8_t(symbols[i / 2] ^ (tensor.filling ^ code) << (4 * (i & 1)));
            }
            at = to + (gap != ANS_MOST_GAP);
            p += 2;
        }
    }
};

}  // namespace

// Where one of the blocks side by side stands.
class AnsWork::Slot {
public:
    AnsStream stream;
    const Block* block = nullptr;
    int64_t left = 0;  // rows

    void need(int64_t slice, int64_t scales) {
        symbols_.need(slice * ANS_ROW_BYTES);
        scales_.need(scales);
    }

    // A block whose size is known to be good. It may have more strays than a sender writes, which take long, or bits of a first word where
    // they are gone.
    void begin(const Block& b) {
        block = &b;
        left = (b.n + ANS_ROW - 1) / ANS_ROW;
        done_ = in_slice_ = 0;
        const AnsParts parts = ans_parts(b.p, b.n, &stream.place);
        well_ = parts.good;
        strays_ = {parts.strays, parts.strays + 2 * parts.stray_count, 0, 0};
        stream.table = &b.tensor->table;
        stream.words = parts.words;
        stream.stop = stream.end = parts.words_end;
        stream.out = symbols_.data();
    }

    int64_t to_slice_end(int64_t slice) const { return std::min(slice - in_slice_, left); }

    // So many rows were read. The block's error, 0 where it has none or is not at its end.
    int64_t went(int64_t rows, int64_t slice, const Ans& kernels) {
        in_slice_ += rows;
        left -= rows;
        if (in_slice_ < slice && left > 0) return 0;
        const Target& target = block->tensor->target;
        const int64_t last = std::min(done_ + in_slice_ * ANS_ROW, block->n);
        bool padded = true;
        for (int64_t i = last - done_; i < in_slice_ * ANS_ROW; i++) padded &= code_at(symbols_.data(), i) == block->tensor->filling;
        strays_.put(*block->tensor, done_, last, block->n, symbols_.data());
        // Codes they surely are, but for the strays, which were looked at.
        if (!target.checks() && strays_.error == 0) target.write(symbols_.data(), block->first + done_, last - done_, scales_.data(), true);
        done_ = last;
        in_slice_ = 0;
        stream.out = symbols_.data();
        if (left > 0) return 0;
        if (!padded) return BAD_PADDING;
        if (!well_ || !kernels.ends_well(stream)) return BAD_STREAM;
        return strays_.error;
    }

private:
    Scratch<uint8_t> symbols_;
    Scratch<float> scales_;
    Strays strays_;
    int64_t done_, in_slice_;  // values; rows
    bool well_;
};

// What one thread decodes: blocks one after the other into slots that are free.
class AnsWork::Lane {
public:
    Lane(const Ans& kernels, const Quantiser& q) : kernels_(kernels) {
        for (int k = 0; k < kernels.at_once; k++)
            slots_[k].need(kernels.slice, scale_count(kernels.slice * ANS_ROW, q.bucket));
    }

    // The first block of begin .. end with an error, or `end`.
    const Block* run(const Block* begin, const Block* end, int64_t* error) {
        const Block* failed = end;
        int busy = 0;
        Slot* slots[ANS_AT_ONCE];
        for (int k = 0; k < kernels_.at_once; k++) slots[k] = &slots_[k];
        while (true) {
            while (busy < kernels_.at_once && begin < end && failed == end) slots[busy++]->begin(*begin++);
            if (busy == 0) return failed;
            AnsStream* streams[ANS_AT_ONCE];
            int64_t rows = kernels_.slice;
            for (int k = 0; k < busy; k++) {
                streams[k] = &slots[k]->stream;
                rows = std::min(rows, slots[k]->to_slice_end(kernels_.slice));
            }
            kernels_.read(streams, busy, rows);
            for (int k = busy - 1; k >= 0; k--) {
                const int64_t found = slots[k]->went(rows, kernels_.slice, kernels_);
                if (found != 0 && slots[k]->block < failed) {
                    failed = slots[k]->block;
                    *error = found;
                }
                if (slots[k]->left == 0) std::swap(slots[k], slots[--busy]);
            }
        }
    }

private:
    const Ans& kernels_;
    Slot slots_[ANS_AT_ONCE];
};

int64_t AnsWork::add(const Target& target, const uint8_t* p, const uint8_t* end, int64_t index) {
    AnsShape shape;
    const int used = read_shares(p, end, target.q, &shape);
    if (used == 0) return BAD_TABLE;
    p += used;
    tensors_.push_back({target, shape, ans_table(shape), ans_filling(shape), index});
    const size_t before = blocks_.size();
    for (int64_t first = 0; first < target.n; first += BLOCK_VALUES) {
        const int64_t size = ans_block_size(p, end);
        if (size == 0) {
            blocks_.resize(before);
            return ENDS_EARLY;
        }
        blocks_.push_back({&tensors_.back(), p, first, std::min(BLOCK_VALUES, target.n - first)});
        p += size;
    }
    if (p == end) return 0;
    blocks_.resize(before);
    return BAD_STREAM;
}

Reached AnsWork::run() {
    if (blocks_.empty()) return {0, 0};
    const Target& any = blocks_[0].tensor->target;
    const int64_t all = int64_t(blocks_.size()), lanes = std::min<int64_t>(threads_, all);
    std::vector<int64_t> errors(size_t(lanes), 0);
    std::vector<const Block*> failed(static_cast<size_t>(lanes));
    const Block* const blocks = blocks_.data();
    parallel_for(lanes, threads_, [&](int64_t k) {
        const auto lane = std::make_unique<Lane>(any.kernels.ans, any.q);
        const Block* const end = blocks + all * (k + 1) / lanes;
        const Block* const found = lane->run(blocks + all * k / lanes, end, &errors[size_t(k)]);
        failed[size_t(k)] = found == end ? nullptr : found;
    });
    for (size_t k = 0; k < failed.size(); k++)
        if (failed[k] != nullptr) return {failed[k]->tensor->index, errors[k]};
    return {0, 0};
}

}  // namespace edgegossip::coding
