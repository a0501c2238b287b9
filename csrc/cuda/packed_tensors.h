// PackedDescriptors in tensors, for the launches of distances and matches.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <limits>

#include "../match_arguments.h"
#include "element_type.h"
#include "packed_descriptors.h"
#include "product_tiles.h"

namespace disk_ops {

template <typename T>
struct PackedTensors {
  at::Tensor given, desc, half_norms;
  PackedDescriptors<computing<T>> pointers{};

  explicit PackedTensors(const at::Tensor& descriptors) : given(descriptors.contiguous()) {  // [B, N, D]
    const auto options = given.options().dtype(result_dtype(given));
    desc = at::empty({given.size(0), given.size(1), packed_depth(static_cast<int>(given.size(2)))}, options);
    half_norms = at::empty({given.size(0), given.size(1)}, options);
    pointers = {desc.mutable_data_ptr<computing<T>>(), half_norms.mutable_data_ptr<computing<T>>(),
                static_cast<int>(given.size(1))};
  }
  const T* elements() const { return static_cast<const T*>(given.const_data_ptr()); }
};

// Kernels count rows, dimensions and the blocks of a grid in 32 bits.
inline void check_tiles(const at::Tensor& desc1, const at::Tensor& desc2) {  // [B, N, D], [B, M, D]
  constexpr int64_t kMost = std::numeric_limits<int>::max() / 2;  // leaves room for tiles that overlap the end
  TORCH_CHECK(desc1.size(1) < kMost, "desc1 must have less than 2^30 rows, got ", desc1.sizes());
  TORCH_CHECK(desc2.size(1) < kMost, "desc2 must have less than 2^30 rows, got ", desc2.sizes());
  TORCH_CHECK(desc1.size(2) < kMost, "desc1 must have less than 2^30 dimensions, got ", desc1.sizes());
  constexpr int kSmallest = kPairTile<double>;
  const int64_t tiles = static_cast<int64_t>(tiles_of(static_cast<int>(desc1.size(1)), kSmallest)) *
                        tiles_of(static_cast<int>(desc2.size(1)), kSmallest);
  TORCH_CHECK(tiles <= std::numeric_limits<int>::max(), "desc1 and desc2 must have less than 2^31 tiles of ",
              kSmallest, " x ", kSmallest, " pairs, got ", desc1.sizes(), " and ", desc2.sizes());
}

}  // namespace disk_ops
