// The weight formats and their packed layout.
//
// Output rows are interleaved by 16 (a block). The inputs of a block are cut into chunks of 32; a chunk is
// eight quads, a quad holds 4 consecutive inputs of each of the 16 outputs: byte 4 * output + input. A chunk
// has these vectors of 64 bytes, in this order:
// clang-format off
//   bits     vectors   what a byte of vector v (from 0) holds of its 4 inputs x 16 outputs
//   4, 5, 6        4   the lower four bits of quad 2v, then (upper nibble) those of quad 2v + 1
//   5             +1   the fifth bits: bit q is that of quad q
//   6             +2   the upper two bits: bits 2(q % 4) and 2(q % 4) + 1 of vector q / 4 are those of quad q
//   2, 3           2   the lower two bits: bits 2(q % 4) and 2(q % 4) + 1 of vector q / 4 are those of quad q
//   3             +1   the third bits: bit q is that of quad q
//   8              8   quad v
// clang-format on
// All codes are unsigned; an offset (4, 8, 16, 32, 128) is subtracted in the dot product. Codes of a book
// stand for its entries, from which the offset is subtracted. The scales of 256 inputs follow their codes, so
// that a block is one stream in memory; only the last group of a block may have fewer inputs. Dense formats
// hold, for each input, the 16 outputs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sonoran {

enum class Format : int {
  F32,
  F16,
  BF16,
  Q4_0,
  Q4_1,
  Q5_0,
  Q5_1,
  Q8_0,
  Q2_K,
  Q3_K,
  Q4_K,
  Q5_K,
  Q6_K,
  IQ4_NL,
  IQ4_XS,
  MXFP4,
  Q3_0,
};
inline constexpr int kFormatCount = static_cast<int>(Format::Q3_0) + 1;

enum class Scheme : int {
  Dense,
  Scale,      // w = d (code - offset), fp16 d per 32 inputs
  ScaleMin,   // w = d code + m, fp16 d and m per 32 inputs
  Power,      // w = 2^(e - 128) (code - offset), 8-bit e per 32 inputs
  KMin,       // w = d sc code - dmin mn, fp16 d, dmin per 256 inputs, 6-bit sc, mn per 32
  KMin16,     // the same with 4-bit sc, mn per 16
  KOffset,    // w = d sc (code - offset), fp16 d per 256 inputs, int8 sc per 32
  KOffset16,  // the same with int8 sc per 16
};

// Sixteen values that 4-bit codes stand for, each plus the format's offset, which makes it unsigned.
enum class Book : int { None, Iq4, Mxfp4 };

inline constexpr uint8_t kIq4Book[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                         129, 141, 153, 166, 181, 197, 217, 241};
inline constexpr uint8_t kMxfp4Book[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

inline constexpr int kLanes = 16;  // output rows in a block
inline constexpr int kChunk = 32;  // inputs in a chunk
inline constexpr int kSuper =
    256;  // inputs in a group of codes and their scales; a super-block of the K formats

struct FormatInfo {
  const char* name;
  Scheme scheme;
  int bits;         // of a code, or of a dense value
  int offset;       // subtracted from the codes, or from what the book has for them
  int file_group;   // inputs in one block of the file format
  int file_bytes;   // bytes of one block of the file format
  int scale_group;  // inputs that share the bytes below
  int scale_bytes;  // per block of 16 outputs
  Book book = Book::None;

  constexpr int chunk_bytes() const { return bits * 64; }  // codes of 32 inputs of 16 outputs
};

const FormatInfo& format_info(Format format);

// The inverse of FormatInfo::name; throws ModelError.
Format format_from_name(const char* name);

// A matrix in the packed layout. It does not own its memory.
struct Matrix {
  Format format = Format::F32;
  int outputs = 0;
  int inputs = 0;
  size_t block_bytes = 0;  // codes and scales of one block, a multiple of 64
  size_t group_bytes = 0;  // codes and scales of 256 inputs, a multiple of 64; quantised formats only
  uint8_t* data = nullptr;

  [[gnu::always_inline]] int blocks() const { return (outputs + kLanes - 1) / kLanes; }
  size_t bytes() const { return static_cast<size_t>(blocks()) * block_bytes; }
  [[gnu::always_inline]] const uint8_t* block(int b) const {
    return data + static_cast<size_t>(b) * block_bytes;
  }
};

// Where the codes of a chunk and the scales that go with it lie within a block of a quantised matrix.
struct ChunkPlace {
  size_t codes;
  size_t scales;
};

ChunkPlace place_of(const Matrix& m, int chunk);

// Sizes of a matrix in the packed layout, with data left null. Throws ModelError if inputs do not fit the
// format.
Matrix plan_matrix(Format format, int outputs, int inputs);

}  // namespace sonoran
