// Exact scores: sums in float64 that depend on the row and the query alone.
//
// Every search ends here, with a guide or without. Column j of a block is summed in lane j mod 16, and the lanes are
// added in one order, so equal rows have scores of the same bits wherever they lie, on every instruction set. This needs
// -ffp-contract=off: a fused operation would round the squared differences of L2 otherwise.
#pragma once

#include "buffer.h"
#include "keys.h"
#include "views.h"

namespace matryo::MATRYO_ISA {

constexpr int kLanes = 16;
typedef float HalfFloats __attribute__((vector_size(kVectorBytes / 2)));

struct LaneSums {
  Doubles part[kLanes / kDoubles] = {};

  MATRYO_INLINE double total() const {
    double lane[kLanes];
    std::memcpy(lane, part, sizeof(lane));
    for (int half = kLanes / 2; half >= 1; half /= 2)
      for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
  }
};

struct ExactSums {
  LaneSums products;   // for L2: squared differences
  LaneSums squares;    // of the row, for cosine

  template <Metric metric>
  MATRYO_INLINE void add(const float* row, const double* query) {
    for (int i = 0; i < kLanes / kDoubles; i++) {
      Doubles x = __builtin_convertvector(load<HalfFloats>(row + i * kDoubles), Doubles);
      Doubles q = load<Doubles>(query + i * kDoubles);
      if constexpr (metric == Metric::l2) {
        Doubles apart = x - q;   // computed from norms, small distances would be lost
        products.part[i] += apart * apart;
      } else {
        products.part[i] += x * q;
        if constexpr (metric == Metric::cosine) squares.part[i] += x * x;
      }
    }
  }

  // `width` columns of a row in any of the stored formats.
  template <Metric metric, class T>
  MATRYO_INLINE void add_block(const T* row, const double* query, int width) {
    float wide[kLanes];
    double some[kLanes];
    for (int j = 0; j < width; j += kLanes) {
      int left = width - j;
      if (left >= kLanes && sizeof(T) == sizeof(float)) {
        add<metric>(reinterpret_cast<const float*>(row) + j, query + j);
        continue;
      }
      for (int i = 0; i < kLanes; i += kFloats) {
        int here = left - i < kFloats ? (left > i ? left - i : 0) : kFloats;
        store(wide + i, widen(row + (here > 0 ? j + i : 0), here));
      }
      const double* from = query + j;
      if (left < kLanes) {
        std::memset(some, 0, sizeof(some));
        std::memcpy(some, from, sizeof(double) * static_cast<size_t>(left));
        from = some;
      }
      add<metric>(wide, from);
    }
  }
};

// Prefetch the columns of a row from `first` to the end of a level, from one of the two mappings of the blocks.
MATRYO_INLINE void prefetch_row(const Vectors& vectors, const Block* blocks, int64_t row, int first, int level) {
  int64_t size = vectors.number == Number::float32 ? 4 : 2;
  for (int b = 0; b <= level; b++) {
    const Block& block = blocks[b];
    if (block.low < first) continue;
    int64_t bytes = size * (block.high - block.low);
    const char* start = static_cast<const char*>(block.rows) + row * bytes;
    for (int64_t at = 0; at < bytes; at += 64) prefetch(start + at);
    prefetch(start + bytes - 1);
  }
}

MATRYO_INLINE void prefetch_row(const Vectors& vectors, int64_t row, int first, int level) {
  prefetch_row(vectors, vectors.picked, row, first, level);
}

// Exact scores of one query at a dim.
class ExactScore {
 public:
  ExactScore(const Vectors& vectors, int level, const double* query) : vectors_(vectors), level_(level), query_(query) {
    if (vectors.metric != Metric::cosine) return;
    LaneSums sums;   // in the order of a row's squares: the cosine of equal vectors is exactly 1
    for (int b = 0; b <= level; b++) {
      int low = vectors.picked[b].low, width = vectors.picked[b].high - low, j = 0;
      for (; j + kLanes <= width; j += kLanes)
        for (int i = 0; i < kLanes / kDoubles; i++) {
          Doubles x = load<Doubles>(query + low + j + i * kDoubles);
          sums.part[i] += x * x;
        }
      double rest[kLanes] = {};
      std::memcpy(rest, query + low + j, sizeof(double) * static_cast<size_t>(width - j));
      for (int i = 0; i < kLanes / kDoubles; i++) {
        Doubles x = load<Doubles>(rest + i * kDoubles);
        sums.part[i] += x * x;
      }
    }
    square_ = sums.total();
  }

  // The score of an existing row.
  double operator()(int64_t row) const { return in(vectors_, row); }

  // The score of an existing row of other vectors with the same dims.
  double in(const Vectors& vectors, int64_t row) const {
    switch (vectors.metric) {
      case Metric::cosine:
        return of<Metric::cosine>(vectors, row);
      case Metric::ip:
        return of<Metric::ip>(vectors, row);
      default:
        return of<Metric::l2>(vectors, row);
    }
  }

  MATRYO_INLINE void prefetch_row(int64_t row) const { MATRYO_ISA::prefetch_row(vectors_, row, 0, level_); }

 private:
  template <Metric metric>
  MATRYO_INLINE double of(const Vectors& vectors, int64_t row) const {
    ExactSums sums;
    for (int b = 0; b <= level_; b++) {
      const Block& block = vectors.picked[b];
      int width = block.high - block.low;
      if (vectors.number == Number::float32)
        sums.add_block<metric>(static_cast<const float*>(block.rows) + row * width, query_ + block.low, width);
      else
        sums.add_block<metric>(static_cast<const uint16_t*>(block.rows) + row * width, query_ + block.low, width);
    }
    double score = sums.products.total();
    if constexpr (metric == Metric::l2) return -score;
    if constexpr (metric == Metric::cosine) {
      double both = sums.squares.total() * square_;
      if (both > 0) score /= __builtin_sqrt(both);   // a zero vector has cosine 0
    }
    return score;
  }

  const Vectors& vectors_;
  int level_;
  const double* query_;
  double square_ = 0;
};

// A row and its exact score; "greater" is better: of equal scores the smaller row.
struct Ranked {
  double score;
  int64_t row;
  MATRYO_INLINE bool operator>(const Ranked& other) const {
    return score > other.score || (score == other.score && row < other.row);
  }
};

// Write the best k of some rows, best first. Reorders `rows`.
inline void write_hits(Ranked* rows, int64_t count, const Hits& hits) {
  int64_t found = count < hits.k ? count : hits.k;
  if (count > found && found > 0) select_largest(rows, count, found);
  sort_descending(rows, found);
  for (int64_t i = 0; i < hits.k; i++) {
    hits.rows[i] = i < found ? rows[i].row : -1;
    hits.scores[i] = i < found ? rows[i].score : -INFINITY;
  }
}

}   // namespace matryo::MATRYO_ISA
