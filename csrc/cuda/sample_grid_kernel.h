// Launchers of sample_grid: raw pointers and sizes, no torch. sample_grid_launch.h allocates for them and calls them.
//
// Cells have `cell` x `cell` pixels, at the right and bottom edge what is left of them: h = ceil(H / cell) rows of
// w = ceil(W / cell) cells. The rules are those of ../sampling.h: what is drawn is the same to the last bit as on the
// CPU, log-probabilities and gradients but for roundings.
#pragma once

#include <cstdint>

#include "heatmap_view.h"
#include "number.h"
#include "runtime.h"

namespace disk_ops {

// Blocks for an image; less than 2^31 for a batch are asked for.
int64_t sample_grid_blocks(int height, int width, int cell);

template <typename T>
cudaError_t launch_sample_grid(const HeatmapView<T>& view, int cell, uint64_t seed, bool argmax,
                               int64_t* keypoints,  // [B, h, w, 2] xy, result
                               bool* accepted,      // [B, h, w], result
                               computing<T>* logp,  // [B, h, w], result
                               cudaStream_t stream);

// Each pixel is written once.
template <typename T>
cudaError_t launch_sample_grid_backward(const HeatmapView<T>& view, int cell,
                                        const computing<T>* grad_logp,  // [B, h, w]
                                        const int64_t* keypoints,       // [B, h, w, 2] xy; ignored outside their cell
                                        const bool* accepted,           // [B, h, w]
                                        T* grad,                        // [B, H, W], result
                                        cudaStream_t stream);

}  // namespace disk_ops
