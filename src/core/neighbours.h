// The nearest rows at every dim in one pass: sums stay in registers, and only promising rows are scored.
//
// A group of queries × a panel of rows is summed in 16-bit integers, two columns at a time, which is about twice as fast
// as float32. At the end of each dim, the sums so far show which rows may be above the bar of a query at that dim (the
// k-th best score when its list was last cut). The loop then continues with the next columns. No matrix of scores is
// stored, so another dim costs little more than a comparison. The promising rows get a float32 score, which decides.
//
// Error bound. Let a row x and a query q be scaled to norm 2¹⁵ − 1 and rounded to integers. The scaled prefixes of m
// columns have norms X and Q. Rounding moves each of them by at most c = 0.505 √m: half a unit per column, plus the
// rounding of the product with the scale. Integers are summed without error, so by the Cauchy–Schwarz inequality
//
//   |sum − ⟨x, q⟩| ≤ c (X + Q + c).
//
// The score ⟨x, q⟩ / ‖x‖, the bar and the limit below are float32. Their rounding errors together are less than
// (m + 64) 2⁻²⁴ X Q in units of the sum, and the excess of 0.505 covers that of the limit itself. Hence a score can only
// be above the bar if, with u the scale of the query,
//
//   sum ≥ X (bar · u − c − (m + 64) 2⁻²⁴ Q) − c (Q + c) = X · limit − slack.
//
// The result is therefore that of a float32 search of all rows. Vectors that are nearly equal only take more time.
#pragma once

#include "exact.h"
#include "kernels.h"

namespace matryo::MATRYO_ISA {

constexpr int kPanelRows = 2 * kFloats;   // two registers of rows
#if MATRYO_AVX512 || MATRYO_NEON
constexpr int kGroupQueries = 12;   // 24 registers of sums, of 32
constexpr int kScoredRows = 8;      // rows scored at a time where most are promising
#else
constexpr int kGroupQueries = 6;   // 12 registers of sums, of 16
constexpr int kScoredRows = 4;
#endif
constexpr int kLevelsAtOnce = 64;    // dims whose promising rows fit one word of bits
constexpr float kFullNorm = 32767;   // the norm of a vector in 16 bits
constexpr double kTinySquare =
    0x1p-100;   // smaller squared norms are too coarse in float32: such rows are always scored

// Vectors in 16 bits, interleaved for add_pairs: panels of `lanes` vectors. A word holds two columns. A dim that ends
// within a pair leaves the upper half of its last word zero, so that the next dim begins with a new word.
template <int lanes>
struct Packed {
  Buffer<int32_t> words;    // [panel, pair of columns, lane]
  Buffer<double> squares;   // [panel, level, lane]: squared norms of the prefixes
  Buffer<float> units;      // [panel, lane]: the scale of each vector

  void reserve(int64_t panels, int64_t pairs, int levels) {
    words.reserve(panels * pairs * lanes);
    squares.reserve(panels * levels * lanes);
    units.reserve(panels * lanes);
  }
};

// Squares are summed in float64, column j in lane j mod 16: the norm at a dim has the same bits whichever other dims
// there are.
struct SquareSums : LaneSums {
  MATRYO_INLINE void add(const float* row) {
    for (int i = 0; i < kLanes / kDoubles; i++) {
      Doubles x = __builtin_convertvector(load<HalfFloats>(row + i * kDoubles), Doubles);
      part[i] += x * x;
    }
  }
};

// The inner products of one query with R rows in float32. Column j is summed in lane j mod kPanelRows and the lanes are
// added in one order, so equal rows have equal scores, and the score at a dim does not depend on other dims.
template <int R>
struct Products {
  Floats low[R] = {}, high[R] = {};

  MATRYO_INLINE void add(const float* query, const float* rows, int64_t stride, int left = kPanelRows) {
    int first = left < kFloats ? left : kFloats, second = left - first;
    Floats q = widen(query, first);
    for (int r = 0; r < R; r++) low[r] = multiply_add(widen(rows + r * stride, first), q, low[r]);
    if (second == 0) return;
    q = widen(query + kFloats, second);
    for (int r = 0; r < R; r++) high[r] = multiply_add(widen(rows + r * stride + kFloats, second), q, high[r]);
  }

