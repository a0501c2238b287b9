// The kernels of describe_kernel.h and their launchers.
#pragma once

#include <algorithm>

#include "describe_kernel.h"
#include "launch.cuh"
#include "number.cuh"
#include "warp_sum.cuh"

namespace disk_ops {

constexpr int kDescribeThreads = 256;
constexpr int kDescribeWarps = kDescribeThreads / 32;

struct Pixel {
  int64_t image;
  int y, x;
};

template <typename T>
__device__ __forceinline__ Pixel pixel_at(const PatchedMap<T>& map, int64_t pixel) {
  const unsigned raster = static_cast<unsigned>(pixel), width = static_cast<unsigned>(map.width);
  return {pixel >> 32, static_cast<int>(raster / width), static_cast<int>(raster % width)};
}

template <typename T>
__device__ __forceinline__ bool is_inside(const PatchedMap<T>& map, int y, int x) {
  return y >= 0 && y < map.height && x >= 0 && x < map.width;
}

template <typename T>
__device__ __forceinline__ T& element(const PatchedMap<T>& map, const Pixel& pixel, int channel) {
  return map.data[pixel.image * map.image_stride + channel * map.channel_stride + pixel.y * map.row_stride +
                  pixel.x * map.column_stride];
}

__global__ void __launch_bounds__(kDescribeThreads)
    pixels_kernel(const int64_t* __restrict__ keypoints, int64_t batch, int64_t count, int height, int width,
                  int64_t* __restrict__ pixels) {  // keypoints [B, N, 2], pixels [B, N]
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < batch * count; i += step) {
    const int64_t x = smaller<int64_t>(larger<int64_t>(keypoints[2 * i], 0), width - 1);
    const int64_t y = smaller<int64_t>(larger<int64_t>(keypoints[2 * i + 1], 0), height - 1);
    pixels[i] = i / count << 32 | (y * width + x);
  }
}

// One block for each patch.
template <typename T>
__global__ void __launch_bounds__(kDescribeThreads)
    gather_patches_kernel(PatchedMap<const T> map, const int64_t* __restrict__ pixels, int64_t rows,
                          computing<T>* __restrict__ patches) {  // pixels [rows], patches [rows, C k²]
  const int area = map.size * map.size, columns = map.channels * area, radius = map.size / 2;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const Pixel centre = pixel_at(map, pixels[row]);
    for (int place = threadIdx.x; place < columns; place += kDescribeThreads) {
      const int channel = map.channels_last ? place % map.channels : place / area;
      const int offset = map.channels_last ? place / map.channels : place % area;
      const int y = centre.y + offset / map.size - radius, x = centre.x + offset % map.size - radius;
      patches[row * columns + place] =
          is_inside(map, y, x) ? to_number(element(map, {centre.image, y, x}, channel)) : computing<T>(0);
    }
  }
}

constexpr double kNormEpsilon = 1e-12;  // as in torch.nn.functional.normalize

// One warp for each row.
template <typename T>
__global__ void __launch_bounds__(kDescribeThreads)
    normalize_kernel(const computing<T>* __restrict__ outputs, const T* __restrict__ bias, int64_t rows, int depth,
                     T* __restrict__ descriptors) {  // outputs and descriptors [rows, D], bias [D]
  using C = computing<T>;
  const int lane = threadIdx.x % 32;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kDescribeWarps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kDescribeWarps + threadIdx.x / 32; row < rows; row += step) {
    const C* const output = outputs + row * depth;
    C squares = 0;
    for (int d = lane; d < depth; d += 32) {
      const C number = output[d] + to_number(bias[d]);
      squares = fma(number, number, squares);
    }
    const C scale = 1 / larger<C>(sqrt(warp_sum(squares)), static_cast<C>(kNormEpsilon));
    for (int d = lane; d < depth; d += 32)
      descriptors[row * depth + d] = from_number<T>((output[d] + to_number(bias[d])) * scale);
  }
}

