#if defined(__aarch64__)
#include "kernels/vec_neon.hpp"

namespace sonoran {
namespace {

struct Vec : Neon {
  static constexpr int kMaxRows = 4;  // two pairs of rows, eight registers each, and eight for the codes

  // Dot products of two rows: an instruction multiplies 2 outputs x 8 inputs by 8 inputs x 2 rows.
  struct RowPair {
    int32x4_t sums[8];  // output 2i with the first row and the second, output 2i + 1 with both

    void start_first(int32_t value) {
      for (auto& sum : sums) sum = vdupq_n_s32(value);
    }
    void start_second(int32_t value) {
      for (auto& sum : sums) sum = vtrn1q_s32(sum, vdupq_n_s32(value));
    }
    void add(const Q& even, const Q& odd, const int8_t* first, const int8_t* second) {
      const int8x16_t rows = vcombine_s8(vld1_s8(first), vld1_s8(second));
      add_outputs(sums, even.a, odd.a, rows), add_outputs(sums + 2, even.b, odd.b, rows);
      add_outputs(sums + 4, even.c, odd.c, rows), add_outputs(sums + 6, even.d, odd.d, rows);
    }
    static void add_outputs(int32x4_t* sum, uint8x16_t even, uint8x16_t odd, int8x16_t rows) {
      const uint32x4_t x = vreinterpretq_u32_u8(even), y = vreinterpretq_u32_u8(odd);
      sum[0] = vmmlaq_s32(sum[0], vreinterpretq_s8_u32(vzip1q_u32(x, y)), rows);
      sum[1] = vmmlaq_s32(sum[1], vreinterpretq_s8_u32(vzip2q_u32(x, y)), rows);
    }
    I first() const {
      return {vuzp1q_s32(sums[0], sums[1]), vuzp1q_s32(sums[2], sums[3]), vuzp1q_s32(sums[4], sums[5]),
              vuzp1q_s32(sums[6], sums[7])};
    }
    I second() const {
      return {vuzp2q_s32(sums[0], sums[1]), vuzp2q_s32(sums[2], sums[3]), vuzp2q_s32(sums[4], sums[5]),
              vuzp2q_s32(sums[6], sums[7])};
    }
  };
};

}  // namespace
}  // namespace sonoran

// The vector type comes first.
#include "kernels/all.hpp"

namespace sonoran {

extern const Kernels k_i8mm_kernels;
const Kernels k_i8mm_kernels = all_kernels("i8mm");

}  // namespace sonoran
#endif
