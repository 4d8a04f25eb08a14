// The nearest means of vectors (the assignment of k-means): sums of 8-bit codes sift, float64 decides.
//
// Scores of a vector x and a mean c. Both are taken relative to the centre, the mean of all means, so that vectors far
// from the origin lose nothing: x' = x − centre, c' = c − centre. The score is ⟨x', c'⟩ plus an offset of the mean:
//
//   ⟨centre, c'⟩   for the largest inner product, as ⟨x, c⟩ is this sum plus a number that depends on x alone
//   −‖c'‖² / 2     for the smallest distance, as −‖x − c‖² / 2 is this sum plus such a number
//
// A group of vectors × a panel of means is multiplied in 8-bit codes, x̂ and ĉ. Sums of integers are exact, so
//
//   |⟨x', c'⟩ − ⟨x̂, ĉ⟩| ≤ ‖x' − x̂‖ ‖c'‖ + ‖x̂‖ ‖c' − ĉ‖ ≤ ‖c'‖ · doubt,   doubt = ‖x' − x̂‖ + ‖x̂‖ · max ‖c' − ĉ‖ / ‖c'‖
//
// plus the rounding errors of a few float32 steps: 2⁻²⁰ · ‖x̂‖ in `doubt`, and 2⁻²⁰ of the offset in `lowest` and
// `highest`. The largest lower bound is the bar; few means have an upper bound that reaches it. They are scored in
// float64, in lanes as in exact.h. So the result is that of float64, with the same bits on every instruction set; of
// equal scores the mean with the smaller number wins.
//
// The second mean of a vector covers for the first: it has the smallest −2 · score + ⟨r, c − x⟩² / ‖r‖², where r = x − the
// first mean (guides/partition/means.py says why). As −2 · score alone is a lower bound of that, the bounds above sift too.
#pragma once

#include "exact.h"
#include "kernels.h"

namespace matryo::MATRYO_ISA {

#if MATRYO_AVX512
constexpr int kWordColumns = 4;     // columns per 32-bit word: bytes, those of the means 128 more (add_fours)
constexpr int kGroupVectors = 12;   // 24 registers of sums, of 32
#else
constexpr int kWordColumns = 2;   // 16-bit numbers (add_pairs)
#if MATRYO_NEON
constexpr int kGroupVectors = 12;
#else
constexpr int kGroupVectors = 6;   // 12 registers of sums, of 16
#endif
#endif
constexpr int kPanelMeans = 2 * kFloats;   // two registers of means
constexpr int kLargestCode = 127;

// Some columns in 8 bits: the value of one unit of a code, the norm of the codes and their distance from the columns.
struct Coded {
  float unit;
  double length, error;
  int32_t sum;   // of the codes
};

class Means final : public MeanSearch {
 public:
  explicit Means(const MeanShape& shape)
      : means_(shape.means),
        count_(shape.count),
        columns_(shape.columns),
        words_((shape.columns + kWordColumns - 1) / kWordColumns),
        panels_((shape.count + kPanelMeans - 1) / kPanelMeans),
        padded_((shape.columns + kLanes - 1) / kLanes * kLanes),
        centre_(padded_),
        offsets_(shape.count),
        codes_(panels_ * words_ * kPanelMeans),
        units_(panels_ * kPanelMeans),
        reach_(panels_ * kPanelMeans),
        lowest_(panels_ * kPanelMeans),
        highest_(panels_ * kPanelMeans) {
    find_centre();
    Buffer<double> apart(padded_);
    double worst = 0;
    for (int64_t i = 0; i < panels_ * kPanelMeans; i++) {
      int32_t* words = codes_.data() + i / kPanelMeans * words_ * kPanelMeans + i % kPanelMeans;
      if (i >= count_) {   // no bound of a mean that does not exist reaches a bar
        for (int word = 0; word < words_; word++) words[word * kPanelMeans] = 0;
        units_[i] = reach_[i] = 0;
        lowest_[i] = highest_[i] = -INFINITY;
        continue;
      }
      shift(means_ + i * columns_, apart.data());
      double square = product(apart.data(), apart.data()), norm = __builtin_sqrt(square);
      offsets_[i] = shape.squared ? -square / 2 : product(centre_.data(), apart.data());
      Coded coded = encode(apart.data(), words, kPanelMeans, kMeanShift);
      if (norm > 0 && coded.error / norm > worst) worst = coded.error / norm;
      units_[i] = coded.unit;
      reach_[i] = static_cast<float>(norm * (1 + 0x1p-20));
      double margin = 0x1p-20 * (offsets_[i] < 0 ? -offsets_[i] : offsets_[i]) + 0x1p-120;
      lowest_[i] = static_cast<float>(offsets_[i] - margin);
      highest_[i] = static_cast<float>(offsets_[i] + margin);
    }
    worst_ = worst;
  }

