// The kernels on tiny inputs against loops that are easy to check: the program that the sanitizers watch.
//
//   test_kernels [nms | sort | neighbors | match | describe | sample | blocks]   run the kernels (default: all),
//                                           compare, exit 1 on a difference
//   test_kernels short-list                 nms with too short a list of keys: AddressSanitizer must object
// Built with -DDISK_PLANT_MISSING_BARRIER, kernels lack a barrier and ThreadSanitizer must object.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../../csrc/cuda/describe_kernel.cuh"
#include "../../csrc/cuda/nearest_neighbors_kernel.cuh"
#include "../../csrc/cuda/nms_topk_kernel.cuh"

namespace disk_ops {
namespace {

int failures = 0;

void check(bool right, const std::string& what) {
  if (right) return;
  ++failures;
  std::printf("wrong: %s\n", what.c_str());
}

// Heap memory of exactly `size` elements, whose ends ASan watches.
template <typename T>
struct Buffer {
  size_t size;
  std::unique_ptr<T[]> data;
  explicit Buffer(int64_t size, T value = T{}) : size(static_cast<size_t>(size)), data(new T[this->size]) {
    std::fill_n(data.get(), this->size, value);
  }
  T* get() const { return data.get(); }
  T& operator[](int64_t i) const { return data[static_cast<size_t>(i)]; }
};

struct NmsCase {
  int batch, height, width, window, n, values;  // values: how many different ones, so that there are ties
  bool masked;
};

template <typename T>
std::vector<int> maxima_by_loops(const HeatmapView<T>& view, int64_t b, int radius, double threshold) {
  const auto value = [&](int y, int x) { return competing_value(view, b, y, x); };
  std::vector<int> found;
  for (int y = 0; y < view.height; ++y)
    for (int x = 0; x < view.width; ++x) {
      bool wins = value(y, x) > threshold;
      for (int v = y - radius; v <= y + radius; ++v)
        for (int u = x - radius; u <= x + radius; ++u) {
          const bool before = v < y || (v == y && u < x);
          if (value(v, u) > value(y, x) || (before && value(v, u) == value(y, x))) wins = false;
        }
      if (wins) found.push_back(y * view.width + x);
    }
  std::stable_sort(found.begin(), found.end(), [&](int a, int c) {
    return value(a / view.width, a % view.width) > value(c / view.width, c % view.width);
  });
  return found;
}

template <typename T>
void run_nms(const NmsCase& c, int64_t missing_keys = 0) {
  const int64_t pixels = static_cast<int64_t>(c.batch) * c.height * c.width;
  std::mt19937 random(1);
  Buffer<T> heatmap(pixels);
  Buffer<bool> mask(pixels, true);
  for (int64_t i = 0; i < pixels; ++i) heatmap[i] = static_cast<T>(static_cast<int>(random() % c.values) - 1);
  for (int64_t i = 0; i < pixels && c.masked; i += 3) mask[i] = false;
  heatmap[pixels / 2] = std::numeric_limits<T>::quiet_NaN();

  const int radius = c.window / 2;
  const MaximumRule rule{std::min(radius, c.width - 1), std::min(radius, c.height - 1), 0, -0.5};
  const int64_t plane = static_cast<int64_t>(c.height) * c.width;
  const HeatmapView<T> view{heatmap.get(), mask.get(), plane,   c.width,  1,       plane,
                            c.width,       1,          c.batch, c.height, c.width};
  const int64_t capacity = static_cast<int64_t>((c.height + rule.radius_y) / (rule.radius_y + 1)) *
                           ((c.width + rule.radius_x) / (rule.radius_x + 1));
  const int64_t slots = std::min<int64_t>(c.n, capacity), n = c.n;
  Buffer<MaximumKey<T>> keys(c.batch * capacity - missing_keys), sorted(c.batch * padded_slots(slots));
  Buffer<unsigned char> scratch(find_maxima_scratch_bytes<T>(c.batch, c.height, c.width, rule));
  Buffer<int> counts(c.batch);
  Buffer<int64_t> keypoints(c.batch * n * 2, -1);
  Buffer<T> scores(c.batch * n, -1);
  Buffer<bool> valid(c.batch * n);
  launch_find_maxima<T>(view, rule, scratch.get(), keys.get(), counts.get(), capacity, nullptr);
  launch_best_maxima<T>(view, keys.get(), counts.get(), capacity, sorted.get(), slots, n, keypoints.get(),
                        scores.get(), valid.get(), nullptr);

  const std::string name = "nms " + std::to_string(c.height) + "x" + std::to_string(c.width) + ", window " +
                           std::to_string(c.window) + ", n " + std::to_string(c.n);
  for (int64_t b = 0; b < c.batch; ++b) {
    const std::vector<int> expected = maxima_by_loops(view, b, radius, rule.threshold);
    for (int64_t i = 0; i < n; ++i) {
      const bool is_there = i < static_cast<int64_t>(expected.size());
      const int pixel = is_there ? expected[static_cast<size_t>(i)] : 0;
      check(valid[b * n + i] == is_there, name + ": valid");
      check(keypoints[(b * n + i) * 2] == pixel % c.width && keypoints[(b * n + i) * 2 + 1] == pixel / c.width,
            name + ": keypoint");
      check(scores[b * n + i] == (is_there ? heatmap[b * plane + pixel] : T(0)), name + ": score");
    }
  }
}

void run_all_nms() {
  run_nms<float>({2, 9, 37, 5, 12, 50, true});
  run_nms<float>({1, 40, 20, 11, 64, 4, false});   // runs in the tile; more slots than maxima
  run_nms<double>({2, 7, 45, 35, 5, 9, true});     // planes
  run_nms<double>({1, 1, 70, 1, 40, 3, false});
}

// More keys than a block sorts.
void run_long_sort() { run_nms<float>({1, 65, 65, 1, 4097, 4000, false}); }

// [rows, depth]; some rows occur more than once.
template <typename T>
Buffer<T> random_rows(int64_t rows, int depth, unsigned seed) {
  std::mt19937 random(seed);
  Buffer<T> out(rows * depth);
  for (int64_t i = 0; i < rows * depth; ++i) out[i] = static_cast<T>(static_cast<int>(random() % 9) - 4);
  for (int64_t row = 5; row < rows; row += 5) std::copy_n(&out[0], depth, &out[row * depth]);
  return out;
}

template <typename T>
struct Side {
  Buffer<T> desc;
  Buffer<bool> valid;
  Buffer<Distance<T>> half_norms, distances;
  Buffer<NeighborKey> best, second;
  Buffer<int64_t> indices;
  int rows;

