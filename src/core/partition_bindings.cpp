// The Python classes of partitions: they check the arrays, and search.
#include "bindings.h"

namespace matryo {
namespace {

struct PyPartition {
  PyPartition(int dim, int coded, In<int64_t, 2> lists, In<uint32_t, 2> slots, In<uint8_t, 2> tiles,
              In<float, 2> adjust, In<uint8_t, 2> means, In<float, 2> means_adjust, In<float, 2> reach, float spread,
              In<float, 2> axes, In<float, 2> tile_columns, In<uint32_t, 1> rows, In<uint32_t, 1> homes,
              In<int8_t, 2> codes, In<float, 1> errors, In<float, 2> columns)
      : lists(lists),
        slots(slots),
        tiles(tiles),
        adjust(adjust),
        means(means),
        means_adjust(means_adjust),
        reach(reach),
        axes(axes),
        tile_columns(tile_columns),
        rows(rows),
        homes(homes),
        codes(codes),
        errors(errors),
        columns(columns) {
    int64_t count = rows_of(rows), tile_count = rows_of(tiles), eights = (dim + 7) / 8;
    auto tiled = [&](const auto& array, int64_t tiles) {
      return rows_of(array) == tiles && columns_of(array) == kTileRows;
    };
    require(dim > 0 && dim <= 8192 && coded > 0 && columns_of(tiles) == 4 * eights * kTileRows,
            "tiles must have the columns of the dim");
    require(count < kNoRow, "there must be fewer than 2^32 - 1 rows");
    require(tile_count > 0 && tiled(slots, tile_count) && tiled(adjust, tile_count),
            "slots and adjust must have one entry per row of the tiles");
    require(rows_of(codes) == count && columns_of(codes) >= coded && columns_of(codes) % 64 == 0,
            "codes must have one line per row, padded to whole cache lines");
    require(rows_of(errors) == count && (rows_of(homes) == count || rows_of(homes) == 0),
            "errors and homes must have one entry per row");
    require(columns_of(lists) == 2 && columns_of(means) == 4 * eights * kTileRows && rows_of(means) > 0 &&
                tiled(means_adjust, rows_of(means)) && (rows_of(means) - 1) * kTileRows >= rows_of(lists),
            "lists, means and means_adjust must have one entry per partition");
    require(rows_of(reach) == 0 || tiled(reach, rows_of(means)), "reach must have one entry per partition");
    require(rows_of(columns) == 2 && columns_of(columns) == coded && rows_of(tile_columns) == 2 &&
                columns_of(tile_columns) == dim && (rows_of(axes) == 0 || columns_of(axes) == dim),
            "columns, tile_columns and axes must have one entry per column");
    for (int64_t i = 0; i < rows_of(lists); i++) {
      int64_t first = lists.data()[2 * i], size = lists.data()[2 * i + 1];
      require(first >= 0 && first < tile_count && size >= 0 && size <= tile_count * kTileRows &&
                  first + (size + kTileRows - 1) / kTileRows < tile_count,
              "a partition must lie within the tiles");
    }
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; i++) largest = std::max(largest, rows.data()[i]);
    require(count == 0 || largest < count, "a row must exist");
    view = Partition{dim,
                     coded,
                     static_cast<int>(eights),
                     static_cast<int>(columns_of(codes)),
                     count,
                     rows_of(lists),
                     tile_count,
                     rows_of(means) - 1,
                     lists.data(),
                     slots.data(),
                     tiles.data(),
                     adjust.data(),
                     means.data(),
                     means_adjust.data(),
                     rows_of(reach) > 0 ? reach.data() : nullptr,
                     spread,
                     rows_of(axes) > 0 ? axes.data() : nullptr,
                     tile_columns.data(),
                     tile_columns.data() + dim,
                     rows.data(),
                     rows_of(homes) > 0 ? homes.data() : nullptr,
                     codes.data(),
                     errors.data(),
                     columns.data(),
                     columns.data() + coded};
  }