  void assign(const float* vectors, int64_t count, int copies, int64_t* chosen) const override {
    Group group(*this);
    for (int64_t first = 0; first < count; first += kGroupVectors) {
      int some = count - first < kGroupVectors ? static_cast<int>(count - first) : kGroupVectors;
      for (int v = 0; v < kGroupVectors; v++) begin(group, v, vectors + (first + (v < some ? v : 0)) * columns_);
      for (int64_t panel = 0; panel < panels_; panel++) multiply(group, panel);
      for (int v = 0; v < some; v++) {
        int64_t* found = chosen + (first + v) * copies;
        found[0] = nearest(group, v);
        if (copies == 2) found[1] = second(group, v, found[0]);
      }
    }
  }

 private:
#if MATRYO_AVX512
  static constexpr int kMeanShift = 128;
#else
  static constexpr int kMeanShift = 0;
#endif

  // What is known of the vectors that are multiplied together.
  struct Group {
    explicit Group(const Means& means)
        : codes(means.words_ * kGroupVectors),
          apart(means.padded_ * kGroupVectors),
          products(means.panels_ * kPanelMeans * kGroupVectors),
          residual(means.padded_) {}

    Buffer<int32_t> codes;        // [word, vector]
    Buffer<double> apart;         // [vector, column]: the vectors relative to the centre
    Buffer<float> products;       // [vector, mean]: ⟨x̂, ĉ⟩ in units of the vector
    Buffer<double> residual;      // of one vector
    Floats bars[kGroupVectors];   // the largest lower bound so far, per lane
    float units[kGroupVectors], doubts[kGroupVectors];
    int32_t starts[kGroupVectors];   // of the sums: what the shift of the means' codes adds is subtracted
  };

  void find_centre() {
    for (int j = 0; j < padded_; j++) centre_[j] = 0;
    for (int64_t i = 0; i < count_; i++)
      for (int j = 0; j < columns_; j++) centre_[j] += static_cast<double>(means_[i * columns_ + j]);
    for (int j = 0; j < columns_; j++) centre_[j] /= static_cast<double>(count_);
  }

  // The columns of a vector relative to the centre, padded with zeros.
  MATRYO_INLINE void shift(const float* vector, double* apart) const {
    for (int j = 0; j < columns_; j++) apart[j] = static_cast<double>(vector[j]) - centre_[j];
    for (int j = columns_; j < padded_; j++) apart[j] = 0;
  }

  MATRYO_INLINE double product(const double* a, const double* b) const {
    LaneSums sums;
    for (int j = 0; j < padded_; j += kLanes)
      for (int i = 0; i < kLanes / kDoubles; i++)
        sums.part[i] += load<Doubles>(a + j + i * kDoubles) * load<Doubles>(b + j + i * kDoubles);
    return sums.total();
  }

  // Write the codes of some columns, `moved` larger, in words that lie `stride` apart.
  Coded encode(const double* columns, int32_t* words, int stride, int moved) const {
    double largest = 0;
    for (int j = 0; j < columns_; j++) {
      double size = columns[j] < 0 ? -columns[j] : columns[j];
      largest = size > largest ? size : largest;
    }
    // Smaller columns have no codes: the inverse of their unit would overflow. Their means are then scored in float64.
    Coded coded{largest > 0x1p-100 ? static_cast<float>(largest / kLargestCode) : 0, 0, 0, 0};
    double scale = coded.unit > 0 ? 1 / static_cast<double>(coded.unit) : 0;
    double squares = 0, missed = 0;
    for (int word = 0; word < words_; word++) {
      uint32_t packed = 0;
      for (int c = 0; c < kWordColumns; c++) {
        int j = word * kWordColumns + c, code = 0;
        if (j < columns_) {
          code = static_cast<int>(__builtin_rint(columns[j] * scale));
          code = code > kLargestCode ? kLargestCode : (code < -kLargestCode ? -kLargestCode : code);
          double value = static_cast<double>(coded.unit) * code, off = columns[j] - value;
          squares += value * value;
          missed += off * off;
          coded.sum += code;
        }
        constexpr int bits = 32 / kWordColumns;
        packed |= (static_cast<uint32_t>(code + moved) & ((1u << bits) - 1)) << (bits * c);
      }
      words[word * stride] = static_cast<int32_t>(packed);
    }
    coded.length = __builtin_sqrt(squares);
    coded.error = __builtin_sqrt(missed) * (1 + 0x1p-20);
    return coded;
  }

