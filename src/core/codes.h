// Products of int8 codes with a query: the innermost loops of the sketch and of the partitions.
//
// Rows have 8 bits per column, the query up to 14 and a sign: its codes cost no memory traffic, and their rounding errors
// are then negligible. A tile holds 16 rows, four columns of a row side by side:
//
//     bytes 0 … 3     columns 0 … 3 of row 0        bytes 64 … 67    columns 4 … 7 of row 0
//     bytes 4 … 7     columns 0 … 3 of row 1        bytes 68 … 71    columns 4 … 7 of row 1
//     …                                             …
//
// so that a 32-bit lane sums the products of one row, and no sum over lanes is needed. Codes in tiles are unsigned: they
// are 128 too large, and the caller subtracts 128 times the sum of the query's codes.
//
// With AVX-512 VNNI, one instruction multiplies four bytes: the query's code is split into 256 · high + low. Elsewhere,
// bytes are widened to 16 bits and multiplied in pairs.
//
// A tile of 4-bit codes has two codes per byte: byte 64 · eight + 4 · row + c holds the code of column 8 · eight + c in its
// lower half, and that of column 8 · eight + 4 + c in its upper half. There, rounding errors of a query may be a tenth of
// those of the rows: then most of its codes have no upper half, and those that have are in the first columns if columns
// are sorted by their variance, as principal axes and nested embeddings are.
#pragma once

#include "buffer.h"
#include "views.h"

namespace matryo::MATRYO_ISA {

constexpr int kFinest = 127 * 128 + 63;   // the largest code of a query
constexpr int kExactColumns = 512;        // 255 · kFinest · 512 still fits 32 bits
constexpr int kMostNibbles = 8192;        // 15 · kFinest · 8192 still fits 32 bits
constexpr int kTileParts = kTileRows / kFloats;

enum class Layout { tile, row };

// The code of a number of units; 0 for what no code can hold, which only a damaged file leads to.
MATRYO_INLINE int code_of(double units) {
  return units >= -kFinest - 1 && units <= kFinest + 1 ? static_cast<int>(__builtin_rint(units)) : 0;
}

// Some columns of a query as codes; columns that were not set are 0.
class QueryCodes {
 public:
  // Start with `width` zeros, a multiple of 4 for tiles and of 64 for rows.
  void clear(int width) {
    auto zero = [&](auto* codes) { std::memset(codes, 0, sizeof(*codes) * static_cast<size_t>(width)); };
    zero(codes_.reserve(width));
#if MATRYO_AVX512
    zero(low_.reserve(width));
#endif
    sum_ = 0;
  }

  template <Layout layout>
  MATRYO_INLINE void set(int column, int code) {
    sum_ += code;
#if MATRYO_AVX512
    int high = (code + 128) >> 8;
    codes_[column] = static_cast<int8_t>(high);
    low_[column] = static_cast<int8_t>(code - (high << 8));
#else
    // In a tile, the even columns of a four come first, then the odd ones: see multiply_tile.
    int place = layout == Layout::row ? column : (column & ~3) | (column & 1) << 1 | (column & 2) >> 1;
    codes_[place] = static_cast<int16_t>(code);
#endif
  }

  // Set `count` columns from `first` on: a loop that compilers vectorise.
  template <Layout layout>
  void set(int first, const int32_t* codes, int count) {
    int32_t sum = 0;
#if MATRYO_AVX512
    int8_t *high = codes_.data() + first, *low = low_.data() + first;
    for (int j = 0; j < count; j++) {
      int32_t upper = (codes[j] + 128) >> 8;
      high[j] = static_cast<int8_t>(upper);
      low[j] = static_cast<int8_t>(codes[j] - (upper << 8));
      sum += codes[j];
    }
    sum_ += sum;
#else
    if (layout == Layout::row) {
      int16_t* words = codes_.data() + first;
      for (int j = 0; j < count; j++) {
        words[j] = static_cast<int16_t>(codes[j]);
        sum += codes[j];
      }
      sum_ += sum;
    } else {
      for (int j = 0; j < count; j++) set<layout>(first + j, codes[j]);
    }
#endif
  }

  // The sum of all codes.
  MATRYO_INLINE int64_t sum() const { return sum_; }

  // The first eights, of `eights`, of which the others have no upper halves.
  int wide(int eights) const {
#if MATRYO_AVX512
    while (eights > 0 && load<uint64_t>(codes_.data() + 8 * eights - 8) == 0) eights--;
#endif
    return eights;
  }

#if MATRYO_AVX512
  MATRYO_INLINE const int8_t* high() const { return codes_.data(); }
  MATRYO_INLINE const int8_t* low() const { return low_.data(); }

 private:
  Buffer<int8_t> codes_, low_;
#else
  MATRYO_INLINE const int16_t* words() const { return codes_.data(); }

