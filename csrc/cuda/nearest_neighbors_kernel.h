// Launcher of nearest_neighbors: raw pointers and sizes, no torch. nearest_neighbors_launch.h allocates and calls it.
#pragma once

#include <cstdint>

#include "product_tiles.h"
#include "runtime.h"

namespace disk_ops {

template <typename T>
using Distance = computing<T>;

// A candidate neighbour as an integer: its ranking key in the high half, its index in the low one.
using NeighborKey = unsigned long long;
constexpr NeighborKey kNoNeighbor = ~0ull;

template <typename T>
struct Descriptors {
  const T* desc;       // [B, rows, D], contiguous
  const bool* valid;   // [B, rows], contiguous, or null: all true
  int rows;
  Distance<T>* half_norms;  // [B, rows], scratch
  NeighborKey* best;        // [B, rows], scratch, kNoNeighbor
  NeighborKey* second;      // [B, rows], scratch, kNoNeighbor
  Distance<T>* distances;   // [B, rows, 2], result
  int64_t* indices;         // [B, rows, 2], result
};

template <typename T>
cudaError_t launch_nearest_neighbors(const Descriptors<T>& desc1,  // [B, N, D]
                                     const Descriptors<T>& desc2,  // [B, M, D]
                                     int64_t batch, int depth, TileSize tile, cudaStream_t stream);

}  // namespace disk_ops