// One warp for each row. A norm below epsilon is no function of the output: it divides by a constant.
template <typename T>
__global__ void __launch_bounds__(kDescribeThreads)
    normalize_backward_kernel(const T* __restrict__ grads, const int64_t* __restrict__ order,
                              const T* __restrict__ bias, int64_t rows, int depth,
                              computing<T>* __restrict__ outputs) {  // grads [any, D], outputs [rows, D]
  using C = computing<T>;
  const int lane = threadIdx.x % 32;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kDescribeWarps;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * kDescribeWarps + threadIdx.x / 32; row < rows; row += step) {
    C* const output = outputs + row * depth;
    const T* const grad = grads + order[row] * depth;
    C squares = 0, along = 0;
    for (int d = lane; d < depth; d += 32) {
      const C number = output[d] + to_number(bias[d]);
      squares = fma(number, number, squares);
      along = fma(number, to_number(grad[d]), along);
    }
    const C epsilon = static_cast<C>(kNormEpsilon), norm = sqrt(warp_sum(squares));
    const C scale = 1 / larger(norm, epsilon);
    along = norm < epsilon ? C(0) : warp_sum(along) * scale;
    for (int d = lane; d < depth; d += 32) {
      const C unit = (output[d] + to_number(bias[d])) * scale;
      output[d] = (to_number(grad[d]) - unit * along) * scale;
    }
  }
}

struct Rows {  // [first, end) of the rows at one pixel
  int64_t first, end;
};

__device__ __forceinline__ Rows rows_at(const int64_t* pixels, int64_t rows, int64_t pixel) {  // [rows], ascending
  int64_t first = 0, beyond = rows;
  while (first < beyond) {
    const int64_t middle = (first + beyond) / 2;
    if (pixels[middle] < pixel) {
      first = middle + 1;
    } else {
      beyond = middle;
    }
  }
  int64_t end = first;
  while (end < rows && pixels[end] == pixel) ++end;
  return {first, end};
}

// The rows whose patches cover `target` from the window's pixel number `place` around it, in raster order.
template <typename T>
__device__ __forceinline__ Rows rows_covering(const PatchedMap<T>& map, const Pixel& target, int place,
                                              const int64_t* pixels, int64_t rows) {
  const int y = target.y + place / map.size - map.size / 2, x = target.x + place % map.size - map.size / 2;
  if (place >= map.size * map.size || !is_inside(map, y, x)) return {0, 0};
  return rows_at(pixels, rows, target.image << 32 | (static_cast<int64_t>(y) * map.width + x));
}

// Whether `row` is the first of those that cover the target.
template <typename T>
__device__ __forceinline__ bool is_first(const PatchedMap<T>& map, const Pixel& target, int64_t row,
                                         const int64_t* pixels, int64_t rows) {
  for (int place0 = 0; place0 < map.size * map.size; place0 += 32) {
    const Rows covering = rows_covering(map, target, place0 + threadIdx.x % 32, pixels, rows);
    const unsigned any = __ballot_sync(~0u, covering.first < covering.end);
    if (any != 0) return __shfl_sync(~0u, covering.first, __ffs(static_cast<int>(any)) - 1) == row;
  }
  return false;  // not reached: `row` covers it
}

// Adds all patches that cover the target, by one warp, a lane for each channel.
template <typename T>
__device__ __forceinline__ void add_covering(const computing<T>* patches, const int64_t* pixels, int64_t rows,
                                             const PatchedMap<T>& map, const Pixel& target) {
  const int lane = threadIdx.x % 32, area = map.size * map.size;
  const int64_t columns = static_cast<int64_t>(map.channels) * area;
  for (int channel0 = 0; channel0 < map.channels; channel0 += 32) {
    const int channel = channel0 + lane;
    computing<T> sum = 0;
    for (int place0 = 0; place0 < area; place0 += 32) {
      const Rows covering = rows_covering(map, target, place0 + lane, pixels, rows);
      for (int i = 0; i < 32 && place0 + i < area; ++i) {
        const int64_t first = __shfl_sync(~0u, covering.first, i), end = __shfl_sync(~0u, covering.end, i);
        const int offset = area - 1 - (place0 + i);  // seen from there, the target lies on the other side
        const int place = map.channels_last ? offset * map.channels + channel : channel * area + offset;
        for (int64_t row = first; row < end; ++row)
          if (channel < map.channels) sum += patches[row * columns + place];
      }
    }
    if (channel < map.channels) {
      T& total = element(map, target, channel);
      total = from_number<T>(to_number(total) + sum);
    }
  }
}