  Side(int batch, int rows, int depth, unsigned seed)
      : desc(random_rows<T>(batch * rows, depth, seed)),
        valid(batch * rows, true),
        half_norms(batch * rows),
        distances(batch * rows * 2),
        best(batch * rows, kNoNeighbor),
        second(batch * rows, kNoNeighbor),
        indices(batch * rows * 2),
        rows(rows) {
    valid[batch * rows - 1] = false;
  }
  Descriptors<T> pointers() const {
    return {desc.get(),   valid.get(),     rows,         half_norms.get(), best.get(),
            second.get(), distances.get(), indices.get()};
  }
};

template <typename T>
void check_neighbors(const Side<T>& from, const Side<T>& to, int batch, int depth) {
  for (int64_t row = 0; row < static_cast<int64_t>(batch) * from.rows; ++row) {
    std::vector<std::pair<double, int>> all;
    for (int j = 0; j < to.rows; ++j) {
      const int64_t other = row / from.rows * to.rows + j;
      double squares = 0;
      for (int k = 0; k < depth; ++k)
        squares += std::pow(static_cast<double>(from.desc[row * depth + k]) - to.desc[other * depth + k], 2);
      if (from.valid[row] && to.valid[other]) all.emplace_back(std::sqrt(squares), j);
    }
    all.resize(all.size() + 2, {std::numeric_limits<double>::infinity(), -1});
    std::stable_sort(all.begin(), all.end(), [](auto a, auto b) { return a.first < b.first; });
    for (int i = 0; i < 2; ++i) {
      check(from.indices[2 * row + i] == all[i].second, "neighbors: index");
      const double distance = from.distances[2 * row + i];
      check(distance == all[i].first || std::abs(distance - all[i].first) < 1e-5, "neighbors: distance");
    }
  }
}

template <typename T>
void run_neighbors(int batch, int rows1, int rows2, int depth, TileSize tile) {
  const Side<T> side1(batch, rows1, depth, 1), side2(batch, rows2, depth, 1);
  launch_nearest_neighbors<T>(side1.pointers(), side2.pointers(), batch, depth, tile, nullptr);
  check_neighbors(side1, side2, batch, depth);
  check_neighbors(side2, side1, batch, depth);
}

void run_all_neighbors() {
  run_neighbors<float>(2, 66, 20, 20, TileSize::kSmall);
  run_neighbors<float>(1, 20, 130, 18, TileSize::kLarge);
  run_neighbors<float>(1, 2, 1, 1, TileSize::kSmall);
  run_neighbors<double>(2, 33, 35, 34, TileSize::kAutomatic);
}

// Patches gathered and scattered against loops over the window. Small whole numbers: sums are exact in any order.
template <typename T>
void run_patches(int batch, int channels, int height, int width, int size, int64_t count, bool channels_last) {
  const int64_t area = static_cast<int64_t>(size) * size, columns = channels * area, rows = batch * count;
  const int64_t plane = static_cast<int64_t>(height) * width;
  std::mt19937 random(1);
  Buffer<T> data(batch * channels * plane), total(batch * channels * plane);
  Buffer<double> expected(batch * channels * plane);
  for (int64_t i = 0; i < batch * channels * plane; ++i) data[i] = static_cast<T>(random() % 9);
  Buffer<int64_t> keypoints(rows * 2), pixels(rows);
  for (int64_t i = 0; i < rows; ++i) keypoints[2 * i] = random() % width, keypoints[2 * i + 1] = random() % height;
  launch_pixels(keypoints.get(), batch, count, height, width, pixels.get(), nullptr);
  std::sort(pixels.get(), pixels.get() + rows);

  const int64_t channel = channels_last ? 1 : plane, column = channels_last ? channels : 1;
  const auto map_of = [&](auto* elements) {
    return PatchedMap<std::remove_pointer_t<decltype(elements)>>{
        elements, channels * plane, channel, width * column, column, channels, height, width, size, channels_last};
  };
  Buffer<computing<T>> patches(rows * columns);
  launch_gather_patches<T>(map_of(static_cast<const T*>(data.get())), pixels.get(), rows, patches.get(), nullptr);
  launch_scatter_patches<T>(patches.get(), pixels.get(), rows, map_of(total.get()), nullptr);

  for (int64_t row = 0; row < rows; ++row)
    for (int64_t place = 0; place < columns; ++place) {
      const int64_t c = channels_last ? place % channels : place / area;
      const int64_t offset = channels_last ? place / channels : place % area, raster = pixels[row] & 0xffffffff;
      const int64_t y = raster / width + offset / size - size / 2, x = raster % width + offset % size - size / 2;
      const bool inside = y >= 0 && y < height && x >= 0 && x < width;
      const int64_t at = (pixels[row] >> 32) * channels * plane + c * channel + (y * width + x) * column;
      check(patches[row * columns + place] == (inside ? data[at] : T(0)), "describe: patch");
      if (inside) expected[at] += data[at];
    }
  for (int64_t i = 0; i < batch * channels * plane; ++i) check(total[i] == expected[i], "describe: scattered");
}

template <typename T>
void run_normalize(int64_t rows, int depth) {
  Buffer<T> outputs(rows * depth, 3), bias(depth, 1), descriptors(rows * depth), grad(rows * depth, 1);
  Buffer<int64_t> order(rows);
  for (int64_t row = 0; row < rows; ++row) order[row] = rows - 1 - row, grad[row * depth] = static_cast<T>(row);
  launch_normalize<T>(outputs.get(), bias.get(), rows, depth, descriptors.get(), nullptr);
  launch_normalize_backward<T>(grad.get(), order.get(), bias.get(), rows, depth, outputs.get(), nullptr);
  const double unit = 1 / std::sqrt(depth), norm = 4 * std::sqrt(depth);
  for (int64_t i = 0; i < rows * depth; ++i) {
    const double first = static_cast<double>(rows - 1 - i / depth), mine = i % depth == 0 ? first : 1.0;
    check(std::abs(descriptors[i] - unit) < 1e-6, "describe: descriptor");
    check(std::abs(outputs[i] - (mine - (first + depth - 1) / depth) / norm) < 1e-5, "describe: gradient");
  }
}

void run_all_describe() {
  run_patches<float>(2, 3, 5, 7, 5, 12, false);
  run_patches<float>(1, 35, 3, 4, 3, 6, true);
  run_patches<double>(1, 2, 1, 1, 7, 3, true);
  run_normalize<float>(9, 33);
  run_normalize<double>(3, 1);
}

}  // namespace
}  // namespace disk_ops

#include "test_blocks.h"
#include "test_match.h"
#include "test_sampling.h"

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "all";
  if (what == "nms" || what == "all") disk_ops::run_all_nms();
  if (what == "sort" || what == "all") disk_ops::run_long_sort();
  if (what == "neighbors" || what == "all") disk_ops::run_all_neighbors();
  if (what == "match" || what == "all") disk_ops::run_all_match();
  if (what == "describe" || what == "all") disk_ops::run_all_describe();
  if (what == "sample" || what == "all") disk_ops::run_all_sample();
  if (what == "blocks" || what == "all") disk_ops::run_all_blocks();
  if (what == "short-list") disk_ops::run_nms<float>({1, 8, 8, 1, 4, 1 << 20, false}, 3);
  return disk_ops::failures == 0 ? 0 : 1;
}
