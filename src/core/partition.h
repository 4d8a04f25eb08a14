// Search of partitions (IVF): the nearest partitions, their tiles, and every later stage of a plan, in one call.
//
//   1. visit    the means of all partitions are scored by their codes; those within a gap of the best are visited
//   2. scan     the tiles of each visited partition; the best `keep` places are the candidates
//   3. re-rank  the candidates by the later steps of the plan, and the best k by exact scores (rerank.h)
//
// A place is 16 · tile + lane.
//
// Queries of a batch are scanned partition by partition: a tile is read once for all queries that visit it. The
// candidates do not depend on the order of the scan, so a batch has the hits of its queries searched one by one.
#pragma once

#include "rerank.h"

namespace matryo::MATRYO_ISA {

class PartitionSearch : Reranker {
 public:
  PartitionSearch(const Vectors& vectors, const Partition& partition, const Route& route, Mask mask,
                  PartitionWork& work)
      : Reranker(vectors, partition, route, work), mask_(mask) {}

  // Search some queries [count, columns]. Returns −1, or the number of the first query that has no score.
  int64_t search(const float* queries, int64_t count, int64_t* rows, double* scores) {
    int64_t k = route_.k;
    for (int64_t first = 0; first < count; first += kBatch) {
      int some = count - first < kBatch ? static_cast<int>(count - first) : kBatch;
      for (int q = 0; q < some; q++)
        if (!begin(work_.queries[q], queries + (first + q) * columns_)) return first + q;
      if (some == 1 || mask_ != nullptr)   // with a mask, how many partitions a query visits depends on what it finds
        for (int q = 0; q < some; q++) scan_alone(work_.queries[q]);
      else
        scan_together(some);
      settle(work_.queries[0]);
      for (int q = 0; q < some; q++) {
        if (q + 1 < some) settle(work_.queries[q + 1]);   // what it will read arrives while this query is re-ranked
        int64_t at = first + q;
        rerank(work_.queries[q], queries + at * columns_, Hits{rows + at * k, scores + at * k, k});
      }
    }
    return -1;
  }

 private:
  bool begin(PartitionQuery& query, const float* given) {
    if (!query.prepare(given, vectors_)) return false;
    double length = query.lengths[route_.steps[0].level], factor = 1;
    if (vectors_.metric == Metric::l2) factor = 2;
    if (vectors_.metric == Metric::cosine) factor = length > 0 ? 1 / length : 0;
    query.look = encode<Layout::tile>(query.vector.data(), 0, part_.dim, 0, query.codes, 4 * part_.fours, factor);
    query.gap = route_.gap * static_cast<float>(vectors_.metric == Metric::ip ? length : 1);
    query.keys.reserve(room());
    query.found = 0;
    query.bar = -INFINITY;
    query.visits = 0;
    return true;
  }

  // ── scan ──────────────────────────────────────────────────────────────────────────────────────────────────────────

  // The scores of the rows of a tile for Q queries, [Q][16]. NaN marks an empty place.
  template <int Q>
  MATRYO_INLINE void score_tile(const uint8_t* tile, const float* adjust, PartitionQuery* const* queries,
                                Floats (*scores)[kTileParts]) const {
    const QueryCodes* codes[Q];
    for (int q = 0; q < Q; q++) codes[q] = &queries[q]->codes;
    Floats sums[Q][kTileParts] = {};
    for (int first = 0; first < part_.fours; first += kExactColumns / 4) {
      int last = part_.fours - first < kExactColumns / 4 ? part_.fours : first + kExactColumns / 4;
      TileSums exact[Q];
      multiply_tile<Q>(tile, first, last, codes, exact);
      for (int q = 0; q < Q; q++)
        for (int p = 0; p < kTileParts; p++) sums[q][p] += to_floats(exact[q].part[p]);
    }
    for (int q = 0; q < Q; q++) {
      for (int p = 0; p < kTileParts; p++) {
        Floats score = sums[q][p] * broadcast(queries[q]->look.scale) + broadcast(queries[q]->look.shift);
        Floats other = load<Floats>(adjust + p * kFloats);
        scores[q][p] = vectors_.metric == Metric::cosine ? score * other : score + other;
      }
    }
  }

  MATRYO_INLINE int64_t tile_bytes() const { return static_cast<int64_t>(part_.fours) * 4 * kTileRows; }

