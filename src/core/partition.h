// Search of partitions (IVF): the nearest partitions, their tiles, and every later stage of a plan, in one call.
//
//   1. visit    the means of all partitions are scored by their codes; the best are visited, within a budget of rows
//               that shrinks as the means fall behind the best one
//   2. scan     the tiles of each visited partition; the best `keep` slots are the candidates
//   3. re-rank  the candidates by the later steps of the plan, and the best k by exact scores (rerank.h)
//
// Tiles hold 4-bit codes of the rows, which are rotated first if the partition has axes. A row may be in two partitions.
// Its copy is skipped where its home is visited too, so that no slot is a candidate twice.
//
// Rows that joined the partitions after these were built are in a tail. Each partition has its tiles of the tail beside
// its own; the vectors and the 8-bit codes of the rows are in several parts.
//
// Queries of a batch are scanned partition by partition: a tile is read once for all queries that visit it. The
// candidates do not depend on the order of the scan, so a batch has the hits of its queries searched one by one.
#pragma once

#include "rerank.h"

namespace matryo::MATRYO_ISA {

class PartitionSearch : Reranker {
 public:
  PartitionSearch(const Vectors& vectors, const Partition& partition, const Tail* tail, const Route& route, Mask mask,
                  PartitionWork& work)
      : Reranker(vectors, partition, tail, route, work), mask_(mask) {}

  // Search some queries [count, columns]. Returns −1, or the number of the first query that has no score.
  int64_t search(const float* queries, int64_t count, int64_t* rows, double* scores) {
    int64_t k = route_.k;
    for (int64_t first = 0; first < count; first += kBatch) {
      int some = count - first < kBatch ? static_cast<int>(count - first) : kBatch;
      for (int q = 0; q < some; q++)
        if (!work_.queries[q].prepare(queries + (first + q) * columns_, vectors_)) return first + q;
      begin(some);
      find_lists(some);
      if (some == 1)
        scan_alone(work_.queries[0]);
      else
        scan_together(some);
      for (int q = 0; q < some; q++) complete(work_.queries[q]);
      settle(work_.queries[0]);
      for (int q = 0; q < some; q++) {
        if (q + 1 < some) settle(work_.queries[q + 1]);   // what it will read arrives while this query is re-ranked
        int64_t at = first + q;
        Hits hits{rows + at * k, scores + at * k, k};
        if (route_.step_count == 1)
          write_candidates(work_.queries[q], hits);
        else
          rerank(work_.queries[q], queries + at * columns_, hits);
      }
    }
    return -1;
  }

  // The score of every mean [lists], and how many scales it is below 0, for the planner. False if there is no score.
  bool score_lists(const float* given, float* scores) {
    PartitionQuery* query = work_.queries;
    if (!query->prepare(given, vectors_)) return false;
    begin(1);
    score_means<1>(&query);
    for (int64_t list = 0; list < part_.lists; list++) scores[list] = work_.means[list] * query->unit;
    return true;
  }

 private:
  // Rotate and encode the first `count` queries, which are prepared.
  void begin(int count) {
    if (part_.axes != nullptr) {
      int q = 0;
      for (; q + kTurned <= count; q += kTurned) turn<kTurned>(work_.queries + q);
      for (; q < count; q++) turn<1>(work_.queries + q);
    }
    for (int q = 0; q < count; q++) begin(work_.queries[q]);
  }

  void begin(PartitionQuery& query) {
    const float* turned = part_.axes == nullptr ? query.vector.data() : query.turned.data();
    double square = 0, factor = 1;
    for (int j = 0; j < part_.dim; j++) square += static_cast<double>(turned[j]) * turned[j];
    double length = __builtin_sqrt(square);
    if (vectors_.metric == Metric::l2) factor = 2;
    if (vectors_.metric == Metric::cosine) factor = length > 0 ? 1 / length : 0;
    query.look = encode<Layout::tile>(turned, part_.tile_steps, part_.tile_lows, 0, part_.dim, 0, query.codes,
                                      8 * part_.eights, factor, tile_unit(turned, part_.tile_steps, part_.dim));
    query.wide = query.codes.wide(part_.eights);
    // The scale of inner products is that of queries of norm 1.
    query.unit = 1 / route_.scale;
    if (vectors_.metric == Metric::ip) {
      query.length = static_cast<float>(query.lengths.data()[vectors_.levels - 1]);
      query.unit /= at_least_tiny(query.length);
      query.look.shift += part_.spread * query.length;
    }
    query.keys.reserve(room());
    query.found = 0;
    query.bar = -INFINITY;
    query.visits = 0;
  }

