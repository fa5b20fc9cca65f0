// One tensor's section of a quantised body, both ways:
//
//   u8 entropy coder; scales[m], of 2 or 4 bytes; unless raw: u32 payload bytes; payload
//
// raw: dense codes. huffman: table, then blocks of 65536 values. runs: u8 k | signs << 4, table, blocks.
// elias: u32 nonzeros, words. zstd is the caller's. docs/wire-format.md has every byte.
#pragma once

#include <cstdint>

#include "runtime/kernels.hpp"
#include "codec/huffman.hpp"

namespace edgegossip::coding {

enum Coder : uint8_t { CODER_RAW = 0, CODER_HUFFMAN = 1, CODER_RUNS = 2, CODER_ELIAS = 3, CODER_ZSTD = 4 };

// What a caller asks for: HUFFMAN is the smallest of huffman, runs and raw; AUTO of these and elias.
enum class Choice : int32_t { RAW = 0, HUFFMAN = 1, ELIAS = 2, AUTO = 3 };

enum SectionError : int64_t {
    NOT_FINITE = -1,      // encode: x holds NaN or infinity
    ENDS_EARLY = -2,      // the body is shorter than it says
    BAD_CODER = -3,       // unknown, or not possible for this quantiser
    BAD_SCALE = -4,       // not finite, negative, or with values beyond float32
    BAD_TABLE = -5,       // no complete code over the quantiser's symbols
    BAD_STREAM = -6,      // a stream ends early, late or with bits set in its padding, or a gap leaves the tensor
    BAD_CODE = -7,        // a level that the quantiser does not have
    BAD_PADDING = -8,     // unused bits are set
};

struct Source {
    const float* x;  // float32[n], n > 0
    int64_t n;
    Quantiser q;
    uint64_t key;
    int32_t norm;         // of the buckets, where `scales` is null
    const float* scales;  // float32[scale_count(n, bucket)], those of buckets short (scales.hpp), or null
};

// A section's bytes at most, and what `out` must hold.
int64_t section_bound(int64_t n, const Quantiser& q, Choice choice);

// Writes a section; its bytes, or NOT_FINITE.
int64_t encode_section(const Kernels& kernels, const Source& source, Choice choice, const StaticTables& tables,
                       TableState* state, uint8_t* out, int threads);

struct Body {
    const uint8_t* data;
    int64_t size;
};

enum class Mode { CHECK, STORE, ADD };

// Where the parts of a section lie.
struct Section {
    uint8_t coder;
    int64_t scales, payload, end;  // positions in the body
};

// Finds the parts of the section at `position` and checks its coder, lengths and scales. 0 or a SectionError.
int64_t find_section(const Body& body, int64_t position, const Quantiser& q, int64_t n, Section* section);

// Decodes the section at `position`: CHECK writes nothing and ends as the others would; STORE out = value; ADD out +=
// weight * value, of a section that was checked. The position after it, or a SectionError.
int64_t decode_section(const Kernels& kernels, const Body& body, int64_t position, const Quantiser& q, int64_t n,
                       const StaticTables& tables, TableState* state, Mode mode, float weight, float* out, int threads);

// A tensor, and the position of its section in the body or a SectionError.
struct Reached {
    int64_t tensor, position;
};

// The same of tensors offsets[k] .. offsets[k + 1] (from.tensor <= k < tensors) one after the other: until the end, an error, or a section
// of the coder zstd. Faster than one by one, as blocks of several tensors are decoded side by side. `out` may be null to CHECK.
Reached decode_sections(const Kernels& kernels, const Body& body, Reached from, const Quantiser& q, const int64_t* offsets, int64_t tensors,
                        const StaticTables& tables, TableState* state, Mode mode, float weight, float* out, int threads);

}  // namespace edgegossip::coding
