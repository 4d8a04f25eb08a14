// Certified search: provably the exact best k rows, although most rows are never read.
//
// A sketch bounds every score from a few bytes per row (matryo/retrieve/guides/sketch). For each query:
//
//   1. scan     the product of every row's codes with the query's; the rows that look best are scored exactly, and the
//               k-th best of their scores is the bar
//   2. sift     rows whose bound is below the bar cannot be among the best k, whatever their unread columns hold; each
//               level reads further coordinates of the rows that are left
//   3. rank     the rest by exact scores
//
// If too many rows are left, reading them all one after another is faster: such queries are left to a scan (scan.h).
//
// Bounds err upwards: they include the rounding errors of the codes, of the query and of float32 sums. Queries are
// scanned in groups, so that a tile is read once for several of them.
#pragma once

#include "codes.h"
#include "exact.h"

namespace matryo::MATRYO_ISA {

constexpr int kSpare = 16;         // rows scored beyond the k that look best, for a higher bar
constexpr int kFewLeft = 64;       // at most this many remaining rows are read in full at once, without another level
constexpr int kTogether = 4;       // queries that share the tiles they read
constexpr int kFarBytes = 1500;    // bytes of a scan that take as long as reading one row elsewhere
constexpr int kMostSkipped = 63;   // groups of queries that are searched without the sketch before it is tried again
constexpr double kLargestSquare = 0x1p124;   // the largest squared norm of a query, as of a row

// A query as one level of the sketch sees it. The score of a row is at most
// scale · (product of codes) + offset + reach · tail + slack.
struct SketchLook {
  double scale, reach, slack;
};

// A query in the coordinates and the unit of the sketch.
struct SketchQuery {
  Buffer<double> vector;
  double square;        // of the scaled vector
  double unit;          // an exact score times this is in the unit of the sketch
  double known = 0;     // the squared norm of the coordinates of all levels so far
  double rounded = 0;   // the largest effect of rounding these coordinates to codes

  // Returns false if the query has no score: it is not finite, too large, or zero although the metric is cosine.
  bool prepare(const float* query, int64_t columns, Metric metric, int exponent) {
    double sum = 0;
    for (int64_t j = 0; j < columns; j++) sum += static_cast<double>(query[j]) * query[j];
    if (!(sum <= kLargestSquare) || (metric == Metric::cosine && sum == 0)) return false;
    int own = exponent;   // L2 needs the unit of the rows; otherwise each query has its own
    if (metric != Metric::l2) std::frexp(__builtin_sqrt(sum), &own);
    double factor = std::ldexp(1.0, -own);
    if (metric == Metric::cosine) factor = 1 / __builtin_sqrt(sum);
    double* scaled = vector.reserve(columns);
    square = 0;
    for (int64_t j = 0; j < columns; j++) {
      scaled[j] = query[j] * factor;
      square += scaled[j] * scaled[j];
    }
    unit = metric == Metric::cosine ? 1 : std::ldexp(1.0, -(own + exponent));   // a cosine has no unit
    known = rounded = 0;
    return true;
  }
};

// The scratch memory of one thread.
struct SketchWork {
  SketchQuery queries[kTogether];
  QueryCodes codes[kTogether];
  Best best[kTogether];
  SketchLook looks[kTogether];
  Buffer<int32_t> dots[kTogether];
  Buffer<Key> keys[kTogether];
  Buffer<double> turned, exact, sums;
  Buffer<int64_t> rows;
  Buffer<Ranked> ranked;
};

class CertifiedSearch {
 public:
  CertifiedSearch(const Vectors& vectors, const Sketch& sketch, int exponent, Mask mask, SketchWork& work)
      : vectors_(vectors),
        sketch_(sketch),
        exponent_(exponent),
        mask_(mask),
        work_(work),
        columns_(vectors.dims[vectors.levels - 1]),
        factor_(vectors.metric == Metric::l2 ? 2 : 1) {}