  // Rotate Q queries to the coordinates of the tiles: each coordinate is summed over the columns in order.
  template <int Q>
  void turn(PartitionQuery* queries) const {
    constexpr int P = kTurnedParts;
    int dim = part_.dim, j = 0;
    for (int q = 0; q < Q; q++) queries[q].turned.reserve(dim);
    for (; j + P * kFloats <= dim; j += P * kFloats) turn<Q, P>(queries, j, kFloats);
    for (; j < dim; j += kFloats) turn<Q, 1>(queries, j, dim - j < kFloats ? dim - j : kFloats);
  }

  // P vectors of coordinates from the `first` on, each of `some` coordinates.
  template <int Q, int P>
  MATRYO_INLINE void turn(PartitionQuery* queries, int first, int some) const {
    Floats sums[Q][P] = {};
    const float *vectors[Q], *axes = part_.axes + first;
    for (int q = 0; q < Q; q++) vectors[q] = queries[q].vector.data();
    for (int64_t i = 0; i < columns_; i++, axes += part_.dim) {
      Floats axis[P];
      for (int p = 0; p < P; p++) axis[p] = P == 1 ? widen(axes, some) : load<Floats>(axes + p * kFloats);
      for (int q = 0; q < Q; q++)
        for (int p = 0; p < P; p++) sums[q][p] = multiply_add(broadcast(vectors[q][i]), axis[p], sums[q][p]);
    }
    for (int q = 0; q < Q; q++)
      for (int p = 0; p < P; p++)
        std::memcpy(queries[q].turned.data() + first + p * kFloats, &sums[q][p],
                    sizeof(float) * static_cast<size_t>(some));
  }

  // ── visit ─────────────────────────────────────────────────────────────────────────────────────────────────────────

  MATRYO_INLINE int64_t first_tile(int64_t list) const { return part_.bounds[2 * list]; }
  MATRYO_INLINE int64_t places_in(int64_t list) const { return part_.bounds[2 * list + 1]; }
  MATRYO_INLINE int64_t tiles_in(int64_t list) const { return (places_in(list) + kTileRows - 1) / kTileRows; }

  // The scores of all means for Q queries, [Q, means].
  template <int Q>
  void score_means(PartitionQuery* const* queries) {
    int64_t count = part_.mean_tiles * kTileRows;
    float* means = work_.means.reserve(kSharing * count);
    for (int64_t tile = 0; tile < part_.mean_tiles; tile++) {
      Floats scores[1][Q][kTileParts];
      score_tiles<Q>(part_.means + tile * tile_bytes(), part_.means_adjust + tile * kTileRows, queries, scores);
      for (int q = 0; q < Q; q++) {
        for (int p = 0; p < kTileParts; p++) {
          int64_t place = tile * kTileRows + p * kFloats;
          if (part_.reach != nullptr)
            scores[0][q][p] += load<Floats>(part_.reach + place) * broadcast(queries[q]->length);
          store(means + q * count + place, scores[0][q][p]);
        }
      }
    }
  }

  // The partitions that each of the first `count` queries visits, best first.
  void find_lists(int count) {
    for (int q = 0; q < count; q += kSharing) {
      PartitionQuery* queries[kSharing];
      for (int i = 0; i < kSharing; i++) queries[i] = work_.queries + (q + i < count ? q + i : q);
      if (route_.budget >= 0) {
        if (count == 1)
          score_means<1>(queries);
        else
          score_means<kSharing>(queries);
      }
      for (int i = 0; i < kSharing && q + i < count; i++) {
        if (route_.budget >= 0)
          choose_lists(*queries[i], work_.means.data() + i * part_.mean_tiles * kTileRows);
        else
          choose_all(*queries[i]);
        mark_lists(*queries[i]);
      }
    }
  }

