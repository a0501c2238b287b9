// What the CPU kernels of distances and matches share: descriptors laid out for the tiles, and the partition of the
// work. Rows are cut into blocks and the blocks of an image into at most so many chunks, whatever the number of
// threads. A chunk goes through its blocks in order and keeps sums over its rows of its own; these are added up in the
// order of the chunks. So results don't depend on threads, and memory stays linear.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "packing.h"

namespace disk_ops {

template <typename real>
struct RowBlock {  // some rows of desc1
  const real* desc;        // [padded, stride], zeros where there is no descriptor
  const real* half_norms;  // [padded] half squared norms
  const char* present;     // [padded] whether there is a descriptor
  int64_t first, padded, stride;
};

template <typename real>
struct Columns {  // desc2
  const real* packed;      // [padded / tile columns, depth, tile columns], zeros where there is no descriptor
  const real* half_norms;  // [padded]
  const real* bias;        // [padded] 0, or -inf where there is no descriptor: added to what is exponentiated
  int64_t depth, count, padded;
};

struct Chunks {  // the partition of the rows of one image
  int64_t rows, block_rows, blocks, blocks_per_chunk, count;

  Chunks(int64_t rows, int64_t block_rows, int64_t most)
      : rows(rows),
        block_rows(block_rows),
        blocks((rows + block_rows - 1) / block_rows),
        blocks_per_chunk(std::max<int64_t>(1, (blocks + most - 1) / most)),
        count((blocks + blocks_per_chunk - 1) / blocks_per_chunk) {}
};

template <typename real>
class Pairs {
 public:
  Pairs(const at::Tensor& desc1,                  // [B, N, D] contiguous
        const at::Tensor& desc2,                  // [B, M, D] contiguous
        const std::optional<at::Tensor>& valid1,  // [B, N] bool, contiguous
        const std::optional<at::Tensor>& valid2,  // [B, M] bool, contiguous
        int64_t tile_rows, int64_t tile_columns, Chunks chunks)
      : batch(desc1.size(0)),
        rows(desc1.size(1)),
        columns(desc2.size(1)),
        depth(desc1.size(2)),
        padded_columns(round_up(columns, tile_columns)),
        // Not a multiple of a page of the first-level cache, so that a column of descriptors doesn't fall into one set.
        stride(round_up(depth, tile_columns) + 16),
        chunks(chunks),
        desc1_(desc1.const_data_ptr<real>()),
        desc2_(desc2.const_data_ptr<real>()),
        valid1_(valid1 ? valid1->const_data_ptr<bool>() : nullptr),
        valid2_(valid2 ? valid2->const_data_ptr<bool>() : nullptr),
        tile_rows_(tile_rows),
        tile_columns_(tile_columns),
        packed_(batch * padded_columns * depth),
        half_norms_(batch * padded_columns),
        bias_(batch * padded_columns) {
    pack_columns();
  }

  // Calls work(image, chunk, block of rows) for each block; those of one chunk in order.
  template <typename Work>
  void for_each_block(int64_t first_image, int64_t images, const Work& work) const {
    at::parallel_for(0, images * chunks.count, 1, [&](int64_t begin, int64_t end) {
      const int64_t most = round_up(chunks.block_rows, tile_rows_);
      std::vector<real> desc(most * stride), half_norms(most);
      std::vector<char> present(most);
      for (int64_t task = begin; task < end; ++task) {
        const int64_t image = first_image + task / chunks.count, chunk = task % chunks.count;
        const int64_t last = std::min(chunks.blocks, (chunk + 1) * chunks.blocks_per_chunk);
        for (int64_t block = chunk * chunks.blocks_per_chunk; block < last; ++block) {
          const int64_t first = block * chunks.block_rows, count = std::min(chunks.block_rows, rows - first);
          const int64_t padded = round_up(count, tile_rows_), offset = image * rows + first;
          const bool* valid = valid1_ ? valid1_ + offset : nullptr;
          copy_rows(desc1_ + offset * depth, valid, count, padded, depth, stride, desc.data());
          for (int64_t i = 0; i < padded; ++i) {
            present[i] = i < count && (valid == nullptr || valid[i]);
            half_norms[i] = half_square(desc.data() + i * stride);
          }
          work(image, chunk, RowBlock<real>{desc.data(), half_norms.data(), present.data(), first, padded, stride});
        }
      }
    });
  }
  template <typename Work>
  void for_each_block(const Work& work) const {
    for_each_block(0, batch, work);
  }

  Columns<real> columns_of(int64_t image) const {
    return {packed_.data() + image * padded_columns * depth, half_norms_.data() + image * padded_columns,
            bias_.data() + image * padded_columns, depth, columns, padded_columns};
  }
  const real* desc2_of(int64_t image) const { return desc2_ + image * columns * depth; }
  const bool* valid2_of(int64_t image) const { return valid2_ ? valid2_ + image * columns : nullptr; }

  const int64_t batch, rows, columns, depth, padded_columns, stride;
  const Chunks chunks;

 private:
  real half_square(const real* desc) const {
    real squares = 0;
    for (int64_t k = 0; k < depth; ++k) squares += desc[k] * desc[k];
    return squares / 2;
  }

  void pack_columns() {
    const int64_t width = tile_columns_, panels = padded_columns / width;
    at::parallel_for(0, batch * panels, 16, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t image = i / panels, first = i % panels * width, count = std::min(width, columns - first);
        const bool* valid = valid2_ ? valid2_ + image * columns + first : nullptr;
        const int64_t to = image * padded_columns + first;
        pack(desc2_ + (image * columns + first) * depth, valid, count, width, depth, width, real(0),
             packed_.data() + to * depth, half_norms_.data() + to);
        for (int64_t j = 0; j < width; ++j)
          bias_[to + j] =
              j < count && (valid == nullptr || valid[j]) ? real(0) : -std::numeric_limits<real>::infinity();
      }
    });
  }

  const real* desc1_;   // [B, N, D]
  const real* desc2_;   // [B, M, D]
  const bool* valid1_;  // [B, N] or null
  const bool* valid2_;  // [B, M] or null
  const int64_t tile_rows_, tile_columns_;
  std::vector<real> packed_, half_norms_, bias_;
};

// Contiguous arguments in the type of the computation, and valid flags.
inline at::Tensor precise(const at::Tensor& desc) {  // [B, N, D]
  return desc.to(desc.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).contiguous();
}
inline std::optional<at::Tensor> contiguous(const std::optional<at::Tensor>& tensor) {
  return tensor ? std::optional(tensor->contiguous()) : std::nullopt;
}

}  // namespace disk_ops