  // Search some queries [count, columns]. `left` [count, levels] gets the number of rows left after each level; at level
  // 0, −1 if the query is left to a scan. Rows that score less than the query's entry of `bars` [count] may be left
  // out. Returns −1, or the number of the first query that has no score.
  int64_t search(const float* queries, int64_t count, int64_t k, const double* bars, Patience& patience, int64_t* rows,
                 double* scores, int64_t* left) {
    int64_t levels = sketch_.level_count;
    for (int64_t first = 0; first < count; first += kTogether) {
      int some = count - first < kTogether ? static_cast<int>(count - first) : kTogether, helped = 0;
      if (skips(patience)) {
        for (int q = 0; q < some; q++) left[(first + q) * levels] = -1;
        continue;
      }
      for (int q = 0; q < some; q++) {
        if (!work_.queries[q].prepare(queries + (first + q) * columns_, columns_, vectors_.metric, exponent_))
          return first + q;
        work_.looks[q] = look<Layout::tile>(work_.queries[q], sketch_.levels[0], work_.codes[q]);
        work_.best[q] = Best{work_.keys[q].reserve(Best::room(k + kSpare)), k + kSpare};
        work_.dots[q].reserve(sketch_.tiles * kTileRows);
      }
      switch (some) {
        case 4:
          scan<4>();
          break;
        case 3:
          scan<3>();
          break;
        case 2:
          scan<2>();
          break;
        default:
          scan<1>();
      }
      for (int q = 0; q < some; q++) {
        int64_t at = first + q;
        helped += finish(q, queries + at * columns_, bars == nullptr ? -INFINITY : bars[at],
                         Hits{rows + at * k, scores + at * k, k}, left + at * levels);
      }
      note(patience, helped > 0);
    }
    return -1;
  }

  // Upper bounds of all scores at each level, [levels, count]; for tests. Returns false if the query has no score.
  bool bounds(const float* given, double* result) {
    SketchQuery& query = work_.queries[0];
    if (!query.prepare(given, columns_, vectors_.metric, exponent_)) return false;
    Buffer<double> sums(vectors_.count);
    for (int64_t row = 0; row < vectors_.count; row++) sums[row] = 0;
    for (int number = 0; number < sketch_.level_count; number++) {
      const SketchLevel& level = sketch_.levels[number];
      int width = level.dim - level.low;
      SketchLook seen = number == 0 ? look<Layout::tile>(query, level, work_.codes[0])
                                    : look<Layout::row>(query, level, work_.codes[0]);
      for (int64_t row = 0; row < vectors_.count; row++) {
        int64_t dot;
        if (number == 0) {
          TileSums tile;
          const QueryCodes* codes = work_.codes;
          int64_t start = row / kTileRows * kTileRows * width;
          multiply_tile<1>(static_cast<const uint8_t*>(level.codes) + start, 0, width / 4, &codes, &tile);
          dot = tile.part[row % kTileRows / kFloats][row % kFloats] - 128 * codes->sum();
        } else {
          dot = multiply_row(static_cast<const int8_t*>(level.codes) + row * width, work_.codes[0], width);
        }
        sums[row] += static_cast<double>(dot) * seen.scale;
        double bound = sums[row] + seen.reach * level.tails[row] + seen.slack;
        if (vectors_.metric == Metric::l2) bound += sketch_.offsets[row] - query.square;
        result[number * vectors_.count + row] = bound / query.unit;
      }
    }
    return true;
  }

 private:
  static bool skips(Patience& patience) {
    return __atomic_load_n(&patience.skip, __ATOMIC_RELAXED) > 0 &&
           __atomic_fetch_sub(&patience.skip, 1, __ATOMIC_RELAXED) > 0;
  }

  static void note(Patience& patience, bool helped) {
    int32_t next = helped ? 0 : 2 * __atomic_load_n(&patience.streak, __ATOMIC_RELAXED) + 1;
    next = next < kMostSkipped ? next : kMostSkipped;
    __atomic_store_n(&patience.streak, next, __ATOMIC_RELAXED);
    __atomic_store_n(&patience.skip, next, __ATOMIC_RELAXED);
  }

  // Rotate the query to the coordinates low … dim.
  const double* turn(const SketchQuery& query, int low, int dim) {
    int width = dim - low;
    double* turned = work_.turned.reserve(width);
    int whole = width / kDoubles * kDoubles;
    const double* axes = sketch_.axes + low;
    for (int j = 0; j < width; j++) turned[j] = 0;
    int64_t i = 0;
    for (; i + 4 <= columns_; i += 4) {   // four rows at a time, so that sums are loaded and stored less often
      const double* from = axes + i * sketch_.width;
      Doubles x[4];
      for (int r = 0; r < 4; r++) x[r] = broadcast(query.vector.data()[i + r]);
      for (int j = 0; j < whole; j += kDoubles) {
        Doubles sum = load<Doubles>(turned + j);
        for (int r = 0; r < 4; r++) sum = multiply_add(x[r], load<Doubles>(from + r * sketch_.width + j), sum);
        store(turned + j, sum);
      }
      for (int j = whole; j < width; j++)
        for (int r = 0; r < 4; r++) turned[j] += query.vector.data()[i + r] * from[r * sketch_.width + j];
    }
    for (; i < columns_; i++)
      for (int j = 0; j < width; j++) turned[j] += query.vector.data()[i] * axes[i * sketch_.width + j];
    return turned;
  }

