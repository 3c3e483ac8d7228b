// The rows of one forward pass, as the bindings hand them over.
#pragma once

#include <cstdint>

#include "model/config.hpp"

namespace sonoran {

// See sonoran.backends.base.Rows for the meaning of the fields.
struct RowBatch {
  int n = 0;
  const int32_t* tokens = nullptr;
  const int32_t* positions = nullptr;
  const int32_t* slots = nullptr;
  const int32_t* sequences = nullptr;
  const int32_t* trunk_lengths = nullptr;
  const int32_t* wants_logits = nullptr;
  const int32_t* block_tables = nullptr;
  int num_sequences = 0;
  int table_width = 0;
  const int32_t* extra_offsets = nullptr;  // n + 1
  const int32_t* extra_slots = nullptr;
  int num_extra_slots = 0;

  int extras(int row) const { return extra_offsets[row + 1] - extra_offsets[row]; }
};

// Throws ConfigError naming the first row that reads or writes where it must not.
void check_rows(const RowBatch& rows, const DecoderConfig& config);

}  // namespace sonoran
