#if defined(__x86_64__)
#include "kernels/vec_avx512.hpp"

namespace sonoran {
namespace {

struct Vec : Avx512 {
  static constexpr bool kPairs = false;

  template <int Bits>
  static I dot4(I acc, Q codes, const int8_t* x) {
    return _mm512_dpbusd_epi32(acc, codes, four(x));
  }
};

}  // namespace
}  // namespace sonoran

// The vector type comes first.
#include "kernels/all.hpp"

namespace sonoran {

extern const Kernels k_avx512vnni_kernels;
const Kernels k_avx512vnni_kernels = all_kernels("avx512vnni");

}  // namespace sonoran
#endif
