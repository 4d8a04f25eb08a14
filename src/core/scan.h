// Scans of all rows in float32: exact search without a guide, and first stages.
//
// A scan computes ceilings: bounds on exact scores from float32 sums. Exact search ranks the rows with the highest
// ceilings by their exact scores. A row whose ceiling is below the k-th best of these is not among the best k. If other
// rows remain, a second scan scores every row exactly whose ceiling reaches the k-th best. The proof that a ceiling is
// never below the exact score is in matryo/retrieve/engines/exact.py, with u = 2⁻²⁴ and d columns:
//
//   a float32 sum of products is within (d + 32)·2u·‖x‖‖q‖ of the exact one, in whatever order it was added,
//   products too small for float32 lose at most 2⁻¹²⁶ each, and
//   a sum of squared differences is exact to (d + 32)·2u of itself.
#pragma once

#include "exact.h"

namespace matryo::MATRYO_ISA {

constexpr int kMore = 16;   // candidates selected beyond keep, because exact scores may change their order
constexpr int kRowGroup = 4, kQueryGroup = 4, kAlone = 8;   // products computed at a time: rows × queries, or rows × 1
constexpr int64_t kAhead = 16 << 10;                        // bytes of rows between those read and those prefetched
constexpr int64_t kChunkBytes = 256 << 10;                  // rows that all queries read while they are in the L2 cache

// The inner products (or squared distances) of Q queries with R rows over some blocks; result [Q, R].
template <class T, int R, int Q, bool apart>
MATRYO_INLINE void multiply(const Block* blocks, int count, const int64_t* rows, const float* queries, int64_t stride,
                            float* result, int64_t next) {
  Floats sums[Q][R] = {};
  for (int b = 0; b < count; b++) {
    int low = blocks[b].low, width = blocks[b].high - low;
    const T* row[R];
    for (int r = 0; r < R; r++) row[r] = static_cast<const T*>(blocks[b].rows) + rows[r] * width;
    auto add = [&](int j, int columns) __attribute__((always_inline)) {
      Floats query[Q];
      for (int q = 0; q < Q; q++) query[q] = widen(queries + q * stride + low + j, columns);
      for (int r = 0; r < R; r++) {
        Floats x = widen(row[r] + j, columns);
        for (int q = 0; q < Q; q++) {
          Floats one = apart ? x - query[q] : x, other = apart ? one : query[q];
          sums[q][r] = multiply_add(one, other, sums[q][r]);
        }
      }
    };
    int j = 0;
    for (; j + kFloats <= width; j += kFloats) add(j, kFloats);
    if (j < width) add(j, width - j);
  }
  for (int q = 0; q < Q; q++)
    for (int r = 0; r < R; r++) result[q * next + r] = sum_lanes(sums[q][r]);
}

template <class T>
MATRYO_INLINE void prefetch_row(const Block* blocks, int count, int64_t row) {
  for (int b = 0; b < count; b++) {
    int64_t bytes = static_cast<int64_t>(sizeof(T)) * (blocks[b].high - blocks[b].low);
    const char* start = static_cast<const char*>(blocks[b].rows) + row * bytes;
    for (int64_t at = 0; at < bytes; at += 64) prefetch(start + at);
  }
}

// Prefetches the rows that are `ahead` places later, unless that is 0. Processors do so by themselves for one block, but
// not for several in turns.
template <class T, int R, int Q, bool apart>
inline void multiply_rows(const Block* blocks, int count, const int64_t* rows, int64_t n, const float* queries,
                          int64_t stride, float* result, int64_t next, int64_t ahead) {
  int64_t i = 0;
  for (; i + R <= n; i += R) {
    if (ahead > 0 && i + ahead + R <= n)
      for (int r = 0; r < R; r++) prefetch_row<T>(blocks, count, rows[i + ahead + r]);
    multiply<T, R, Q, apart>(blocks, count, rows + i, queries, stride, result + i, next);
  }
  for (; i < n; i++) multiply<T, 1, Q, apart>(blocks, count, rows + i, queries, stride, result + i, next);
}

template <class T, bool apart>
inline void multiply_all(const Block* blocks, int count, const int64_t* rows, int64_t n, const float* queries,
                         int64_t stride, int64_t query_count, float* result, int64_t next) {
  int64_t q = 0, ahead = 1 + kAhead / static_cast<int64_t>(sizeof(T) * blocks[count - 1].high);
  for (; q + kQueryGroup <= query_count; q += kQueryGroup, ahead = 0)
    multiply_rows<T, kRowGroup, kQueryGroup, apart>(blocks, count, rows, n, queries + q * stride, stride,
                                                    result + q * next, next, ahead);
  for (; q < query_count; q++, ahead = 0)
    multiply_rows<T, kAlone, 1, apart>(blocks, count, rows, n, queries + q * stride, stride, result + q * next, next,
                                       ahead);
}

// What a scan compares: queries at a dim, in full precision or in int8.
struct Scan {
  const Vectors& vectors;
  int level;
  bool coded;             // reads the int8 copies
  const float* queries;   // [count, stride]; for int8, each column times the unit of its block
  int64_t stride, count;
  const float* lengths;   // [count]: norms of the queries at the dim
  Mask mask;
  const int64_t* among;   // if not null, only these rows are scanned, in increasing order
  int64_t among_count;