  // Encode the coordinates of a level.
  template <Layout layout>
  SketchLook look(SketchQuery& query, const SketchLevel& level, QueryCodes& codes) {
    int width = level.dim - level.low;
    turn(query, level.low, level.dim);
    double* turned = work_.turned.data();
    double largest = 0, added = 0;
    for (int j = 0; j < width; j++) {
      query.known += turned[j] * turned[j];
      turned[j] *= sketch_.steps[level.low + j];
      double size = __builtin_fabs(turned[j]);
      largest = size > largest ? size : largest;
      added += size;
    }
    double scale = largest / kFinest > 0 ? largest / kFinest : 1, rest = 0;
    codes.clear(width);
    for (int j = 0; j < width; j++) {
      int code = code_of(turned[j] / scale);
      double off = turned[j] - code * scale;
      rest += off * off;
      codes.set<layout>(j, code);
    }
    query.rounded += __builtin_sqrt(rest) * level.length;
    // A few steps in float32, each exact to 2⁻²⁴ of its largest operand; rows have norms of at most 1.
    double norm = __builtin_sqrt(query.square), unknown = query.square - query.known;
    double rounding = 0x1p-21 * (factor_ * (255 * added + norm) + 1) + 0x1p-48 * query.square;
    double reach = factor_ * (__builtin_sqrt(unknown > 0 ? unknown : 0) + 1e-6 * norm);
    double slack = factor_ * (__builtin_sqrt(query.known) * level.error + query.rounded) + rounding;
    return SketchLook{factor_ * scale, reach, slack};
  }

  MATRYO_INLINE bool allowed(int64_t row) const { return row < vectors_.count && (mask_ == nullptr || mask_[row]); }

  // Write the product of every row's codes with each query's to `dots`, and collect the rows that look best.
  template <int Q>
  void scan() {
    const SketchLevel& level = sketch_.levels[0];
    const uint8_t* tiles = static_cast<const uint8_t*>(level.codes);
    int fours = level.dim / 4;
    const QueryCodes* codes[Q];
    for (int q = 0; q < Q; q++) codes[q] = work_.codes + q;
    for (int64_t tile = 0; tile < sketch_.tiles; tile++) {
      TileSums sums[Q];
      multiply_tile<Q>(tiles + tile * fours * 4 * kTileRows, 0, fours, codes, sums);
      for (int q = 0; q < Q; q++) {
        Best& best = work_.best[q];
        float scale = static_cast<float>(work_.looks[q].scale);
        for (int p = 0; p < kTileParts; p++) {
          int64_t place = tile * kTileRows + p * kFloats;
          store(work_.dots[q].data() + place, sums[q].part[p]);
          Floats scores = to_floats(sums[q].part[p]) * broadcast(scale);
          if (sketch_.offsets != nullptr) scores += load<Floats>(sketch_.offsets + place);
          uint32_t lanes = above(scores, broadcast(best.bar));
          while (lanes) {
            int lane = take_lowest(lanes);
            if (allowed(place + lane)) best.add(scores[lane], place + lane);
          }
        }
      }
    }
  }

  // Collect the rows whose bound reaches the bar, with their sums so far; returns their number.
  int64_t sift(const SketchLevel& level, const SketchLook& look, double bar, double shift, const int32_t* dots) {
    float least = static_cast<float>(bar - look.slack + shift);
    least -= 0x1p-22f * __builtin_fabsf(least);
    Floats scale = broadcast(static_cast<float>(look.scale)), reach = broadcast(static_cast<float>(look.reach));
    int64_t found = 0;
    for (int64_t place = 0; place < sketch_.tiles * kTileRows; place += kFloats) {
      Floats bounds = to_floats(load<Ints>(dots + place)) * scale;
      if (sketch_.offsets != nullptr) bounds += load<Floats>(sketch_.offsets + place);
      bounds += load<Floats>(level.tails + place) * reach;
      uint32_t lanes = not_below(bounds, broadcast(least));
      if (lanes && found + kFloats > work_.rows.room()) {
        work_.rows.grow(found, 2 * found + 1024);
        work_.sums.grow(found, 2 * found + 1024);
      }
      while (lanes) {
        int64_t row = place + take_lowest(lanes);
        if (!allowed(row)) continue;
        work_.rows[found] = row;
        work_.sums[found++] = dots[row] * look.scale - shift;
      }
    }
    return found;
  }

