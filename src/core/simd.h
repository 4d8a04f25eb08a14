// Vectors of one instruction set: the only file with intrinsics.
//
// Every kernel is written once, in terms of the types and functions below, and compiled once per instruction set
// (kernels.cpp). The macro MATRYO_ISA is the namespace of that copy: avx512, avx2 or baseline (SSE2, NEON, or plain
// vector code). A kernel file includes no template of the standard library: the linker keeps one copy of such a function
// for all instruction sets, and that copy might use instructions that the processor does not have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#define MATRYO_X86 1
#elif defined(__aarch64__)
#include <arm_neon.h>
#define MATRYO_NEON 1
#endif

#define MATRYO_INLINE [[gnu::always_inline]] inline

namespace matryo::MATRYO_ISA {

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define MATRYO_AVX512 1
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
#define MATRYO_AVX2 1
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

typedef float Floats __attribute__((vector_size(kVectorBytes)));
typedef double Doubles __attribute__((vector_size(kVectorBytes)));
typedef int32_t Ints __attribute__((vector_size(kVectorBytes)));
typedef uint32_t Words __attribute__((vector_size(kVectorBytes)));

constexpr int kFloats = kVectorBytes / 4;    // lanes of Floats and Ints
constexpr int kDoubles = kVectorBytes / 8;   // lanes of Doubles

// ── loads and stores, at any alignment ───────────────────────────────────────────────────────────────────────────────

template <class V>
MATRYO_INLINE V load(const void* from) {
  V value;
  std::memcpy(&value, from, sizeof(V));
  return value;
}

template <class V>
MATRYO_INLINE void store(void* to, V value) {
  std::memcpy(to, &value, sizeof(V));
}

MATRYO_INLINE Floats broadcast(float value) { return value - Floats{}; }
MATRYO_INLINE Doubles broadcast(double value) { return value - Doubles{}; }
MATRYO_INLINE Ints broadcast(int32_t value) { return value - Ints{}; }

// The four bytes at an address in every 32-bit lane.
MATRYO_INLINE Ints broadcast_four(const void* from) { return broadcast(load<int32_t>(from)); }

// The first `count` floats, then zeros; the memory behind them is not read.
MATRYO_INLINE Floats load_some(const float* from, int count) {
#if MATRYO_AVX512
  return (Floats)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from);
#else
  float buffer[kFloats] = {};
  std::memcpy(buffer, from, sizeof(float) * static_cast<size_t>(count));
  return load<Floats>(buffer);
#endif
}

// Prefetch into the L2 cache, which accepts many more requests at a time than L1. The address need not be valid.
MATRYO_INLINE void prefetch(const void* address) { __builtin_prefetch(address, 0, 2); }

// ── arithmetic ───────────────────────────────────────────────────────────────────────────────────────────────────────

MATRYO_INLINE Floats to_floats(Ints value) { return __builtin_convertvector(value, Floats); }

// a · b + c; rounded once where the processor has such an instruction.
MATRYO_INLINE Floats multiply_add(Floats a, Floats b, Floats c) {
#if MATRYO_AVX512
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif MATRYO_AVX2
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif MATRYO_NEON
  return (Floats)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  return a * b + c;
#endif
}

MATRYO_INLINE Doubles multiply_add(Doubles a, Doubles b, Doubles c) {
#if MATRYO_AVX512
  return (Doubles)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif MATRYO_AVX2
  return (Doubles)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
  return a * b + c;
#endif
}

MATRYO_INLINE Floats absolute(Floats value) { return (Floats)((Ints)value & 0x7FFFFFFF); }

// To the nearest integer, as 2²³ · 1.5 + value has no bits for the rest. |value| must be below 2²².
MATRYO_INLINE Floats nearest(Floats value) {
  Floats shift = broadcast(12582912.0f);
  return (value + shift) - shift;
}

// The sum of the lanes, in one fixed order.
MATRYO_INLINE float sum_lanes(Floats value) {
#if MATRYO_AVX512
  __m256 half = _mm256_add_ps(_mm512_castps512_ps256((__m512)value), _mm512_extractf32x8_ps((__m512)value, 1));
#elif MATRYO_AVX2
  __m256 half = (__m256)value;
#endif
#if MATRYO_AVX512 || MATRYO_AVX2
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
  static_assert(kFloats == 4);
  return (value[0] + value[2]) + (value[1] + value[3]);
#endif
}