// One block for each patch, a warp for each of its pixels. The warp of the first patch that covers a pixel adds up all
// that do.
template <typename T>
__global__ void __launch_bounds__(kDescribeThreads, 4)
    scatter_patches_kernel(const computing<T>* __restrict__ patches, const int64_t* __restrict__ pixels, int64_t rows,
                           PatchedMap<T> map) {  // patches [rows, C k²], pixels [rows], ascending
  const int area = map.size * map.size;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const Pixel centre = pixel_at(map, pixels[row]);
    for (int offset = threadIdx.x / 32; offset < area; offset += kDescribeWarps) {
      const Pixel target{centre.image, centre.y + offset / map.size - map.size / 2,
                         centre.x + offset % map.size - map.size / 2};
      if (is_inside(map, target.y, target.x) && is_first(map, target, row, pixels, rows))
        add_covering(patches, pixels, rows, map, target);
    }
  }
}

inline dim3 describe_grid(int64_t blocks) {
  return dim3(static_cast<unsigned>(std::min<int64_t>(blocks, INT32_MAX)));
}
inline int64_t blocks_of_warps(int64_t warps) { return (warps + kDescribeWarps - 1) / kDescribeWarps; }

cudaError_t launch_pixels(const int64_t* keypoints, int64_t batch, int64_t count, int height, int width,
                          int64_t* pixels, cudaStream_t stream) {
  if (batch * count == 0) return cudaSuccess;
  DISK_LAUNCH((pixels_kernel), describe_grid((batch * count + kDescribeThreads - 1) / kDescribeThreads),
              dim3(kDescribeThreads), 0, stream)
  (keypoints, batch, count, height, width, pixels);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch_gather_patches(const PatchedMap<const T>& map, const int64_t* pixels, int64_t rows,
                                  computing<T>* patches, cudaStream_t stream) {
  if (rows == 0 || map.channels == 0) return cudaSuccess;
  DISK_LAUNCH((gather_patches_kernel<T>), describe_grid(rows), dim3(kDescribeThreads), 0, stream)
  (map, pixels, rows, patches);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch_normalize(const computing<T>* outputs, const T* bias, int64_t rows, int depth, T* descriptors,
                             cudaStream_t stream) {
  if (rows == 0 || depth == 0) return cudaSuccess;
  DISK_LAUNCH((normalize_kernel<T>), describe_grid(blocks_of_warps(rows)), dim3(kDescribeThreads), 0, stream)
  (outputs, bias, rows, depth, descriptors);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch_normalize_backward(const T* grad, const int64_t* order, const T* bias, int64_t rows, int depth,
                                      computing<T>* outputs, cudaStream_t stream) {
  if (rows == 0 || depth == 0) return cudaSuccess;
  DISK_LAUNCH((normalize_backward_kernel<T>), describe_grid(blocks_of_warps(rows)), dim3(kDescribeThreads), 0, stream)
  (grad, order, bias, rows, depth, outputs);
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch_scatter_patches(const computing<T>* patches, const int64_t* pixels, int64_t rows,
                                   const PatchedMap<T>& map, cudaStream_t stream) {
  if (rows == 0 || map.channels == 0) return cudaSuccess;
  DISK_LAUNCH((scatter_patches_kernel<T>), describe_grid(rows), dim3(kDescribeThreads), 0, stream)
  (patches, pixels, rows, map);
  return cudaGetLastError();
}

// One translation unit instantiates this for every element type.
#define DISK_INSTANTIATE_DESCRIBE(T)                                                                                 \
  template cudaError_t launch_gather_patches<T>(const PatchedMap<const T>&, const int64_t*, int64_t, computing<T>*,  \
                                                cudaStream_t);                                                       \
  template cudaError_t launch_normalize<T>(const computing<T>*, const T*, int64_t, int, T*, cudaStream_t);           \
  template cudaError_t launch_normalize_backward<T>(const T*, const int64_t*, const T*, int64_t, int, computing<T>*, \
                                                    cudaStream_t);                                                   \
  template cudaError_t launch_scatter_patches<T>(const computing<T>*, const int64_t*, int64_t, const PatchedMap<T>&, \
                                                 cudaStream_t);

}  // namespace disk_ops
