#include "model/decoder.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.hpp"
#include "weights/pack.hpp"

namespace sonoran {

namespace {

// The exponent of an infinity or a NaN is all ones; without branches, so that the loop vectorises.
bool all_finite(const float* values, size_t n) {
  uint32_t bad = 0;
  for (size_t i = 0; i < n; ++i) {
    bad |= static_cast<uint32_t>((std::bit_cast<uint32_t>(values[i]) & 0x7f800000u) == 0x7f800000u);
  }
  return bad == 0;
}

}  // namespace

Decoder::Decoder(const DecoderConfig& config, const std::vector<MatrixSpec>& specs, int threads,
                 std::vector<int> cores, const std::string& instruction_set, int loading_threads)
    : config_(config),
      hidden_(round_up(config.hidden_size, 16)),
      intermediate_(round_up(config.intermediate_size, 16)),
      dim_(round_up(config.head_dim, 16)),
      attended_(round_up(config.num_heads * config.head_dim, 16)),
      kernels_(select_kernels(instruction_set)),
      pool_(threads, cores),
      loading_(loading_threads > 0 ? std::make_unique<ThreadPool>(loading_threads, std::vector<int>{})
                                   : nullptr),
      cores_(std::move(cores)),
      weights_(specs),
      kv_(config) {
  scratch_.resize(static_cast<size_t>(pool_.threads()));
  for (const Rope& rope : config.ropes) {
    std::vector<double>& frequencies = frequencies_.emplace_back();
    for (int i = 0; i < config.rotary_dim / 2; ++i) {
      double f = std::pow(rope.theta, -2.0 * i / config.rotary_dim);
      if (!rope.factors.empty()) f /= rope.factors[static_cast<size_t>(i)];
      frequencies.push_back(f);
    }
  }
}

const Matrix* Decoder::require(const std::string& name, int outputs, int inputs) const {
  const Matrix* m = weights_.matrix(name);
  if (m == nullptr) throw ModelError("the model has no tensor " + name);
  if (m->outputs != outputs || m->inputs != inputs) {
    throw ModelError(name + " is " + std::to_string(m->outputs) + " x " + std::to_string(m->inputs) +
                     ", expected " + std::to_string(outputs) + " x " + std::to_string(inputs));
  }
  return m;
}

const float* Decoder::require_vector(const std::string& name, int n) const {
  const float* v = weights_.vector(name, n);
  if (v == nullptr) throw ModelError("the model has no tensor " + name);
  return v;
}

// The three matrices of a feed-forward network; `shared` is what their names begin with.
Decoder::Mlp Decoder::require_mlp(const std::string& prefix, const char* shared, int inner) const {
  const std::string p = prefix + shared;
  const int hidden = config_.hidden_size;
  return {require(p + "gate", inner, hidden), require(p + "up", inner, hidden),
          require(p + "down", hidden, inner)};
}

void Decoder::finish() {
  const DecoderConfig& c = config_;
  const int q = c.num_heads * c.head_dim;
  const int kv = c.num_kv_heads * c.head_dim;
  for (int i = 0; i < c.num_layers; ++i) {
    const std::string p = "layers." + std::to_string(i) + ".";
    Layer l{};
    if (c.norms != Norms::Behind) {
      l.attn_norm = require_vector(p + "attn_norm", c.hidden_size);
      l.ffn_norm = require_vector(p + "ffn_norm", c.hidden_size);
    }
    if (c.norms != Norms::Before) {
      l.attn_post_norm = require_vector(p + "attn_post_norm", c.hidden_size);
      l.ffn_post_norm = require_vector(p + "ffn_post_norm", c.hidden_size);
    }
    l.q = require(p + "q", q, c.hidden_size);
    l.k = require(p + "k", kv, c.hidden_size);
    l.v = require(p + "v", kv, c.hidden_size);
    l.o = require(p + "o", c.hidden_size, q);
    if (c.experts.count == 0) {
      l.mlp = require_mlp(p, "", c.intermediate_size);
    } else {
      l.router = require(p + "router", c.experts.count, c.hidden_size);
      for (int e = 0; e < c.experts.count; ++e) {
        l.experts.push_back(
            require_mlp(p + "experts." + std::to_string(e) + ".", "", c.experts.intermediate_size));
      }
      if (c.experts.shared_size > 0) {
        l.shared = require_mlp(p, "shared_", c.experts.shared_size);
        l.shared_router = require_vector(p + "shared_router", c.hidden_size);
      }
    }
    l.q_bias = weights_.vector(p + "q_bias", q);
    l.k_bias = weights_.vector(p + "k_bias", kv);
    l.v_bias = weights_.vector(p + "v_bias", kv);
    l.o_bias = weights_.vector(p + "o_bias", c.hidden_size);
    l.q_norm = weights_.vector(p + "q_norm", c.whole_qk_norm ? q : c.head_dim);
    l.k_norm = weights_.vector(p + "k_norm", c.whole_qk_norm ? kv : c.head_dim);
    layers_.push_back(std::move(l));
  }
  embed_ = require("embed", c.vocab_size, c.hidden_size);
  output_ = weights_.matrix("output") == nullptr ? embed_ : require("output", c.vocab_size, c.hidden_size);
  final_norm_ = require_vector("final_norm", c.hidden_size);
  if (!c.sliding_windows.empty() && c.sliding_windows.size() != layers_.size())
    throw ModelError("sliding_windows must name every layer, or be empty");
  if (!c.layer_ropes.empty() && c.layer_ropes.size() != layers_.size())
    throw ModelError("layer_ropes must name every layer, or be empty");
  std::vector<int> all(static_cast<size_t>(output_->blocks()));
  std::iota(all.begin(), all.end(), 0);
  set_output_blocks(all);
  loading_.reset();
}

void Decoder::place(int threads, std::vector<int> cores) {
  const std::lock_guard lock(mutex_);
  cores_ = cores;
  pool_.place(threads, std::move(cores));
  scratch_.resize(static_cast<size_t>(pool_.threads()));
}

void Decoder::restrict_output(const std::vector<int>& blocks) {
  for (const int b : blocks) {
    if (b < 0 || b >= output_->blocks())
      throw ConfigError("output block " + std::to_string(b) + " is out of range");
  }
  const std::lock_guard lock(mutex_);
  set_output_blocks(blocks);
}

// Cuts ascending blocks into runs of neighbours, at most 64 long: the tasks of the last product.
void Decoder::set_output_blocks(const std::vector<int>& blocks) {
  output_runs_.clear();
  for (const int b : blocks) {
    if (!output_runs_.empty() && output_runs_.back().second == b && b - output_runs_.back().first < 64) {
      output_runs_.back().second = b + 1;
    } else {
      output_runs_.emplace_back(b, b + 1);
    }
  }
}

size_t Decoder::read_bytes() const {
  size_t total = 0;
  for (const auto& [first, last] : output_runs_) {
    total += static_cast<size_t>(last - first) * output_->block_bytes;
  }
  for (const Layer& l : layers_) {
    for (const Matrix* m : {l.q, l.k, l.v, l.o, l.mlp.gate, l.mlp.up, l.mlp.down, l.router, l.shared.gate,
                            l.shared.up, l.shared.down}) {
      if (m != nullptr) total += m->bytes();
    }
    size_t all = 0;
    for (const Mlp& e : l.experts) all += e.gate->bytes() + e.up->bytes() + e.down->bytes();
    if (all > 0) {
      total +=
          all / static_cast<size_t>(config_.experts.count) * static_cast<size_t>(config_.experts.per_row);
    }
  }
  return total;
}

void Decoder::reserve(const RowBatch& rows) {
  const auto n = static_cast<size_t>(rows.n);
  const auto grow = [](auto& buffer, size_t size) {
    if (buffer.size() < size) buffer.resize(size);
  };
  const auto hidden = static_cast<size_t>(hidden_);
  const auto heads = static_cast<size_t>(config_.num_heads);
  const auto dim = static_cast<size_t>(dim_);
  const size_t kv = static_cast<size_t>(round_up(config_.num_kv_heads * config_.head_dim, 16));
  const Experts& e = config_.experts;
  const auto shared = static_cast<size_t>(round_up(e.shared_size, 16));
  const auto inner = static_cast<size_t>(round_up(e.intermediate_size, 16));
  const size_t visits = n * static_cast<size_t>(e.per_row);
  const size_t widest = std::max(static_cast<size_t>(std::max({hidden_, intermediate_, attended_})), shared);
  grow(b_.x, n * hidden), grow(b_.normed, n * hidden), grow(b_.down, n * hidden);
  grow(b_.q, n * static_cast<size_t>(attended_)), grow(b_.k, n * kv), grow(b_.v, n * kv);
  grow(b_.rotated, n * heads * dim);
  grow(b_.attended, n * std::max(heads * dim, static_cast<size_t>(attended_)));
  const size_t gates =
      e.count == 0 ? n * static_cast<size_t>(intermediate_) : std::max(n * shared, visits * inner);
  grow(b_.gate, gates), grow(b_.up, gates);
  const size_t angles = n * frequencies_.size() * static_cast<size_t>(config_.rotary_dim / 2);
  grow(b_.cosines, angles), grow(b_.sines, angles);
  grow(b_.codes, n * (widest / 32 + 1));
  if (e.count > 0) {
    grow(b_.router, n * static_cast<size_t>(e.count)), grow(b_.shared, n * hidden);
    grow(b_.gathered, visits * hidden), grow(b_.gathered_codes, visits * (std::max(hidden, inner) / 32 + 1));
  }
  group(rows);
  size_t scores = 0;
  size_t sums = 0;
  const size_t per_kv_head = heads / static_cast<size_t>(config_.num_kv_heads);
  for (const Group& g : groups_) {
    const size_t row_heads = static_cast<size_t>(g.last - g.first) * per_kv_head;
    scores = std::max(scores, row_heads * g.stride), sums = std::max(sums, row_heads);
  }
  for (auto& s : scratch_) {
    grow(s.scores, scores), grow(s.sums, sums), grow(s.converted, kKeysAtOnce * dim);
    grow(s.gathered, 16 * dim), grow(s.head, 2 * dim);
  }
}

// Rows that follow each other in one sequence share the conversion of its keys and values, up to what leaves
// work for every thread and keeps the scores in a core's caches.
void Decoder::group(const RowBatch& rows) {
  constexpr int kMostRows = 8;
  constexpr size_t kMostScores = size_t{1} << 19;
  const int kv_heads = config_.num_kv_heads;
  const auto per_kv_head = static_cast<size_t>(config_.num_heads / kv_heads);
  const int most = std::clamp(rows.n * kv_heads / pool_.threads(), 1, kMostRows);
  groups_.clear();
  for (int i = 0; i < rows.n; ++i) {
    const size_t stride = score_stride(rows.trunk_lengths[i] + rows.extras(i));
    if (!groups_.empty()) {
      Group& g = groups_.back();
      const size_t wider = std::max(g.stride, stride);
      const int n = g.last + 1 - g.first;
      if (n <= most && rows.sequences[i] == rows.sequences[g.first] &&
          static_cast<size_t>(n) * per_kv_head * wider <= kMostScores) {
        g.last = i + 1, g.stride = wider;
        continue;
      }
    }
    groups_.push_back({i, i + 1, stride});
  }
}

void Decoder::embed(const RowBatch& rows) {
  pool_.run(rows.n, [&](int i, int) {
    float* x = &b_.x[static_cast<size_t>(i) * static_cast<size_t>(hidden_)];
    decode_row(*embed_, rows.tokens[i], x);
    if (config_.embedding_scale != 1) {
      for (int d = 0; d < config_.hidden_size; ++d) x[d] *= config_.embedding_scale;
    }
    std::fill(x + config_.hidden_size, x + hidden_, 0.0f);
  });
}

void Decoder::rotations(const RowBatch& rows) {
  const size_t ropes = frequencies_.size();
  pool_.run(rows.n, [&](int i, int) {
    for (size_t r = 0; r < ropes; ++r) {
      const size_t pairs = frequencies_[r].size();
      const size_t at = (static_cast<size_t>(i) * ropes + r) * pairs;
      for (size_t p = 0; p < pairs; ++p) {
        const double angle = rows.positions[i] * frequencies_[r][p];
        b_.cosines[at + p] = static_cast<float>(std::cos(angle));
        b_.sines[at + p] = static_cast<float>(std::sin(angle));
      }
    }
  });
}

// x += residual_scale * post_norm(down + bias), for one row.
void Decoder::add_residual(size_t row, const float* bias, const float* post_norm) {
  const size_t at = row * static_cast<size_t>(hidden_);
  const int width = config_.hidden_size;
  float* x = &b_.x[at];
  float* added = &b_.down[at];
  const float scale = config_.residual_scale;
  if (post_norm == nullptr && scale == 1) {
    for (int d = 0; d < width; ++d) x[d] += added[d];
    if (bias == nullptr) return;
    for (int d = 0; d < width; ++d) x[d] += bias[d];
    return;
  }
  if (bias != nullptr) {
    for (int d = 0; d < width; ++d) added[d] += bias[d];
  }
  if (post_norm != nullptr) kernels_.rms_norm(added, post_norm, hidden_, width, config_.norm_epsilon, added);
  for (int d = 0; d < width; ++d) x[d] += added[d] * scale;
}

// Adds what the last sublayer gave, if there was one, and normalises if there is a norm; returns what the
// next sublayer reads.
const float* Decoder::next_input(int n, const Sublayer* last, const float* norm) {
  pool_.run(n, [&](int i, int) {
    const auto row = static_cast<size_t>(i);
    if (last != nullptr) add_residual(row, last->bias, last->post_norm);
    if (norm == nullptr) return;
    const size_t at = row * static_cast<size_t>(hidden_);
    kernels_.rms_norm(&b_.x[at], norm, hidden_, config_.hidden_size, config_.norm_epsilon, &b_.normed[at]);
  });
  return norm == nullptr ? b_.x.data() : b_.normed.data();
}

// Rows of `width` floats as the products need them: quantised unless all weights are dense.
Activations Decoder::prepare(int n, const float* x, int width, const std::vector<Product>& products) {
  const int inputs = products.front().weights->inputs;
  Activations a;
  a.dense = x, a.dense_stride = static_cast<size_t>(width);
  a.codes = b_.codes.data(), a.codes_stride = static_cast<size_t>(inputs / kChunk);
  const bool quantised = std::any_of(products.begin(), products.end(), [](const Product& p) {
    return format_info(p.weights->format).scheme != Scheme::Dense;
  });
  if (quantised) {
    pool_.run(n, [&](int i, int) {
      const auto row = static_cast<size_t>(i);
      kernels_.quantise(x + row * a.dense_stride, inputs, &b_.codes[row * a.codes_stride]);
    });
  }
  return a;
}

// All products of the same activations in one parallel region.
void Decoder::multiply(int n, const Activations& x, const std::vector<Product>& products) {
  std::vector<Part> parts;
  for (const Product& p : products) parts.push_back({p.weights, x, n, p.out, p.stride});
  multiply(parts);
}

void Decoder::multiply(const std::vector<Part>& parts) {
  int total = 0;
  for (const Part& p : parts) total += p.weights->blocks();
  // Enough tasks for a late thread to be outrun, few enough to keep the cost of handing them out out of
  // sight.
  const int per_task =
      pool_.threads() == 1 ? total : std::max(4, round_up(total / (pool_.threads() * 16), 4));
  std::vector<std::pair<const Part*, int>> tasks;
  for (const Part& p : parts) {
    for (int first = 0; first < p.weights->blocks(); first += per_task) tasks.emplace_back(&p, first);
  }
  pool_.run(static_cast<int>(tasks.size()), [&](int t, int) {
    const auto& [p, first] = tasks[static_cast<size_t>(t)];
    kernels_.matmul(*p->weights, first, std::min(first + per_task, p->weights->blocks()), p->x, p->rows,
                    p->out, p->stride);
  });
}

// The kind of rotation of a layer, -1: none.
int Decoder::rope_of(int layer) const {
  return config_.layer_ropes.empty() ? 0 : config_.layer_ropes[static_cast<size_t>(layer)];
}

// out[dim_] = norm(in), what the rope rotates times `turned`, the rest times `scale`.
void Decoder::rotate_head(const float* in, const float* norm, int rope, size_t row, float scale, float turned,
                          float* out) const {
  const int dim = config_.head_dim;
  std::copy(in, in + dim, out);
  std::fill(out + dim, out + dim_, 0.0f);
  if (norm != nullptr) kernels_.rms_norm(out, norm, dim_, dim, config_.norm_epsilon, out);
  const int pairs = rope < 0 ? 0 : config_.rotary_dim / 2;
  for (int d = 2 * pairs; d < dim; ++d) out[d] *= scale;
  if (pairs == 0) return;
  const auto kind = static_cast<size_t>(rope);
  const size_t at = (row * frequencies_.size() + kind) * static_cast<size_t>(pairs);
  const float* cosine = &b_.cosines[at];
  const float* sine = &b_.sines[at];
  const int step = config_.rope_interleaved ? 2 : 1;
  const int partner = config_.rope_interleaved ? 1 : pairs;
  for (int p = 0; p < pairs; ++p) {
    const float a = out[p * step];
    const float b = out[p * step + partner];
    out[p * step] = (a * cosine[p] - b * sine[p]) * turned;
    out[p * step + partner] = (a * sine[p] + b * cosine[p]) * turned;
  }
}

// Adds biases, normalises and rotates queries and keys, writes keys and values into their slots.
void Decoder::rotate_and_store(const RowBatch& rows, int index) {
  const Layer& layer = layers_[static_cast<size_t>(index)];
  const DecoderConfig& c = config_;
  const int kv_width = round_up(c.num_kv_heads * c.head_dim, 16);
  const int rope = rope_of(index);
  const auto factor =
      rope < 0 ? 1.0f : static_cast<float>(c.ropes[static_cast<size_t>(rope)].attention_factor);
  const float root = std::sqrt(static_cast<float>(c.head_dim));
  const float scale = c.attention_scale > 0 ? c.attention_scale : 1.0f / root;
  const float turned = c.attention_scale > 0 ? factor * c.attention_scale : factor / root;
  const auto add = [](float* x, const float* bias, int n) {
    if (bias == nullptr) return;
    for (int i = 0; i < n; ++i) x[i] += bias[i];
  };
  pool_.run(rows.n, [&](int i, int thread) {
    const auto row = static_cast<size_t>(i);
    float* q = &b_.q[row * static_cast<size_t>(attended_)];
    float* k = &b_.k[row * static_cast<size_t>(kv_width)];
    float* v = &b_.v[row * static_cast<size_t>(kv_width)];
    add(q, layer.q_bias, c.num_heads * c.head_dim);
    add(k, layer.k_bias, c.num_kv_heads * c.head_dim);
    add(v, layer.v_bias, c.num_kv_heads * c.head_dim);
    if (c.whole_qk_norm) {
      kernels_.rms_norm(q, layer.q_norm, attended_, c.num_heads * c.head_dim, c.norm_epsilon, q);
      kernels_.rms_norm(k, layer.k_norm, kv_width, c.num_kv_heads * c.head_dim, c.norm_epsilon, k);
    }
    const float* q_norm = c.whole_qk_norm ? nullptr : layer.q_norm;
    const float* k_norm = c.whole_qk_norm ? nullptr : layer.k_norm;
    for (int h = 0; h < c.num_heads; ++h) {
      float* out = &b_.rotated[(row * static_cast<size_t>(c.num_heads) + static_cast<size_t>(h)) *
                               static_cast<size_t>(dim_)];
      rotate_head(q + h * c.head_dim, q_norm, rope, row, scale, turned, out);
    }
    float* key = scratch_[static_cast<size_t>(thread)].head.data();
    float* value = key + dim_;
    for (int h = 0; h < c.num_kv_heads; ++h) {
      rotate_head(k + h * c.head_dim, k_norm, rope, row, 1, factor, key);
      std::copy(v + h * c.head_dim, v + (h + 1) * c.head_dim, value);
      std::fill(value + c.head_dim, value + dim_, 0.0f);
      kernels_.store_kv(key, value, rows.slots[i], h, c.num_kv_heads, dim_, kv_.keys(index),
                        kv_.values(index));
    }
  });
}

void Decoder::attention(const RowBatch& rows, int index) {
  const DecoderConfig& c = config_;
  const int group = c.num_heads / c.num_kv_heads;
  const int window = c.sliding_windows.empty() ? 0 : c.sliding_windows[static_cast<size_t>(index)];
  const bool direct = dim_ == c.head_dim && attended_ == c.num_heads * c.head_dim;
  const size_t padded_row = static_cast<size_t>(c.num_heads) * static_cast<size_t>(dim_);
  const size_t out_row = direct ? static_cast<size_t>(attended_) : padded_row;
  // Few rows and many threads: these share the query heads of a kv head.
  const int tasks = static_cast<int>(groups_.size()) * c.num_kv_heads;
  const int parts = std::clamp(pool_.threads() / tasks, 1, group);
  pool_.run(tasks * parts, [&](int task, int thread) {
    const int part = task % parts;
    const Group& g = groups_[static_cast<size_t>(task / parts / c.num_kv_heads)];
    const int kv_head = task / parts % c.num_kv_heads;
    const int first_head = group * part / parts;
    Scratch& scratch = scratch_[static_cast<size_t>(thread)];
    const size_t head_at = static_cast<size_t>(kv_head * group + first_head) * static_cast<size_t>(dim_);
    scratch.rows.clear();
    for (int i = g.first; i < g.last; ++i) {
      AttentionRow row{};
      row.queries = &b_.rotated[static_cast<size_t>(i) * padded_row + head_at];
      row.out = &b_.attended[static_cast<size_t>(i) * out_row + head_at];
      row.extra_slots = rows.extra_slots + rows.extra_offsets[i];
      row.extras = rows.extras(i), row.trunk = rows.trunk_lengths[i];
      if (window > 0) row.first = std::max(0, row.keys() - window);
      scratch.rows.push_back(row);
    }
    AttentionArgs a{};
    a.rows = scratch.rows.data(), a.num_rows = g.last - g.first;
    a.heads = group * (part + 1) / parts - first_head, a.softcap = c.attention_softcap, a.head_dim = dim_,
    a.kv_head = kv_head, a.kv_heads = c.num_kv_heads;
    a.keys = kv_.keys(index), a.values = kv_.values(index);
    a.table = rows.block_tables +
              static_cast<size_t>(rows.sequences[g.first]) * static_cast<size_t>(rows.table_width);
    a.tiles_per_block = c.block_size / 16;
    a.stride = g.stride;
    a.scores = scratch.scores.data(), a.sums = scratch.sums.data();
    a.converted = scratch.converted.data(), a.gathered = scratch.gathered.data();
    kernels_.attend(a);
  });
  if (direct) return;
  // Close the gaps that the padding of the heads left, front to back: a row never overtakes the one it reads.
  for (int i = 0; i < rows.n; ++i) {
    const float* from = &b_.attended[static_cast<size_t>(i) * padded_row];
    std::vector<float> dense(static_cast<size_t>(attended_), 0.0f);
    for (int h = 0; h < c.num_heads; ++h)
      std::copy(from + h * dim_, from + h * dim_ + c.head_dim, dense.begin() + h * c.head_dim);
    std::copy(dense.begin(), dense.end(),
              &b_.attended[static_cast<size_t>(i) * static_cast<size_t>(attended_)]);
  }
}

// Scales and caps logits, wherever they begin and end.
void Decoder::finish_logits(float* logits, size_t n) const {
  if (config_.logit_scale != 1) {
    for (size_t i = 0; i < n; ++i) logits[i] *= config_.logit_scale;
  }
  if (config_.logit_softcap == 0) return;
  const size_t whole = n / 16 * 16;
  kernels_.softcap(logits, static_cast<int>(whole), config_.logit_softcap);
  float rest[16] = {};
  std::copy(logits + whole, logits + n, rest);
  kernels_.softcap(rest, 16, config_.logit_softcap);
  std::copy(rest, rest + (n - whole), logits + whole);
}

// The output matrix in runs of neighbouring blocks: computes, checks, and fills what the vocabulary leaves
// out.
void Decoder::multiply_output(int n, const Activations& x, float* logits) {
  const auto vocab = static_cast<size_t>(config_.vocab_size);
  std::atomic<bool> finite{true};
  pool_.run(static_cast<int>(output_runs_.size()), [&](int t, int) {
    const auto& [first, last] = output_runs_[static_cast<size_t>(t)];
    kernels_.matmul(*output_, first, last, x, n, logits, vocab);
    const size_t gap =
        t == 0 ? 0 : static_cast<size_t>(output_runs_[static_cast<size_t>(t) - 1].second) * kLanes;
    const size_t begin = static_cast<size_t>(first) * kLanes;
    const size_t end = std::min(static_cast<size_t>(last) * kLanes, vocab);
    const bool is_last = static_cast<size_t>(t) + 1 == output_runs_.size();
    for (int i = 0; i < n; ++i) {
      float* row = logits + static_cast<size_t>(i) * vocab;
      std::fill(row + gap, row + begin, -std::numeric_limits<float>::infinity());
      if (is_last) std::fill(row + end, row + vocab, -std::numeric_limits<float>::infinity());
      if (!all_finite(row + begin, end - begin)) finite = false;
      finish_logits(row + begin, end - begin);
    }
  });
  if (!finite) {
    throw NumericsError("the model produced logits that are not finite; its weights are likely corrupt");
  }
}

void Decoder::output(const RowBatch& rows, float* logits) {
  int n = 0;
  const auto width = static_cast<size_t>(hidden_);
  for (int i = 0; i < rows.n; ++i) {
    if (rows.wants_logits[i] == 0) continue;
    const float* x = &b_.x[static_cast<size_t>(i) * width];
    kernels_.rms_norm(x, final_norm_, hidden_, config_.hidden_size, config_.norm_epsilon,
                      &b_.normed[static_cast<size_t>(n) * width]);
    ++n;
  }
  if (n > 0) multiply_output(n, prepare(n, b_.normed.data(), hidden_, {{output_, logits, 0}}), logits);
}

void Decoder::forward(const RowBatch& rows, float* logits) {
  const std::lock_guard lock(mutex_);
  if (embed_ == nullptr) throw ConfigError("the model is not loaded");
  check_rows(rows, config_);
  const PinnedHere pinned(cores_.empty() ? cores_ : std::vector<int>{cores_.front()});
  reserve(rows);
  embed(rows);
  rotations(rows);
  const int n = rows.n;
  const auto kv_width = static_cast<size_t>(round_up(config_.num_kv_heads * config_.head_dim, 16));
  Sublayer last{};
  for (int index = 0; index < config_.num_layers; ++index) {
    const Layer& layer = layers_[static_cast<size_t>(index)];
    const float* in = next_input(n, index == 0 ? nullptr : &last, layer.attn_norm);
    const std::vector<Product> qkv = {{layer.q, b_.q.data(), static_cast<size_t>(attended_)},
                                      {layer.k, b_.k.data(), kv_width},
                                      {layer.v, b_.v.data(), kv_width}};
    multiply(n, prepare(n, in, hidden_, qkv), qkv);
    rotate_and_store(rows, index);
    attention(rows, index);
    const std::vector<Product> o = {{layer.o, b_.down.data(), static_cast<size_t>(hidden_)}};
    multiply(n, prepare(n, b_.attended.data(), attended_, o), o);
    last = {layer.o_bias, layer.attn_post_norm};
    in = next_input(n, &last, layer.ffn_norm);
    if (layer.router == nullptr) {
      feed_forward(n, in, layer.mlp, intermediate_, b_.down.data());
    } else {
      mixture(n, in, layer);
    }
    last = {nullptr, layer.ffn_post_norm};
  }
  next_input(n, &last, nullptr);
  output(rows, logits);
}

}  // namespace sonoran