  void begin(Group& group, int v, const float* vector) const {
    double* apart = group.apart.data() + v * padded_;
    shift(vector, apart);
    Coded coded = encode(apart, group.codes.data() + v, kGroupVectors, 0);
    group.units[v] = coded.unit;
    group.doubts[v] = static_cast<float>((coded.error + coded.length * (worst_ + 0x1p-20)) * (1 + 0x1p-20));
    group.starts[v] = -kMeanShift * coded.sum;
    group.bars[v] = broadcast(-INFINITY);
  }

  // The products of a group with the means of a panel, and the lower bounds that they give.
  void multiply(Group& group, int64_t panel) const {
    const int32_t *vectors = group.codes.data(), *means = codes_.data() + panel * words_ * kPanelMeans;
    Ints first[kGroupVectors], second[kGroupVectors];
    for (int v = 0; v < kGroupVectors; v++) first[v] = second[v] = broadcast(group.starts[v]);
    for (int word = 0; word < words_; word++) {
      Ints one = load<Ints>(means), other = load<Ints>(means + kFloats);
#pragma GCC unroll 12
      for (int v = 0; v < kGroupVectors; v++) {
        Ints codes = broadcast_four(vectors + v);
#if MATRYO_AVX512
        first[v] = add_fours(first[v], one, codes);
        second[v] = add_fours(second[v], other, codes);
#else
        first[v] = add_pairs(first[v], one, codes);
        second[v] = add_pairs(second[v], other, codes);
#endif
      }
      vectors += kGroupVectors;
      means += kPanelMeans;
    }
    int64_t place = panel * kPanelMeans;
#pragma GCC unroll 12
    for (int v = 0; v < kGroupVectors; v++) {
      float* products = group.products.data() + v * panels_ * kPanelMeans + place;
      for (int half = 0; half < 2; half++) {
        Floats some = to_floats(half ? second[v] : first[v]) * load<Floats>(units_.data() + place + half * kFloats);
        store(products + half * kFloats, some);
        Floats bound = lower(group, v, some, place + half * kFloats);
        group.bars[v] = bound > group.bars[v] ? bound : group.bars[v];
      }
    }
  }

  MATRYO_INLINE Floats lower(const Group& group, int v, Floats products, int64_t place) const {
    Floats least = multiply_add(broadcast(-group.doubts[v]), load<Floats>(reach_.data() + place),
                                load<Floats>(lowest_.data() + place));
    return multiply_add(products, broadcast(group.units[v]), least);
  }

  MATRYO_INLINE Floats upper(const Group& group, int v, Floats products, int64_t place) const {
    Floats most = multiply_add(broadcast(group.doubts[v]), load<Floats>(reach_.data() + place),
                               load<Floats>(highest_.data() + place));
    return multiply_add(products, broadcast(group.units[v]), most);
  }

  int64_t nearest(const Group& group, int v) const {
    const float* products = group.products.data() + v * panels_ * kPanelMeans;
    float bar = group.bars[v][0];
    for (int i = 1; i < kFloats; i++) bar = group.bars[v][i] > bar ? group.bars[v][i] : bar;
    int64_t best = -1;
    double top = 0;
    bool scored = false;   // a mean that is alone above the bar needs no score
    for (int64_t place = 0; place < panels_ * kPanelMeans; place += kFloats) {
      uint32_t lanes = not_below(upper(group, v, load<Floats>(products + place), place), broadcast(bar));
      while (lanes) {
        int64_t mean = place + take_lowest(lanes);
        if (mean >= count_) continue;
        if (best < 0) {
          best = mean;
          continue;
        }
        if (!scored) top = score(group, v, best);
        scored = true;
        double other = score(group, v, mean);
        if (other > top) top = other, best = mean;
      }
    }
    return best < 0 ? 0 : best;
  }

  // The exact score of a mean.
  double score(const Group& group, int v, int64_t mean) const {
    const float* columns = means_ + mean * columns_;
    const double* apart = group.apart.data() + v * padded_;
    LaneSums sums;
    for (int j = 0; j < columns_; j += kLanes)
      for (int i = 0; i < kLanes / kDoubles; i++)
        sums.part[i] += load<Doubles>(apart + j + i * kDoubles) * relative(columns, j + i * kDoubles);
    return sums.total() + offsets_[mean];
  }

