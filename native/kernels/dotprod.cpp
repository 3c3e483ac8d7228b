#if defined(__aarch64__)
#include "kernels/vec_neon.hpp"

namespace sonoran {
namespace {
using Vec = Neon;
}
}  // namespace sonoran

// The vector type comes first.
#include "kernels/all.hpp"

namespace sonoran {

extern const Kernels k_dotprod_kernels;
const Kernels k_dotprod_kernels = all_kernels("dotprod");

}  // namespace sonoran
#endif