  MATRYO_INLINE float total(int r) const { return sum_lanes(low[r] + high[r]); }
};

class Neighbours final : public NeighbourSearch {
 public:
  Neighbours(const NeighbourShape& shape, const float* queries)
      : levels_(shape.levels),
        columns_(shape.dims[shape.levels - 1]),
        count_(shape.queries),
        groups_((shape.queries + kGroupQueries - 1) / kGroupQueries),
        k_(shape.k),
        room_(shape.room),
        ends_(levels_),
        pair_ends_(levels_),
        vectors_(groups_ * kGroupQueries * columns_),
        limits_(slots()),
        slacks_(slots()),
        margins_(slots()),
        bars_(slots()),
        counts_(slots()),
        keys_(slots() * room_) {
    int64_t low = 0, pairs = 0;
    for (int i = 0; i < levels_; i++) {
      pairs += (shape.dims[i] - low + 1) / 2;
      ends_[i] = static_cast<int>(low = shape.dims[i]);
      pair_ends_[i] = pairs;
    }
    int64_t padding = groups_ * kGroupQueries - count_;
    std::memcpy(vectors_.data(), queries, sizeof(float) * static_cast<size_t>(count_ * columns_));
    std::memset(vectors_.data() + count_ * columns_, 0, sizeof(float) * static_cast<size_t>(padding * columns_));
    packed_.reserve(groups_, pairs, levels_);
    Buffer<uint16_t> rounded(columns_ + kFloats);
    for (int64_t group = 0; group < groups_; group++) {
      pack(vectors_.data(), groups_ * kGroupQueries, group, packed_, rounded.data());
      for (int i = 0; i < levels_; i++) {
        double error = 0.505 * __builtin_sqrt(ends_[i]);
        for (int q = 0; q < kGroupQueries; q++) {
          int64_t slot = slot_of(group, i, q);
          double norm = __builtin_sqrt(packed_.squares[slot]) * packed_.units[group * kGroupQueries + q];
          margins_[slot] = static_cast<float>(error + (ends_[i] + 64) * 0x1p-24 * norm);
          slacks_[slot] = static_cast<float>(error * (norm + error));
          counts_[slot] = 0;
          remove_bar(group, i, q);
        }
      }
    }
  }

  int64_t groups() const override { return groups_; }

  int64_t panels() const override { return (row_count_ + kPanelRows - 1) / kPanelRows; }

  void set_rows(const float* rows, int64_t count) override {
    int64_t panels = (count + kPanelRows - 1) / kPanelRows;
    row_count_ = 0;   // no rows are loaded if there is no memory for them
    panels_.reserve(panels, pair_ends_[levels_ - 1], levels_);
    reach_.reserve(panels * levels_ * kPanelRows);
    scales_.reserve(panels * levels_ * kPanelRows);
    rows_ = rows;
    row_count_ = count;
  }

  void pack_rows(int64_t first, int64_t last, float* norms) override {
    Buffer<uint16_t> rounded(columns_ + kFloats);
    for (int64_t panel = first; panel < last; panel++) {
      pack(rows_, row_count_, panel, panels_, rounded.data());
      for (int i = 0; i < levels_; i++)
        for (int lane = 0; lane < kPanelRows; lane++) {
          int64_t place = (panel * levels_ + i) * kPanelRows + lane, row = panel * kPanelRows + lane;
          double square = panels_.squares[place];
          float norm = __builtin_sqrtf(static_cast<float>(square));
          float floor = norm > 0x1p-126f ? norm : 0x1p-126f;   // that of truncate(): a zero vector scores 0
          scales_[place] = 1 / floor;
          reach_[place] = panels_.units[row] * floor;
          if (square < kTinySquare) reach_[place] = square == 0 ? kFullNorm : NAN;   // a score of 0 is exact
          if (row < row_count_) norms[row * levels_ + i] = norm;
        }
    }
  }

