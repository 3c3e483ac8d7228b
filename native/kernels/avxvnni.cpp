#if defined(__x86_64__)
#include "kernels/vec_avx2.hpp"

namespace sonoran {
namespace {

// Processors of laptops and desktops without AVX512: AVX2 and the dot product of VNNI.
struct Vec : Avx2 {
  static constexpr bool kPairs = false;

  template <int Bits>
  static I dot4(I acc, Q codes, const int8_t* x) {
    const Q v = four(x);
#if defined(SONORAN_EMULATE_AVXVNNI)  // a test build, for processors that lack it
    const auto add = [](__m256i sum, __m256i code, __m256i in) {
      const __m256i odd = _mm256_srli_epi16(code, 8), even = _mm256_and_si256(code, _mm256_set1_epi16(255));
      const __m256i x_even = _mm256_srai_epi16(_mm256_slli_epi16(in, 8), 8), x_odd = _mm256_srai_epi16(in, 8);
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even, x_even));
      return _mm256_add_epi32(sum, _mm256_madd_epi16(odd, x_odd));
    };
    return {add(acc.a, codes.a, v.a), add(acc.b, codes.b, v.b)};
#else
    return {_mm256_dpbusd_avx_epi32(acc.a, codes.a, v.a), _mm256_dpbusd_avx_epi32(acc.b, codes.b, v.b)};
#endif
  }
};

}  // namespace
}  // namespace sonoran

// The vector type comes first.
#include "kernels/all.hpp"

namespace sonoran {

extern const Kernels k_avxvnni_kernels;
const Kernels k_avxvnni_kernels = all_kernels("avxvnni");

}  // namespace sonoran
#endif
