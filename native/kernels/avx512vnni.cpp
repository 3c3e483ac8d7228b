#if defined(__x86_64__)
#include "kernels/vec_avx512.hpp"
// The vector type comes first.
#include "kernels/all.hpp"

namespace sonoran {

extern const Kernels k_avx512vnni_kernels;
const Kernels k_avx512vnni_kernels = all_kernels("avx512vnni");

}  // namespace sonoran
#endif
