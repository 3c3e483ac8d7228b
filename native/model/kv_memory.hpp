// Paged keys and values of all layers, fp16; the layout of a layer is in kernels/attention.hpp.
#pragma once

#include <cstring>

#include "model/config.hpp"
#include "runtime/memory.hpp"

namespace sonoran {

class KvMemory {
 public:
  explicit KvMemory(const DecoderConfig& c)
      : slots_(static_cast<size_t>(c.num_blocks) * static_cast<size_t>(c.block_size)),
        block_elements_(static_cast<size_t>(c.block_size) * static_cast<size_t>(c.num_kv_heads) *
                        static_cast<size_t>(round_up(c.head_dim, 16))),
        layer_elements_(block_elements_ * static_cast<size_t>(c.num_blocks)),
        layers_(c.num_layers),
        arena_(layer_elements_ * 2 * sizeof(uint16_t) * static_cast<size_t>(c.num_layers)) {}

  uint16_t* keys(int layer) { return base() + layer_elements_ * 2 * static_cast<size_t>(layer); }
  uint16_t* values(int layer) { return keys(layer) + layer_elements_; }
  size_t slots() const { return slots_; }
  size_t bytes() const { return arena_.size(); }

  void copy_block(int from, int to) {
    for (int layer = 0; layer < layers_; ++layer) {
      for (uint16_t* part : {keys(layer), values(layer)}) {
        std::memcpy(part + block_elements_ * static_cast<size_t>(to),
                    part + block_elements_ * static_cast<size_t>(from), block_elements_ * sizeof(uint16_t));
      }
    }
  }

 private:
  uint16_t* base() { return reinterpret_cast<uint16_t*>(arena_.data()); }

  size_t slots_;
  size_t block_elements_;
  size_t layer_elements_;
  int layers_;
  Arena arena_;
};

}  // namespace sonoran