MATRYO_INLINE int32_t sum_lanes(Ints value) {
#if MATRYO_AVX512
  return _mm512_reduce_add_epi32((__m512i)value);
#else
  int32_t total = 0;
  for (int i = 0; i < kFloats; i++) total += value[i];
  return total;
#endif
}

// Float16 to float32; the first `count` of a vector, then zeros.
MATRYO_INLINE Floats widen(const uint16_t* from, int count = kFloats) {
  uint16_t buffer[kFloats] = {};
  if (count < kFloats) {
    std::memcpy(buffer, from, sizeof(uint16_t) * static_cast<size_t>(count));
    from = buffer;
  }
#if MATRYO_AVX512
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif MATRYO_AVX2
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#elif MATRYO_NEON
  return (Floats)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
#else
  // Exponents differ by 112: a product with 2¹¹² corrects them, of subnormal numbers too. Stored numbers are finite.
  Words bits = {};
  for (int i = 0; i < kFloats; i++) bits[i] = from[i];
  Floats magnitude = (Floats)((bits & 0x7FFF) << 13) * 0x1p112f;
  return (Floats)((Words)magnitude | ((bits & 0x8000) << 16));
#endif
}

// The first `count` signed bytes as floats, then zeros.
MATRYO_INLINE Floats widen(const int8_t* from, int count = kFloats) {
  int8_t buffer[kFloats] = {};
  if (count < kFloats) {
    std::memcpy(buffer, from, static_cast<size_t>(count));
    from = buffer;
  }
#if MATRYO_AVX512
  return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
#elif MATRYO_AVX2
  return (Floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#else
  Ints value;
  for (int i = 0; i < kFloats; i++) value[i] = from[i];
  return to_floats(value);
#endif
}

MATRYO_INLINE Floats widen(const float* from, int count = kFloats) {
  return count < kFloats ? load_some(from, count) : load<Floats>(from);
}

// ── comparisons: one bit per lane ────────────────────────────────────────────────────────────────────────────────────

MATRYO_INLINE uint32_t to_bits(Ints mask) {
#if MATRYO_AVX512
  return _mm512_movepi32_mask((__m512i)mask);
#elif MATRYO_AVX2
  return static_cast<uint32_t>(_mm256_movemask_ps((__m256)mask));
#elif MATRYO_X86
  return static_cast<uint32_t>(_mm_movemask_ps((__m128)mask));
#else
  uint32_t bits = 0;
  for (int i = 0; i < kFloats; i++) bits |= (mask[i] != 0 ? 1u : 0u) << i;
  return bits;
#endif
}

// a > b; a NaN is not above anything.
MATRYO_INLINE uint32_t above(Floats a, Floats b) {
#if MATRYO_AVX512
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GT_OQ);
#else
  return to_bits((Ints)(a > b));
#endif
}

// a ≥ b; false for a NaN.
MATRYO_INLINE uint32_t at_least(Floats a, Floats b) {
#if MATRYO_AVX512
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ);
#else
  return to_bits((Ints)(a >= b));
#endif
}

// Not a < b: true for a NaN.
MATRYO_INLINE uint32_t not_below(Floats a, Floats b) {
#if MATRYO_AVX512
  return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_NLT_UQ);
#else
  return to_bits(~(Ints)(a < b));
#endif
}

#if MATRYO_AVX512
typedef int64_t Longs __attribute__((vector_size(kVectorBytes)));

MATRYO_INLINE Longs broadcast(int64_t value) { return value - Longs{}; }

MATRYO_INLINE uint32_t above(Longs a, Longs b) { return _mm512_cmpgt_epi64_mask((__m512i)a, (__m512i)b); }

// Store some of the eight lanes, side by side; no memory behind them is written.
MATRYO_INLINE void store_lanes(int64_t* to, Longs value, uint32_t lanes) {
  __mmask8 places = static_cast<__mmask8>((1u << __builtin_popcount(lanes)) - 1);
  _mm512_mask_storeu_epi64(to, places, _mm512_maskz_compress_epi64(static_cast<__mmask8>(lanes), (__m512i)value));
}
#endif

// The position of the lowest set bit, which is cleared. At least one must be set.
template <class Bits>
MATRYO_INLINE int take_lowest(Bits& bits) {
  int position = __builtin_ctzll(bits);
  bits &= bits - 1;
  return position;
}

