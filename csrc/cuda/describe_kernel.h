// Launchers of describe: raw pointers and sizes, no torch. describe_launch.h allocates, multiplies and calls them.
//
// Keypoints are given as pixels: integers with the image in the high half and the raster index y W + x in the low one.
// A patch is the part of the activation that the convolution sees at a keypoint, a row of C k² numbers in the order of
// the map in memory: pixels then channels if `channels_last`, else channels then pixels.
#pragma once

#include <cstdint>

#include "number.h"
#include "runtime.h"

namespace disk_ops {

template <typename T>
struct PatchedMap {
  T* data;                                       // [B, C, H, W], strided
  int64_t image_stride, channel_stride, row_stride, column_stride;  // in elements
  int channels, height, width;  // height * width < 2^31
  int size;            // k, of the patches
  bool channels_last;  // order of the patches
};

// Keypoints outside the image count as the nearest pixel.
cudaError_t launch_pixels(const int64_t* keypoints,  // [B, N, 2] xy
                          int64_t batch, int64_t count, int height, int width,
                          int64_t* pixels,  // [B, N], result
                          cudaStream_t stream);

template <typename T>
cudaError_t launch_gather_patches(const PatchedMap<const T>& map,
                                  const int64_t* pixels,  // [rows]
                                  int64_t rows,
                                  computing<T>* patches,  // [rows, C k²], result
                                  cudaStream_t stream);

// Adds the bias, then divides by the norm.
template <typename T>
cudaError_t launch_normalize(const computing<T>* outputs,  // [rows, D] of the convolution, without bias
                             const T* bias,                // [D]
                             int64_t rows, int depth,
                             T* descriptors,  // [rows, D], result
                             cudaStream_t stream);

// From the gradient of descriptors to that of the convolution's outputs.
template <typename T>
cudaError_t launch_normalize_backward(const T* grad,         // [any, D]
                                      const int64_t* order,  // [rows], which row of grad
                                      const T* bias,         // [D]
                                      int64_t rows, int depth,
                                      computing<T>* outputs,  // [rows, D] without bias; replaced by their gradient
                                      cudaStream_t stream);

// Adds patches to the places that they were gathered from. Each place is written by one warp, which adds up the patches
// in the order of rows.
template <typename T>
cudaError_t launch_scatter_patches(const computing<T>* patches,  // [rows, C k²]
                                   const int64_t* pixels,        // [rows], ascending
                                   int64_t rows, const PatchedMap<T>& map, cudaStream_t stream);

}  // namespace disk_ops