  MATRYO_INLINE int dim() const { return static_cast<int>(vectors.dims[level]); }
  // L2 in full precision is summed as squared differences, which lose less.
  MATRYO_INLINE bool apart() const { return vectors.metric == Metric::l2 && !coded; }

  // Sums of some queries with some rows, [queries, next].
  void sums(const int64_t* rows, int64_t n, int64_t first, int64_t some, float* result, int64_t next) const {
    const float* from = queries + first * stride;
    if (coded)
      multiply_all<int8_t, false>(vectors.codes, level + 1, rows, n, from, stride, some, result, next);
    else if (vectors.number == Number::float32 && apart())
      multiply_all<float, true>(vectors.blocks, level + 1, rows, n, from, stride, some, result, next);
    else if (vectors.number == Number::float32)
      multiply_all<float, false>(vectors.blocks, level + 1, rows, n, from, stride, some, result, next);
    else if (apart())
      multiply_all<uint16_t, true>(vectors.blocks, level + 1, rows, n, from, stride, some, result, next);
    else
      multiply_all<uint16_t, false>(vectors.blocks, level + 1, rows, n, from, stride, some, result, next);
  }

  // Turn the sums of one query into ceilings.
  void ceilings(float* sums, const float* norms, int64_t n, float length) const {
    constexpr float tiny = 0x1p-126f, flushed = 0x1p-126f, small = 0x1p-90f;
    float columns = static_cast<float>(dim()), error = (columns + 32) * 0x1p-23f;
    if (apart()) {
      for (int64_t i = 0; i < n; i++) sums[i] = sums[i] * (error - 1) + columns * flushed;
    } else if (vectors.metric == Metric::cosine) {
      // Below `small`, underflow may exceed the rounding errors: 3 is more than any cosine.
      float unit = 1 / (length > tiny ? length : tiny), more = error + (length > 0 && length < small ? 3.0f : 0.0f);
      for (int64_t i = 0; i < n; i++) {
        float norm = norms[i], extra = ((norm > 0) & (norm < small)) ? 3.0f : 0.0f;
        sums[i] = sums[i] * (1 / (norm > tiny ? norm : tiny)) * unit + (more + extra);
      }
    } else if (vectors.metric == Metric::ip) {
      for (int64_t i = 0; i < n; i++) sums[i] += error * norms[i] * length + columns * flushed;
    } else {
      float other = length * length * (1 - error) - 4 * columns * flushed;
      for (int64_t i = 0; i < n; i++) sums[i] = 2 * sums[i] - norms[i] * norms[i] * (1 - error) - other;
    }
  }
};

// Calls `take(query, rows, ceilings, n)` for chunks of allowed rows, in increasing order.
template <class Take>
inline void scan_chunks(const Scan& scan, int64_t first, int64_t some, Take take) {
  const Vectors& vectors = scan.vectors;
  int64_t bytes = (scan.coded ? 1 : vectors.number == Number::float16 ? 2 : 4) * scan.dim();
  int64_t most = kChunkBytes / bytes < 64 ? 64 : (kChunkBytes / bytes > 2048 ? 2048 : kChunkBytes / bytes / 8 * 8);
  Buffer<int64_t> rows(most);
  Buffer<float> norms(most), sums(most * some);
  int64_t end = scan.among == nullptr ? vectors.count : scan.among_count;
  for (int64_t next = 0; next < end;) {
    int64_t n = 0;
    if (scan.among == nullptr) {
      for (; n < most && next < end; next++)
        if (scan.mask == nullptr || scan.mask[next]) rows[n++] = next;
    } else {   // far apart in memory: the reads of a chunk overlap
      for (; n < most && next < end; next++) {
        rows[n++] = scan.among[next];
        prefetch_row(vectors, vectors.blocks, scan.among[next], 0, scan.level);
      }
    }
    if (n == 0) break;
    for (int64_t i = 0; i < n; i++) norms[i] = vectors.norms[rows[i] * vectors.levels + scan.level];
    scan.sums(rows.data(), n, first, some, sums.data(), most);
    for (int64_t q = 0; q < some; q++) {
      float* mine = sums.data() + q * most;
      scan.ceilings(mine, norms.data(), n, scan.lengths[first + q]);
      take(q, rows.data(), mine, n);
    }
  }
}

// The queries to scan at a time, so that the buffers of their best rows stay small.
MATRYO_INLINE int64_t queries_at_a_time(int64_t keep) {
  int64_t most = (32 << 20) / (8 * Best::room(keep));
  return most > 256 ? 256 : (most < kQueryGroup ? kQueryGroup : most);
}

// Put the rows with the `keep` highest ceilings of each of some queries, best first, into `best`.
inline void scan_best(const Scan& scan, int64_t first, int64_t some, Best* best) {
  scan_chunks(scan, first, some, [&](int64_t q, const int64_t* rows, const float* ceilings, int64_t n) {
    Best& mine = best[q];
    int64_t i = 0;
    for (; i + kFloats <= n; i += kFloats) {
      uint32_t lanes = above(load<Floats>(ceilings + i), broadcast(mine.bar));
      while (lanes) {
        int lane = take_lowest(lanes);
        if (ceilings[i + lane] > mine.bar) mine.add(ceilings[i + lane], rows[i + lane]);
      }
    }
    for (; i < n; i++)
      if (ceilings[i] > mine.bar) mine.add(ceilings[i], rows[i]);
  });
  for (int64_t q = 0; q < some; q++) best[q].finish();
}

// A first stage: the rows with the `wanted` highest ceilings, [count, wanted]; −1 where there are fewer.
inline void choose(const Scan& scan, int64_t wanted, int64_t* rows) {
  int64_t step = queries_at_a_time(wanted), room = Best::room(wanted);
  Buffer<Key> keys(room * (step < scan.count ? step : scan.count));
  Buffer<Best> best(step);
  for (int64_t first = 0; first < scan.count; first += step) {
    int64_t some = scan.count - first < step ? scan.count - first : step;
    for (int64_t q = 0; q < some; q++) best[q] = Best{keys.data() + q * room, wanted};
    scan_best(scan, first, some, best.data());
    for (int64_t q = 0; q < some; q++)
      for (int64_t i = 0; i < wanted; i++)
        rows[(first + q) * wanted + i] = i < best[q].count ? row_of(best[q].keys[i]) : -1;
  }
}

// Score every row exactly whose ceiling reaches the k-th best exact score.
inline void rescan(const Scan& scan, int64_t query, const ExactScore& score, Ranked* found, const Hits& hits) {
  int64_t count = 0, room = 2 * hits.k + 64;
  double bar = hits.scores[hits.k - 1];   // of rows that are found again
  scan_chunks(scan, query, 1, [&](int64_t, const int64_t* rows, const float* ceilings, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
      if (ceilings[i] < bar) continue;
      Ranked one{score(rows[i]), rows[i]};
      if (one.score < bar) continue;
      found[count++] = one;
      if (count == room) {
        select_largest(found, count, hits.k);
        count = hits.k;
        bar = found[hits.k - 1].score;
      }
    }
  });
  write_hits(found, count, hits);
}

