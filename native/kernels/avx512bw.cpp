#if defined(__x86_64__)
#include "kernels/vec_avx512.hpp"

namespace sonoran {
namespace {

// Server processors before VNNI: sums of pairs as on AVX2, twice as wide.
struct Vec : Avx512 {
  using Pairs = I;  // 32 int16, two of each lane
  static constexpr bool kPairs = true;

  static Q magnitude(Q x) { return _mm512_abs_epi8(x); }
  static Q with_sign(Q x, Q of) {
    return _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(of), _mm512_setzero_si512(), x);
  }
  static Pairs multiply_pairs(Q codes, Q x) { return _mm512_maddubs_epi16(codes, x); }
  static I join_pairs(Pairs x, Pairs y) { return _mm512_madd_epi16(x, y); }
  static Pairs ones() { return _mm512_set1_epi16(1); }
  template <int Factor>
  static Pairs pair_times(const int16_t (&pair)[2]) {
    return _mm512_mullo_epi16(pair_of(pair), _mm512_set1_epi16(Factor));
  }
  static Pairs accumulate_pairs(Pairs sum, Pairs x) {  // see Avx2
    asm("vpaddw %1, %0, %0" : "+v"(sum) : "v"(x));
    return sum;
  }
  static I accumulate(I sum, I x) {
    asm("vpaddd %1, %0, %0" : "+v"(sum) : "v"(x));
    return sum;
  }
};

}  // namespace
}  // namespace sonoran

// The vector type comes first.
#include "kernels/all.hpp"

namespace sonoran {

extern const Kernels k_avx512bw_kernels;
const Kernels k_avx512bw_kernels = all_kernels("avx512bw");

}  // namespace sonoran
#endif
