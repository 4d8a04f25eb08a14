// What kernels read: plain views of arrays that Python owns. bindings.cpp checks every bound before it makes one.
#pragma once

#include <cstdint>

namespace matryo {

enum class Metric : int { cosine, ip, l2 };   // in the order of METRICS in Python
enum class Number : int { float32, float16, int8 };

constexpr int kTileRows = 16;             // rows per tile: the 32-bit sums of one AVX-512 register
constexpr int kTilesBefore = 7;           // tiles of a tail that a tile refers to: pointers of less than a cache line
constexpr uint32_t kNoRow = 0xFFFFFFFF;   // the row number of an empty place

// Some columns of all rows, row-major: [count, high − low].
struct Block {
  const void* rows;
  int low, high;
  float unit;   // the value of one unit of an int8 code; 1 for floats
};

// The vectors of a segment in prefix blocks. The blocks up to a dim hold its columns.
struct Vectors {
  Metric metric;
  Number number;   // float32 or float16
  int64_t count;
  int levels;   // the number of dims of the nesting, which is that of the blocks
  const int64_t* dims;
  const Block* blocks;
  const Block* picked;   // the blocks, mapped for reading single rows
  const Block* codes;    // int8 copies of the first code_levels blocks
  int code_levels;
  const float* norms;   // [count, levels]: the norm of each prefix
};

// Rows that may be found: one byte per row; null allows all.
using Mask = const uint8_t*;

// The hits of one query, best first: row −1 and score −∞ where there are fewer than k.
struct Hits {
  int64_t* rows;
  double* scores;
  int64_t k;
};

// One level of a sketch: int8 codes of the coordinates low … dim, and bounds of what they omit.
struct SketchLevel {
  const void*
      codes;   // level 0: unsigned, in tiles [tile, four columns, row, column]; later: signed [count, dim − low]
  const float* tails;   // [padded count]: the norm of each row's coordinates from dim on
  int low, dim;
  double error;    // the largest distance of a row's known coordinates from their codes
  double length;   // the largest norm of a row's codes at this level
};

struct Sketch {
  const double* axes;     // [columns of a vector, width]: the rotation
  const double* steps;    // [width]: the value of one unit of a code
  const float* offsets;   // [padded count]: −‖x‖² if the metric is L2, else null
  const SketchLevel* levels;
  int level_count;
  int width;   // coordinates of all levels
  int64_t tiles;
};

// Whether a sketch is worth reading. Of some rows it excludes too few, because no coordinates tell more than others. After
// queries that it did not help, more and more queries are searched without it. Threads share this.
struct Patience {
  int32_t skip = 0;     // groups of queries that are to be searched without the sketch
  int32_t streak = 0;   // the last value of skip; 0 if the last group was helped
};

// Rows in partitions; see partition.h. The slot of a row is its position in the order of the partitions; a place is
// 16 · tile + lane. A row may be in two partitions: then two places have its slot.
struct Partition {
  int dim;      // columns of the tiles and of the means
  int coded;    // columns in int8
  int eights;   // groups of eight columns of a tile
  int stride;   // bytes per row of `codes`
  int64_t count, lists, tiles, mean_tiles;
  const int64_t* bounds;           // [lists, 2]: the first tile of a partition and the number of its places
  const uint32_t* slots;           // [tiles · 16]: the slot at each place
  const uint8_t* codes_of_tiles;   // 4 bits per column
  const float* adjust;             // [tiles · 16]: see Partition.adjust in Python; NaN at empty places
  const uint8_t* means;            // in tiles
  const float* means_adjust;
  const float* reach;        // [means · 16]: see Partition.reach; null unless the metric is ip
  float spread;              // see Partition.spread
  const float* axes;         // [columns of a vector, dim]: the rotation; null if tiles hold the first columns
  const float* tile_steps;   // [dim]: the value of one unit of a column's 4-bit codes
  const float* tile_lows;    // [dim]: the value of code 0
  const uint32_t* rows;      // [count]: the row of each slot
  const uint32_t* homes;     // [count]: the partition of each slot; null if no row has a copy
  const int8_t* codes;       // [count, stride]: codes of all columns up to coded
  const float* errors;       // [count]: the largest distance of a row from its int8 codes
  const float* steps;        // [coded]: the value of one unit of a column's int8 codes
  const float* middles;      // [coded]: the middle of a column's range
};

// Rows that joined the partitions after these were built, in tiles of their own. Their slots follow those of the
// partitions, in the order of insertion, and their rows have the same numbers. The first tile of a partition begins as a
// copy of the last tile of the partition if that has empty places, and is scanned in its stead. The codes of a tile lie
// behind it.
struct alignas(64) TailTile {
  // The tiles of the same partition that were filled before, the last one first; null where there are fewer. A search
  // prefetches them all at once, and goes from tile to tile by the first.
  const TailTile* before[kTilesBefore];
  uint32_t slots[kTileRows];   // kNoRow at an empty place; written last, when all else is there
  uint32_t homes[kTileRows];   // the partition of the slot; a copy is in another one
  float adjust[kTileRows];

  const uint8_t* codes() const { return reinterpret_cast<const uint8_t*>(this + 1); }
};

// Some rows of a tail, from the row `first` on: their vectors, and their codes in 8 bits, as in a partition.
struct TailPart {
  const Vectors* vectors;
  int64_t first;
  const int8_t* codes;
  const float* errors;
};

struct Tail {
  TailTile* const* newest;   // [lists]: the tile of each partition that was begun last; null for none
  int64_t count;             // rows that a search may find; the tiles may hold later ones
  const TailPart* parts;     // in the order of their rows
  int part_count;
};

enum class Scoring : int {
  codes,     // int8
  full,      // the stored vectors
  bounded,   // the stored vectors, only for rows that the bounds of codes leave open
};

struct Step {
  Scoring scoring;
  int dim, level;
  int64_t keep;
  int known;      // columns that earlier steps have summed
  float margin;   // rows more than this below the k-th best are dropped; ∞ drops none
};

struct Route {
  const Step* steps;   // the first scans the tiles; without others, its candidates are the hits
  int step_count;
  int64_t k;
  double budget;          // a partition is visited while the places visited are fewer than budget · exp(−gap / scale),
  float scale;            // where gap is how far its mean scores below the best; a negative budget visits all
  int64_t most_lists;     // a query visits at most this many partitions
  bool by_slot = false;   // a mask is in the order of the slots, not of the rows; it covers the tail in the same place
};

// Rows in codes of 1, 4 or 8 bits; see packed.h.
struct PackedRows {
  const uint8_t* tiles;   // [tile, word, row of the tile, 4 bytes]
  const float* scales;    // [tiles · 16]
  const float* offsets;   // [tiles · 16]
  int64_t count;
  int dim, bits;
};

// Rows in product codes; see products.h.
struct ProductRows {
  const uint8_t* codes;   // [count, bytes]
  const float* factors;   // [count]
  const float* offsets;   // [count]
  int64_t count;
  int bytes;
};

struct ProductQueries {
  const int16_t* tables;   // [queries, bytes, 256]
  const double* units;     // [queries]: the value of one unit of a table
  const double* shifts;    // [queries]
};

}   // namespace matryo
