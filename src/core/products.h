// Rows as bytes whose scores are sums of table entries, one per byte: product codes.
//
// A query has a table of 256 integers per byte of a row. With s = Σ table[b][code_b], the score of a row is
//
//   (s · unit(q) + shift(q)) · factor + offset.
//
// Sums are exact, in integers, and the few steps in float64 are rounded alike everywhere, so scores have the same bits on
// every instruction set. Codes are row-major, as they are stored: a scan needs no copy of a mapped file.
#pragma once

#include "buffer.h"
#include "kernels.h"
#include "keys.h"

namespace matryo::MATRYO_ISA {

class ProductScan {
 public:
  explicit ProductScan(const ProductRows& rows) : rows_(rows) {}

  // Write the best k rows of each query and their scores, best first; row −1 and score −∞ where there are fewer.
  void search(const ProductQueries& queries, int64_t count, Mask mask, int64_t k, int64_t* rows, float* scores) const {
    Buffer<Key> keys;
    for (int64_t q = 0; q < count; q++) {
      Best best{keys.reserve(Best::room(k)), k};
      const int16_t* tables = queries.tables + q * rows_.bytes * 256;
      int64_t row = 0;
      for (; row + kTogether <= rows_.count; row += kTogether) {
        int32_t sums[kTogether] = {};
        if (mask == nullptr || any(mask + row)) add_sums(tables, row, sums);
        for (int i = 0; i < kTogether; i++) collect(queries, q, row + i, sums[i], mask, best);
      }
      for (; row < rows_.count; row++) {
        int32_t sum = 0;
        const uint8_t* codes = rows_.codes + row * rows_.bytes;
        for (int b = 0; b < rows_.bytes; b++) sum += tables[256 * b + codes[b]];
        collect(queries, q, row, sum, mask, best);
      }
      int64_t kept = best.finish();
      for (int64_t i = 0; i < k; i++) {
        rows[q * k + i] = i < kept ? row_of(best.keys[i]) : -1;
        scores[q * k + i] = i < kept ? score_of(best.keys[i]) : -INFINITY;
      }
    }
  }

  // Σ table[b][code_b] of each row, in float32, in the order of the bytes.
  void sums(const float* tables, float* out) const {
    for (int64_t row = 0; row < rows_.count; row++) {
      const uint8_t* codes = rows_.codes + row * rows_.bytes;
      float sum = 0;
      for (int b = 0; b < rows_.bytes; b++) sum += tables[256 * b + codes[b]];
      out[row] = sum;
    }
  }

 private:
  static constexpr int kTogether = 4;   // rows whose sums do not wait for each other

  static bool any(Mask mask) { return (mask[0] | mask[1] | mask[2] | mask[3]) != 0; }

  MATRYO_INLINE void add_sums(const int16_t* tables, int64_t row, int32_t* sums) const {
    const uint8_t* codes = rows_.codes + row * rows_.bytes;
    int bytes = rows_.bytes, b = 0;
    int32_t a0 = 0, a1 = 0, a2 = 0, a3 = 0;
    for (; b < bytes; b++, tables += 256) {
      a0 += tables[codes[b]];
      a1 += tables[codes[bytes + b]];
      a2 += tables[codes[2 * bytes + b]];
      a3 += tables[codes[3 * bytes + b]];
    }
    sums[0] = a0, sums[1] = a1, sums[2] = a2, sums[3] = a3;
  }

  MATRYO_INLINE void collect(const ProductQueries& queries, int64_t q, int64_t row, int32_t sum, Mask mask,
                             Best& best) const {
    double product = static_cast<double>(sum) * queries.units[q] + queries.shifts[q];
    float score = static_cast<float>(product * rows_.factors[row] + rows_.offsets[row]);
    if (score > best.bar && (mask == nullptr || mask[row])) best.add(score, row);
  }

  const ProductRows& rows_;
};

}   // namespace matryo::MATRYO_ISA
