// The table of kernels that each instruction set provides, and the choice among them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/activations.hpp"
#include "weights/formats.hpp"

namespace sonoran {

inline constexpr int kKeysAtOnce = 32;  // keys or values that are converted to floats together

// What a row of attention sees, and its query heads of one kv head.
struct AttentionRow {
  const float* queries;  // [heads][head_dim], already scaled and rotated
  float* out;            // [heads][head_dim]
  const int32_t* extra_slots;
  int extras;
  int trunk;  // trunk positions that the row sees
  int first;  // keys before it, counted over trunk and extra slots, are out of the sliding window

  int keys() const { return trunk + extras; }
};

// Rows of one sequence, and one kv head.
struct AttentionArgs {
  const AttentionRow* rows;
  int num_rows;
  int heads;      // query heads of this kv head
  float softcap;  // c tanh(score / c); 0: none
  int head_dim;   // padded to a multiple of 16
  int kv_head, kv_heads;
  const uint16_t* keys;    // of the layer, see attention.hpp
  const uint16_t* values;  // of the layer
  const int32_t* table;    // block table of the sequence
  int tiles_per_block;
  size_t stride;       // floats between the scores of two heads, at least score_stride() of every row
  float* scores;       // scratch, [num_rows][heads][stride]
  float* converted;    // scratch, kKeysAtOnce x head_dim
  float* sums;         // scratch, [num_rows][heads]
  uint16_t* gathered;  // scratch, 16 x head_dim

  float* row_scores(int row) const { return scores + static_cast<size_t>(row * heads) * stride; }
};

// Two tiles of 16 keys are written at once, wherever the last key lies.
inline size_t score_stride(int keys) { return static_cast<size_t>(keys + 47) / 16 * 16; }

struct Kernels {
  const char* name;
  void (*matmul)(const Matrix&, int first_block, int last_block, const Activations&, int rows, float* y,
                 size_t stride);
  void (*quantise)(const float* x, int n, Quantised* out);
  void (*rms_norm)(const float* x, const float* weight, int padded, int n, float epsilon, float* out);
  void (*silu_mul)(float* gate, const float* up, int padded);
  void (*gelu_mul)(float* gate, const float* up, int padded);
  void (*softcap)(float* x, int padded, float cap);
  void (*attend)(const AttentionArgs&);
  void (*store_kv)(const float* key, const float* value, int slot, int kv_head, int kv_heads, int head_dim,
                   uint16_t* keys, uint16_t* values);
};

struct InstructionSet {
  const char* name;
  bool built;    // its kernels are in this library
  bool present;  // and this processor can run them
};

// All that there are, the best first; the last one, portable, is always there.
const std::vector<InstructionSet>& instruction_sets();

// The kernels of an instruction set; "auto" is the first one present. Throws ConfigError if it is unknown or
// this processor lacks it.
const Kernels& select_kernels(const std::string& name);

}  // namespace sonoran
