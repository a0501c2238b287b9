// Sizes of the tiles of product_tiles.cuh, for launchers and allocations: no torch, no kernels.
#pragma once

#include <cstdint>

#include "number.h"

namespace disk_ops {

// Rows of a block's tile, and as many columns, where a thread has kSide x kSide pairs.
template <int kSide>
constexpr int kTileRows = 16 * kSide;

enum class TileSize { kAutomatic, kSmall, kLarge };  // which size of tiles; the results are the same, or nearly so

inline int tiles_of(int rows, int tile) { return rows / tile + (rows % tile != 0 ? 1 : 0); }

// Large tiles read less for each product; small ones keep a big GPU busy with few descriptors.
inline TileSize fitting_tile_size(int64_t batch, int rows1, int rows2) {
  constexpr int kLarge = kTileRows<8>, kEnoughTiles = 200;
  const int64_t tiles = batch * tiles_of(rows1, kLarge) * tiles_of(rows2, kLarge);
  return tiles < kEnoughTiles ? TileSize::kSmall : TileSize::kLarge;
}

}  // namespace disk_ops
