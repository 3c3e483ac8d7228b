// The decoder: one forward pass over rows that may be prefill, decoding, verification or branches of a draft.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/kernels.hpp"
#include "model/config.hpp"
#include "model/kv_memory.hpp"
#include "model/rows.hpp"
#include "model/weight_store.hpp"
#include "runtime/memory.hpp"
#include "runtime/thread_pool.hpp"

namespace sonoran {

class Decoder {
 public:
  // Until `finish`, `loading_threads` of no core in particular do the work.
  Decoder(const DecoderConfig& config, const std::vector<MatrixSpec>& specs, int threads,
          std::vector<int> cores, const std::string& instruction_set, int loading_threads);

  WeightStore& weights() { return weights_; }
  ThreadPool& pool() { return pool_; }
  ThreadPool& loading_pool() { return loading_ ? *loading_ : pool_; }
  KvMemory& kv() { return kv_; }
  const Kernels& kernels() const { return kernels_; }
  int vocab_size() const { return config_.vocab_size; }

  // Checks that every tensor is there with the right shape; call after loading.
  void finish();

  // Runs passes on other threads from now on, pinned to the cores if there are any.
  void place(int threads, std::vector<int> cores);

  // Computes only the output rows of these 16-row blocks from now on; other logits are minus infinity.
  void restrict_output(const std::vector<int>& blocks);

  // Bytes of weights that a pass reads.
  size_t read_bytes() const;

  // Writes [rows that want logits][vocab_size]. Throws ConfigError for malformed rows, NumericsError if a
  // logit is not finite. One pass at a time; concurrent callers wait.
  void forward(const RowBatch& rows, float* logits);

 private:
  // A gated feed-forward network.
  struct Mlp {
    const Matrix *gate, *up, *down;
  };
  // Null where the model has none: norms by their place, either mlp or router and experts.
  struct Layer {
    const float *attn_norm, *attn_post_norm, *ffn_norm, *ffn_post_norm;
    const float *q_bias, *k_bias, *v_bias, *o_bias, *q_norm, *k_norm;
    const Matrix *q, *k, *v, *o;
    Mlp mlp;
    const Matrix* router;
    std::vector<Mlp> experts;
    Mlp shared;
    const float* shared_router;
  };
  // What is still to be done with a sublayer's output in b_.down.
  struct Sublayer {
    const float *bias, *post_norm;
  };
  struct Product {
    const Matrix* weights;
    float* out;
    size_t stride;
  };
  // A product of its own rows, which the experts of a layer need.
  struct Part {
    const Matrix* weights;
    Activations x;
    int rows;
    float* out;
    size_t stride;
  };
  // Rows [first, last) of those gathered for the experts, all of one expert.
  struct Visit {
    int expert, first, last;
  };
  // A row's choice: where its activations were gathered to, and what its output counts.
  struct Choice {
    int expert, gathered;
    float weight;
  };
  // Float buffers of a pass, one row each; widths are multiples of 16.
  struct Buffers {
    LineVector<float> x, normed, q, k, v, rotated, attended, gate, up, down, cosines, sines;
    LineVector<float> router, shared, gathered;
    LineVector<Quantised> codes, gathered_codes;
  };
  // Rows [first, last) of a pass, all of one sequence, whose attention is computed together.
  struct Group {
    int first, last;
    size_t stride;  // of their scores
  };
  struct Scratch {
    LineVector<float> scores, sums, converted, head;
    LineVector<uint16_t> gathered;
    std::vector<AttentionRow> rows;
  };

  void set_output_blocks(const std::vector<int>& blocks);
  const Matrix* require(const std::string& name, int outputs, int inputs) const;
  const float* require_vector(const std::string& name, int n) const;
  void reserve(const RowBatch& rows);
  void group(const RowBatch& rows);
  void embed(const RowBatch& rows);
  void rotations(const RowBatch& rows);
  void add_residual(size_t row, const float* bias, const float* post_norm);
  const float* next_input(int n, const Sublayer* last, const float* norm);
  Activations prepare(int n, const float* x, int width, const std::vector<Product>& products);
  void multiply(int n, const Activations& x, const std::vector<Product>& products);
  void multiply(const std::vector<Part>& parts);
  void multiply_output(int n, const Activations& x, float* logits);
  void rotate_and_store(const RowBatch& rows, int index);
  int rope_of(int layer) const;
  void rotate_head(const float* in, const float* norm, int rope, size_t row, float scale, float turned,
                   float* out) const;
  void attention(const RowBatch& rows, int index);
  Mlp require_mlp(const std::string& prefix, const char* shared, int inner) const;
  void activate(int n, int width);
  void feed_forward(int n, const float* in, const Mlp& mlp, int inner, float* out);
  void mixture(int n, const float* in, const Layer& layer);
  void route(int n, const float* in, const Layer& layer);
  void finish_logits(float* logits, size_t n) const;
  void output(const RowBatch& rows, float* logits);

  DecoderConfig config_;
  int hidden_;  // padded widths
  int intermediate_;
  int dim_;
  int attended_;
  const Kernels& kernels_;
  ThreadPool pool_;
  std::unique_ptr<ThreadPool> loading_;
  std::vector<int> cores_;
  WeightStore weights_;
  KvMemory kv_;
  std::vector<Layer> layers_;
  const Matrix* embed_ = nullptr;
  const Matrix* output_ = nullptr;
  const float* final_norm_ = nullptr;
  std::vector<std::vector<double>> frequencies_;  // of each rope
  std::vector<Choice> choices_;                   // of rows and their experts, in the order of the experts
  std::vector<Visit> visits_;
  std::vector<std::pair<int, int>> output_runs_;  // first and last (exclusive) block of what is computed
  std::vector<Group> groups_;
  Buffers b_;
  std::vector<Scratch> scratch_;
  std::mutex mutex_;
};

}  // namespace sonoran
