#include "codec/select.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "runtime/parallel.hpp"

namespace edgegossip {
namespace {

constexpr uint32_t MAGNITUDE_BITS = 0x7fffffffu, INFINITE = 0x7f800000u;
constexpr int64_t CHUNK = 4096;             // values ranked at a time: what a sieve needs lies in the first-level cache
constexpr int64_t PART = 64 * CHUNK;        // values of one task
constexpr int64_t SMALL = 16384;            // up to here a copy is partitioned
constexpr int64_t SAMPLE = 65536, LINE = 16;  // values sampled, in runs of one cache line
constexpr int64_t FEW = 16;                 // one in so many, or fewer: worth a list of candidates
constexpr int BUCKETS = 2048;

// The k largest are those above `least`, and the first `ties` that are equal to it.
struct Threshold {
    uint32_t least;
    int64_t ties;
};

const float* values_of(const Source& s, int64_t first, int64_t n, float* scratch) {
    if (s.values != nullptr) return s.values + first;
    uint32_t* const drawn = reinterpret_cast<uint32_t*>(scratch);
    s.kernels->quantise.uniform32(s.key, first, n, drawn);
    for (int64_t i = 0; i < n; i++) drawn[i] >>= 1;
    return scratch;
}

using Span = std::function<void(const float*, int64_t)>;

void for_each_chunk(const Source& s, const Span& use) {
    float scratch[CHUNK];
    for (int64_t first = 0; first < s.n; first += CHUNK) {
        const int64_t n = std::min(CHUNK, s.n - first);
        use(values_of(s, first, n, scratch), n);
    }
}

// Radix selection: three histograms, of 11, 11 and 9 bits. `walk` shows all values to its argument, each time it is called.
// False when one is infinite or NaN and `finite` is asked for.
template <class Walk>
bool find_threshold(const Sparse& kernels, const Walk& walk, int64_t k, bool finite, Threshold* found) {
    uint32_t low = 0;
    for (const int shift : {20, 9, 0}) {
        uint32_t counts[BUCKETS] = {};
        walk([&](const float* x, int64_t n) { kernels.histogram(x, n, low, shift, counts); });
        if (shift == 20 && finite)
            for (uint32_t b = INFINITE >> 20; b < BUCKETS; b++)
                if (counts[b] != 0) return false;
        // Buckets from the largest down; at most 2^20, 2^9 or 1 magnitudes each, so the last level names one.
        int bucket = shift == 0 ? 511 : BUCKETS - 1;
        for (; k > int64_t(counts[bucket]); bucket--) k -= counts[bucket];
        low += uint32_t(bucket) << shift;
    }
    *found = {low, k};
    return true;
}

// Hands on those of a sieve's results that are selected; they come in order, so that the first ties are the first in line.
class Filter {
public:
    Filter(Threshold threshold, const Sink& sink) : threshold_(threshold), sink_(sink) {}

