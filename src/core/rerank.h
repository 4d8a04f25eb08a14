// Re-ranking of the candidates of a partition scan: every step of a plan after the first.
//
// Sums of the candidates grow by the columns of each step, in int8 or in full precision, and the best stay. Candidates lie
// far apart in memory, so each is prefetched before it is read. The best k are ranked by exact scores in the end.
#pragma once

#include "codes.h"
#include "exact.h"

namespace matryo::MATRYO_ISA {

constexpr int kLine = 64;                                                            // bytes per cache line
constexpr int kTilesAhead = 6, kCodesAhead = 12, kRowsAhead = 16, kNormsAhead = 8;   // what is prefetched
constexpr int64_t kAheadBytes = 128 << 10;   // codes that are prefetched for the next query of a batch
constexpr int kReadAll = 3;                  // below this many candidates per row kept, bounds cost more than they save
constexpr int kFewColumns = 256;             // of a query that are encoded at a time
constexpr float kRough = 1.0f / 35;          // see tile_unit; deviations of 4-bit codes are about 3.5
constexpr float kTiny = 0x1p-126f;           // the smallest normal float32
constexpr double kLargestNorm = 0x1p62;      // of a query, as of a row
constexpr double kHalfStep = 0x1p-24;        // half the value of the last bit of the float32 number 1
constexpr double kCodeSums = 64 * kHalfStep;               // relative error of the float32 sums of all int8 steps
constexpr int kBatch = 256;                                // queries that are scanned together
constexpr int kSharing = 4;                                // queries that share one read of a tile
constexpr int kNearest = 2;                                // partitions of each query that a batch scans first
constexpr int kTurned = 4;                                 // queries that are rotated together
constexpr int kTurnedParts = kVectorBytes == 64 ? 4 : 2;   // vectors of coordinates that are rotated together
constexpr int kPlacesPerHit = 4;                           // places that a query visits at least, per hit

// A query in codes: the product with a row is scale · (product of codes) + shift.
struct CodedLook {
  float scale, shift;
};

// A query for scoring; for cosine, divided by its norm.
struct PartitionQuery {
  Buffer<float> vector;
  Buffer<double> lengths;   // the norm at each dim, of the vector above
  Buffer<float> turned;     // in the coordinates of the tiles
  QueryCodes codes;         // of the columns of the tiles
  CodedLook look;
  int wide;           // the first eights of the tiles whose codes have upper halves
  float unit;         // turns a difference of scores of means into a multiple of the scale
  float length;       // the norm, for inner products
  Buffer<Key> keys;   // candidates: slot and score
  int64_t found;
  float bar;
  Buffer<Key> lists;   // visited partitions, the best first
  int64_t visits;
  Buffer<uint64_t> open;   // one bit per partition: whether it is visited

  // Returns false if the query has no score.
  bool prepare(const float* query, const Vectors& vectors) {
    int64_t columns = vectors.dims[vectors.levels - 1], j = 0;
    vector.reserve(columns);
    lengths.reserve(vectors.levels);
    double square = 0;
    for (int level = 0; level < vectors.levels; level++) {
      Doubles squares = {};
      for (; j + kDoubles <= vectors.dims[level]; j += kDoubles) {
        Doubles x = __builtin_convertvector(load<HalfFloats>(query + j), Doubles);
        squares += x * x;
      }
      for (; j < vectors.dims[level]; j++) square += static_cast<double>(query[j]) * query[j];
      for (int i = 0; i < kDoubles; i++) square += squares[i];
      lengths[level] = __builtin_sqrt(square);
    }
    double norm = lengths[vectors.levels - 1];
    bool cosine = vectors.metric == Metric::cosine;
    if (!(norm <= kLargestNorm) || (cosine && norm == 0)) return false;
    double unit = cosine ? 1 / norm : 1;
    for (j = 0; j < columns; j++) vector[j] = static_cast<float>(query[j] * unit);
    for (int level = 0; level < vectors.levels; level++) lengths[level] *= unit;
    return true;
  }
};

struct PartitionWork {
  PartitionQuery queries[kBatch];
  QueryCodes more;   // codes of further columns
  Buffer<float> means, sums, reach;
  Buffer<Key> spare;
  Buffer<int64_t> slots, starts, visitors;
  Buffer<double> exact;
  Buffer<Ranked> ranked;
};

class Reranker {
 protected:
  Reranker(const Vectors& vectors, const Partition& partition, const Tail* tail, const Route& route,
           PartitionWork& work)
      : vectors_(vectors),
        part_(partition),
        tail_(tail),
        route_(route),
        work_(work),
        columns_(vectors.dims[vectors.levels - 1]),
        keep_(route.steps[0].keep) {}

