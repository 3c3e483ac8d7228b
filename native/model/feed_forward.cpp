// What follows attention in a layer: one network for all rows, or a mixture of experts that each row chooses
// from.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/decoder.hpp"

namespace sonoran {

// gate = activation(gate) * up for n rows of b_.gate and b_.up.
void Decoder::activate(int n, int width) {
  const auto kernel = config_.activation == Activation::Silu ? kernels_.silu_mul : kernels_.gelu_mul;
  pool_.run(n, [&](int i, int) {
    const size_t at = static_cast<size_t>(i) * static_cast<size_t>(width);
    kernel(&b_.gate[at], &b_.up[at], width);
  });
}

void Decoder::feed_forward(int n, const float* in, const Mlp& mlp, int inner, float* out) {
  const auto width = static_cast<size_t>(inner);
  const std::vector<Product> wide = {{mlp.gate, b_.gate.data(), width}, {mlp.up, b_.up.data(), width}};
  multiply(n, prepare(n, in, hidden_, wide), wide);
  activate(n, inner);
  const std::vector<Product> down = {{mlp.down, out, static_cast<size_t>(hidden_)}};
  multiply(n, prepare(n, b_.gate.data(), inner, down), down);
}

// Chooses the experts of every row, and lists the rows of each expert.
void Decoder::route(int n, const float* in, const Layer& layer) {
  const Experts& e = config_.experts;
  const auto count = static_cast<size_t>(e.count);
  const auto chosen = static_cast<size_t>(e.per_row);
  const std::vector<Product> product = {{layer.router, b_.router.data(), count}};
  multiply(n, prepare(n, in, hidden_, product), product);
  choices_.resize(static_cast<size_t>(n) * chosen);
  std::vector<int> rows_of(count, 0);
  std::vector<int> order(count);
  for (int i = 0; i < n; ++i) {
    const float* scores = &b_.router[static_cast<size_t>(i) * count];
    Choice* choice = &choices_[static_cast<size_t>(i) * chosen];
    std::iota(order.begin(), order.end(), 0);
    // Equal scores: the first expert. A NaN chooses anything, and ends in logits that are not finite.
    std::partial_sort(order.begin(), order.begin() + e.per_row, order.end(), [&](int a, int b) {
      return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
    });
    const double top = scores[order.front()];
    double all = 0, used = 0;
    for (size_t x = 0; x < count; ++x) all += std::exp(scores[x] - top);
    for (size_t c = 0; c < chosen; ++c) used += std::exp(scores[order[c]] - top);
    std::sort(order.begin(), order.begin() + e.per_row);
    for (size_t c = 0; c < chosen; ++c) {
      const double share = std::exp(scores[order[c]] - top) / (e.normalised ? used : all);
      choice[c] = {order[c], 0, static_cast<float>(share)};
      ++rows_of[static_cast<size_t>(order[c])];
    }
  }
  visits_.clear();
  std::vector<int> next(count);
  int first = 0;
  for (int x = 0; x < e.count; ++x) {
    const int rows = rows_of[static_cast<size_t>(x)];
    next[static_cast<size_t>(x)] = first;
    if (rows > 0) visits_.push_back({x, first, first + rows});
    first += rows;
  }
  for (Choice& choice : choices_) choice.gathered = next[static_cast<size_t>(choice.expert)]++;
}

// b_.down = the outputs of each row's experts, weighted and added in the order of the experts, then that of
// the shared one. Only the chosen experts' weights are read, each once for all rows that chose it.
void Decoder::mixture(int n, const float* in, const Layer& layer) {
  const Experts& e = config_.experts;
  const auto hidden = static_cast<size_t>(hidden_);
  const auto chosen = static_cast<size_t>(e.per_row);
  const int inner = round_up(e.intermediate_size, 16);
  const auto width = static_cast<size_t>(inner);
  route(n, in, layer);
  const int visits = n * e.per_row;
  pool_.run(n, [&](int i, int) {
    const float* row = in + static_cast<size_t>(i) * hidden;
    for (size_t c = 0; c < chosen; ++c) {
      const Choice& choice = choices_[static_cast<size_t>(i) * chosen + c];
      std::copy(row, row + hidden, &b_.gathered[static_cast<size_t>(choice.gathered) * hidden]);
    }
  });
  // What a dense product reads is a float, what a quantised one reads is a code: of all gathered rows both.
  const auto prepared = [&](const float* x, int padded, const Mlp& like, bool is_down) {
    const Matrix* m = is_down ? like.down : like.gate;
    Activations a;
    a.dense = x, a.dense_stride = static_cast<size_t>(padded);
    a.codes = b_.gathered_codes.data(), a.codes_stride = static_cast<size_t>(m->inputs / kChunk);
    if (m->inputs % kChunk != 0) return a;
    pool_.run(visits, [&](int v, int) {
      const auto at = static_cast<size_t>(v);
      kernels_.quantise(x + at * a.dense_stride, m->inputs, &b_.gathered_codes[at * a.codes_stride]);
    });
    return a;
  };
  const auto of = [](const Activations& all, int first) {
    Activations a = all;
    a.dense += static_cast<size_t>(first) * a.dense_stride;
    a.codes += static_cast<size_t>(first) * a.codes_stride;
    return a;
  };
  const Mlp& any = layer.experts.front();
  const Activations inputs = prepared(b_.gathered.data(), hidden_, any, false);
  std::vector<Part> parts;
  for (const Visit& v : visits_) {
    const Mlp& mlp = layer.experts[static_cast<size_t>(v.expert)];
    const size_t at = static_cast<size_t>(v.first) * width;
    parts.push_back({mlp.gate, of(inputs, v.first), v.last - v.first, &b_.gate[at], width});
    parts.push_back({mlp.up, of(inputs, v.first), v.last - v.first, &b_.up[at], width});
  }
  multiply(parts);
  activate(visits, inner);
  const Activations middle = prepared(b_.gate.data(), inner, any, true);
  parts.clear();
  for (const Visit& v : visits_) {
    const Mlp& mlp = layer.experts[static_cast<size_t>(v.expert)];
    parts.push_back({mlp.down, of(middle, v.first), v.last - v.first,
                     &b_.gathered[static_cast<size_t>(v.first) * hidden], hidden});
  }
  multiply(parts);
  const bool shared = e.shared_size > 0;
  if (shared) feed_forward(n, in, layer.shared, round_up(e.shared_size, 16), b_.shared.data());
  pool_.run(n, [&](int i, int) {
    const size_t at = static_cast<size_t>(i) * hidden;
    float* out = &b_.down[at];
    std::fill(out, out + hidden, 0.0f);
    for (size_t c = 0; c < chosen; ++c) {
      const Choice& choice = choices_[static_cast<size_t>(i) * chosen + c];
      const float* from = &b_.gathered[static_cast<size_t>(choice.gathered) * hidden];
      for (size_t d = 0; d < hidden; ++d) out[d] += choice.weight * from[d];
    }
    if (!shared) return;
    double gate = 0;
    for (size_t d = 0; d < hidden; ++d) gate += double{in[at + d]} * layer.shared_router[d];
    const auto weight = static_cast<float>(1 / (1 + std::exp(-gate)));
    for (size_t d = 0; d < hidden; ++d) out[d] += weight * b_.shared[at + d];
  });
}

}  // namespace sonoran