  // Add the rows of a tile that score above the bar to the candidates of a query.
  MATRYO_INLINE void collect(PartitionQuery& query, int64_t tile, const Floats* scores) {
    for (int p = 0; p < kTileParts; p++) {
      uint32_t lanes = above(scores[p], broadcast(query.bar));
      while (lanes) {
        int lane = take_lowest(lanes);
        int64_t place = tile * kTileRows + p * kFloats + lane, row = part_.rows[place];
        if (row >= vectors_.count || (mask_ != nullptr && !mask_[row])) continue;
        query.keys[query.found++] = key_of(scores[p][lane], place);
        if (query.found == room()) {
          Key lowest = lowest_kept(query.keys.data(), query.found, keep_, route_.steps[0].margin);
          // One step lower: places that tie with the last one kept may have smaller numbers.
          query.bar = score_of(lowest - (Key{1} << 32));
          query.found = keep_;
        }
      }
    }
  }

  // Scan the tiles first … last for one query; `after` is the tile that will be scanned next.
  void scan_tiles(PartitionQuery& query, int64_t first, int64_t last, int64_t after) {
    int64_t size = tile_bytes();
    PartitionQuery* alone = &query;
    for (int64_t tile = first; tile < last; tile++) {
      int64_t coming = tile + kTilesAhead;
      if (coming >= last) coming += after - last;
      for (int64_t at = 0; at < size; at += kLine) prefetch(part_.codes_of_tiles + coming * size + at);
      Floats scores[1][kTileParts];
      score_tile<1>(part_.codes_of_tiles + tile * size, part_.adjust + tile * kTileRows, &alone, scores);
      collect(query, tile, scores[0]);
    }
  }

  // The scores of all means for Q queries, [Q, means].
  template <int Q>
  void score_means(PartitionQuery* const* queries) {
    int64_t count = part_.mean_tiles * kTileRows;
    float* means = work_.means.reserve(kSharing * count);
    for (int64_t tile = 0; tile < part_.mean_tiles; tile++) {
      Floats scores[Q][kTileParts];
      score_tile<Q>(part_.means + tile * tile_bytes(), part_.means_adjust + tile * kTileRows, queries, scores);
      for (int q = 0; q < Q; q++)
        for (int p = 0; p < kTileParts; p++) store(means + q * count + tile * kTileRows + p * kFloats, scores[q][p]);
    }
  }

  // The partitions whose means score at most `gap` below the best, best first. If they hold fewer than `keep` rows,
  // all partitions are listed, up to most_lists. `means` are the scores of all.
  void find_lists(PartitionQuery& query, const float* means, float gap) {
    float best = -INFINITY;
    for (int64_t i = 0; i < part_.lists; i++) best = means[i] > best ? means[i] : best;
    query.lists.reserve(part_.mean_tiles * kTileRows);
    while (true) {
      int64_t rows = 0;
      query.visits = 0;
      for (int64_t place = 0; place < part_.mean_tiles * kTileRows; place += kFloats) {
        uint32_t lanes = at_least(load<Floats>(means + place), broadcast(best - gap));
        while (lanes) {
          int64_t list = place + take_lowest(lanes);
          if (list >= part_.lists) continue;   // only if the file is damaged
          query.lists[query.visits++] = key_of(means[list], list);
          rows += part_.bounds[2 * list + 1];
        }
      }
      if (rows >= keep_ || gap == INFINITY) break;
      gap = INFINITY;
    }
    if (query.visits > route_.most_lists) {
      select_largest(query.lists.data(), query.visits, route_.most_lists);
      query.visits = route_.most_lists;
    }
    sort_descending(query.lists.data(), query.visits);
  }

  MATRYO_INLINE int64_t first_tile(Key list) const { return part_.bounds[2 * row_of(list)]; }
  MATRYO_INLINE int64_t rows_in(Key list) const { return part_.bounds[2 * row_of(list) + 1]; }
  MATRYO_INLINE int64_t tiles_in(Key list) const { return (rows_in(list) + kTileRows - 1) / kTileRows; }