  // ── a query in codes ──────────────────────────────────────────────────────────────────────────────────────────────

  // The largest |query · step| of the columns low … high.
  static float peak(const float* vector, const float* steps, int low, int high) {
    Floats largest = {};
    for (int j = low; j < high; j += kFloats) {
      int columns = high - j < kFloats ? high - j : kFloats;
      Floats size = absolute(widen(vector + j, columns) * widen(steps + j, columns));
      largest = size > largest ? size : largest;
    }
    float most = 0;
    for (int i = 0; i < kFloats; i++) most = largest[i] > most ? largest[i] : most;
    return most;
  }

  // The unit of the codes of a query for tiles: so small that its rounding errors add at most about 1 % to the squared
  // errors of 4-bit codes, and no smaller, so that few codes of the query need two bytes.
  static float tile_unit(const float* vector, const float* steps, int dim) {
    float most = peak(vector, steps, 0, dim), inverse = most >= kTiny ? 1 / most : 0;
    Floats squares = {};
    for (int j = 0; j < dim; j += kFloats) {
      int columns = dim - j < kFloats ? dim - j : kFloats;
      Floats size = widen(vector + j, columns) * widen(steps + j, columns) * broadcast(inverse);
      squares = multiply_add(size, size, squares);
    }
    float rough = kRough * __builtin_sqrtf(sum_lanes(squares) / static_cast<float>(dim));
    constexpr float fine = 1.0f / kFinest;
    return most * (rough > fine ? rough : fine);
  }

  // Encode the columns low … high in multiples of `unit`, at `start` of the codes, for rows whose codes c stand for
  // shift + step · c; all is multiplied by the factor.
  template <Layout layout>
  static CodedLook encode(const float* vector, const float* steps, const float* shifts, int low, int high, int start,
                          QueryCodes& codes, int width, double factor, float unit) {
    float inverse = unit >= kTiny ? 1 / unit : 0;
    codes.clear(width);
    Floats limit = broadcast(kFinest + 1.0f);
    Doubles middles = {};
    for (int from = low; from < high; from += kFewColumns) {
      int32_t made[kFewColumns];
      int columns = high - from < kFewColumns ? high - from : kFewColumns;
      for (int j = 0; j < columns; j += kFloats) {
        int some = columns - j < kFloats ? columns - j : kFloats;
        Floats value = widen(vector + from + j, some);
        Floats units = nearest(value * widen(steps + from + j, some) * broadcast(inverse));
        units = absolute(units) < limit ? units : Floats{};   // a code holds it, unless the file is damaged
        store(made + j, __builtin_convertvector(units, Ints));
        float both[2][kFloats];
        store(both[0], value);
        store(both[1], widen(shifts + from + j, some));
        for (int i = 0; i < kFloats; i += kDoubles)
          middles += __builtin_convertvector(load<HalfFloats>(both[0] + i), Doubles) *
                     __builtin_convertvector(load<HalfFloats>(both[1] + i), Doubles);
      }
      codes.set<layout>(start + from - low, made, columns);
    }
    double shift = 0;
    for (int i = 0; i < kDoubles; i++) shift += middles[i];
    return CodedLook{static_cast<float>(factor * unit), static_cast<float>(factor * shift)};
  }

  // ── what belongs to a slot ────────────────────────────────────────────────────────────────────────────────────────

