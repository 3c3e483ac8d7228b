// Conversions between float and the 16-bit formats, round to nearest even; bit-identical to the hardware
// ones. Always inlined: called from code with 256 or 512 bit vectors, a copy without VEX encoding pays for a
// change of modes, hundreds of cycles a time on recent Intel cores.
#pragma once

#include <bit>
#include <cstdint>

namespace sonoran {

[[gnu::always_inline]] inline float bf16_to_float(uint16_t h) {
  return std::bit_cast<float>(uint32_t{h} << 16);
}

[[gnu::always_inline]] inline uint16_t float_to_bf16(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// Without branches, so that loops of it become vectors.
[[gnu::always_inline]] inline float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t{h & 0x8000u} << 16, rest = uint32_t{h & 0x7fffu} << 13;
  const auto finite = std::bit_cast<uint32_t>(std::bit_cast<float>(rest) * 0x1p112f);  // exact
  const uint32_t special = rest | 0x7f800000u | ((h & 0x3ffu) != 0 ? 0x400000u : 0u);
  return std::bit_cast<float>(sign | ((h & 0x7c00u) == 0x7c00u ? special : finite));
}

[[gnu::always_inline]] inline uint16_t float_to_half(float f) {
  const uint32_t u = std::bit_cast<uint32_t>(f);
  const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((a >> 13) & 0x1ffu));
  if (a >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (a >= 0x38800000u) {
    const uint32_t rounded = a + 0xfffu + ((a >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
  const float shifted =
      std::bit_cast<float>(a) + 0.5f;  // aligns the subnormal grid of 2^-24 with the last bit
  return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
}

}  // namespace sonoran