  void scan(int64_t first_group, int64_t last_group, int64_t first_row, int64_t keep, int64_t room) override {
    int64_t stride = (levels_ + kFloats - 1) / kFloats * kFloats, queries = (last_group - first_group) * kGroupQueries;
    Buffer<uint32_t> hopeful(queries * stride);
    std::memset(hopeful.data(), 0, sizeof(uint32_t) * static_cast<size_t>(queries * stride));
    for (int64_t panel = 0; panel < panels(); panel++) {
      int64_t start = (panel + 1) * kPanelRows, end = start + kPanelRows;
      const float* next = rows_ + (start < row_count_ ? start : row_count_) * columns_;
      const float* stop = rows_ + (end < row_count_ ? end : row_count_) * columns_;
      for (; next < stop; next += 16) prefetch(next);
      for (int64_t group = first_group; group < last_group; group++)
        sift(group, panel, hopeful.data() + (group - first_group) * kGroupQueries * stride, stride);
      for (int64_t query = 0; query < queries; query++)
        for (int level = 0; level < levels_; level += kLevelsAtOnce) {
          Hopeful some = hopeful_rows(hopeful.data() + query * stride, level);
          if (some.levels) score(first_group * kGroupQueries + query, panel, some, first_row, keep, room);
        }
    }
  }

  void guess(int64_t first_group, int64_t last_group, int64_t keep) override {
    for (int64_t group = first_group; group < last_group; group++)
      for (int level = 0; level < levels_; level++)
        for (int q = 0; q < kGroupQueries; q++) {
          int64_t slot = slot_of(group, level, q);
          if (counts_[slot] < keep)
            remove_bar(group, level, q);
          else
            raise_bar(slot, group * kGroupQueries + q, keep);
          counts_[slot] = 0;
        }
  }

  bool is_short(int64_t query) const override {
    bool few = false;
    for (int i = 0; i < levels_; i++)
      few |= counts_[slot_of(query / kGroupQueries, i, static_cast<int>(query % kGroupQueries))] < k_;
    return few;
  }

  void write(int64_t first_group, int64_t last_group, bool packed, int64_t* rows) override {
    for (int64_t query = first_group * kGroupQueries; query < last_group * kGroupQueries && query < count_; query++)
      for (int i = 0; i < levels_; i++) {
        int64_t slot = slot_of(query / kGroupQueries, i, static_cast<int>(query % kGroupQueries));
        Key* keys = keys_.data() + slot * room_;
        int64_t *found = rows + (i * count_ + query) * k_, kept = counts_[slot];
        if (kept > k_) select_largest(keys, kept, k_);
        counts_[slot] = kept = kept < k_ ? kept : k_;
        sort_descending(keys, kept);
        for (int64_t j = 0; j < k_; j++) {
          if (packed)
            found[j] = j < kept ? keys[j] : kLowestKey;
          else
            found[j] = j < kept ? row_of(keys[j]) : -1;
        }
      }
  }

 private:
  // The promising rows of one query at up to 64 dims: a bit per dim that has any, and for each dim a bit per row.
  struct Hopeful {
    const uint32_t* rows;
    int first;
    uint64_t levels;
    uint32_t any;
  };

  MATRYO_INLINE int64_t slots() const { return groups_ * levels_ * kGroupQueries; }
  MATRYO_INLINE int64_t slot_of(int64_t group, int level, int q) const {
    return (group * levels_ + level) * kGroupQueries + q;
  }

  // Pack one panel of the `count` vectors [count, columns]; the lanes behind the last vector are zero.
  template <int lanes>
  void pack(const float* vectors, int64_t count, int64_t panel, Packed<lanes>& packed, uint16_t* rounded) {
    int64_t pairs = pair_ends_[levels_ - 1];
    int32_t* words = packed.words.data() + panel * pairs * lanes;
    double* squares = packed.squares.data() + panel * levels_ * lanes;
    for (int lane = 0; lane < lanes; lane++) {
      int64_t row = panel * lanes + lane;
      if (row >= count) {
        for (int64_t pair = 0; pair < pairs; pair++) words[pair * lanes + lane] = 0;
        for (int i = 0; i < levels_; i++) squares[i * lanes + lane] = 0;
        packed.units[row] = 0;
        continue;
      }
      const float* vector = vectors + row * columns_;
      double square = add_squares(vector, squares + lane, lanes);
      float unit = square > 0 ? static_cast<float>(kFullNorm / __builtin_sqrt(square)) : 0;
      packed.units[row] = unit;
      round(vector, unit, rounded);
      int column = 0;
      int32_t* word = words + lane;
      for (int i = 0; i < levels_; i++) {
        for (; column + 2 <= ends_[i]; column += 2, word += lanes) *word = load<int32_t>(rounded + column);
        if (column < ends_[i]) {
          *word = rounded[column++];
          word += lanes;
        }
      }
    }
  }