  // Slots of the tail are rows: those of the partitions come before.
  MATRYO_INLINE int64_t row_at(int64_t slot) const { return slot < part_.count ? part_.rows[slot] : slot; }

  // The vectors that hold a row, and their first row.
  MATRYO_INLINE TailPart part_of(int64_t row) const {
    if (row < part_.count) return TailPart{&vectors_, 0, nullptr, nullptr};
    int i = tail_->part_count - 1;
    while (i > 0 && row < tail_->parts[i].first) i--;
    return tail_->parts[i];
  }

  MATRYO_INLINE const int8_t* codes_at(int64_t slot) const {
    if (slot < part_.count) return part_.codes + slot * part_.stride;
    const TailPart part = part_of(slot);
    return part.codes + (slot - part.first) * part_.stride;
  }

  MATRYO_INLINE const float* error_at(int64_t slot) const {
    if (slot < part_.count) return part_.errors + slot;
    const TailPart part = part_of(slot);
    return part.errors + (slot - part.first);
  }

  MATRYO_INLINE void prefetch_codes(int64_t slot, int from, int to) const {
    const int8_t* codes = codes_at(slot);
    for (int j = from / kLine * kLine; j < to; j += kLine) prefetch(codes + j);
    if (slot < part_.count) prefetch(part_.rows + slot);
  }

  // Move the best `keep` keys to the front; returns the lowest that stays. Rows far below the k-th best are dropped.
  Key lowest_kept(Key* keys, int64_t count, int64_t keep, float margin) const {
    Key lowest = kLowestKey;
    if (count > keep) {
      select_largest(keys, count, keep);
      lowest = keys[keep - 1];
      count = keep;
    }
    if (count > route_.k && margin < INFINITY) {
      select_largest(keys, count, route_.k);
      Key far = key_of(score_of(keys[route_.k - 1]) - margin, kMostRows);
      lowest = far > lowest ? far : lowest;
    }
    return lowest;
  }

  MATRYO_INLINE int64_t room() const { return Best::room(keep_); }

  // ── steps ──────────────────────────────────────────────────────────────────────────────────────────────────────

  // The candidates of one query at one step.
  struct Candidates {
    int64_t* slots;
    float* sums;   // inner products of the columns so far; for L2 in full precision, squared distances
    Key* keys;     // slots by score
    int64_t count;
  };

  // Add the codes of the columns done … dim to the sums.
  void add_codes(const PartitionQuery& query, int done, int dim, const Candidates& some) {
    if (dim <= done) return;
    int first = done / kLine * kLine, width = (dim + kLine - 1) / kLine * kLine - first;
    float unit = peak(query.vector.data(), part_.steps, done, dim) / static_cast<float>(kFinest);
    CodedLook look = encode<Layout::row>(query.vector.data(), part_.steps, part_.middles, done, dim, done - first,
                                         work_.more, width, 1, unit);
    auto fetch = [&](int64_t i) { prefetch_codes(some.slots[i], first, first + width); };
    for (int64_t i = 0; i < kCodesAhead && i < some.count; i++) fetch(i);
    for (int64_t i = 0; i < some.count; i++) {
      if (i + kCodesAhead < some.count) fetch(i + kCodesAhead);
      double product = static_cast<double>(multiply_row(codes_at(some.slots[i]) + first, work_.more, width));
      some.sums[i] += static_cast<float>(product * look.scale + look.shift);
    }
  }

  MATRYO_INLINE const float* norms_at(int64_t slot) const {
    int64_t row = row_at(slot);
    const TailPart part = part_of(row);
    return part.vectors->norms + (row - part.first) * vectors_.levels;
  }

  MATRYO_INLINE static float at_least_tiny(float norm) { return norm > kTiny ? norm : kTiny; }