  // A bar below the `keep`-th best of the means: that of the best scores of disjoint groups of means.
  float safe_bar(const float* means, int64_t keep) const {
    constexpr int kGroups = 128;
    if (4 * keep > 3 * kGroups || part_.lists < 4 * kGroups) return -INFINITY;
    Floats best[kGroups / kFloats];
    for (Floats& some : best) some = broadcast(-INFINITY);
    for (int64_t place = 0; place + kGroups <= part_.lists; place += kGroups)
      for (int g = 0; g < kGroups / kFloats; g++) {
        Floats scores = load<Floats>(means + place + g * kFloats);
        best[g] = scores > best[g] ? scores : best[g];
      }
    float scores[kGroups];
    std::memcpy(scores, best, sizeof(scores));
    Key keys[kGroups];
    for (int g = 0; g < kGroups; g++) keys[g] = key_of(scores[g], 0);
    select_largest(keys, kGroups, keep);
    if (!(score_of(keys[keep - 1]) > -INFINITY)) return -INFINITY;   // only if the file is damaged
    return score_of(keys[keep - 1] - (Key{1} << 32));                // one step lower: only scores above it are added
  }

  void choose_lists(PartitionQuery& query, const float* means) const {
    Best best{query.lists.reserve(Best::room(route_.most_lists)), route_.most_lists};
    best.bar = safe_bar(means, best.keep);
    for (int64_t place = 0; place < part_.mean_tiles * kTileRows; place += kFloats) {
      Floats scores = load<Floats>(means + place);
      uint32_t lanes = above(scores, broadcast(best.bar));
      while (lanes) {
        int lane = take_lowest(lanes);
        if (place + lane < part_.lists) best.add(scores[lane], place + lane);   // not only if the file is damaged
      }
    }
    int64_t count = best.finish(), places = 0, i = 0;
    float top = count > 0 ? score_of(query.lists[0]) : 0;
    for (; i < count; i++) {
      double gap = static_cast<double>(top - score_of(query.lists[i])) * query.unit;
      if (places >= kPlacesPerHit * route_.k && static_cast<double>(places) >= route_.budget * __builtin_exp(-gap))
        break;
      places += places_in(row_of(query.lists[i]));
    }
    query.visits = i;
  }

  void choose_all(PartitionQuery& query) const {
    query.lists.reserve(part_.lists);
    for (int64_t list = 0; list < part_.lists; list++) query.lists[list] = key_of(0, list);
    query.visits = part_.lists;
  }

  void mark_lists(PartitionQuery& query) const {
    if (part_.homes == nullptr) return;
    int64_t words = part_.lists / 64 + 1;
    query.open.reserve(words);
    for (int64_t i = 0; i < words; i++) query.open[i] = 0;
    for (int64_t i = 0; i < query.visits; i++) {
      int64_t list = row_of(query.lists[i]);
      query.open[list / 64] |= uint64_t{1} << (list % 64);
    }
  }

  MATRYO_INLINE bool visits(const PartitionQuery& query, int64_t list) const {
    int64_t known = list < part_.lists ? list : 0;   // not if the file is damaged
    return (query.open.data()[known / 64] >> (known % 64) & 1) != 0;
  }

  // A query that found fewer than k rows, of those that it may find, visits all partitions.
  void complete(PartitionQuery& query) {
    if (query.found >= route_.k || query.visits == part_.lists) return;
    query.found = 0;
    query.bar = -INFINITY;
    choose_all(query);
    mark_lists(query);
    scan_alone(query);
  }

  // ── scan ──────────────────────────────────────────────────────────────────────────────────────────────────────────

  MATRYO_INLINE int64_t tile_bytes() const { return static_cast<int64_t>(part_.eights) * 4 * kTileRows; }

  // The scores of the rows of T tiles, one after another, for Q queries, [T][Q][16]. NaN marks an empty place.
  template <int Q, int T = 1>
  MATRYO_INLINE void score_tiles(const uint8_t* tiles, const float* adjust, PartitionQuery* const* queries,
                                 Floats (*scores)[Q][kTileParts]) const {
    const QueryCodes* codes[Q];
    int wide = 0;
    for (int q = 0; q < Q; q++) {
      codes[q] = &queries[q]->codes;
      wide = queries[q]->wide > wide ? queries[q]->wide : wide;
    }
    TileSums sums[T][Q];
    multiply_nibbles<Q, T>(tiles, part_.eights, wide, codes, sums);
    for (int t = 0; t < T; t++) {
      for (int q = 0; q < Q; q++) {
        for (int p = 0; p < kTileParts; p++) {
          Floats score = to_floats(sums[t][q].part[p]) * broadcast(queries[q]->look.scale);
          score += broadcast(queries[q]->look.shift);
          Floats other = load<Floats>(adjust + t * kTileRows + p * kFloats);
          scores[t][q][p] = vectors_.metric == Metric::l2 ? score + other : score * other;
        }
      }
    }
  }