  // Read further coordinates of the rows that are left; returns how many may still reach the bar.
  int64_t sift_more(const SketchLevel& level, const SketchLook& look, const QueryCodes& codes, double bar,
                    int64_t count) {
    int width = level.dim - level.low;
    const int8_t* from = static_cast<const int8_t*>(level.codes);
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) {
      int64_t row = work_.rows[i];
      if (i + 8 < count) prefetch(from + work_.rows[i + 8] * width);
      double sum = work_.sums[i] + static_cast<double>(multiply_row(from + row * width, codes, width)) * look.scale;
      double offset = sketch_.offsets == nullptr ? 0 : sketch_.offsets[row];
      if (sum + offset + look.reach * level.tails[row] < bar - look.slack) continue;
      work_.rows[found] = row;
      work_.sums[found++] = sum;
    }
    return found;
  }

  // Whether reading so many rows, far apart in memory, takes longer than a scan of all that are allowed.
  bool too_many(int64_t count) const {
    int64_t size = columns_ * (vectors_.number == Number::float32 ? 4 : 2), all = vectors_.count;
    auto exceeds = [&](int64_t rows) { return count > kFewLeft && count * (kFarBytes + size) > rows * size; };
    if (mask_ == nullptr || count < all / 64) return exceeds(all);
    int64_t allowed = 0;
    for (int64_t row = 0; row < all; row++) allowed += mask_[row] != 0;
    return exceeds(allowed);
  }

  // Returns false if the query is left to a scan.
  bool finish(int q, const float* given, double known, const Hits& hits, int64_t* left) {
    SketchQuery& query = work_.queries[q];
    double* exact = work_.exact.reserve(columns_);
    for (int64_t j = 0; j < columns_; j++) exact[j] = given[j];
    ExactScore score(vectors_, vectors_.levels - 1, exact);
    int64_t looked = work_.best[q].finish();
    Ranked* ranked = work_.ranked.reserve(looked);
    for (int64_t i = 0; i < looked; i++) {
      if (i + 4 < looked) score.prefetch_row(row_of(work_.best[q].keys[i + 4]));
      int64_t row = row_of(work_.best[q].keys[i]);
      ranked[i] = Ranked{score(row), row};
    }
    double bar = known;
    if (looked >= hits.k) {
      select_largest(ranked, looked, hits.k);
      bar = ranked[hits.k - 1].score > known ? ranked[hits.k - 1].score : known;
    }
    bar *= query.unit;
    if (vectors_.metric == Metric::l2) bar += query.square;   // bounds are of 2·q·x − ‖x‖²
    const SketchLook& first = work_.looks[q];
    double shift = first.scale * 128 * static_cast<double>(work_.codes[q].sum());   // codes in tiles are 128 too large
    int64_t count = sift(sketch_.levels[0], first, bar, shift, work_.dots[q].data());
    left[0] = count;
    for (int number = 1; number < sketch_.level_count && count > kFewLeft; number++) {
      const SketchLevel& level = sketch_.levels[number];
      SketchLook more = look<Layout::row>(query, level, work_.codes[q]);
      count = left[number] = sift_more(level, more, work_.codes[q], bar, count);
    }
    if (too_many(count)) {
      for (int number = 0; number < sketch_.level_count; number++) left[number] = number == 0 ? -1 : 0;
      return false;
    }
    ranked = work_.ranked.reserve(count);
    for (int64_t i = 0; i < count; i++) {
      if (i + 4 < count) score.prefetch_row(work_.rows[i + 4]);
      ranked[i] = Ranked{score(work_.rows[i]), work_.rows[i]};
    }
    write_hits(ranked, count, hits);
    return true;
  }

  const Vectors& vectors_;
  const Sketch& sketch_;
  int exponent_;
  Mask mask_;
  SketchWork& work_;
  int64_t columns_;
  double factor_;
};

}   // namespace matryo::MATRYO_ISA
