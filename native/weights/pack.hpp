// From the bytes of a model file to the packed layout, and back to floats.
#pragma once

#include <cstdint>

#include "weights/formats.hpp"

namespace sonoran {

// Fills blocks [first, last) of `to` (data already allocated) from rows in file order and file format `from`.
// The same format is represented exactly; another one is decoded to float and rounded once (BF16, Q8_0, Q4_0
// or Q4_1).
void pack_blocks(const Matrix& to, Format from, const uint8_t* rows, int first, int last);

// Decodes one output row of a packed matrix: out[inputs].
void decode_row(const Matrix& m, int row, float* out);

// Rounds n floats into file blocks of BF16, Q8_0, Q4_0 or Q4_1.
void quantise_row(Format format, const float* x, int n, uint8_t* out);

}  // namespace sonoran
