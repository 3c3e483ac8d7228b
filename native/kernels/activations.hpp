// Rows of activations as the matrix products read them: quantised to int8 per row and group of 32, or plain
// float.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sonoran {

// 32 inputs of one row. The group is this small because single inputs of a transformer can be a hundred times
// the others: with one scale per 256 inputs they round their neighbours to nothing (1.1 % of perplexity,
// against 0.1 %).
struct Quantised {
  int8_t codes[32];
  // Minus the sums of the codes of inputs 0, 1 and of inputs 2, 3 of the quads: of the first 16 inputs, the
  // second 16 and all 32. Times the offset of the weights' codes they are what a dot product starts from.
  int16_t minus_pairs[3][2];
  float scale;
  float scaled_sum;  // scale times the sum of all codes
};

// n rows; `codes` are only filled for matrices in a quantised format.
struct Activations {
  const float* dense = nullptr;
  const Quantised* codes = nullptr;
  size_t dense_stride = 0;  // elements per row
  size_t codes_stride = 0;
};

}  // namespace sonoran