  // Some columns of a mean relative to the centre; zeros behind the last.
  MATRYO_INLINE Doubles relative(const float* mean, int j) const {
    if (j + kDoubles <= columns_)
      return __builtin_convertvector(load<HalfFloats>(mean + j), Doubles) - load<Doubles>(centre_.data() + j);
    double some[kDoubles] = {};
    for (int i = 0; j + i < columns_; i++) some[i] = static_cast<double>(mean[j + i]) - centre_[j + i];
    return load<Doubles>(some);
  }

  int64_t second(Group& group, int v, int64_t near) const {
    if (count_ < 2) return near;
    const double* apart = group.apart.data() + v * padded_;
    const float* products = group.products.data() + v * panels_ * kPanelMeans;
    double* residual = group.residual.data();
    for (int j = 0; j < padded_; j += kDoubles)
      store(residual + j, load<Doubles>(apart + j) - relative_or_zero(near, j));
    double square = product(residual, residual);
    int64_t best = next_best(group, v, near);
    double least = loss(group, v, best, square);
    float bar = half_below(least);
    for (int64_t place = 0; place < panels_ * kPanelMeans; place += kFloats) {
      uint32_t lanes = not_below(upper(group, v, load<Floats>(products + place), place), broadcast(bar));
      while (lanes) {
        int64_t mean = place + take_lowest(lanes);
        if (mean >= count_ || mean == near || mean == best) continue;
        double other = loss(group, v, mean, square);
        if (other < least || (other == least && mean < best)) {
          least = other;
          best = mean;
          bar = half_below(least);
        }
      }
    }
    return best;
  }

  MATRYO_INLINE Doubles relative_or_zero(int64_t mean, int j) const {
    return j < columns_ ? relative(means_ + mean * columns_, j) : Doubles{};
  }

  // A float32 at most −loss / 2: a mean whose score is below cannot have a smaller loss.
  MATRYO_INLINE static float half_below(double loss) {
    double size = loss < 0 ? -loss : loss;
    return static_cast<float>(-loss / 2 - 0x1p-22 * size - 0x1p-120);
  }

  // The mean with the largest lower bound but `near`: a good one to begin with.
  int64_t next_best(const Group& group, int v, int64_t near) const {
    const float* products = group.products.data() + v * panels_ * kPanelMeans;
    Floats best = broadcast(-INFINITY);
    Ints at = {}, lane;
    for (int i = 0; i < kFloats; i++) lane[i] = i;
    for (int64_t place = 0; place < panels_ * kPanelMeans; place += kFloats) {
      Floats bound = lower(group, v, load<Floats>(products + place), place);
      Ints numbers = lane + broadcast(static_cast<int32_t>(place));
      Ints better = (Ints)(bound > best) & (numbers != broadcast(static_cast<int32_t>(near)));
      best = better ? bound : best;
      at = better ? numbers : at;
    }
    int64_t found = near == 0 ? 1 : 0;
    float top = -INFINITY;
    for (int i = 0; i < kFloats; i++)
      if (best[i] > top) top = best[i], found = at[i];
    return found;
  }

  double loss(const Group& group, int v, int64_t mean, double square) const {
    const float* columns = means_ + mean * columns_;
    const double *apart = group.apart.data() + v * padded_, *residual = group.residual.data();
    LaneSums products, along;
    for (int j = 0; j < columns_; j += kLanes)
      for (int i = 0; i < kLanes / kDoubles; i++) {
        int at = j + i * kDoubles;
        Doubles x = load<Doubles>(apart + at), c = relative(columns, at);
        products.part[i] += x * c;
        along.part[i] += load<Doubles>(residual + at) * (c - x);
      }
    double parallel = along.total();
    parallel = square > 0 ? parallel * parallel / square : 0;
    return -2 * (products.total() + offsets_[mean]) + parallel;
  }

  const float* means_;
  int64_t count_;
  int columns_, words_;
  int64_t panels_;
  int padded_;         // columns, in multiples of the lanes of a sum
  double worst_ = 0;   // the largest relative error of the codes of a mean
  Buffer<double> centre_, offsets_;
  Buffer<int32_t> codes_;                            // [panel, word, mean]
  Buffer<float> units_, reach_, lowest_, highest_;   // of each mean: the unit of its codes, ‖c'‖, bounds of its offset
};

}   // namespace matryo::MATRYO_ISA