  // Encode the rows of other vectors from `first` on, as guides/partition/codes.py does: for a few rows, numpy takes
  // longer. `divided` gets the coordinates that are compared with the means.
  void encode(const PyVectors& vectors, int64_t first, Out<float, 2> divided, Out<uint8_t, 2> nibbles,
              Out<float, 1> adjust, Out<int8_t, 2> bytes, Out<float, 1> distances) const;

  Partition view;
  In<int64_t, 2> lists;
  In<uint32_t, 2> slots;
  In<uint8_t, 2> tiles;
  In<float, 2> adjust;
  In<uint8_t, 2> means;
  In<float, 2> means_adjust, reach, axes, tile_columns;
  In<uint32_t, 1> rows, homes;
  In<int8_t, 2> codes;
  In<float, 1> errors;
  In<float, 2> columns;
};

constexpr float kLeastNorm = 0x1p-126f;   // the smallest normal float32

float encoded(float value, float step, float zero, float lowest, float highest) {
  return std::clamp(std::nearbyint((value - zero) / step), lowest, highest);
}

float float_of_half(uint16_t bits) {   // of a finite number
  int exponent = bits >> 10 & 31, digits = bits & 1023;
  float size = exponent == 0 ? std::ldexp(static_cast<float>(digits), -24)
                             : std::ldexp(static_cast<float>(digits + 1024), exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}

float norm_of(const Vectors& vectors, int64_t row) {
  return std::max(vectors.norms[row * vectors.levels + vectors.levels - 1], kLeastNorm);
}

// All columns of a row; divided by its norm, but for L2.
void read_row(const Vectors& vectors, int64_t row, float* columns) {
  for (int b = 0; b < vectors.levels; b++) {
    const Block& block = vectors.picked[b];
    int64_t width = block.high - block.low, from = row * width;
    for (int64_t j = 0; j < width; j++)
      columns[block.low + j] = vectors.number == Number::float32
                                   ? static_cast<const float*>(block.rows)[from + j]
                                   : float_of_half(static_cast<const uint16_t*>(block.rows)[from + j]);
  }
  if (vectors.metric == Metric::l2) return;
  float norm = norm_of(vectors, row);
  for (int64_t j = 0; j < vectors.dims[vectors.levels - 1]; j++) columns[j] /= norm;
}

void PyPartition::encode(const PyVectors& vectors, int64_t first, Out<float, 2> divided, Out<uint8_t, 2> nibbles,
                         Out<float, 1> adjust, Out<int8_t, 2> bytes, Out<float, 1> distances) const {
  int64_t count = rows_of(adjust), dim = view.dim, width = vectors.columns;
  require(first >= 0 && first + count <= vectors.view.count, "there is no such row");
  require((view.axes == nullptr || rows_of(axes) == width) && dim <= width && view.coded <= width,
          "the vectors must have the columns of the partitions");
  require(rows_of(divided) == count && columns_of(divided) == dim && rows_of(nibbles) == count &&
              columns_of(nibbles) == 4 * view.eights && rows_of(bytes) == count && columns_of(bytes) == view.stride &&
              rows_of(distances) == count,
          "the results must have one row per vector");
  nb::gil_scoped_release release;
  Metric metric = vectors.view.metric;
  std::vector<float> row(static_cast<size_t>(width)), turned(static_cast<size_t>(width));
  for (int64_t i = 0; i < count; i++) {
    read_row(vectors.view, first + i, row.data());
    if (view.axes != nullptr) std::fill(turned.begin(), turned.end(), 0.0f);
    for (int64_t j = 0; view.axes != nullptr && j < width; j++) {
      float column = row[static_cast<size_t>(j)], *sums = turned.data();
      for (int64_t d = 0; d < dim; d++) sums[d] += column * view.axes[j * dim + d];
    }
    const float* coordinates = view.axes == nullptr ? row.data() : turned.data();
    double square = 0, coded = 0;
    uint8_t* packed = nibbles.data() + i * 4 * view.eights;
    std::fill(packed, packed + 4 * view.eights, uint8_t{0});
    for (int64_t d = 0; d < dim; d++) {
      square += static_cast<double>(coordinates[d]) * coordinates[d];
      float code = encoded(coordinates[d], view.tile_steps[d], view.tile_lows[d], 0, 15);
      float value = code * view.tile_steps[d] + view.tile_lows[d];
      coded += static_cast<double>(value) * value;
      packed[d / 8 * 4 + d % 4] |= static_cast<uint8_t>(static_cast<int>(code) << (d % 8 < 4 ? 0 : 4));
    }
    float length = static_cast<float>(std::sqrt(square)), factor = 1;   // of the coordinates that the means divide
    if (metric == Metric::cosine) factor = 1 / std::max(length, kLeastNorm);
    if (metric == Metric::ip) factor = norm_of(vectors.view, first + i);
    for (int64_t d = 0; d < dim; d++) divided.data()[i * dim + d] = coordinates[d] * factor;
    double inverse = coded > 0 ? 1 / std::sqrt(coded) : 0;
    adjust.data()[i] = static_cast<float>(metric == Metric::l2   ? -coded
                                          : metric == Metric::ip ? inverse * length * factor
                                                                 : inverse);
    double apart = 0, squares[3] = {0, 0, 0};   // of the row, of its codes, and of the middles: as byte_errors
    int8_t* codes_of_row = bytes.data() + i * view.stride;
    for (int64_t j = 0; j < view.coded; j++) {
      float value = row[static_cast<size_t>(j)], code = encoded(value, view.steps[j], view.middles[j], -127, 127);
      codes_of_row[j] = static_cast<int8_t>(code);
      float scaled = code * view.steps[j], decoded = scaled + view.middles[j];
      double off = static_cast<double>(value) - decoded;
      apart += off * off;
      squares[0] += static_cast<double>(value) * value;
      squares[1] += static_cast<double>(decoded) * decoded;
      squares[2] += static_cast<double>(view.middles[j]) * view.middles[j];
    }
    double all = std::sqrt(squares[0]) + std::sqrt(squares[1]) + std::sqrt(squares[2]);
    distances.data()[i] = static_cast<float>((std::sqrt(apart) + 0x1p-21 * all) * (1 + 1e-6));
  }
}

// Rows that join partitions. One thread at a time adds rows; others may search meanwhile.
class PyTail {
 public:
  explicit PyTail(std::shared_ptr<PyPartition> partition)
      : partition_(std::move(partition)), newest_(static_cast<size_t>(partition_->view.lists)), used_(newest_.size()) {}
  PyTail(const PyTail&) = delete;
  PyTail& operator=(const PyTail&) = delete;
  ~PyTail() {
    for (void* chunk : chunks_) ::operator delete(chunk, kAlignment);
  }

  // Add rows: their codes, four bytes per eight columns as in a tile, and one or two partitions of each.
  void add(In<uint8_t, 2> codes, In<float, 1> adjust, In<uint32_t, 2> lists) {
    const Partition& part = partition_->view;
    int64_t rows = rows_of(codes), copies = columns_of(lists);
    require(columns_of(codes) == 4 * part.eights && rows_of(adjust) == rows && rows_of(lists) == rows,
            "codes, adjust and lists must have one entry per row");
    require(copies == 1 || (copies == 2 && part.homes != nullptr), "copies need homes");
    require(part.count + count_ + rows < kNoRow, "there must be fewer than 2^32 - 1 rows");
    for (int64_t i = 0; i < rows * copies; i++) require(lists.data()[i] < part.lists, "a partition must exist");
    for (int64_t i = 0; i < rows; i++) {
      const uint32_t* chosen = lists.data() + i * copies;
      for (int64_t copy = 0; copy < copies; copy++)
        if (copy == 0 || chosen[copy] != chosen[0])
          place(chosen[copy], chosen[0], codes.data() + i * 4 * part.eights, adjust.data()[i]);
      count_++;
    }
  }

  int64_t count() const { return count_; }
  const PyPartition& partition() const { return *partition_; }
  TailTile* const* newest() const { return newest_.data(); }

 private:
  static constexpr std::align_val_t kAlignment{64};
  static constexpr size_t kChunk = 64;   // tiles that are allocated together

  void place(uint32_t list, uint32_t home, const uint8_t* codes, float adjust) {
    TailTile* tile = newest_[list];
    if (tile == nullptr || used_[list] == kTileRows) {
      TailTile* made = new_tile();
      made->before[0] = tile;
      for (int i = 1; tile != nullptr && i < kTilesBefore; i++) made->before[i] = tile->before[i - 1];
      used_[list] = tile == nullptr ? copy_last(list, *made) : 0;
      __atomic_store_n(&newest_[list], made, __ATOMIC_RELEASE);
      tile = made;
    }
    int lane = used_[list]++;
    uint8_t* to = reinterpret_cast<uint8_t*>(tile + 1);
    for (int eight = 0; eight < partition_->view.eights; eight++)
      std::memcpy(to + 64 * eight + 4 * lane, codes + 4 * eight, 4);
    tile->homes[lane] = home;
    tile->adjust[lane] = adjust;
    uint32_t slot = static_cast<uint32_t>(partition_->view.count + count_);
    __atomic_store_n(&tile->slots[lane], slot, __ATOMIC_RELEASE);
  }

  // Copy the last tile of a partition if it has empty places; returns the places that are taken.
  int copy_last(uint32_t list, TailTile& to) const {
    const Partition& part = partition_->view;
    int64_t places = part.bounds[2 * list + 1];
    int taken = static_cast<int>(places % kTileRows);
    if (taken == 0) return 0;
    int64_t tile = part.bounds[2 * list] + places / kTileRows, size = int64_t{part.eights} * 4 * kTileRows;
    std::memcpy(reinterpret_cast<uint8_t*>(&to + 1), part.codes_of_tiles + tile * size, static_cast<size_t>(size));
    for (int lane = 0; lane < taken; lane++) {
      uint32_t slot = part.slots[tile * kTileRows + lane];
      if (slot >= part.count) continue;   // the file is damaged
      to.slots[lane] = slot;
      to.homes[lane] = part.homes == nullptr ? list : part.homes[slot];
      to.adjust[lane] = part.adjust[tile * kTileRows + lane];
    }
    return taken;
  }

  TailTile* new_tile() {
    size_t size = sizeof(TailTile) + static_cast<size_t>(partition_->view.eights) * 4 * kTileRows;
    if (left_ == 0) {
      chunks_.reserve(chunks_.size() + 1);
      chunks_.push_back(::operator new(kChunk * size, kAlignment));
      left_ = kChunk;
    }
    char* at = static_cast<char*>(chunks_.back()) + (kChunk - left_--) * size;
    std::memset(at, 0, size);
    TailTile* tile = new (at) TailTile{};
    for (int lane = 0; lane < kTileRows; lane++) {
      tile->slots[lane] = kNoRow;
      tile->homes[lane] = 0;
      tile->adjust[lane] = NAN;
    }
    return tile;
  }

  std::shared_ptr<PyPartition> partition_;
  std::vector<TailTile*> newest_;
  std::vector<int> used_;   // places of the newest tile of each partition
  std::vector<void*> chunks_;
  size_t left_ = 0;   // tiles of the last chunk
  int64_t count_ = 0;
};

// The first rows of a tail with their vectors: what one search may find.
class PyTailView {
 public:
  // The vectors of each part, its codes and their errors.
  using PyPart = std::tuple<std::shared_ptr<PyVectors>, In<int8_t, 2>, In<float, 1>>;

  PyTailView(std::shared_ptr<PyTail> tail, std::vector<PyPart> parts)
      : tail_(std::move(tail)), held_(std::move(parts)) {
    const Partition& part = tail_->partition().view;
    int64_t count = 0;
    for (const auto& [vectors, codes, errors] : held_) {
      int64_t rows = vectors->view.count;
      require(rows_of(codes) == rows && columns_of(codes) == part.stride && rows_of(errors) == rows,
              "codes and errors must have one entry per row");
      parts_.push_back(TailPart{&vectors->view, part.count + count, codes.data(), errors.data()});
      count += rows;
    }
    require(!held_.empty() && count <= tail_->count(), "the rows of a view must be in the tail");
    view = Tail{tail_->newest(), count, parts_.data(), static_cast<int>(parts_.size())};
  }

  // Whether the vectors have the dims of those that the partitions belong to.
  bool fits(const Vectors& vectors, const PyPartition& partition) const {
    auto same = [&](const TailPart& part) {
      const Vectors& view = *part.vectors;
      return view.metric == vectors.metric && view.number == vectors.number && view.levels == vectors.levels &&
             std::equal(view.dims, view.dims + view.levels, vectors.dims);
    };
    return &tail_->partition() == &partition && std::all_of(parts_.begin(), parts_.end(), same);
  }

  Tail view;

 private:
  std::shared_ptr<PyTail> tail_;
  std::vector<PyPart> held_;
  std::vector<TailPart> parts_;
};

// scoring, dim, keep, columns summed before, margin
using PyStep = std::tuple<int, int, int64_t, int, float>;

class PyPartitionSearch {
 public:
  PyPartitionSearch(std::shared_ptr<PyVectors> vectors, std::shared_ptr<PyPartition> partition,
                    const std::vector<PyStep>& steps, int64_t k, double budget, float scale, int64_t most_lists)
      : vectors_(std::move(vectors)), partition_(std::move(partition)) {
    const Vectors& view = vectors_->view;
    const Partition& part = partition_->view;
    require(part.count == view.count && (part.axes == nullptr || rows_of(partition_->axes) == vectors_->columns) &&
                part.dim <= vectors_->columns && part.coded <= vectors_->columns,
            "partitions must belong to the vectors");
    for (const auto& [scoring, dim, keep, known, margin] : steps) {
      int level = 0;
      bool scans = steps_.empty();   // the tiles, whatever their dim
      while (!scans && level < view.levels && view.dims[level] != dim) level++;
      require(level < view.levels, "the dim of a step must be one of the dims");
      require(scoring >= 0 && scoring <= 2 && keep > 0 && keep < kNoRow, "a step must keep some rows");
      Scoring how = static_cast<Scoring>(scoring);
      require(scans || how == Scoring::full || dim <= part.coded, "a step in int8 needs codes");
      require(known >= 0 && (scans || known <= dim), "known columns must be those of the steps before");
      steps_.push_back(Step{how, dim, level, keep, known, margin});
    }
    require(!steps_.empty() && steps_[0].scoring == Scoring::codes &&
                (steps_.size() == 1 || steps_.back().scoring != Scoring::codes),
            "the first step must scan the tiles, and the last must score in full precision");
    require(k > 0 && most_lists > 0 && scale > 0, "k, most_lists and scale must be positive");
    route_ = Route{steps_.data(), static_cast<int>(steps_.size()), k, budget, scale, most_lists};
  }

  // Returns −1, or the number of a query that has no score. The budget of rows is multiplied by `wider`. A mask covers
  // the rows of the tail, too; it is in the order of the rows, or of the slots.
  int64_t search(In<float, 2> queries, OptionalMask mask, Out<int64_t, 2> rows, Out<double, 2> scores, int threads,
                 double wider, const PyTailView* tail, bool by_slot) {
    vectors_->check_queries(queries, 0);
    vectors_->check_hits(rows_of(queries), rows, scores);
    int64_t k = route_.k, columns = vectors_->columns;
    require(columns_of(rows) == k && wider > 0, "rows and scores must have k columns");
    require(tail == nullptr || tail->fits(vectors_->view, *partition_), "a tail must belong to the partitions");
    const Tail* late = tail == nullptr ? nullptr : &tail->view;
    int64_t reach = vectors_->view.count + (late == nullptr ? 0 : late->count);
    require(!mask || rows_of(*mask) == reach, "a mask must have one entry per row");
    Mask bytes = mask ? reinterpret_cast<Mask>(mask->data()) : nullptr;
    Route route = route_;
    route.budget *= wider;
    route.by_slot = by_slot;
    double lists = static_cast<double>(route.most_lists) * std::max(wider, 1.0);
    route.most_lists = static_cast<int64_t>(std::min(lists, static_cast<double>(partition_->view.lists) + 1));
    std::atomic<int64_t> bad{-1};
    nb::gil_scoped_release release;
    share_queries(rows_of(queries), threads, 32, [&](int64_t first, int64_t some) {
      work_.lend([&](Work* work) {
        int64_t found = kernels().search_partition(vectors_->view, partition_->view, late, route, bytes, work,
                                                   queries.data() + first * columns, some, rows.data() + first * k,
                                                   scores.data() + first * k);
        if (found >= 0) bad = first + found;
      });
    });
    return bad;
  }

  // The score of every mean in multiples of the scale, [queries, partitions]. Returns −1, or a query without a score.
  int64_t score_lists(In<float, 2> queries, Out<float, 2> scores) {
    vectors_->check_queries(queries, 0);
    int64_t lists = partition_->view.lists;
    require(rows_of(scores) == rows_of(queries) && columns_of(scores) == lists, "scores must have one column per list");
    int64_t bad = -1;
    work_.lend([&](Work* work) {
      for (int64_t q = 0; q < rows_of(queries) && bad < 0; q++)
        if (!kernels().score_lists(vectors_->view, partition_->view, route_, work,
                                   queries.data() + q * vectors_->columns, scores.data() + q * lists))
          bad = q;
    });
    return bad;
  }

 private:
  std::shared_ptr<PyVectors> vectors_;
  std::shared_ptr<PyPartition> partition_;
  std::vector<Step> steps_;
  Route route_;
  Workplace work_{kernels().make_partition_work, kernels().drop_partition_work};
};

}   // namespace

void bind_partition(nb::module_& m) {
  nb::class_<PyPartition>(m, "Partition")
      .def(nb::init<int, int, In<int64_t, 2>, In<uint32_t, 2>, In<uint8_t, 2>, In<float, 2>, In<uint8_t, 2>,
                    In<float, 2>, In<float, 2>, float, In<float, 2>, In<float, 2>, In<uint32_t, 1>, In<uint32_t, 1>,
                    In<int8_t, 2>, In<float, 1>, In<float, 2>>(),
           "dim"_a, "coded"_a, "lists"_a.noconvert(), "slots"_a.noconvert(), "tiles"_a.noconvert(),
           "adjust"_a.noconvert(), "means"_a.noconvert(), "means_adjust"_a.noconvert(), "reach"_a.noconvert(),
           "spread"_a, "axes"_a.noconvert(), "tile_columns"_a.noconvert(), "rows"_a.noconvert(), "homes"_a.noconvert(),
           "codes"_a.noconvert(), "errors"_a.noconvert(), "columns"_a.noconvert())
      .def("encode", &PyPartition::encode, "vectors"_a, "first"_a, "divided"_a.noconvert(), "nibbles"_a.noconvert(),
           "adjust"_a.noconvert(), "codes"_a.noconvert(), "errors"_a.noconvert());
  nb::class_<PyTail>(m, "Tail")
      .def(nb::init<std::shared_ptr<PyPartition>>(), "partition"_a)
      .def("add", &PyTail::add, "codes"_a.noconvert(), "adjust"_a.noconvert(), "lists"_a.noconvert())
      .def("__len__", &PyTail::count);
  nb::class_<PyTailView>(m, "TailView")
      .def(nb::init<std::shared_ptr<PyTail>, std::vector<PyTailView::PyPart>>(), "tail"_a, "parts"_a);
  nb::class_<PyPartitionSearch>(m, "PartitionSearch")
      .def(nb::init<std::shared_ptr<PyVectors>, std::shared_ptr<PyPartition>, const std::vector<PyStep>&, int64_t,
                    double, float, int64_t>(),
           "vectors"_a, "partition"_a, "steps"_a, "k"_a, "budget"_a, "scale"_a, "most_lists"_a)
      .def("search", &PyPartitionSearch::search, "queries"_a.noconvert(), "mask"_a.noconvert().none(),
           "rows"_a.noconvert(), "scores"_a.noconvert(), "threads"_a, "wider"_a = 1.0, "tail"_a.none() = nb::none(),
           "by_slot"_a = false)
      .def("score_lists", &PyPartitionSearch::score_lists, "queries"_a.noconvert(), "scores"_a.noconvert());
}

}   // namespace matryo
