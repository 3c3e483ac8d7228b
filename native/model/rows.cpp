#include "model/rows.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace sonoran {

namespace {

[[noreturn]] void fail(int row, const std::string& what) {
  throw ConfigError("row " + std::to_string(row) + ": " + what);
}

void check_slot(int row, const char* which, int64_t slot, int64_t slots) {
  if (slot < 0 || slot >= slots) {
    fail(row, std::string(which) + " " + std::to_string(slot) + " is outside the KV memory");
  }
}

// The trunk's blocks exist; returns the slot of its last position, -1 for an empty trunk.
int64_t check_trunk(const RowBatch& rows, int row, const DecoderConfig& config) {
  const int trunk = rows.trunk_lengths[row];
  if (trunk < 0 || trunk > int64_t{rows.table_width} * config.block_size) {
    fail(row, "trunk of " + std::to_string(trunk) + " exceeds the block table");
  }
  const int32_t* table =
      rows.block_tables + static_cast<size_t>(rows.sequences[row]) * static_cast<size_t>(rows.table_width);
  for (int b = 0; b * config.block_size < trunk; ++b) {
    if (table[b] < 0 || table[b] >= config.num_blocks) {
      fail(row, "block table has no block for part of the trunk");
    }
  }
  if (trunk == 0) return -1;
  const int last = trunk - 1;
  return int64_t{table[last / config.block_size]} * config.block_size + last % config.block_size;
}

void check_row(const RowBatch& rows, int i, const DecoderConfig& config) {
  const int64_t slots = int64_t{config.num_blocks} * config.block_size;
  if (rows.tokens[i] < 0 || rows.tokens[i] >= config.vocab_size) {
    fail(i, "token " + std::to_string(rows.tokens[i]) + " is outside the vocabulary of " +
                std::to_string(config.vocab_size));
  }
  check_slot(i, "slot", rows.slots[i], slots);
  if (rows.positions[i] < 0) fail(i, "negative position");
  if (rows.sequences[i] < 0 || rows.sequences[i] >= rows.num_sequences) fail(i, "unknown sequence");
  const int first = rows.extra_offsets[i];
  const int last = rows.extra_offsets[i + 1];
  if (first < 0 || last < first || last > rows.num_extra_slots) fail(i, "extra slots out of order");
  for (int e = first; e < last; ++e) check_slot(i, "extra slot", rows.extra_slots[e], slots);
  const int64_t end_of_trunk = check_trunk(rows, i, config);
  if (end_of_trunk < 0 && last == first) fail(i, "sees nothing, not even itself");
  const int64_t own = last > first ? rows.extra_slots[last - 1] : end_of_trunk;
  if (own != rows.slots[i]) {
    fail(i, "the last slot it sees is " + std::to_string(own) + ", not its own " +
                std::to_string(rows.slots[i]));
  }
}

}  // namespace

void check_rows(const RowBatch& rows, const DecoderConfig& config) {
  for (int i = 0; i < rows.n; ++i) check_row(rows, i, config);
  std::vector<int32_t> written(rows.slots, rows.slots + rows.n);
  std::sort(written.begin(), written.end());
  const auto twice = std::adjacent_find(written.begin(), written.end());
  if (twice != written.end()) throw ConfigError("two rows write slot " + std::to_string(*twice));
}

}  // namespace sonoran