  void scan_alone(PartitionQuery& query) {
    if (route_.wanted_rows < 0) {
      scan_tiles(query, 0, part_.tiles - 1, 0);
      return;
    }
    // With a mask, the number of near rows that may be found is unknown.
    PartitionQuery* alone = &query;
    score_means<1>(&alone);
    find_lists(query, work_.means.data(), mask_ != nullptr ? INFINITY : query.gap);
    if (query.visits == 0) return;
    float far = score_of(query.lists[0]) - query.gap;
    int64_t left = route_.wanted_rows;
    for (int64_t i = 0; i < query.visits && left > 0; i++) {
      Key list = query.lists[i];
      if (query.found >= keep_ && score_of(list) < far) break;
      int64_t first = first_tile(list), next = i + 1 < query.visits ? i + 1 : i;
      scan_tiles(query, first, first + tiles_in(list), first_tile(query.lists[next]));
      left -= rows_in(list);
    }
  }

  // Scan the tiles first … last for several queries.
  template <int Q>
  void scan_shared(PartitionQuery* const* queries, int64_t first, int64_t last) {
    int64_t size = tile_bytes();
    for (int64_t tile = first; tile < last; tile++) {
      const uint8_t* codes = part_.codes_of_tiles + tile * size;
      for (int64_t at = 0; at < size; at += kLine) prefetch(codes + kTilesAhead * size + at);
      Floats scores[Q][kTileParts];
      score_tile<Q>(codes, part_.adjust + tile * kTileRows, queries, scores);
      for (int q = 0; q < Q; q++) collect(*queries[q], tile, scores[q]);
    }
  }

  void scan_shared(PartitionQuery* const* queries, int64_t count, int64_t first, int64_t last) {
    for (; count >= kSharing; count -= kSharing, queries += kSharing) scan_shared<kSharing>(queries, first, last);
    if (count == 3) scan_shared<3>(queries, first, last);
    if (count == 2) scan_shared<2>(queries, first, last);
    if (count == 1) scan_shared<1>(queries, first, last);
  }

  // The partitions that scan_alone would visit, without a mask: then as many rows are found as were scanned.
  int64_t visited(const PartitionQuery& query) const {
    int64_t scanned = 0, i = 0;
    float far = query.visits > 0 ? score_of(query.lists.data()[0]) - query.gap : 0;
    for (; i < query.visits && scanned < route_.wanted_rows; i++) {
      if (scanned >= keep_ && score_of(query.lists.data()[i]) < far) break;
      scanned += rows_in(query.lists.data()[i]);
    }
    return i;
  }

  // Scan partition by partition, each for all queries that visit it.
  void scan_together(int count) {
    PartitionQuery* queries[kBatch];
    if (route_.wanted_rows < 0) {
      for (int q = 0; q < count; q++) queries[q] = work_.queries + q;
      scan_shared(queries, count, 0, part_.tiles - 1);
      return;
    }
    int64_t* starts = work_.starts.reserve(part_.lists + 1);
    int64_t visits = 0;
    for (int64_t list = 0; list <= part_.lists; list++) starts[list] = 0;
    for (int q = 0; q < count; q++) {
      PartitionQuery& query = work_.queries[q];
      int place = q % kSharing;
      if (place == 0) {
        for (int i = 0; i < kSharing; i++) queries[i] = work_.queries + (q + i < count ? q + i : q);
        score_means<kSharing>(queries);
      }
      find_lists(query, work_.means.data() + place * part_.mean_tiles * kTileRows, query.gap);
      query.visits = visited(query);
      visits += query.visits;
      for (int64_t i = 0; i < query.visits; i++) starts[row_of(query.lists[i])]++;
    }
    int64_t* visitors = work_.visitors.reserve(visits);   // the queries of each partition, one partition after another
    for (int64_t list = 0, end = 0; list <= part_.lists; list++) starts[list] = end += starts[list];
    for (int q = count - 1; q >= 0; q--)
      for (int64_t i = 0; i < work_.queries[q].visits; i++) visitors[--starts[row_of(work_.queries[q].lists[i])]] = q;
    for (int64_t list = 0; list < part_.lists; list++) {
      int64_t many = starts[list + 1] - starts[list], first = part_.bounds[2 * list];
      int64_t last = first + (part_.bounds[2 * list + 1] + kTileRows - 1) / kTileRows;
      for (int64_t i = 0; i < many; i++) queries[i] = work_.queries + visitors[starts[list] + i];
      scan_shared(queries, many, first, last);
    }
  }

  Mask mask_;
};

}   // namespace matryo::MATRYO_ISA