  // Write the squared norm of each prefix, `stride` apart; returns the last.
  double add_squares(const float* vector, double* squares, int stride) const {
    SquareSums sums;
    double total = 0;
    int column = 0;
    for (int i = 0; i < levels_; i++) {
      for (; column + kLanes <= ends_[i]; column += kLanes) sums.add(vector + column);
      SquareSums whole = sums;
      if (column < ends_[i]) {
        float some[kLanes] = {};
        std::memcpy(some, vector + column, sizeof(float) * static_cast<size_t>(ends_[i] - column));
        whole.add(some);
      }
      squares[i * stride] = total = whole.total();
    }
    return total;
  }

  // Round `vector` times `unit` to 16 bits. In float32, adding 1.5 · 2²³ rounds a small number to an integer, whose two's
  // complement is then in the low bits.
  void round(const float* vector, float unit, uint16_t* rounded) const {
    typedef uint16_t Halves __attribute__((vector_size(kVectorBytes / 2)));
    for (int64_t j = 0; j < columns_; j += kFloats) {
      int left = columns_ - j < kFloats ? static_cast<int>(columns_ - j) : kFloats;
      Floats sum = multiply_add(widen(vector + j, left), broadcast(unit), broadcast(0x1.8p23f));
      store(rounded + j, __builtin_convertvector((Words)sum, Halves));
    }
  }

  // No row is above the bar of a query that is padding, every row is above that of others.
  void remove_bar(int64_t group, int level, int q) {
    int64_t slot = slot_of(group, level, q);
    limits_[slot] = bars_[slot] = group * kGroupQueries + q < count_ ? -INFINITY : INFINITY;
  }

  // Move the best `keep` of a list to its front; the last of them is the bar.
  void raise_bar(int64_t slot, int64_t query, int64_t keep) {
    Key* keys = keys_.data() + slot * room_;
    select_largest(keys, counts_[slot], keep);
    bars_[slot] = score_of(keys[keep - 1]);
    limits_[slot] = bars_[slot] * packed_.units[query] - margins_[slot];
  }

  // Write for each query of a group at each level, [query, stride], a bit per row of the panel that may be above the bar.
  void sift(int64_t group, int64_t panel, uint32_t* hopeful, int64_t stride) const {
    const int64_t pairs = pair_ends_[levels_ - 1];
    const int32_t* query = packed_.words.data() + group * pairs * kGroupQueries;
    const int32_t* row = panels_.words.data() + panel * pairs * kPanelRows;
    const float* reach = reach_.data() + panel * levels_ * kPanelRows;
    const float* limits = limits_.data() + slot_of(group, 0, 0);
    const float* slacks = slacks_.data() + slot_of(group, 0, 0);
    Ints low[kGroupQueries] = {}, high[kGroupQueries] = {};
    int64_t pair = 0;
    for (int i = 0; i < levels_; i++) {
      for (const int64_t end = pair_ends_[i]; pair < end; pair++) {
        Ints first = load<Ints>(row), second = load<Ints>(row + kFloats);
#pragma GCC unroll 12
        for (int q = 0; q < kGroupQueries; q++) {
          Ints both = broadcast_four(query + q);
          low[q] = add_pairs(low[q], both, first);
          high[q] = add_pairs(high[q], both, second);
        }
        query += kGroupQueries;
        row += kPanelRows;
      }
      Floats first = load<Floats>(reach), second = load<Floats>(reach + kFloats);
#pragma GCC unroll 12
      for (int q = 0; q < kGroupQueries; q++) {
        Floats limit = broadcast(limits[q]), slack = broadcast(-slacks[q]);
        uint32_t below = not_below(to_floats(low[q]), multiply_add(limit, first, slack));
        uint32_t above = not_below(to_floats(high[q]), multiply_add(limit, second, slack));
        hopeful[q * stride + i] = below | above << kFloats;
      }
      reach += kPanelRows;
      limits += kGroupQueries;
      slacks += kGroupQueries;
    }
  }

