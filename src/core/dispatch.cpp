// Chooses the instruction set when the library is loaded.
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "kernels.h"

#define MATRYO_DECLARE(isa) \
  namespace matryo::isa {   \
  const Kernels& kernels(); \
  }
MATRYO_DECLARE(baseline)
#if MATRYO_HAS_X86
MATRYO_DECLARE(avx2)
MATRYO_DECLARE(avx512)
#endif

namespace matryo {
namespace {

#if MATRYO_HAS_X86
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
#endif

const Kernels& choose() {
  const char* given = std::getenv("MATRYO_ISA");
  std::string wanted = given == nullptr ? "" : given;
#if MATRYO_HAS_X86
  __builtin_cpu_init();
  if (wanted == "avx512" && !has_avx512())
    throw std::runtime_error("MATRYO_ISA=avx512: this processor does not have it");
  if (wanted == "avx2" && !has_avx2()) throw std::runtime_error("MATRYO_ISA=avx2: this processor does not have it");
  if (wanted == "avx512" || (wanted.empty() && has_avx512())) return avx512::kernels();
  if (wanted == "avx2" || (wanted.empty() && has_avx2())) return avx2::kernels();
#endif
  if (!wanted.empty() && wanted != "baseline")
    throw std::runtime_error("MATRYO_ISA must be avx512 or avx2 (on x86-64), baseline or numpy (got " + wanted + ")");
  return baseline::kernels();
}

}   // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}   // namespace matryo