  // A step in int8.
  void code_step(const PartitionQuery& query, const Step& step, const Candidates& some) {
    add_codes(query, step.known, step.dim, some);
    double length = query.lengths.data()[step.level];
    float inverse = length > 0 ? static_cast<float>(1 / length) : 0;
    int last = vectors_.levels - 1;
    for (int64_t i = 0; i < some.count; i++) {
      float score = some.sums[i];
      if (vectors_.metric == Metric::l2) {
        float norm = norms_at(some.slots[i])[step.level];
        score = 2 * score - norm * norm;
      } else if (vectors_.metric == Metric::ip) {
        score *= at_least_tiny(norms_at(some.slots[i])[last]);   // the codes are of the row divided by it
      } else {
        score *= inverse;
        if (step.level < last) {
          const float* norms = norms_at(some.slots[i]);
          score *= norms[last] / at_least_tiny(norms[step.level]);
          score = score < -1 ? -1 : (score > 1 ? 1 : score);
        }
      }
      some.keys[i] = key_of(score, some.slots[i]);
    }
  }

  MATRYO_INLINE void prefetch_slot(int64_t slot, int done, int level) const {
    int64_t row = row_at(slot);
    const TailPart part = part_of(row);
    prefetch(norms_at(slot));
    prefetch_row(*part.vectors, row - part.first, done, level);
  }

  // The product of a row's columns from `done` on with those of the query; for L2, their squared distance.
  template <class T, bool apart>
  MATRYO_INLINE float multiply_columns(const float* vector, const Vectors& vectors, int64_t row, int done,
                                       int level) const {
    Floats even = {}, odd = {};
    auto add = [&](Floats& sums, const T* from, int column, int columns) __attribute__((always_inline)) {
      Floats x = widen(from, columns), q = widen(vector + column, columns);
      Floats one = apart ? x - q : x, other = apart ? one : q;
      sums = multiply_add(one, other, sums);
    };
    for (int b = 0; b <= level; b++) {
      const Block& block = vectors.picked[b];
      if (block.low < done) continue;
      int width = block.high - block.low, j = 0;
      const T* numbers = static_cast<const T*>(block.rows) + row * width;
      for (; j + 2 * kFloats <= width; j += 2 * kFloats) {
        add(even, numbers + j, block.low + j, kFloats);
        add(odd, numbers + j + kFloats, block.low + j + kFloats, kFloats);
      }
      for (; j < width; j += kFloats) add(even, numbers + j, block.low + j, width - j < kFloats ? width - j : kFloats);
    }
    return sum_lanes(even + odd);
  }

  float multiply_row_of(const float* vector, int64_t slot, int done, int level) const {
    int64_t row = row_at(slot);
    const TailPart part = part_of(row);
    const Vectors& vectors = *part.vectors;
    row -= part.first;
    bool apart = vectors_.metric == Metric::l2, half = vectors_.number == Number::float16;
    if (apart && half) return multiply_columns<uint16_t, true>(vector, vectors, row, done, level);
    if (apart) return multiply_columns<float, true>(vector, vectors, row, done, level);
    if (half) return multiply_columns<uint16_t, false>(vector, vectors, row, done, level);
    return multiply_columns<float, false>(vector, vectors, row, done, level);
  }

  // A step in full precision, from the column `done` on.
  void full_step(const PartitionQuery& query, const Step& step, int done, const Candidates& some) const {
    float length = static_cast<float>(query.lengths.data()[step.level]), unit = 1 / at_least_tiny(length);
    for (int64_t i = 0; i < kRowsAhead && i < some.count; i++) prefetch_slot(some.slots[i], done, step.level);
    for (int64_t i = 0; i < some.count; i++) {
      if (i + kRowsAhead < some.count) prefetch_slot(some.slots[i + kRowsAhead], done, step.level);
      int64_t slot = some.slots[i];
      float score = multiply_row_of(query.vector.data(), slot, done, step.level);
      if (done > 0) score += some.sums[i];
      some.sums[i] = score;
      if (vectors_.metric == Metric::l2) score = -score;
      if (vectors_.metric == Metric::cosine) score = score * (1 / at_least_tiny(norms_at(slot)[step.level])) * unit;
      some.keys[i] = key_of(score, slot);
    }
  }