// Exact search: the best k of all allowed rows. `exactly` [count, columns] has the queries in float64.
inline void search_exact(const Scan& scan, int64_t allowed, const double* exactly, int64_t k, int64_t* rows,
                         double* scores) {
  int64_t wanted = k + kMore < allowed ? k + kMore : allowed, step = queries_at_a_time(wanted);
  int64_t room = Best::room(wanted), columns = scan.vectors.dims[scan.vectors.levels - 1];
  Buffer<Key> keys(room * (step < scan.count ? step : scan.count));
  Buffer<Best> best(step);
  Buffer<Ranked> found(2 * k + 64 > wanted ? 2 * k + 64 : wanted);
  for (int64_t first = 0; first < scan.count; first += step) {
    int64_t some = scan.count - first < step ? scan.count - first : step;
    for (int64_t q = 0; q < some; q++) best[q] = Best{keys.data() + q * room, wanted};
    if (wanted > 0) scan_best(scan, first, some, best.data());
    for (int64_t q = 0; q < some; q++) {
      ExactScore score(scan.vectors, scan.level, exactly + (first + q) * columns);
      Hits hits{rows + (first + q) * k, scores + (first + q) * k, k};
      for (int64_t i = 0; i < best[q].count; i++) {
        if (i + 4 < best[q].count) score.prefetch_row(row_of(best[q].keys[i + 4]));
        int64_t row = row_of(best[q].keys[i]);
        found[i] = Ranked{score(row), row};
      }
      float ceiling = best[q].count > 0 ? score_of(best[q].keys[best[q].count - 1]) : -INFINITY;
      write_hits(found.data(), best[q].count, hits);
      // Other rows may be among the best: their ceilings are at most this one, which is not below the k-th best.
      if (wanted < allowed && !(ceiling < hits.scores[k - 1])) rescan(scan, first + q, score, found.data(), hits);
    }
  }
}