// ── integer products ─────────────────────────────────────────────────────────────────────────────────────────────────

// sums + a₀·b₀ + a₁·b₁ per lane, where a lane holds two signed 16-bit numbers.
MATRYO_INLINE Ints add_pairs(Ints sums, Ints a, Ints b) {
#if MATRYO_AVX512
  return (Ints)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
#elif MATRYO_AVX2
  return sums + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif MATRYO_X86
  return sums + (Ints)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  return sums + ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}

#if MATRYO_AVX512
// sums + the four products of unsigned bytes of a with signed bytes of b, per lane.
MATRYO_INLINE Ints add_fours(Ints sums, Ints a, Ints b) {
  return (Ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)a, (__m512i)b);
}
#else
// Signed bytes widened to 16 bits, two per lane.
MATRYO_INLINE Ints widen_bytes(const int8_t* from) {
#if MATRYO_AVX2
  return (Ints)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)from));
#elif MATRYO_X86
  __m128i bytes = _mm_loadl_epi64((const __m128i*)from);
  return (Ints)_mm_srai_epi16(_mm_unpacklo_epi8(bytes, bytes), 8);
#elif MATRYO_NEON
  return (Ints)vmovl_s8(vld1_s8(from));
#else
  int16_t wide[2 * kFloats];
  for (int i = 0; i < 2 * kFloats; i++) wide[i] = from[i];
  return load<Ints>(wide);
#endif
}
#endif

// ── weighted sums of pixels ──────────────────────────────────────────────────────────────────────────────────────────

// The sums of four pixels of four bytes, each byte in 32 bits.
class PixelSums {
 public:
#if MATRYO_AVX512 || MATRYO_AVX2
  MATRYO_INLINE explicit PixelSums(int32_t start) : low_(_mm256_set1_epi32(start)), high_(low_) {}

  MATRYO_INLINE void add(const uint8_t* a, const uint8_t* b, const uint8_t* c, const uint8_t* d, int32_t weight) {
    __m256i weights = _mm256_set1_epi32(weight);
    low_ = _mm256_add_epi32(low_, _mm256_mullo_epi32(pair(a, b), weights));
    high_ = _mm256_add_epi32(high_, _mm256_mullo_epi32(pair(c, d), weights));
  }

  // Write the sums, shifted and clamped to bytes: pixel i to out + i * line.
  MATRYO_INLINE void write(int shift, uint8_t* out, int64_t line) const {
    __m256i words = _mm256_packus_epi32(_mm256_srai_epi32(low_, shift), _mm256_srai_epi32(high_, shift));
    __m256i bytes = _mm256_packus_epi16(words, words);   // each half has two of the pixels: 0 and 2, 1 and 3
    __m128i even = _mm256_castsi256_si128(bytes), odd = _mm256_extracti128_si256(bytes, 1);
    store(out, _mm_extract_epi32(even, 0));
    store(out + line, _mm_extract_epi32(odd, 0));
    store(out + 2 * line, _mm_extract_epi32(even, 1));
    store(out + 3 * line, _mm_extract_epi32(odd, 1));
  }

 private:
  MATRYO_INLINE static __m256i pair(const uint8_t* a, const uint8_t* b) {
    return _mm256_cvtepu8_epi32(_mm_insert_epi32(_mm_cvtsi32_si128(load<int>(a)), load<int>(b), 1));
  }

  __m256i low_, high_;
#else
  MATRYO_INLINE explicit PixelSums(int32_t start) {
    for (int i = 0; i < 16; i++) sums_[i] = start;
  }

  MATRYO_INLINE void add(const uint8_t* a, const uint8_t* b, const uint8_t* c, const uint8_t* d, int32_t weight) {
    const uint8_t* pixels[4] = {a, b, c, d};
    for (int i = 0; i < 16; i++) sums_[i] += pixels[i / 4][i % 4] * weight;
  }

  MATRYO_INLINE void write(int shift, uint8_t* out, int64_t line) const {
    for (int i = 0; i < 16; i++) {
      int32_t sum = sums_[i] >> shift;
      out[i / 4 * line + i % 4] = static_cast<uint8_t>(sum < 0 ? 0 : sum > 255 ? 255 : sum);
    }
  }

 private:
  int32_t sums_[16];
#endif
};

}   // namespace matryo::MATRYO_ISA