  // Move the candidates that stay to the front; returns their number.
  int64_t sift(const Candidates& some, int64_t keep, float margin) {
    Key* spare = copy(some);
    Key lowest = lowest_kept(spare, some.count, keep, margin);
    int64_t left = 0;
    for (int64_t i = 0; i < some.count; i++) {
      if (some.keys[i] < lowest) continue;
      move(some, i, left);
      left++;
    }
    return left;
  }

  MATRYO_INLINE Key* copy(const Candidates& some) {
    Key* spare = work_.spare.data();
    for (int64_t i = 0; i < some.count; i++) spare[i] = some.keys[i];
    return spare;
  }

  MATRYO_INLINE static void move(const Candidates& some, int64_t from, int64_t to) {
    some.slots[to] = some.slots[from];
    some.sums[to] = some.sums[from];
    some.keys[to] = some.keys[from];
  }

  // ── bounds ────────────────────────────────────────────────────────────────────────────────────────────────────────
  //
  // A row is within `errors` of its codes, so its score is within `errors` times the query's norm of the score of its
  // codes (Cauchy–Schwarz). A step before the last must determine which candidates stay, not their scores: only those
  // that the bounds leave open are read in full. The last step reads the `keep` candidates that look best; the lowest of
  // their scores is the bar, and candidates that cannot reach it are never read. Either way the result equals that of
  // reading all: one loop scores every row, and its sums depend on the row alone.

  // The largest error of one code of a query; the whole value where codes would underflow float32.
  MATRYO_INLINE static double code_error(float unit) { return unit >= kTiny ? 0.51 * unit : 16400.0 * kTiny; }

  // The error of sums of products with a query's codes, beside the errors of the rows' codes: a query's code is off by
  // half a unit, a row's code is at most 127, and float32 sums are rounded. The columns from `known` on were encoded
  // together, so that the error of each is known.
  double code_slack(const float* vector, int known, int dim) const {
    float unit = peak(vector, part_.steps, 0, known) / static_cast<float>(kFinest);
    double off = known * code_error(unit);
    unit = peak(vector, part_.steps, known, dim) / static_cast<float>(kFinest);
    if (unit >= kTiny) {
      Floats inverse = broadcast(1 / unit), sum = {};
      for (int j = known; j < dim; j += kFloats) {
        int columns = dim - j < kFloats ? dim - j : kFloats;
        Floats code = widen(vector + j, columns) * widen(part_.steps + j, columns) * inverse;
        sum += absolute(code - nearest(code));
      }
      off += unit * (1.001 * sum_lanes(sum) + 0.01 * (dim - known));
    } else {
      off += (dim - known) * code_error(unit);
    }
    Floats added = {}, most = broadcast(130.0f);
    for (int j = 0; j < dim; j += kFloats) {
      int columns = dim - j < kFloats ? dim - j : kFloats;
      Floats reach = absolute(widen(part_.middles + j, columns)) + most * widen(part_.steps + j, columns);
      added += absolute(widen(vector + j, columns)) * reach;
    }
    return 127.0 * off + 1.01 * kCodeSums * sum_lanes(added);
  }

  // The score of each candidate by its codes, as a key, and its largest distance from the full-precision score.
  void bound(const PartitionQuery& query, const Step& step, const Candidates& some, float* reach) const {
    double length = query.lengths.data()[step.level], rounding = (step.dim + 64) * kHalfStep;
    double slack = code_slack(query.vector.data(), step.known, step.dim);
    int last = vectors_.levels - 1;
    for (int64_t i = 0; i < some.count; i++) {
      int64_t slot = some.slots[i], ahead = i + kNormsAhead < some.count ? i + kNormsAhead : some.count - 1;
      prefetch(error_at(some.slots[ahead]));
      double score = some.sums[i], far = length * *error_at(slot) + slack + kCodeSums * __builtin_fabs(score);
      if (vectors_.metric == Metric::cosine) {
        double unit = 1 / (length > kTiny ? length : kTiny);
        far += rounding * length;
        if (step.level < last) {
          prefetch(norms_at(some.slots[ahead]));
          const float* norms = norms_at(slot);
          unit *= static_cast<double>(at_least_tiny(norms[last])) / at_least_tiny(norms[step.level]);
        }
        score *= unit;
        far *= unit;
      } else {
        prefetch(norms_at(some.slots[ahead]));
        const float* norms = norms_at(slot);
        double norm = norms[step.level], whole = at_least_tiny(norms[last]);
        if (vectors_.metric == Metric::l2) {
          score = 2 * score - norm * norm - length * length;
          far = 2 * far + rounding * (norm + length) * (norm + length);
        } else {   // the codes are of the row divided by its norm
          score *= whole;
          far = (far + rounding * length) * whole;
        }
      }
      far = 1.001 * far + 8 * kHalfStep * __builtin_fabs(score);   // float32 rounding of both, and of their sums
      if (!(far + __builtin_fabs(score) < 1e38)) score = 0, far = INFINITY;
      reach[i] = static_cast<float>(far);
      some.keys[i] = key_of(static_cast<float>(score), slot);
    }
  }

