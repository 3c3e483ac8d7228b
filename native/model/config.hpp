// Shape of a decoder: sonoran.models.config.ModelConfig and its KV memory.
#pragma once

#include <string>
#include <vector>

namespace sonoran {

// A rotation of queries and keys.
struct Rope {
  double theta = 0;
  std::vector<double> factors;  // divisors of the frequencies; empty if not scaled
  double attention_factor = 1;  // of rotated queries and keys
};

enum class Activation { Silu, GeluTanh };

// Where the norms of a sublayer stand: before it, before and behind it, behind it.
enum class Norms { Before, Around, Behind };

// A feed-forward part of which a router chooses a few experts for each row; count 0: there is none.
struct Experts {
  int count = 0;
  int per_row = 0;
  int intermediate_size = 0;
  int shared_size = 0;      // inner width of the expert that every row passes, behind a gate; 0: none
  bool normalised = false;  // the chances of those chosen are divided by their sum
};

struct DecoderConfig {
  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_layers = 0;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float norm_epsilon = 0;
  Norms norms = Norms::Before;
  bool whole_qk_norm = false;  // q_norm and k_norm span all heads at once
  Activation activation = Activation::Silu;
  Experts experts;
  float embedding_scale = 1;
  float attention_scale = 0;  // of the scores; 0: 1 / sqrt(head_dim)
  float residual_scale = 1;   // of what a sublayer adds
  float logit_scale = 1;
  float attention_softcap = 0;  // c tanh(score / c); 0: none
  float logit_softcap = 0;
  bool rope_interleaved = false;
  int rotary_dim = 0;                // the first elements of a head, which are rotated
  std::vector<Rope> ropes;           // the kinds of rotation
  std::vector<int> layer_ropes;      // the kind of each layer, -1: none; empty: all have the first
  std::vector<int> sliding_windows;  // of each layer, 0: none; empty if no layer has one

  // KV memory.
  int block_size = 16;
  int num_blocks = 0;
};

inline int round_up(int n, int to) { return (n + to - 1) / to * to; }

}  // namespace sonoran