    // index and bits may be overwritten: what is selected moves to their start.
    void take(uint32_t* index, uint32_t* bits, int64_t n) {
        int64_t count = 0;
        for (int64_t i = 0; i < n; i++) {
            const uint32_t magnitude = bits[i] & MAGNITUDE_BITS, word = bits[i], at = index[i];
            const bool tie = magnitude == threshold_.least && threshold_.ties > 0;
            threshold_.ties -= tie;
            index[count] = at;
            bits[count] = word;
            count += tie || magnitude > threshold_.least;
        }
        if (count > 0) sink_(index, bits, count);
    }

private:
    Threshold threshold_;
    const Sink& sink_;
};

void emit(const Source& s, Threshold threshold, const Sink& sink) {
    Filter filter(threshold, sink);
    float scratch[CHUNK];
    uint32_t index[CHUNK], bits[CHUNK];
    for (int64_t first = 0; first < s.n; first += CHUNK) {
        const int64_t n = std::min(CHUNK, s.n - first);
        const float* const x = values_of(s, first, n, scratch);
        filter.take(index, bits, s.kernels->sparse.sieve(x, n, threshold.least, uint32_t(first), index, bits));
    }
}

bool select_small(const Source& s, int64_t k, const Sink& sink) {
    std::vector<uint32_t> magnitudes;
    magnitudes.reserve(size_t(s.n));
    for_each_chunk(s, [&](const float* x, int64_t n) {
        const size_t old = magnitudes.size();
        magnitudes.resize(old + size_t(n));
        std::memcpy(magnitudes.data() + old, x, 4 * size_t(n));
    });
    bool finite = true;
    for (uint32_t& m : magnitudes) {
        m &= MAGNITUDE_BITS;
        finite = finite && m < INFINITE;
    }
    if (s.values != nullptr && !finite) return false;
    std::nth_element(magnitudes.begin(), magnitudes.begin() + (k - 1), magnitudes.end(), std::greater<uint32_t>());
    const uint32_t least = magnitudes[size_t(k - 1)];
    int64_t above = 0;
    for (const uint32_t m : magnitudes) above += m > least;
    emit(s, {least, k - above}, sink);
    return true;
}

// A magnitude that somewhat more than k values reach, probably. Guessed well it saves time, nothing else hangs on it.
uint32_t guess(const Source& s, int64_t k) {
    if (s.values == nullptr) {
        const double share = std::min(1.0, (double(k) + 8 * std::sqrt(double(k)) + 16) / double(s.n));
        return uint32_t((1.0 - share) * 2147483647.0);
    }
    const int64_t lines = std::min(SAMPLE, s.n / 8) / LINE;
    std::vector<uint32_t> sample(size_t(lines * LINE));
    for (int64_t line = 0; line < lines; line++) {
        uint32_t* const to = sample.data() + line * LINE;
        std::memcpy(to, s.values + s.n / LINE * line / lines * LINE, 4 * LINE);  // a division is dear on a small core: one a line
        for (int64_t i = 0; i < LINE; i++) to[i] &= MAGNITUDE_BITS;
    }
    // Six standard deviations of a count of independent values: neighbours are alike, so it is less in truth.
    const double expected = double(k) * double(sample.size()) / double(s.n);
    const size_t rank = std::min(sample.size() - 1, size_t(expected + 6 * std::sqrt(expected) + 16));
    std::nth_element(sample.begin(), sample.begin() + int64_t(rank), sample.end(), std::greater<uint32_t>());
    return sample[rank];
}

struct Candidates {
    std::vector<uint32_t> index, bits;
};

// Everything from `least` up, part by part; false when that is more than `limit`.
bool gather(const Source& s, uint32_t least, int64_t limit, int threads, std::vector<Candidates>* parts) {
    parts->resize(size_t((s.n + PART - 1) / PART));
    std::atomic<int64_t> total{0};
    parallel_for(int64_t(parts->size()), threads, [&](int64_t part) {
        Candidates& found = (*parts)[size_t(part)];
        float scratch[CHUNK];
        uint32_t index[CHUNK], bits[CHUNK];
        const int64_t end = std::min(s.n, (part + 1) * PART);
        for (int64_t first = part * PART; first < end && total <= limit; first += CHUNK) {
            const int64_t n = std::min(CHUNK, end - first);
            const float* const x = values_of(s, first, n, scratch);
            const int64_t count = s.kernels->sparse.sieve(x, n, least, uint32_t(first), index, bits);
            found.index.insert(found.index.end(), index, index + count);
            found.bits.insert(found.bits.end(), bits, bits + count);
            total += count;
        }
    });
    return total <= limit;
}

// The usual case, a small part of a large vector: one pass over it. `done` is false when the guess was bad.
bool select_candidates(const Source& s, int64_t k, int threads, const Sink& sink, bool* done) {
    std::vector<Candidates> parts;
    *done = false;
    if (!gather(s, guess(s, k), 2 * k + 65536, threads, &parts)) return true;
    int64_t total = 0;
    for (const Candidates& part : parts) total += int64_t(part.bits.size());
    if (total < k) return true;
    const auto walk = [&](const Span& use) {
        for (const Candidates& part : parts) use(reinterpret_cast<const float*>(part.bits.data()), int64_t(part.bits.size()));
    };
    Threshold threshold;
    if (!find_threshold(s.kernels->sparse, walk, k, s.values != nullptr, &threshold)) return false;
    Filter filter(threshold, sink);
    for (Candidates& part : parts) filter.take(part.index.data(), part.bits.data(), int64_t(part.bits.size()));
    return *done = true;
}

}  // namespace

bool select_largest(const Source& source, int64_t k, int threads, const Sink& sink) {
    if (source.n <= SMALL) return select_small(source, k, sink);
    if (k <= source.n / FEW) {
        bool done;
        if (!select_candidates(source, k, threads, sink, &done)) return false;
        if (done) return true;
    }
    Threshold threshold;
    const auto walk = [&](const Span& use) { for_each_chunk(source, use); };
    if (!find_threshold(source.kernels->sparse, walk, k, source.values != nullptr, &threshold)) return false;
    emit(source, threshold, sink);
    return true;
}

}  // namespace edgegossip