  // Add the rows of a tile that score above the bar to the candidates of a query.
  MATRYO_INLINE void collect(PartitionQuery& query, int64_t list, int64_t tile, const Floats* scores) {
    for (int p = 0; p < kTileParts; p++) {
      uint32_t lanes = above(scores[p], broadcast(query.bar));
      while (lanes) {
        int lane = take_lowest(lanes);
        uint32_t slot = part_.slots[tile * kTileRows + p * kFloats + lane];
        if (slot >= part_.count) continue;
        if (mask_ != nullptr && !mask_[route_.by_slot ? slot : part_.rows[slot]]) continue;
        add(query, scores[p][lane], slot, part_.homes == nullptr ? list : part_.homes[slot], list);
      }
    }
  }

  // Add the rows of a tile of the tail. Another thread may be filling the tile: its slots are not in `count` yet.
  MATRYO_INLINE void collect(PartitionQuery& query, int64_t list, const TailTile& tile, const Floats* scores) {
    for (int p = 0; p < kTileParts; p++) {
      uint32_t lanes = above(scores[p], broadcast(query.bar));
      while (lanes) {
        int place = p * kFloats + take_lowest(lanes);
        uint32_t slot = __atomic_load_n(&tile.slots[place], __ATOMIC_ACQUIRE);
        if (slot >= part_.count + tail_->count) continue;
        if (mask_ != nullptr && !mask_[slot < part_.count && !route_.by_slot ? part_.rows[slot] : slot]) continue;
        add(query, scores[p][place - p * kFloats], slot, part_.homes == nullptr ? list : tile.homes[place], list);
      }
    }
  }

  // Add a slot that was found in `list` to the candidates. A copy is left out, without a branch that could not be
  // predicted, if its home is visited too.
  MATRYO_INLINE void add(PartitionQuery& query, float score, uint32_t slot, int64_t home, int64_t list) {
    query.keys[query.found] = key_of(score, slot);
    query.found += home == list || !visits(query, home);
    if (query.found < room()) return;
    Key lowest = lowest_kept(query.keys.data(), query.found, keep_, route_.steps[0].margin);
    // One step lower: slots that tie with the last one kept may have smaller numbers.
    query.bar = score_of(lowest - (Key{1} << 32));
    query.found = keep_;
  }

  // Null if there is no tail, or nothing in it of this partition.
  MATRYO_INLINE const TailTile* newest_tile(int64_t list) const {
    return tail_ == nullptr ? nullptr : __atomic_load_n(&tail_->newest[list], __ATOMIC_ACQUIRE);
  }

  MATRYO_INLINE void prefetch_tile(const TailTile* tile) const {
    if (tile == nullptr) return;
    int64_t size = static_cast<int64_t>(sizeof(TailTile)) + tile_bytes();
    for (int64_t at = 0; at < size; at += kLine) prefetch(reinterpret_cast<const char*>(tile) + at);
  }

  // Prefetch the newest tile of the tail of a partition that is scanned later, and the others of the next partition.
  MATRYO_INLINE void prefetch_tail(const PartitionQuery& query, int64_t i) const {
    if (i + 2 < query.visits) prefetch_tile(newest_tile(row_of(query.lists[i + 2])));
    const TailTile* next = i + 1 < query.visits ? newest_tile(row_of(query.lists[i + 1])) : nullptr;
    for (int j = 0; next != nullptr && j < kTilesBefore && next->before[j] != nullptr; j++)
      prefetch_tile(next->before[j]);
  }

  // The tiles of a partition that are scanned in their place: without the last one, if the tail has a copy of it.
  MATRYO_INLINE int64_t tiles_beside(int64_t list, const TailTile* tail) const {
    return tiles_in(list) - (tail != nullptr && places_in(list) % kTileRows != 0 ? 1 : 0);
  }

  // Scan the tiles of the tail of a partition for several queries.
  template <int Q>
  MATRYO_INLINE void scan_tail(PartitionQuery* const* queries, int64_t list, const TailTile* tile) {
    for (; tile != nullptr; tile = tile->before[0]) {
      Floats scores[1][Q][kTileParts];
      score_tiles<Q>(tile->codes(), tile->adjust, queries, scores);
      for (int q = 0; q < Q; q++) collect(*queries[q], list, *tile, scores[0][q]);
    }
  }

