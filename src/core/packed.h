// Rows as packed codes of 1, 4 or 8 bits: scans of all rows, and scores of some.
//
// A row has a scale and an offset; its column j is scale · (code − middle), where middle = (2^bits − 1) / 2 is half of the
// largest code. The score of a row and a query q, which is in codes too (of 8 bits, or 15 for rows of 8), is
//
//   scale · unit(q) · (Σ code · code(q) − middle · Σ code(q)) + offset.
//
// The sums are exact, in integers, and the few steps in float64 and float32 are rounded alike everywhere, so scores have
// the same bits on every instruction set.
//
// A tile holds 16 rows in words of 32 bits, [word, row]. Byte c of a word has the codes of the columns 4 · s + c, the one
// of s = 0 in its lowest bits: tiles of 8 and of 4 bits are those of codes.h.
#pragma once

#include "codes.h"
#include "kernels.h"
#include "keys.h"

namespace matryo::MATRYO_ISA {

constexpr int kPackedSharing = 4;   // queries that share what is loaded of a tile

// The products of `words` words per row, each of 32 columns of 1 bit, with Q queries whose codes have 8 bits.
template <int Q>
MATRYO_INLINE void multiply_bits(const uint8_t* tile, int words, const QueryCodes* const* queries, TileSums* sums) {
  for (int q = 0; q < Q; q++) sums[q] = TileSums{};
  for (int word = 0; word < words; word++) {
    for (int p = 0; p < kTileParts; p++) {
      Words bits = load<Words>(tile + 64 * word + kVectorBytes * p);
      for (int s = 0; s < 8; s++) {
#if MATRYO_AVX512
        Ints codes = (Ints)((bits >> s) & 0x01010101);
        for (int q = 0; q < Q; q++)
          sums[q].part[p] = add_fours(sums[q].part[p], codes, broadcast_four(queries[q]->low() + 32 * word + 4 * s));
#else
        Ints even = (Ints)((bits >> s) & 0x00010001), odd = (Ints)((bits >> (s + 8)) & 0x00010001);
        for (int q = 0; q < Q; q++) {
          const int16_t* codes = queries[q]->words() + 32 * word + 4 * s;
          sums[q].part[p] = add_pairs(sums[q].part[p], even, broadcast_four(codes));
          sums[q].part[p] = add_pairs(sums[q].part[p], odd, broadcast_four(codes + 2));
        }
#endif
      }
    }
  }
}

struct PackedQuery {
  QueryCodes codes;
  Buffer<int32_t> plain;   // the codes in the order of the columns
  Buffer<Key> keys;
  double shift;   // middle · Σ code(q)
  float unit;
};

class PackedScan {
 public:
  explicit PackedScan(const PackedRows& rows) : rows_(rows), words_(words_of(rows)) {}

  static int words_of(const PackedRows& rows) {
    int columns = 32 / rows.bits;
    return (rows.dim + columns - 1) / columns;
  }

  // Write the best k rows of each query and their scores, best first; row −1 and score −∞ where there are fewer.
  void search(const float* queries, int64_t count, Mask mask, int64_t k, int64_t* rows, float* scores) const {
    PackedQuery some[kPackedSharing];
    const PackedQuery* all[kPackedSharing];
    for (int64_t first = 0; first < count; first += kPackedSharing) {
      int here = count - first < kPackedSharing ? static_cast<int>(count - first) : kPackedSharing;
      Best best[kPackedSharing];
      for (int q = 0; q < here; q++) {
        encode(queries + (first + q) * rows_.dim, some[q]);
        best[q] = Best{some[q].keys.reserve(Best::room(k)), k};
      }
      for (int q = 0; q < kPackedSharing; q++) all[q] = some + (q < here ? q : 0);
      for (int64_t tile = 0; tile * kTileRows < rows_.count; tile++) {
        alignas(64) float found[kPackedSharing][kTileRows];
        if (here == 1)
          score_tile<1>(tile, all, found);
        else
          score_tile<kPackedSharing>(tile, all, found);
        for (int q = 0; q < here; q++) collect(tile, found[q], mask, best[q]);
      }
      for (int q = 0; q < here; q++) {
        int64_t kept = best[q].finish(), at = (first + q) * k;
        for (int64_t i = 0; i < k; i++) {
          rows[at + i] = i < kept ? row_of(best[q].keys[i]) : -1;
          scores[at + i] = i < kept ? score_of(best[q].keys[i]) : -INFINITY;
        }
      }
    }
  }

