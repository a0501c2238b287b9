// nearest_neighbors on tensors: allocation, launches. Shared by the CUDA glue and the emulated op of the tests, so that
// the tests see the real sizes of buffers.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>

#include "../arguments.h"
#include "nearest_neighbors_kernel.h"

namespace disk_ops {

using NeighborsBothWays = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// One side of the search: its tensors, and the pointers into them that kernels take.
template <typename T>
struct NeighborSide {
  at::Tensor desc, valid, half_norms, keys, distances, indices;
  Descriptors<T> pointers{};

  NeighborSide(const at::Tensor& given, const std::optional<at::Tensor>& given_valid)  // [B, N, D], [B, N] bool
      : desc(given.contiguous()) {
    using C = Distance<T>;
    const auto options = desc.options().dtype(sizeof(C) == sizeof(double) ? at::kDouble : at::kFloat);
    const int64_t batch = desc.size(0), rows = desc.size(1);
    static_assert(sizeof(NeighborKey) == sizeof(int64_t) && kNoNeighbor == static_cast<NeighborKey>(-1), "as filled");
    if (given_valid) valid = given_valid->contiguous();
    half_norms = at::empty({batch, rows}, options);
    keys = at::full({2, batch, rows}, -1, options.dtype(at::kLong));
    distances = at::empty({batch, rows, 2}, options);
    indices = at::empty({batch, rows, 2}, options.dtype(at::kLong));

    pointers.desc = static_cast<const T*>(desc.const_data_ptr());
    pointers.valid = given_valid ? valid.const_data_ptr<bool>() : nullptr;
    pointers.rows = static_cast<int>(rows);
    pointers.half_norms = half_norms.mutable_data_ptr<C>();
    pointers.best = reinterpret_cast<NeighborKey*>(keys.mutable_data_ptr<int64_t>());
    pointers.second = pointers.best + batch * rows;
    pointers.distances = distances.mutable_data_ptr<C>();
    pointers.indices = indices.mutable_data_ptr<int64_t>();
  }
};

template <typename T>
NeighborsBothWays nearest_neighbors_of_type(const at::Tensor& desc1,  // [B, N, D]
                                            const at::Tensor& desc2,  // [B, M, D]
                                            const std::optional<at::Tensor>& valid1,  // [B, N] bool
                                            const std::optional<at::Tensor>& valid2,  // [B, M] bool
                                            TileSize tile, cudaStream_t stream) {
  const NeighborSide<T> side1(desc1, valid1), side2(desc2, valid2);
  const cudaError_t error = launch_nearest_neighbors<T>(side1.pointers, side2.pointers, desc1.size(0),
                                                        static_cast<int>(desc1.size(2)), tile, stream);
  TORCH_CHECK(error == cudaSuccess, "nearest_neighbors failed to launch: ", cudaGetErrorString(error));
  return {side1.distances, side1.indices, side2.distances, side2.indices};
}

// Arguments are checked, and the descriptors' device is current.
inline NeighborsBothWays nearest_neighbors_on_stream(const at::Tensor& desc1,                  // [B, N, D]
                                                     const at::Tensor& desc2,                  // [B, M, D]
                                                     const std::optional<at::Tensor>& valid1,  // [B, N] bool
                                                     const std::optional<at::Tensor>& valid2,  // [B, M] bool
                                                     TileSize tile, cudaStream_t stream) {
  constexpr int64_t kMost = std::numeric_limits<int>::max() / 2;  // leaves room for tiles that overlap the end
  TORCH_CHECK(desc1.size(1) < kMost, "desc1 must have less than 2^30 rows, got ", desc1.sizes());
  TORCH_CHECK(desc2.size(1) < kMost, "desc2 must have less than 2^30 rows, got ", desc2.sizes());
  TORCH_CHECK(desc1.size(2) < kMost, "desc1 must have less than 2^30 dimensions, got ", desc1.sizes());
  const int64_t small_tiles = ((desc1.size(1) + 63) / 64) * ((desc2.size(1) + 63) / 64);
  TORCH_CHECK(small_tiles <= std::numeric_limits<int>::max(),
              "desc1 and desc2 must have less than 2^31 tiles of 64 x 64 pairs, got ", desc1.sizes(), " and ",
              desc2.sizes());
  switch (desc1.scalar_type()) {
    case at::kHalf:
      return nearest_neighbors_of_type<Half>(desc1, desc2, valid1, valid2, tile, stream);
    case at::kBFloat16:
      return nearest_neighbors_of_type<BFloat16>(desc1, desc2, valid1, valid2, tile, stream);
    case at::kDouble:
      return nearest_neighbors_of_type<double>(desc1, desc2, valid1, valid2, tile, stream);
    default:
      return nearest_neighbors_of_type<float>(desc1, desc2, valid1, valid2, tile, stream);
  }
}

}  // namespace disk_ops
