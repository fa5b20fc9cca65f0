#include "codec/stepped.hpp"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "codec/integers.hpp"
#include "codec/log2.hpp"
#include "codec/quantised.hpp"

namespace edgegossip::coding {
namespace {

constexpr int64_t CHUNK = 1 << 20;    // values
constexpr int64_t PIECE = STEPS_PIECE;
constexpr int SHIFTS = 3;             // of magnitudes 1, 2, 3 and more
constexpr uint8_t OWN = 1, SORTED = 2;  // flags of a body
constexpr int64_t ROWS = 8;           // that a matrix has, at least
constexpr int64_t SORTED_FROM = 64;   // columns: a block's values
constexpr uint8_t MOST_CLASSES = 16;  // of columns
constexpr int64_t A_STEP = 256;       // to which a column's loudness is told
constexpr double EIGHTHS[8] = {1.0,
                               1.0905077326652577,
                               1.189207115002721,
                               1.2968395546510096,
                               1.4142135623730951,
                               1.5422108254079407,
                               1.681792830507429,
                               1.8340080864093424};  // 2^(k / 8)

float shift_of(uint8_t byte) { return float(byte) / 256 - 0.5f; }

// Steps of values one after the other.
class Walk {
public:
    Walk(const Stepped& s, bool inverse) : s_(s), inverse_(inverse) {
        if (s.eighths == nullptr) std::fill(values_, values_ + PIECE, value_of(0));
    }

    // Those of values first .. first + count, of which the first follows what was asked for before.
    const float* next(int64_t first, int64_t count) {
        if (s_.eighths == nullptr) return values_;
        for (int64_t i = 0; i < count;) {
            while (s_.offsets[tensor_ + 1] <= first + i) tensor_++;
            const int64_t end = std::min(count, s_.offsets[tensor_ + 1] - first);
            std::fill(values_ + i, values_ + end, value_of(s_.eighths[tensor_]));
            i = end;
        }
        return values_;
    }

private:
    float value_of(int eighths) const {
        const float step = step_of(s_.step, eighths);
        return inverse_ ? 1 / step : step;
    }

