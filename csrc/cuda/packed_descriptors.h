// Descriptors as the kernels of distances and matches read them: in the type of the computation, each row padded with
// zeros to whole tiles, and half the squared norm of each row.
#pragma once

#include <cstdint>

#include "product_tiles.h"
#include "runtime.h"

namespace disk_ops {

template <typename C>
struct PackedDescriptors {
  C* desc;        // [B, rows, packed_depth(D)]
  C* half_norms;  // [B, rows], +inf for rows that are not valid
  int rows;
};

// Pairs of a thread in each direction, and of a block: such that no kernel spills registers.
template <typename C>
constexpr int kPairSide = sizeof(C) == 8 ? 2 : 4;
template <typename C>
constexpr int kPairTile = kTileRows<kPairSide<C>>;

constexpr int packed_depth(int depth) { return (depth + 15) / 16 * 16; }

}  // namespace disk_ops
