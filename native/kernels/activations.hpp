// Rows of activations as the matrix products read them: quantised to int8 per row and group, or plain float.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sonoran {

// 256 inputs of one row, for the K formats.
struct Quantised256 {
  int8_t codes[256];
  int16_t sums32[8];      // sums of 32 codes each
  int32_t offsets16[16];  // -32 times the sums of 16 codes each
  float scale;
};

// 32 inputs of one row, for the other quantised formats.
struct Quantised32 {
  int8_t codes[32];
  int32_t negative_sum;  // minus the sum of the codes
  float scale;
  float scaled_sum;  // scale times the sum of the codes
};

// n rows in up to three representations; only those that a matrix needs are filled.
struct Activations {
  const float* dense = nullptr;
  const Quantised256* k = nullptr;
  const Quantised32* small = nullptr;
  size_t dense_stride = 0;  // elements per row
  size_t k_stride = 0;
  size_t small_stride = 0;
};

}  // namespace sonoran
