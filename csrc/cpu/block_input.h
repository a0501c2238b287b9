// What the convolution of a block of the U-Net reads: a tensor that is pooled or up-sampled, perhaps a skip, normalised
// and gated. It is computed where it is needed and never stored.
//
// Kernels copy these first: what a reference leads to, a compiler has to read again after each store of a result.
#pragma once

#include <cstdint>

#include "../resample.h"

namespace disk_ops {

template <typename T>  // float32 or a half type; all that is computed is float32
struct BlockInput {     // of one image, channels last, perhaps a part of a wider one
  const T* x;     // [x_height, x_width, x_channels]
  const T* skip;  // [height, width, skip_channels]; null where skip_channels is 0
  int64_t x_height, x_width, x_channels, skip_channels;
  int64_t x_row, skip_row;  // elements from one row to the next
  int64_t height, width;  // after pooling or up-sampling
  const float* mean;      // [channels] of the norm, (value - mean) * factor; null: no norm
  const float* factor;    // [channels]
  const float* slope;     // [channels] of the gate, for negative values; null: no gate
};

struct BlockGradient {  // of the loss, of one image, channels last
  const float* output;  // [height, width, channels] at what the convolution reads
  const float* mean;    // [channels] of the gradient before the gate, over the image; null: no norm
  const float* along;   // [channels] of that times the normalised value
};

}  // namespace disk_ops