  // Scan the visited partitions of one query.
  void scan_alone(PartitionQuery& query) {
    int64_t size = tile_bytes();
    PartitionQuery* alone = &query;
    for (int64_t i = 0; tail_ != nullptr && i < 2 && i < query.visits; i++)
      prefetch_tile(newest_tile(row_of(query.lists[i])));
    for (int64_t i = 0; i < query.visits; i++) {
      int64_t list = row_of(query.lists[i]), next = i + 1 < query.visits ? row_of(query.lists[i + 1]) : list;
      const TailTile* tail = newest_tile(list);
      int64_t first = first_tile(list), last = first + tiles_beside(list, tail), after = first_tile(next);
      if (tail_ != nullptr) prefetch_tail(query, i);
      auto fetch = [&](int64_t tile) __attribute__((always_inline)) {
        int64_t coming = tile + kTilesAhead;
        if (coming >= last) coming += after - last;
        for (int64_t at = 0; at < size; at += kLine) prefetch(part_.codes_of_tiles + coming * size + at);
      };
      int64_t tile = first;
      for (; tile + 2 <= last; tile += 2) {   // two at a time share what is loaded of the query
        fetch(tile);
        fetch(tile + 1);
        Floats scores[2][1][kTileParts];
        score_tiles<1, 2>(part_.codes_of_tiles + tile * size, part_.adjust + tile * kTileRows, &alone, scores);
        for (int t = 0; t < 2; t++) collect(query, list, tile + t, scores[t][0]);
      }
      if (tile < last) {
        fetch(tile);
        Floats scores[1][1][kTileParts];
        score_tiles<1>(part_.codes_of_tiles + tile * size, part_.adjust + tile * kTileRows, &alone, scores);
        collect(query, list, tile, scores[0][0]);
      }
      scan_tail<1>(&alone, list, tail);
    }
  }

  // Scan a partition for several queries.
  template <int Q>
  void scan_shared(PartitionQuery* const* queries, int64_t list) {
    const TailTile* tail = newest_tile(list);
    int64_t size = tile_bytes(), first = first_tile(list), last = first + tiles_beside(list, tail);
    for (int64_t tile = first; tile < last; tile++) {
      const uint8_t* codes = part_.codes_of_tiles + tile * size;
      for (int64_t at = 0; at < size; at += kLine) prefetch(codes + kTilesAhead * size + at);
      Floats scores[1][Q][kTileParts];
      score_tiles<Q>(codes, part_.adjust + tile * kTileRows, queries, scores);
      for (int q = 0; q < Q; q++) collect(*queries[q], list, tile, scores[0][q]);
    }
    scan_tail<Q>(queries, list, tail);
  }

  void scan_shared(PartitionQuery* const* queries, int64_t count, int64_t list) {
    for (; count >= kSharing; count -= kSharing, queries += kSharing) scan_shared<kSharing>(queries, list);
    if (count == 3) scan_shared<3>(queries, list);
    if (count == 2) scan_shared<2>(queries, list);
    if (count == 1) scan_shared<1>(queries, list);
  }

  // Scan partition by partition, each for all queries that visit it. The nearest partitions of each query come before all
  // others: they raise the bars, so that fewer rows of the others become candidates.
  void scan_together(int count) {
    scan_together(count, 0, kNearest);
    scan_together(count, kNearest, part_.lists);
  }

  // Scan the visited partitions from the `first` nearest on, up to `last`.
  void scan_together(int count, int64_t first, int64_t last) {
    PartitionQuery* queries[kBatch];
    int64_t* starts = work_.starts.reserve(part_.lists + 1);
    int64_t visits = 0;
    for (int64_t list = 0; list <= part_.lists; list++) starts[list] = 0;
    auto each_visit = [&](auto take) {
      for (int q = count - 1; q >= 0; q--) {
        const PartitionQuery& query = work_.queries[q];
        for (int64_t i = first; i < last && i < query.visits; i++) take(q, row_of(query.lists[i]));
      }
    };
    each_visit([&](int, int64_t list) { starts[list]++, visits++; });
    int64_t* visitors = work_.visitors.reserve(visits);   // the queries of each partition, one partition after another
    for (int64_t list = 0, end = 0; list <= part_.lists; list++) starts[list] = end += starts[list];
    each_visit([&](int q, int64_t list) { visitors[--starts[list]] = q; });
    for (int64_t list = 0; list < part_.lists; list++) {
      int64_t many = starts[list + 1] - starts[list];
      for (int64_t i = 0; i < many; i++) queries[i] = work_.queries + visitors[starts[list] + i];
      scan_shared(queries, many, list);
    }
  }

  Mask mask_;
};

}   // namespace matryo::MATRYO_ISA