    const Stepped& s_;
    const bool inverse_;
    int64_t tensor_ = 0;
    float values_[PIECE];
};

// The columns of a tensor; 0 where it is no matrix.
int64_t columns_of(const Stepped& s, int64_t tensor) {
    const int64_t columns = s.columns[tensor];
    return columns > 1 && s.offsets[tensor + 1] - s.offsets[tensor] >= ROWS * columns ? columns : 0;
}

int64_t all_columns(const Stepped& s) {
    int64_t sum = 0;
    for (int64_t k = 0; k < s.tensors; k++) sum += columns_of(s, k);
    return sum;
}

// About how many bits, times A_STEP 2^LOG2_FRACTION, a value takes whose magnitude is `loud` / A_STEP steps in the mean, spread geometrically.
uint64_t bits_for(uint64_t loud) {
    const uint64_t beyond = loud + A_STEP;
    return beyond * log2_fixed(beyond) - (loud ? loud * log2_fixed(loud) : 0) - A_STEP * log2_fixed(A_STEP);
}

// Sorts a matrix's columns into as many classes of equal size, quiet to loud, as pay for what naming them takes.
void sort_columns(const float* x, int64_t rows, int64_t columns, float inverse, bool dithered, uint8_t* classes) {
    std::vector<float> sums(size_t(columns), 0.0f);  // of magnitudes in steps; with a dead zone of integers
    for (int64_t row = 0; row < rows; row++, x += columns)
        if (dithered)
            for (int64_t j = 0; j < columns; j++) sums[size_t(j)] += std::fabs(x[j]) * inverse;
        else
            for (int64_t j = 0; j < columns; j++) sums[size_t(j)] += float(int32_t(std::fabs(x[j]) * inverse + STEPS_ZONE));
    std::vector<uint64_t> loud;  // above the column's number
    loud.reserve(sums.size());
    for (int64_t j = 0; j < columns; j++) loud.push_back(uint64_t(double(sums[size_t(j)]) / double(rows) * A_STEP) << 32 | uint64_t(j));
    std::sort(loud.begin(), loud.end());
    const auto bits = [&](int64_t count) {  // of `count` classes
        uint64_t sum = 0;
        for (int64_t k = 0, from = 0, to; k < count; k++, from = to) {
            uint64_t all = 0;
            to = columns * (k + 1) / count;
            for (int64_t j = from; j < to; j++) all += loud[size_t(j)] >> 32;
            sum += uint64_t(to - from) * (bits_for(all / uint64_t(to - from)) >> LOG2_FRACTION);
        }
        return sum * uint64_t(rows) / A_STEP;
    };
    int64_t best = 1;
    uint64_t least = bits(1);
    for (int width = 1; width <= 3; width++) {  // what chance makes of columns that are alike is not to pay
        const uint64_t now = bits(1 << width) + 3 * uint64_t(width * columns) / 2;
        if (now >= least) continue;
        best = 1 << width;
        least = now;
    }
    for (int64_t j = 0; j < columns; j++) classes[uint32_t(loud[size_t(j)])] = uint8_t(((j + 1) * best - 1) / columns);
}

// The class of each column of each matrix; none where none are to be sorted.
std::vector<uint8_t> sort_all(const float* x, const Stepped& s) {
    std::vector<uint8_t> classes(size_t(all_columns(s)), 0);
    uint8_t* at = classes.data();
    for (int64_t k = 0; k < s.tensors; k++) {
        const int64_t columns = columns_of(s, k), first = s.offsets[k];
        if (columns >= SORTED_FROM && s.step > 0)
            sort_columns(x + first, (s.offsets[k + 1] - first) / columns, columns, 1 / step_of(s.step, s.eighths == nullptr ? 0 : s.eighths[k]),
                         s.dithered, at);
        at += columns;
    }
    if (std::all_of(classes.begin(), classes.end(), [](uint8_t c) { return c == 0; })) classes.clear();
    return classes;
}

// Where a message sorts columns: of each one, matrix by matrix, which of its row it is.
std::vector<int32_t> order_of(const std::vector<uint8_t>& classes, const Stepped& s) {
    std::vector<int32_t> order(classes.size());
    const uint8_t* of = classes.data();
    int32_t* to = order.data();
    for (int64_t k = 0; k < s.tensors && !classes.empty(); k++) {
        const int64_t columns = columns_of(s, k);
        int32_t first[MOST_CLASSES + 1] = {};
        for (int64_t j = 0; j < columns; j++) first[of[j] + 1]++;
        for (int c = 0; c < MOST_CLASSES; c++) first[c + 1] += first[c];
        for (int64_t j = 0; j < columns; j++) to[first[of[j]]++] = int32_t(j);
        of += columns;
        to += columns;
    }
    return order;
}

// Values in the order in which they are coded, one piece after the other.
class Places {
public:
    Places(const Stepped& s, const std::vector<int32_t>& order) : s_(s), order_(order) {}

    const float* take(const float* x, int64_t first, int64_t count) {
        if (order_.empty()) return x + first;
        runs(first, count, [&](int64_t at, int64_t n, int64_t row, const int32_t* order) {
            float* const values = values_ + at;
            if (order == nullptr) return void(std::copy(x + row, x + row + n, values));
            for (int64_t i = 0; i < n; i++) values[i] = x[row + order[i]];
        });
        return values_;
    }

    void put(const Steps& kernels, const int32_t* q, const float* steps, int64_t count, const StepSpec& spec, bool accumulate, float weight, float* out) {
        if (order_.empty()) return kernels.restore(q, steps, count, spec, accumulate, weight, out + spec.first);
        kernels.restore(q, steps, count, spec, false, 1, values_);
        runs(spec.first, count, [&](int64_t at, int64_t n, int64_t row, const int32_t* order) {
            const float* const values = values_ + at;
            float* const to = out + row;
            if (order == nullptr)
                for (int64_t i = 0; i < n; i++) to[i] = accumulate ? to[i] + weight * values[i] : values[i];
            else if (accumulate)
                for (int64_t i = 0; i < n; i++) to[order[i]] += weight * values[i];
            else
                for (int64_t i = 0; i < n; i++) to[order[i]] = values[i];
        });
    }

