// Lower precision on load: bf16, or per group of 32 inputs 8 bits symmetric (Q8_0), 4 or 3 bits symmetric
// (Q4_0, Q3_0) or 4 with a minimum (Q4_1).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "core/clones.hpp"
#include "core/error.hpp"
#include "core/half.hpp"
#include "weights/pack.hpp"

namespace sonoran {

namespace {

constexpr int kGroup = 32;

void put_half(uint8_t* p, float v) {
  const uint16_t h = float_to_half(v);
  std::memcpy(p, &h, 2);
}

// A fixed tree, so that the compiler may use vectors and every instruction set gives the same bits.
[[gnu::always_inline]] inline float sum_of(float (&v)[kGroup]) {
  for (int width = kGroup / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) v[i] += v[i + width];
  }
  return v[0];
}

[[gnu::always_inline]] inline float as_stored(float v) { return half_to_float(float_to_half(v)); }

// Rounds to nearest even; adding 1.5 x 2^23 drops the fraction, and unlike nearbyint() the loop vectorises.
[[gnu::always_inline]] inline int code_of(float v, float inverse, int low, int high) {
  constexpr float kMagic = 12582912.0f;
  const float bounded = std::min(std::max(v * inverse, static_cast<float>(low)), static_cast<float>(high));
  return static_cast<int>((bounded + kMagic) - kMagic);
}

void put_nibbles(uint8_t* out, const int (&codes)[kGroup]) {
  for (int i = 0; i < 16; ++i) out[i] = static_cast<uint8_t>(codes[i] | (codes[i + 16] << 4));
}

void quantise_q8_0(const float* x, uint8_t* out) {
  float top = 0.0f;
  for (int i = 0; i < kGroup; ++i) top = std::max(top, std::fabs(x[i]));
  const float d = as_stored(top / 127.0f);
  const float inverse = d > 0.0f ? 1.0f / d : 0.0f;
  put_half(out, d);
  for (int i = 0; i < kGroup; ++i) out[2 + i] = static_cast<uint8_t>(code_of(x[i], inverse, -127, 127));
}

// The largest value is coded as Low for its own sign, or nearly so; among the scales around that, the one
// with the least squared error.
template <int Low>
[[gnu::always_inline]] inline float best_scale(const float* x, int first, int last, float width) {
  float extreme = 0.0f;
  for (int i = 0; i < kGroup; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  float best_error = INFINITY;
  float best = 0.0f;
  for (int step = first; step <= last; ++step) {
    const float d = as_stored(extreme / (static_cast<float>(Low) + width * static_cast<float>(step)));
    const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
    float errors[kGroup];
    for (int i = 0; i < kGroup; ++i) {
      const float e = x[i] - d * static_cast<float>(code_of(x[i], inverse, Low, -Low - 1));
      errors[i] = e * e;
    }
    const float error = sum_of(errors);
    if (error < best_error) best_error = error, best = d;
  }
  return best;
}

SONORAN_CLONES void quantise_q4_0(const float* x, uint8_t* out) {
  const float d = best_scale<-8>(x, -4, 4, 0.25f);
  const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  put_half(out, d);
  int codes[kGroup];
  for (int i = 0; i < kGroup; ++i) codes[i] = code_of(x[i], inverse, -8, 7) + 8;
  put_nibbles(out + 2, codes);
}

SONORAN_CLONES void quantise_q3_0(const float* x, uint8_t* out) {
  const float d = best_scale<-4>(x, -3, 5, 0.3f);
  const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
  std::memset(out, 0, 14);
  put_half(out, d);
  for (int i = 0; i < kGroup; ++i) {
    const int code = code_of(x[i], inverse, -4, 3) + 4;
    out[2 + i / 4] |= static_cast<uint8_t>((code & 3) << (2 * (i % 4)));
    out[10 + i / 8] |= static_cast<uint8_t>((code >> 2) << (i % 8));
  }
}

// Scale and minimum by a few rounds of least squares, starting from the range of the values.
void quantise_q4_1(const float* x, uint8_t* out) {
  float low = x[0];
  float high = x[0];
  for (int i = 1; i < kGroup; ++i) low = std::min(low, x[i]), high = std::max(high, x[i]);
  float d = as_stored((high - low) / 15.0f);
  float m = as_stored(low);
  float best_d = d;
  float best_m = m;
  float best_error = INFINITY;
  for (int round = 0; round < 6; ++round) {
    const float inverse = d > 0.0f ? 1.0f / d : 0.0f;
    float error = 0.0f;
    float sq = 0.0f, sqq = 0.0f, sx = 0.0f, sqx = 0.0f;
    for (int i = 0; i < kGroup; ++i) {
      const auto q = static_cast<float>(code_of(x[i] - m, inverse, 0, 15));
      const float e = x[i] - (d * q + m);
      error += e * e;
      sq += q, sqq += q * q, sx += x[i], sqx += q * x[i];
    }
    if (error < best_error) best_error = error, best_d = d, best_m = m;
    const float determinant = static_cast<float>(kGroup) * sqq - sq * sq;
    if (determinant <= 0.0f) break;
    d = as_stored((static_cast<float>(kGroup) * sqx - sq * sx) / determinant);
    m = as_stored((sx - d * sq) / static_cast<float>(kGroup));
  }
  put_half(out, best_d);
  put_half(out + 2, best_m);
  const float inverse = best_d > 0.0f ? 1.0f / best_d : 0.0f;
  int codes[kGroup];
  for (int i = 0; i < kGroup; ++i) codes[i] = code_of(x[i] - best_m, inverse, 0, 15);
  put_nibbles(out + 4, codes);
}

}  // namespace

void quantise_row(Format format, const float* x, int n, uint8_t* out) {
  if (format == Format::BF16) {
    for (int i = 0; i < n; ++i) {
      const uint16_t h = float_to_bf16(x[i]);
      std::memcpy(out + 2 * i, &h, 2);
    }
    return;
  }
  const auto bytes = static_cast<size_t>(format_info(format).file_bytes);
  for (int g = 0; g < n / kGroup; ++g, x += kGroup, out += bytes) {
    switch (format) {
      case Format::Q8_0:
        quantise_q8_0(x, out);
        break;
      case Format::Q4_0:
        quantise_q4_0(x, out);
        break;
      case Format::Q3_0:
        quantise_q3_0(x, out);
        break;
      case Format::Q4_1:
        quantise_q4_1(x, out);
        break;
      default:
        throw ModelError(std::string("cannot quantise to ") + format_info(format).name);
    }
  }
}

}  // namespace sonoran