  // The scores of each query's own rows [count, n], which exist.
  void score(const float* queries, int64_t count, const int64_t* rows, int64_t n, float* scores) const {
    PackedQuery query;
    for (int64_t q = 0; q < count; q++) {
      encode(queries + q * rows_.dim, query);
      for (int64_t i = 0; i < n; i++) {
        int64_t row = rows[q * n + i];
        scores[q * n + i] = finish(sum_of(query, row), query, row);
      }
    }
  }

 private:
  void encode(const float* vector, PackedQuery& query) const {
    int finest = rows_.bits == 8 ? kFinest : 127, width = words_ * (32 / rows_.bits);
    float largest = 0;
    for (int j = 0; j < rows_.dim; j++) {
      float size = vector[j] < 0 ? -vector[j] : vector[j];
      largest = size > largest ? size : largest;
    }
    query.unit = largest > 0x1p-100f ? largest / static_cast<float>(finest) : 0;
    double scale = query.unit > 0 ? 1 / static_cast<double>(query.unit) : 0;
    query.plain.reserve(width);
    for (int j = 0; j < width; j++) {
      int code = j < rows_.dim ? code_of(static_cast<double>(vector[j]) * scale) : 0;
      query.plain[j] = code > finest ? finest : (code < -finest ? -finest : code);
    }
    query.codes.clear(width);
    query.codes.set<Layout::tile>(0, query.plain.data(), width);
    query.shift = static_cast<double>(query.codes.sum()) * ((1 << rows_.bits) - 1) / 2;
  }

  MATRYO_INLINE float finish(double sum, const PackedQuery& query, int64_t row) const {
    return static_cast<float>(sum - query.shift) * query.unit * rows_.scales[row] + rows_.offsets[row];
  }

  template <int Q>
  void score_tile(int64_t tile, const PackedQuery* const* queries, float (*scores)[kTileRows]) const {
    const uint8_t* bytes = rows_.tiles + tile * words_ * 64;
    const QueryCodes* codes[Q];
    for (int q = 0; q < Q; q++) codes[q] = &queries[q]->codes;
    for (int64_t at = 0; at < words_ * 64; at += 64) prefetch(bytes + 2 * words_ * 64 + at);
    TileSums sums[1][Q];
    double totals[Q][kTileRows] = {};
    if (rows_.bits == 8) {
      for (int four = 0; four < words_; four += kExactColumns / 4) {
        int last = words_ - four < kExactColumns / 4 ? words_ : four + kExactColumns / 4;
        multiply_tile<Q>(bytes, four, last, codes, sums[0]);
        for (int q = 0; q < Q; q++) add_totals(sums[0][q], totals[q]);
      }
    } else {
      if (rows_.bits == 4)
        multiply_nibbles<Q, 1>(bytes, words_, 0, codes, sums);
      else
        multiply_bits<Q>(bytes, words_, codes, sums[0]);
      for (int q = 0; q < Q; q++) add_totals(sums[0][q], totals[q]);
    }
    for (int q = 0; q < Q; q++)
      for (int lane = 0; lane < kTileRows; lane++)
        scores[q][lane] = finish(totals[q][lane], *queries[q], tile * kTileRows + lane);
  }

  MATRYO_INLINE static void add_totals(const TileSums& sums, double* totals) {
    for (int p = 0; p < kTileParts; p++)
      for (int i = 0; i < kFloats; i++) totals[p * kFloats + i] += static_cast<double>(sums.part[p][i]);
  }

  MATRYO_INLINE void collect(int64_t tile, const float* scores, Mask mask, Best& best) const {
    for (int p = 0; p < kTileParts; p++) {
      uint32_t lanes = above(load<Floats>(scores + p * kFloats), broadcast(best.bar));
      while (lanes) {
        int lane = p * kFloats + take_lowest(lanes);
        int64_t row = tile * kTileRows + lane;
        if (row < rows_.count && (mask == nullptr || mask[row])) best.add(scores[lane], row);
      }
    }
  }

  // Σ code · code(q) of one row.
  double sum_of(const PackedQuery& query, int64_t row) const {
    const uint8_t* bytes = rows_.tiles + row / kTileRows * words_ * 64 + row % kTileRows * 4;
    uint32_t mask = 0x01010101u * ((1u << rows_.bits) - 1);
    const int32_t* codes = query.plain.data();
    int64_t sum = 0;
    for (int word = 0; word < words_; word++) {
      uint32_t packed = load<uint32_t>(bytes + 64 * word);
      for (int shift = 0; shift < 8; shift += rows_.bits, codes += 4) {
        uint32_t four = (packed >> shift) & mask;
        for (int c = 0; c < 4; c++) sum += static_cast<int64_t>(four >> (8 * c) & 255) * codes[c];
      }
    }
    return static_cast<double>(sum);
  }

  const PackedRows& rows_;
  int words_;
};

}   // namespace matryo::MATRYO_ISA