  // Move the best `keep` candidates to the front, with their sums in int8; returns their number.
  int64_t bounded_step(const PartitionQuery& query, const Step& step, const Candidates& some) {
    add_codes(query, step.known, step.dim, some);
    int64_t keep = step.keep;
    if (some.count <= keep) return some.count;
    float* reach = work_.reach.reserve(some.count);
    bound(query, step, some, reach);
    Key* spare = work_.spare.data();
    for (int64_t i = 0; i < some.count; i++) spare[i] = key_of(score_of(some.keys[i]) - reach[i], i);
    select_largest(spare, some.count, keep);
    float surely_out = score_of(spare[keep - 1]);   // at least `keep` candidates score this or more
    for (int64_t i = 0; i < some.count; i++) spare[i] = key_of(score_of(some.keys[i]) + reach[i], i);
    select_largest(spare, some.count, keep + 1);
    float surely_in = score_of(spare[keep]);   // at most `keep` candidates can score more than this
    int64_t certain = 0, left = 0;             // certain candidates first, then open ones; the others are dropped
    for (int64_t i = 0; i < some.count; i++) {
      float score = score_of(some.keys[i]);
      if (score + reach[i] < surely_out) continue;
      swap(some, i, left);
      if (score - reach[i] > surely_in) swap(some, left, certain++);
      left++;
    }
    if (left <= keep || certain >= keep) return left < keep ? left : keep;
    int64_t open = left - certain;
    Candidates doubtful{some.slots + certain, reach, some.keys, open};
    full_step(query, step, 0, doubtful);
    Key lowest = lowest_of_best(copy(doubtful), open, keep - certain);
    left = certain;
    for (int64_t i = 0; i < open; i++) {
      if (doubtful.keys[i] < lowest) continue;
      some.slots[left] = some.slots[certain + i];
      some.sums[left] = some.sums[certain + i];
      left++;
    }
    return left < keep ? left : keep;
  }

  MATRYO_INLINE static void swap(const Candidates& some, int64_t a, int64_t b) {
    exchange(some.slots[a], some.slots[b]);
    exchange(some.sums[a], some.sums[b]);
  }

  static Key lowest_of_best(Key* keys, int64_t count, int64_t keep) {
    if (count <= keep) return kLowestKey;
    select_largest(keys, count, keep);
    return keys[keep - 1];
  }

  // Move the candidates that may be among the best `keep` to the front, scored in full precision; returns their number.
  int64_t last_step(const PartitionQuery& query, const Step& step, const Candidates& some) {
    int64_t keep = step.keep, left = 0;
    if (some.count < kReadAll * keep) {
      full_step(query, step, 0, some);
      return some.count;
    }
    add_codes(query, step.known, step.dim, some);
    float* reach = work_.reach.reserve(some.count);
    bound(query, step, some, reach);
    Key lowest = lowest_of_best(copy(some), some.count, keep);
    float bar = score_of(lowest);
    for (int64_t i = 0; i < some.count; i++) {
      reach[i] += score_of(some.keys[i]);
      if (reach[i] >= bar) prefetch_slot(some.slots[i], 0, step.level);   // nearly all that will be read
      if (some.keys[i] < lowest) continue;
      exchange(some.slots[left], some.slots[i]);
      exchange(reach[left], reach[i]);
      left++;
    }
    full_step(query, step, 0, Candidates{some.slots, some.sums, some.keys, left});
    bar = INFINITY;
    for (int64_t i = 0; i < left; i++) bar = score_of(some.keys[i]) < bar ? score_of(some.keys[i]) : bar;
    int64_t first = left;
    for (int64_t i = first; i < some.count; i++)
      if (!(reach[i] < bar)) some.slots[left++] = some.slots[i];
    full_step(query, step, 0, Candidates{some.slots + first, some.sums + first, some.keys + first, left - first});
    return left;
  }

