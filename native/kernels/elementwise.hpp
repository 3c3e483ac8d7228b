// Normalisation, activation function and quantisation of rows, written once over Vec. Lengths are multiples
// of 16; padding beyond a row's true length is zero.
#pragma once

#include <cmath>

#include "kernels/activations.hpp"

namespace sonoran {
namespace {

// Sum of the 16 lanes, always as the same tree.
inline float reduce_add(Vec::F v) {
  float lanes[16];
  Vec::store(lanes, v);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

inline float reduce_max(Vec::F v) {
  float lanes[16];
  Vec::store(lanes, v);
  float best = lanes[0];
  for (int i = 1; i < 16; ++i) best = best > lanes[i] ? best : lanes[i];
  return best;
}

// e^x for x clamped to [-87, 88]; relative error below 2e-7. NaN stays NaN.
inline Vec::F exp(Vec::F x) {
  x = Vec::max(Vec::set(-87.0f), x);
  x = Vec::min(Vec::set(88.0f), x);
  const Vec::F n = Vec::round(Vec::mul(x, Vec::set(1.44269504f)));
  Vec::F r = Vec::fma(n, Vec::set(-0.693359375f), x);  // ln 2 in two parts
  r = Vec::fma(n, Vec::set(2.12194440e-4f), r);
  Vec::F p = Vec::set(1.0f / 5040.0f);
  p = Vec::fma(p, r, Vec::set(1.0f / 720.0f));
  p = Vec::fma(p, r, Vec::set(1.0f / 120.0f));
  p = Vec::fma(p, r, Vec::set(1.0f / 24.0f));
  p = Vec::fma(p, r, Vec::set(1.0f / 6.0f));
  p = Vec::fma(p, r, Vec::set(0.5f));
  p = Vec::fma(p, r, Vec::set(1.0f));
  p = Vec::fma(p, r, Vec::set(1.0f));
  return Vec::scale_by_power(p, Vec::to_int(n));
}

// out = x / sqrt(mean(x^2) + epsilon) * weight, the mean over the true length n.
void rms_norm(const float* x, const float* weight, int padded, int n, float epsilon, float* out) {
  Vec::F sum = Vec::zero();
  for (int i = 0; i < padded; i += 16) {
    const Vec::F v = Vec::load(x + i);
    sum = Vec::fma(v, v, sum);
  }
  const Vec::F scale = Vec::set(1.0f / std::sqrt(reduce_add(sum) / static_cast<float>(n) + epsilon));
  for (int i = 0; i < padded; i += 16) {
    Vec::store(out + i, Vec::mul(Vec::mul(Vec::load(x + i), scale), Vec::load(weight + i)));
  }
}

// gate = gate / (1 + e^-gate) * up
void silu_mul(float* gate, const float* up, int padded) {
  const Vec::F one = Vec::set(1.0f);
  for (int i = 0; i < padded; i += 16) {
    const Vec::F g = Vec::load(gate + i);
    const Vec::F e = exp(Vec::sub(Vec::zero(), g));
    Vec::store(gate + i, Vec::mul(Vec::div(g, Vec::add(one, e)), Vec::load(up + i)));
  }
}

// gate = gate / (1 + e^-2u) * up with u = sqrt(2 / pi) (gate + 0.044715 gate^3): GELU by its tanh formula.
void gelu_mul(float* gate, const float* up, int padded) {
  const Vec::F one = Vec::set(1.0f);
  for (int i = 0; i < padded; i += 16) {
    const Vec::F g = Vec::load(gate + i);
    const Vec::F inner = Vec::fma(Vec::mul(g, g), Vec::set(-0.0713548162726f), Vec::set(-1.59576912161f));
    const Vec::F e = exp(Vec::mul(g, inner));
    Vec::store(gate + i, Vec::mul(Vec::div(g, Vec::add(one, e)), Vec::load(up + i)));
  }
}

// x = cap tanh(x / cap)
void softcap(float* x, int padded, float cap) {
  const Vec::F one = Vec::set(1.0f);
  const Vec::F twice = Vec::set(2.0f / cap);
  for (int i = 0; i < padded; i += 16) {
    const Vec::F e = exp(Vec::mul(Vec::load(x + i), twice));
    const Vec::F tanh = Vec::div(Vec::sub(e, one), Vec::add(e, one));
    Vec::store(x + i, Vec::mul(tanh, Vec::set(cap)));
  }
}

// Symmetric int8 codes per group of 32 values; the scale is not finite if a value is not.
void quantise(const float* x, int n, Quantised* out) {
  for (int g = 0; g < n / 32; ++g, ++out, x += 32) {
    const Vec::F a = Vec::load(x);
    const Vec::F b = Vec::load(x + 16);
    const float top = Vec::largest_magnitude(a, b);
    const Vec::F inverse = Vec::set(top > 0.0f ? 127.0f / top : 0.0f);
    const Vec::I first = Vec::to_int(Vec::mul(a, inverse));
    const Vec::I second = Vec::to_int(Vec::mul(b, inverse));
    Vec::store_s8(out->codes, first);
    Vec::store_s8(out->codes + 16, second);
    Vec::pair_sums(out->codes, out->minus_pairs);
    out->scale = top / 127.0f;
    const int32_t sum = -(out->minus_pairs[2][0] + out->minus_pairs[2][1]);
    out->scaled_sum = out->scale * static_cast<float>(sum);
  }
}

}  // namespace
}  // namespace sonoran