// Exact scores of each query's own rows, [count, n]; −∞ for rows that do not exist.
inline void exact_scores(const Vectors& vectors, int level, const double* queries, int64_t count, const int64_t* rows,
                         int64_t n, double* scores) {
  int64_t columns = vectors.dims[vectors.levels - 1];
  for (int64_t q = 0; q < count; q++) {
    ExactScore score(vectors, level, queries + q * columns);
    const int64_t* mine = rows + q * n;
    for (int64_t i = 0; i < n; i++) {
      if (i + 4 < n && mine[i + 4] >= 0 && mine[i + 4] < vectors.count) score.prefetch_row(mine[i + 4]);
      bool exists = mine[i] >= 0 && mine[i] < vectors.count;
      scores[q * n + i] = exists ? score(mine[i]) : -INFINITY;
    }
  }
}

// Re-ranking: add the inner products over one block to the sums of each query's own rows, [count, n].
template <class T>
inline void add_products_at(const Block& block, const float* queries, int64_t stride, int64_t count,
                            const int64_t* rows, int64_t n, float* sums) {
  Block alone{block.rows, 0, block.high - block.low, 1};
  float made[kAlone];
  for (int64_t q = 0; q < count; q++) {
    const int64_t* mine = rows + q * n;
    float* total = sums + q * n;
    int64_t i = 0;
    for (; i + kAlone <= n; i += kAlone) {
      multiply<T, kAlone, 1, false>(&alone, 1, mine + i, queries + q * stride, stride, made, kAlone);
      for (int j = 0; j < kAlone; j++) total[i + j] += made[j];
    }
    for (; i < n; i++) {
      multiply<T, 1, 1, false>(&alone, 1, mine + i, queries + q * stride, stride, made, 1);
      total[i] += made[0];
    }
  }
}

}   // namespace matryo::MATRYO_ISA