 private:
  Buffer<int16_t> codes_;
#endif
  int64_t sum_ = 0;
};

// One 32-bit sum per row of a tile.
struct TileSums {
  Ints part[kTileParts] = {};
};

// The products of the fours `first` … `last` of a tile, at most kExactColumns columns, with Q queries.
template <int Q>
MATRYO_INLINE void multiply_tile(const uint8_t* tile, int first, int last, const QueryCodes* const* queries,
                                 TileSums* sums) {
#if MATRYO_AVX512
  Ints high[Q] = {}, low[Q] = {};
  const int8_t *high_codes[Q], *low_codes[Q];
  for (int q = 0; q < Q; q++) high_codes[q] = queries[q]->high(), low_codes[q] = queries[q]->low();
  for (int four = first; four < last; four++) {
    Ints codes = load<Ints>(tile + 64 * four);
    for (int q = 0; q < Q; q++) {
      high[q] = add_fours(high[q], codes, broadcast_four(high_codes[q] + 4 * four));
      low[q] = add_fours(low[q], codes, broadcast_four(low_codes[q] + 4 * four));
    }
  }
  for (int q = 0; q < Q; q++) sums[q].part[0] = (high[q] << 8) + low[q];
#else
  const int16_t* query_codes[Q];
  for (int q = 0; q < Q; q++) query_codes[q] = queries[q]->words(), sums[q] = TileSums{};
  for (int four = first; four < last; four++) {
    for (int p = 0; p < kTileParts; p++) {
      Words codes = load<Words>(tile + 64 * four + kVectorBytes * p);
      Ints even = (Ints)(codes & 0x00FF00FF), odd = (Ints)((codes >> 8) & 0x00FF00FF);
      for (int q = 0; q < Q; q++) {
        const int16_t* words = query_codes[q] + 4 * four;
        sums[q].part[p] = add_pairs(sums[q].part[p], even, broadcast_four(words));
        sums[q].part[p] = add_pairs(sums[q].part[p], odd, broadcast_four(words + 2));
      }
    }
  }
#endif
}

// The products of T tiles of 4-bit codes, one after another, with Q queries: of at most kMostNibbles columns, of which
// only the first `wide` eights have codes with upper halves.
template <int Q, int T>
MATRYO_INLINE void multiply_nibbles(const uint8_t* tiles, int eights, int wide, const QueryCodes* const* queries,
                                    TileSums (*sums)[Q]) {
#if MATRYO_AVX512
  Ints first[T][Q] = {}, second[T][Q] = {}, high[T][Q] = {};
  const int8_t *high_codes[Q], *low_codes[Q];
  for (int q = 0; q < Q; q++) high_codes[q] = queries[q]->high(), low_codes[q] = queries[q]->low();
  for (int eight = 0; eight < eights; eight++) {
    for (int t = 0; t < T; t++) {
      Words both = load<Words>(tiles + 64 * (t * eights + eight));
      for (int q = 0; q < Q; q++) {
        const int8_t* codes = low_codes[q] + 8 * eight;
        first[t][q] = add_fours(first[t][q], (Ints)(both & 0x0F0F0F0F), broadcast_four(codes));
        second[t][q] = add_fours(second[t][q], (Ints)((both >> 4) & 0x0F0F0F0F), broadcast_four(codes + 4));
      }
    }
  }
  for (int eight = 0; eight < wide; eight++) {
    for (int t = 0; t < T; t++) {
      Words both = load<Words>(tiles + 64 * (t * eights + eight));
      for (int q = 0; q < Q; q++) {
        const int8_t* codes = high_codes[q] + 8 * eight;
        high[t][q] = add_fours(high[t][q], (Ints)(both & 0x0F0F0F0F), broadcast_four(codes));
        high[t][q] = add_fours(high[t][q], (Ints)((both >> 4) & 0x0F0F0F0F), broadcast_four(codes + 4));
      }
    }
  }
  for (int t = 0; t < T; t++)
    for (int q = 0; q < Q; q++) sums[t][q].part[0] = (high[t][q] << 8) + first[t][q] + second[t][q];
#else
  (void)wide;
  const int16_t* query_codes[Q];
  for (int q = 0; q < Q; q++) query_codes[q] = queries[q]->words();
  for (int t = 0; t < T; t++) {
    for (int q = 0; q < Q; q++) sums[t][q] = TileSums{};
    for (int eight = 0; eight < eights; eight++) {
      for (int p = 0; p < kTileParts; p++) {
        Words both = load<Words>(tiles + 64 * (t * eights + eight) + kVectorBytes * p);
        for (int part = 0; part < 4; part++) {   // even and odd columns of the first four, then of the second four
          Ints codes = (Ints)((both >> (part < 2 ? 8 * part : 8 * part - 12)) & 0x000F000F);
          for (int q = 0; q < Q; q++)
            sums[t][q].part[p] =
                add_pairs(sums[t][q].part[p], codes, broadcast_four(query_codes[q] + 8 * eight + 2 * part));
        }
      }
    }
  }
#endif
}

// The product of `width` signed codes of a row, a multiple of 64, with a query.
MATRYO_INLINE int64_t multiply_row(const int8_t* row, const QueryCodes& query, int width) {
#if MATRYO_AVX512
  constexpr int kStep = 32768;   // 255 · 128 · 32768 fits 32 bits
#else
  constexpr int kStep = 1024;   // 128 · kFinest · 1024 fits 32 bits
#endif
  int64_t total = 0;
  for (int start = 0; start < width; start += kStep) {
    int end = width - start < kStep ? width : start + kStep;
#if MATRYO_AVX512
    Ints high = {}, low = {};
    for (int j = start; j < end; j += 64) {
      Ints codes = load<Ints>(row + j) ^ broadcast(static_cast<int32_t>(0x80808080));   // unsigned: 128 more
      high = add_fours(high, codes, load<Ints>(query.high() + j));
      low = add_fours(low, codes, load<Ints>(query.low() + j));
    }
    total += 256 * static_cast<int64_t>(sum_lanes(high)) + sum_lanes(low);
#else
    Ints sums = {};
    for (int j = start; j < end; j += 2 * kFloats)
      sums = add_pairs(sums, widen_bytes(row + j), load<Ints>(query.words() + j));
    total += sum_lanes(sums);
#endif
  }
#if MATRYO_AVX512
  total -= 128 * query.sum();
#endif
  return total;
}

}   // namespace matryo::MATRYO_ISA
