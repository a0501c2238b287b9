// Launchers of the blocks of the U-Net: raw pointers and sizes, no torch. blocks_launch.h allocates and calls them.
//
// What a convolution reads is made of two tensors: one that is pooled or up-sampled, and perhaps a skip, joined along
// channels, normalised and gated. All are channels last. Everything is computed in float32, rounded once when stored.
#pragma once

#include <cstdint>

#include "../resample.h"
#include "number.h"
#include "runtime.h"

namespace disk_ops {

template <typename T>
struct BlockPart {
  const T* data;        // [B, h, w, C]
  int height, width;    // its own: h, w
  int channels, first;  // C, and the number of the first one after joining
  Resample resample;
};

template <typename T>
struct BlockView {
  BlockPart<T> x, skip;  // skip has no channels where there is none
  const float* norm;     // [2, B, C] mean and 1 / deviation, (value - mean) * factor; null: no norm
  const T* slope;        // [C] of the gate, for negative values; null: no gate
  int64_t batch;
  int channels;       // C, of both parts
  int height, width;  // after pooling or up-sampling; height * width < 2^31
};

// Mean of a part of a channel, and the sum of squared deviations from it.
struct Moments {
  double mean, deviations;
};

// The parts of an image whose moments are taken one by one. Depends on the size alone, so that results do too.
int block_parts(int height, int width);

// Two stages, each of which adds up in a fixed order.
template <typename T>
cudaError_t launch_block_norm(const BlockView<T>& view,
                              Moments* moments,  // [B, C, parts], scratch
                              float* norm,       // [2, B, C], result
                              cudaStream_t stream);

template <typename T>
cudaError_t launch_block_activation(const BlockView<T>& view,
                                    T* activation,  // [B, H, W, C], result
                                    cudaStream_t stream);

// Keypoints outside the image count as the nearest pixel.
template <typename T>
cudaError_t launch_block_patches(const BlockView<T>& view,
                                 const int64_t* keypoints,  // [B, N, 2] xy
                                 int64_t count,
                                 T* patches,  // [B, N, 5, 5, C], result
                                 cudaStream_t stream);

constexpr int kMostHeadChannels = 288;  // whose weights fit into shared memory

// How many blocks launch_block_head starts for an image.
int64_t block_head_tiles(int height, int width);

// The 5 x 5 convolution to one output: scores, which aren't rounded.
template <typename T>
cudaError_t launch_block_head(const BlockView<T>& view,  // of kMostHeadChannels at most
                              const T* weight,           // [C, 5, 5]
                              const T* bias,             // [1]
                              float* heatmap,            // [B, H, W], result
                              cudaStream_t stream);

}  // namespace disk_ops
