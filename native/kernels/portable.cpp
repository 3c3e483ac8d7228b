#include "kernels/vec_portable.hpp"
// The vector type comes first.
#include "kernels/all.hpp"

namespace sonoran {

extern const Kernels k_portable_kernels;
const Kernels k_portable_kernels = all_kernels("portable");

}  // namespace sonoran