    void put(const int32_t* q, int64_t first, int64_t count, int8_t* out) {
        if (order_.empty()) return void(std::transform(q, q + count, out + first, [](int32_t v) { return int8_t(v); }));
        runs(first, count, [&](int64_t at, int64_t n, int64_t row, const int32_t* order) {
            for (int64_t i = 0; i < n; i++) out[row + (order == nullptr ? i : order[i])] = int8_t(q[at + i]);
        });
    }

private:
    // Calls then(at, n, row, order): n values of the piece from `at` on are those of x + row at order[0 ..], or where it is null one after
    // the other.
    template <class Then>
    void runs(int64_t first, int64_t count, Then then) {
        for (int64_t i = 0, n; i < count; i += n) {
            for (; s_.offsets[tensor_ + 1] <= first + i; tensor_++) at_ += columns_of(s_, tensor_);
            const int64_t columns = columns_of(s_, tensor_), column = columns == 0 ? 0 : (first + i - s_.offsets[tensor_]) % columns;
            n = std::min(count - i, columns == 0 ? s_.offsets[tensor_ + 1] - first - i : columns - column);
            then(i, n, first + i - column, columns == 0 ? nullptr : order_.data() + at_ + column);
        }
    }

    const Stepped& s_;
    const std::vector<int32_t>& order_;
    int64_t tensor_ = 0, at_ = 0;  // and its first column's place in the order
    float values_[PIECE];
};

uint8_t shift_for(const StepRests& rests, int k) {
    if (rests.count[k] == 0) return 128;
    const int64_t mean = rests.sum[k] / rests.count[k];
    return uint8_t(std::clamp<int64_t>(((mean + 128) >> 8) + 128, 0, 255));
}

// Calls then(at, n, x, inverse steps, q) for the values of a chunk, piece by piece; `at` counts from the chunk's first.
template <class Then>
void each_piece(const Kernels& kernels, const float* x, const Stepped& s, int64_t first, int64_t count, Walk* inverse, Places* places, Then then) {
    alignas(64) int32_t q[PIECE];
    for (int64_t at = 0; at < count; at += PIECE) {
        const int64_t n = std::min(PIECE, count - at);
        const float *const from = places->take(x, first + at, n), *const steps = inverse->next(first + at, n);
        kernels.steps.quantise(from, steps, n, {s.dithered, s.key, first + at, {}}, q);
        then(at, n, from, steps, q);
    }
}

// Values of a chunk as integers; with a dead zone also what they are beyond them.
void quantise_chunk(const Kernels& kernels, const float* x, const Stepped& s, int64_t first, int64_t count, Walk* inverse, Places* places,
                    Integers* to, StepRests* rests) {
    to->symbols.resize(size_t((count + STEPS_ROW - 1) & -STEPS_ROW));
    to->wide.clear();
    each_piece(kernels, x, s, first, count, inverse, places, [&](int64_t at, int64_t n, const float* from, const float* steps, const int32_t* q) {
        const int64_t rows = (n + STEPS_ROW - 1) & -STEPS_ROW;
        if (!s.dithered) kernels.steps.rest(from, steps, q, n, rests);
        uint8_t* const symbols = to->symbols.data() + at;
        if (!kernels.steps.fold(q, rows, symbols)) return;
        for (int64_t i = 0; i < rows; i++)
            if (symbols[i] == RANS_ESCAPE) to->wide.push_back(q[i]);
    });
}

StringShape shape_of(bool dithered) { return dithered ? StringShape::DITHERED : StringShape::SIGNED; }

void put32(uint32_t v, std::vector<uint8_t>* out) {
    for (int k = 0; k < 32; k += 8) out->push_back(uint8_t(v >> k));
}

template <class T>
T get(const uint8_t* p) {
    T v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// A chunk of a body, from its shifts on.
struct Chunk {
    const uint8_t *p, *end;
    int64_t first, count;
};

// The chunks of n values, which fill p .. end. 0 or a SectionError.
int64_t find_chunks(const uint8_t* p, const uint8_t* end, int64_t n, bool dithered, std::vector<Chunk>* chunks) {
    for (int64_t first = 0; first < n; first += CHUNK) {
        const int64_t count = std::min(CHUNK, n - first), head = dithered ? 0 : SHIFTS;
        int64_t size = end - p;
        if (first + count < n) {
            if (size < 4) return ENDS_EARLY;
            size = get<uint32_t>(p);
            p += 4;
        }
        if (size > end - p || size <= head) return ENDS_EARLY;
        chunks->push_back({p, p + size, first, count});
        p += size;
    }
    return p == end ? 0 : int64_t(BAD_STREAM);
}

// Those of a chunk, kept for the next message: the system would clear its memory anew.
Integers& kept() {
    static thread_local Integers integers;
    return integers;
}

// Calls then(q, n, spec) for the integers of a chunk, piece by piece; with null it is only checked.
template <class Then>
int64_t decode_chunk(const Kernels& kernels, const Chunk& chunk, const Stepped& s, Then then) {
    const uint8_t* p = chunk.p;
    StepSpec spec{s.dithered, s.key, chunk.first, {}};
    if (!s.dithered)
        for (int k = 1; k <= SHIFTS; k++) spec.shift[k] = shift_of(*p++);
    const int64_t padded = (chunk.count + STEPS_ROW - 1) & -STEPS_ROW;
    Integers& integers = kept();
    if (const int64_t error = read_string(kernels.rans, p, chunk.end, padded, 0, &integers)) return error;
    if constexpr (!std::is_null_pointer_v<Then>) {
        alignas(64) int32_t q[PIECE];
        size_t wide = 0;
        for (int64_t at = 0; at < chunk.count; at += PIECE) {
            const int64_t n = std::min(PIECE, chunk.count - at), rows = (n + STEPS_ROW - 1) & -STEPS_ROW;
            const uint8_t* const symbols = integers.symbols.data() + at;
            kernels.steps.unfold(symbols, rows, q);
            for (int64_t i = 0; wide < integers.wide.size() && i < rows; i++) {
                const void* const found = std::memchr(symbols + i, RANS_ESCAPE, size_t(rows - i));
                if (found == nullptr) break;
                i = static_cast<const uint8_t*>(found) - symbols;
                q[i] = integers.wide[wide++];
            }
            spec.first = chunk.first + at;
            then(q, n, spec);
        }
    }
    return 0;
}

// A body, as far as its chunks. `s` is made with what is known of the model.
struct Parsed {
    Stepped s;
    std::vector<int32_t> order;
    std::vector<Chunk> chunks;  // none where all values are 0
};

int64_t read_body(const Kernels& kernels, const uint8_t* body, int64_t size, Parsed* to) {
    Stepped& s = to->s;
    const int64_t key_bytes = s.dithered ? 8 : 0;
    if (size < key_bytes + 5) return ENDS_EARLY;
    if (s.dithered) s.key = get<uint64_t>(body);
    s.step = get<float>(body + key_bytes);
    const uint8_t flags = body[key_bytes + 4], own = flags & OWN;
    if (flags > (s.step == 0 ? OWN : OWN | SORTED)) return BAD_CODER;
    const uint8_t *p = body + key_bytes + 5, *const end = body + size;
    if (own) {
        if (end - p < s.tensors) return ENDS_EARLY;
        s.eighths = reinterpret_cast<const int8_t*>(p);
        p += s.tensors;
    }
    for (int64_t k = 0; k < (own ? s.tensors : 1); k++) {
        const float step = step_of(s.step, own ? s.eighths[k] : 0);
        if (!(step >= 0 && step <= FLT_MAX)) return BAD_SCALE;
    }
    if (s.step == 0) return p == end ? 0 : int64_t(BAD_STREAM);
    Integers classes;
    if (flags & SORTED) {
        const int64_t count = all_columns(s);
        if (count == 0) return BAD_CODER;
        if (end - p < 4 || end - p - 4 < get<uint32_t>(p)) return ENDS_EARLY;
        const uint8_t* const first = p + 4;
        p = first + get<uint32_t>(p);
        if (const int64_t error = read_string(kernels.rans, first, p, count, 0, &classes)) return error;
        if (*std::max_element(classes.symbols.begin(), classes.symbols.end()) >= MOST_CLASSES) return BAD_CODE;
    }
    to->order = order_of(classes.symbols, s);
    return find_chunks(p, end, s.n(), s.dithered, &to->chunks);
}

template <class Then>
int64_t decode_chunks(const Kernels& kernels, const Parsed& body, Then then) {
    for (const Chunk& chunk : body.chunks)
        if (const int64_t error = decode_chunk(kernels, chunk, body.s, then)) return error;
    return 0;
}

}  // namespace

float step_of(float step, int eighths) { return float(std::ldexp(double(step) * EIGHTHS[eighths & 7], eighths >> 3)); }

double bits_of_steps(const Kernels& kernels, const float* x, const Stepped& s) {
    double bits = 0;
    const std::vector<uint8_t> classes = sort_all(x, s);
    const std::vector<int32_t> order = order_of(classes, s);
    Walk inverse(s, true);
    Places places(s, order);
    for (int64_t first = 0; first < s.n(); first += CHUNK) {
        StepRests rests{};
        quantise_chunk(kernels, x, s, first, std::min(CHUNK, s.n() - first), &inverse, &places, &kept(), &rests);
        bits += double(choose_models(kept().symbols.data(), int64_t(kept().symbols.size()), shape_of(s.dithered)).bits);
    }
    return bits;
}

double error_of_steps(const Kernels& kernels, const float* x, const Stepped& s) {
    double error = 0;
    const std::vector<int32_t> none;  // an error is the same in any order
    Walk inverse(s, true);
    Places places(s, none);
    for (int64_t first = 0; first < s.n(); first += CHUNK) {
        StepRests all{};
        // By magnitude: sums of step^2, that times what values are beyond it, and times its square.
        double weight[SHIFTS + 1] = {}, linear[SHIFTS + 1] = {}, square[SHIFTS + 1] = {};
        each_piece(kernels, x, s, first, std::min(CHUNK, s.n() - first), &inverse, &places,
                   [&](int64_t, int64_t n, const float* from, const float* steps, const int32_t* q) {
                       for (int64_t i = 0, end; i < n; i = end) {  // of one step
                           end = s.eighths == nullptr ? n : std::find_if(steps + i, steps + n, [&](float v) { return v != steps[i]; }) - steps;
                           StepRests rests{};
                           kernels.steps.rest(from + i, steps + i, q + i, end - i, &rests);
                           const double squared = 1 / (double(steps[i]) * double(steps[i]));
                           for (int k = 0; k <= SHIFTS; k++) {
                               all.count[k] += rests.count[k];
                               all.sum[k] += rests.sum[k];
                               weight[k] += squared * double(rests.count[k]);
                               linear[k] += squared * double(rests.sum[k]) / (1 << 16);
                               square[k] += squared * rests.square[k];
                           }
                       }
                   });
        error += square[0];
        for (int k = 1; k <= SHIFTS; k++) {
            const double shift = double(shift_of(shift_for(all, k)));
            error += square[k] - 2 * shift * linear[k] + shift * shift * weight[k];
        }
    }
    return error;
}

std::vector<uint8_t> encode_steps(const Kernels& kernels, const float* x, const Stepped& s) {
    std::vector<uint8_t> out;
    if (s.dithered) {
        put32(uint32_t(s.key), &out);
        put32(uint32_t(s.key >> 32), &out);
    }
    uint32_t bits;
    std::memcpy(&bits, &s.step, sizeof bits);
    put32(bits, &out);
    const size_t flags = out.size();
    out.push_back(s.eighths != nullptr ? OWN : 0);
    if (s.eighths != nullptr) out.insert(out.end(), s.eighths, s.eighths + s.tensors);
    if (s.step == 0) return out;
    const std::vector<uint8_t> classes = sort_all(x, s);
    const std::vector<int32_t> order = order_of(classes, s);
    if (!classes.empty()) {
        out[flags] |= SORTED;
        const size_t before = out.size();
        put32(0, &out);
        write_string(kernels.rans, {classes, {}}, StringShape::NUMBERS, &out);
        const uint32_t size = uint32_t(out.size() - before - sizeof size);
        std::memcpy(out.data() + before, &size, sizeof size);
    }
    Walk inverse(s, true);
    Places places(s, order);
    for (int64_t first = 0; first < s.n(); first += CHUNK) {
        const int64_t count = std::min(CHUNK, s.n() - first);
        const size_t before = out.size();
        if (first + count < s.n()) put32(0, &out);
        const size_t start = out.size();
        StepRests rests{};
        quantise_chunk(kernels, x, s, first, count, &inverse, &places, &kept(), &rests);
        if (!s.dithered)
            for (int k = 1; k <= SHIFTS; k++) out.push_back(shift_for(rests, k));
        write_string(kernels.rans, kept(), shape_of(s.dithered), &out);
        if (start > before) {
            const uint32_t size = uint32_t(out.size() - start);
            std::memcpy(out.data() + before, &size, sizeof size);
        }
    }
    return out;
}

int64_t decode_steps(const Kernels& kernels, const uint8_t* body, int64_t size, const int64_t* offsets, const int64_t* columns, int64_t tensors,
                     bool dithered, bool accumulate, float weight, float* out) {
    Parsed read{{offsets, columns, tensors, dithered, 0, 0, nullptr}, {}, {}};
    if (const int64_t error = read_body(kernels, body, size, &read)) return error;
    // A sum changes only where all is good.
    if (accumulate || out == nullptr)
        if (const int64_t error = decode_chunks(kernels, read, nullptr)) return error;
    if (out == nullptr) return 0;
    if (read.chunks.empty() && !accumulate) std::fill(out, out + read.s.n(), 0.0f);
    Walk steps(read.s, false);
    Places places(read.s, read.order);
    return decode_chunks(kernels, read, [&](const int32_t* q, int64_t n, const StepSpec& spec) {
        places.put(kernels.steps, q, steps.next(spec.first, n), n, spec, accumulate, weight, out);
    });
}

int64_t decode_integers(const Kernels& kernels, const uint8_t* body, int64_t size, const int64_t* offsets, const int64_t* columns, int64_t tensors,
                        int32_t most, int8_t* out) {
    Parsed read{{offsets, columns, tensors, false, 0, 0, nullptr}, {}, {}};
    if (const int64_t error = read_body(kernels, body, size, &read)) return error;
    if (read.s.eighths != nullptr || (read.s.step != 0 && read.s.step != 1)) return BAD_CODE;
    if (read.chunks.empty()) std::fill(out, out + read.s.n(), int8_t(0));
    Places places(read.s, read.order);
    bool good = true;
    const int64_t error = decode_chunks(kernels, read, [&](const int32_t* q, int64_t n, const StepSpec& spec) {
        for (const float shift : spec.shift) good &= shift == 0;
        for (int64_t i = 0; i < n; i++) good &= -most <= q[i] && q[i] <= most;
        places.put(q, spec.first, n, out);
    });
    return error || good ? error : int64_t(BAD_CODE);
}

}  // namespace edgegossip::coding