  MATRYO_INLINE Hopeful hopeful_rows(const uint32_t* rows, int first) const {
    Hopeful some{rows, first, 0, 0};
    Ints any = {};
    for (int i = 0; i < kLevelsAtOnce && first + i < levels_; i += kFloats) {
      Ints here = load<Ints>(rows + first + i);
      any |= here;
      some.levels |= static_cast<uint64_t>(to_bits(here != 0)) << i;
    }
    if (some.levels)
      for (int i = 0; i < kFloats; i++) some.any |= static_cast<uint32_t>(any[i]);
    return some;
  }

  // Score the promising rows of a query, in increasing order: of equal scores the earlier row stays.
  void score(int64_t query, int64_t panel, const Hopeful& some, int64_t first_row, int64_t keep, int64_t room) {
    int64_t exist = row_count_ - panel * kPanelRows;
    uint32_t lanes = exist < kPanelRows ? some.any & ((1u << exist) - 1) : some.any;
    constexpr uint32_t whole = (1u << kScoredRows) - 1;
    while (lanes) {
      int lane = __builtin_ctz(lanes), block = lane / kScoredRows * kScoredRows;
      if (lane == block && 2 * __builtin_popcount(lanes >> block & whole) > kScoredRows &&
          block + kScoredRows <= exist) {
        score_rows<kScoredRows>(query, panel, block, some, first_row, keep, room);
        lanes &= ~(whole << block);
      } else {
        score_rows<1>(query, panel, lane, some, first_row, keep, room);
        lanes &= lanes - 1;
      }
    }
  }

  // Score R rows of a panel at all dims at which one of them is promising. Columns are summed once for all dims.
  template <int R>
  MATRYO_INLINE void score_rows(int64_t query, int64_t panel, int lane, const Hopeful& some, int64_t first_row,
                                int64_t keep, int64_t room) {
    const float* vector = vectors_.data() + query * columns_;
    const float* rows = rows_ + (panel * kPanelRows + lane) * columns_;
    int64_t group = query / kGroupQueries;
    int q = static_cast<int>(query % kGroupQueries), column = 0;
    Products<R> sums;
    for (uint64_t levels = some.levels; levels;) {
      int level = some.first + take_lowest(levels), end = ends_[level];
      if ((some.rows[level] >> lane & ((1u << R) - 1)) == 0) continue;
      for (; column + kPanelRows <= end; column += kPanelRows) sums.add(vector + column, rows + column, columns_);
      Products<R> all = sums;
      if (column < end) all.add(vector + column, rows + column, columns_, end - column);
      const float* scales = scales_.data() + (panel * levels_ + level) * kPanelRows + lane;
      int64_t slot = slot_of(group, level, q);
      for (int r = 0; r < R; r++) {
        float score = all.total(r) * scales[r];
        if (!(score > bars_[slot])) continue;
        keys_[slot * room_ + counts_[slot]++] = key_of(score, first_row + panel * kPanelRows + lane + r);
        if (counts_[slot] == room) {
          raise_bar(slot, query, keep);
          counts_[slot] = keep;
        }
      }
    }
  }

  int levels_;
  int64_t columns_, count_, groups_, k_, room_;
  Buffer<int> ends_;            // the dims
  Buffer<int64_t> pair_ends_;   // the number of words up to each dim

  // Queries. A slot is a query at a dim, [group, level, query].
  Buffer<float> vectors_;   // [query, column]
  Packed<kGroupQueries> packed_;
  Buffer<float> limits_, slacks_, margins_, bars_;
  Buffer<int64_t> counts_;
  Buffer<Key> keys_;   // [slot, room]: the list of each slot, of rows that were above its bar

  // The loaded rows.
  const float* rows_ = nullptr;
  int64_t row_count_ = 0;
  Packed<kPanelRows> panels_;
  Buffer<float> reach_,
      scales_;   // [panel, level, lane]: the norm of the scaled prefix, and 1 / the norm of the prefix
};

}   // namespace matryo::MATRYO_ISA
