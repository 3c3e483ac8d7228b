// Shape of a decoder: sonoran.models.config.ModelConfig and its KV memory.
#pragma once

#include <string>
#include <vector>

namespace sonoran {

struct DecoderConfig {
  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_layers = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float norm_epsilon = 0;
  double rope_theta = 0;
  bool rope_interleaved = false;
  std::vector<double> rope_factors;  // divisors of the frequencies; empty if not scaled
  double rope_attention_factor = 1;  // of rotated queries and keys
  std::vector<int> sliding_windows;  // of each layer, 0: none; empty if no layer has one

  // KV memory.
  int block_size = 16;
  int num_blocks = 0;
};

inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

}  // namespace sonoran
