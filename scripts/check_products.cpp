// Compares the integer products of codes.h with plain loops: the only check that also runs where Python does not.
//
// `make neon` builds it for aarch64 and runs it in an emulator; any other compiler and instruction set works as well:
//
//     g++ -std=c++20 -O3 -DMATRYO_ISA=baseline -Isrc/core scripts/check_products.cpp -o check && ./check
#include <cstdio>
#include <random>
#include <vector>

#include "codes.h"

using namespace matryo;
using namespace matryo::MATRYO_ISA;

int main() {
  std::mt19937 random(0);
  auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  long wrong = 0, products = 0;
  for (int attempt = 0; attempt < 400; attempt++) {
    int width = 64 * draw(1, 8), extreme = draw(0, 3);
    std::vector<int> query(width);
    for (int& code : query) code = extreme == 0 ? (draw(0, 1) ? kFinest : -kFinest) : draw(-kFinest, kFinest);
    QueryCodes in_row, in_tile;
    in_row.clear(width);
    in_tile.clear(width);
    in_row.set<Layout::row>(0, query.data(), width);
    in_tile.set<Layout::tile>(0, query.data(), width);
    const QueryCodes* queries[1] = {&in_tile};

    std::vector<uint8_t> tile(16 * width), nibbles(8 * width);
    std::vector<int8_t> row(width);
    for (auto& code : tile) code = static_cast<uint8_t>(extreme == 0 ? 255 : draw(0, 255));
    for (auto& code : nibbles) code = static_cast<uint8_t>(extreme == 0 ? 255 : draw(0, 255));
    for (auto& code : row) code = static_cast<int8_t>(extreme == 0 ? -128 : draw(-128, 127));

    TileSums bytes[1], halves[1][1];
    multiply_tile<1>(tile.data(), 0, width / 4, queries, bytes);
    multiply_nibbles<1, 1>(nibbles.data(), width / 8, in_tile.wide(width / 8), queries, halves);
    int64_t true_row = 0;
    for (int j = 0; j < width; j++) true_row += int64_t{row[j]} * query[j];
    wrong += multiply_row(row.data(), in_row, width) != true_row;
    for (int lane = 0; lane < kTileRows; lane++) {
      int64_t of_bytes = 0, of_halves = 0;
      for (int j = 0; j < width; j++) {
        of_bytes += int64_t{tile[64 * (j / 4) + 4 * lane + j % 4]} * query[j];
        int both = nibbles[64 * (j / 8) + 4 * lane + j % 4];
        of_halves += int64_t{j % 8 < 4 ? both & 15 : both >> 4} * query[j];
      }
      wrong += bytes[0].part[lane / kFloats][lane % kFloats] != of_bytes;
      wrong += halves[0][0].part[lane / kFloats][lane % kFloats] != of_halves;
    }
    products += 1 + 2 * kTileRows;
  }
  std::printf("%ld products, %ld wrong\n", products, wrong);
  return wrong != 0;
}
