// All kernels for one instruction set. Everything but the table has internal linkage, so that no code
// compiled here can be called on a processor that lacks the instructions.
#if defined(__x86_64__)
#include "kernels/vec_avx2.hpp"
// The vector type comes first: the kernels below are written over it.
#include "kernels/attention.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/matmul.hpp"

namespace sonoran {

extern const Kernels k_avx2_kernels;
const Kernels k_avx2_kernels = {"avx2", matmul, quantise, rms_norm, silu_mul, attend, store_kv};

}  // namespace sonoran
#endif
