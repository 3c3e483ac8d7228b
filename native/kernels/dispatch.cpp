#include <cstring>
#include <string>

#include "core/error.hpp"
#include "kernels/kernels.hpp"

namespace sonoran {

extern const Kernels k_portable_kernels;
#if defined(__x86_64__)
extern const Kernels k_avx512_kernels;
extern const Kernels k_avx2_kernels;
#endif

bool processor_has([[maybe_unused]] const char* name) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (std::strcmp(name, "avx512vnni") == 0) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
  }
  if (std::strcmp(name, "avx2") == 0) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  }
#endif
  return std::strcmp(name, "portable") == 0;
}

const Kernels& select_kernels(const char* name) {
  const bool automatic = std::strcmp(name, "auto") == 0;
  const auto wanted = [&](const char* candidate) {
    return (automatic || std::strcmp(name, candidate) == 0) && processor_has(candidate);
  };
#if defined(__x86_64__)
  if (wanted("avx512vnni")) return k_avx512_kernels;
  if (wanted("avx2")) return k_avx2_kernels;
#endif
  if (wanted("portable")) return k_portable_kernels;
  throw ConfigError("instruction set '" + std::string(name) +
                    "' is unknown or missing on this processor; valid: auto, avx512vnni, avx2, portable");
}

}  // namespace sonoran