  // Reduce the candidates to those that the first step keeps, and prefetch what the next step reads of them.
  void settle(PartitionQuery& query) {
    Key lowest = lowest_kept(query.keys.data(), query.found, keep_, route_.steps[0].margin);
    int64_t left = 0;
    for (int64_t i = 0; i < query.found && i < keep_; i++)
      if (query.keys[i] >= lowest) query.keys[left++] = query.keys[i];
    query.found = left;
    if (route_.step_count == 1) return;
    const Step& next = route_.steps[1];
    int width = next.scoring == Scoring::full ? 0 : next.dim;
    for (int64_t i = 0; i < left && i * width < kAheadBytes; i++) prefetch_codes(row_of(query.keys[i]), 0, width);
  }

  // The candidates of the first step as hits, with its scores.
  void write_candidates(PartitionQuery& query, const Hits& hits) const {
    sort_descending(query.keys.data(), query.found);
    for (int64_t i = 0; i < hits.k; i++) {
      bool there = i < query.found;
      hits.rows[i] = there ? row_at(row_of(query.keys[i])) : -1;
      hits.scores[i] = there ? score_of(query.keys[i]) : -INFINITY;
    }
  }

  // Every step after the first, then the best k by exact scores.
  void rerank(PartitionQuery& query, const float* given, const Hits& hits) {
    work_.spare.reserve(room());
    Candidates some{work_.slots.reserve(keep_), work_.sums.reserve(keep_), query.keys.data(), query.found};
    for (int64_t i = 0; i < some.count; i++) some.slots[i] = row_of(some.keys[i]), some.sums[i] = 0;
    for (int s = 1; s < route_.step_count; s++) {
      const Step& step = route_.steps[s];
      bool last = s == route_.step_count - 1;
      if (step.scoring == Scoring::bounded) {
        some.count = last ? last_step(query, step, some) : bounded_step(query, step, some);
        continue;
      }
      if (step.scoring == Scoring::full)
        full_step(query, step, step.known, some);
      else
        code_step(query, step, some);
      if (!last) some.count = sift(some, step.keep, step.margin);
    }
    // Of equal float32 scores the smaller row stays, as in a scan: keys of rows, not of slots.
    for (int64_t i = 0; i < some.count; i++) some.keys[i] = key_of(score_of(some.keys[i]), row_at(some.slots[i]));
    if (some.count > route_.k) {
      select_largest(some.keys, some.count, route_.k);
      some.count = route_.k;
    }
    double* exact = work_.exact.reserve(columns_);
    for (int64_t j = 0; j < columns_; j++) exact[j] = given[j];
    int level = route_.steps[route_.step_count - 1].level;
    ExactScore score(vectors_, level, exact);
    Ranked* ranked = work_.ranked.reserve(some.count);
    for (int64_t i = 0; i < some.count; i++) {
      int64_t row = row_of(some.keys[i]);
      const TailPart part = part_of(row);
      ranked[i] = Ranked{score.in(*part.vectors, row - part.first), row};
    }
    write_hits(ranked, some.count, hits);
  }

  const Vectors& vectors_;
  const Partition& part_;
  const Tail* tail_;   // null if no rows joined
  const Route& route_;
  PartitionWork& work_;
  int64_t columns_, keep_;
};

}   // namespace matryo::MATRYO_ISA
