#if defined(__x86_64__)
#include "kernels/vec_avx2.hpp"

namespace sonoran {
namespace {
using Vec = Avx2;
}
}  // namespace sonoran

// The vector type comes first.
#include "kernels/all.hpp"

namespace sonoran {

extern const Kernels k_avx2_kernels;
const Kernels k_avx2_kernels = all_kernels("avx2");

}  // namespace sonoran
#endif
