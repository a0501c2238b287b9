// The kernels of distances and matches for the sanitizers: buffers of exactly the sizes that the launches take, and
// identities that hold for any descriptors. Part of test_kernels.cpp; results are compared in test_emulated_match.py.
#pragma once

#include "../../csrc/cuda/distance_matrix_kernel.cuh"
#include "../../csrc/cuda/match_kernel.cuh"

namespace disk_ops {
namespace {

template <typename T>
struct MatchBuffers {
  Buffer<T> desc, logsumexp, sum, keypoints, gradient, packed, half_norms;
  Buffer<bool> valid;
  Buffer<MatchPoint<T>> points;
  int rows;

  MatchBuffers(int batch, int rows, int depth, unsigned seed)
      : desc(random_rows<T>(batch * rows, depth, seed)),
        logsumexp(batch * rows),
        sum(batch * rows),
        keypoints(random_rows<T>(batch * rows, 2, seed)),
        gradient(batch * rows * depth),
        packed(batch * rows * packed_depth(depth)),
        half_norms(batch * rows),
        valid(batch * rows, true),
        points(batch * rows),
        rows(rows) {
    valid[batch * rows - 1] = false;
  }
  MatchSide<T> side() const {
    return {desc.get(), valid.get(),     logsumexp.get(), sum.get(), nullptr,
            nullptr,    keypoints.get(), keypoints.get(), {packed.get(), half_norms.get(), rows}, points.get()};
  }
};

template <typename T>
void run_match(int batch, int rows, int columns, int depth) {
  const MatchBuffers<T> one(batch, rows, depth, 1), two(batch, columns, depth, 2);
  const int64_t ranges1 = ranges_of_sums<T>(rows).count, ranges2 = ranges_of_sums<T>(columns).count;
  const int64_t parts1 = ranges_of_gradient<T>(rows, columns, batch, depth).count;
  const int64_t parts2 = ranges_of_gradient<T>(columns, rows, batch, depth).count;
  const int padded = packed_depth(depth);
  Buffer<T> row_sums(ranges2 * batch * rows * 2), column_sums(ranges1 * batch * columns * 2), theta(1, T(0.5));
  Buffer<T> partials1(parts1 * batch * rows * padded), partials2(parts2 * batch * columns * padded);
  Buffer<T> theta_partials(batch * tiles_of(rows, kPairTile<T>) * parts1), grad_theta(batch), probability(batch * rows);
  const int64_t pairs = static_cast<int64_t>(batch) * rows * columns;
  Buffer<T> distances(pairs), grad_reward(pairs), fundamental(batch * 9, T(0.25));
  const MatchRule<T> rule{nullptr, {}, fundamental.get(), true, true, false, false, T(2), T(1), T(-0.25)};
  const SumScratch<T> scratch{row_sums.get(), column_sums.get()};
  launch_distance_matrix<T>(one.desc.get(), two.desc.get(), one.side().packed, two.side().packed, batch, depth,
                            distances.get(), nullptr);
  launch_match_statistics<T>(one.side(), two.side(), batch, depth, theta.get(), scratch, one.logsumexp.get(),
                             two.logsumexp.get(), nullptr);
  launch_match_sums<T>(one.side(), two.side(), rule, batch, depth, theta.get(), scratch, one.sum.get(), two.sum.get(),
                       probability.get(), nullptr);
  launch_match_backward<T>(
      one.side(), two.side(), rule, batch, depth, theta.get(), {partials1.get(), partials2.get(), theta_partials.get()},
      {one.gradient.get(), two.gradient.get(), grad_theta.get(), grad_reward.get()}, nullptr);

  double of_rows = 0, of_columns = 0;
  for (int64_t row = 0; row < static_cast<int64_t>(batch) * rows; ++row) {
    double total = 0;
    for (int64_t j = 0; j < columns; ++j)
      if (one.valid[row] && two.valid[row / rows * columns + j])
        total += std::exp(-0.5 * static_cast<double>(distances[row * columns + j]));
    const double expected = std::log(total), logsumexp = one.logsumexp[row];
    check(logsumexp == expected || std::abs(logsumexp - expected) < 1e-4, "match: log-sum-exp");
    of_rows += one.sum[row];
  }
  for (int64_t i = 0; i < static_cast<int64_t>(batch) * columns; ++i) of_columns += two.sum[i];
  check(std::abs(of_rows - of_columns) < 1e-4, "match: sums of rows and columns");
  for (int k = 0; k < depth; ++k) {  // moving all descriptors of both sides together changes nothing
    double total = 0;
    for (int64_t i = 0; i < static_cast<int64_t>(batch) * rows; ++i) total += one.gradient[i * depth + k];
    for (int64_t i = 0; i < static_cast<int64_t>(batch) * columns; ++i) total += two.gradient[i * depth + k];
    check(std::abs(total) < 1e-3, "match: gradient");
  }
}

void run_all_match() {
  run_match<float>(2, 66, 20, 18);
  run_match<double>(1, 33, 40, 70);
  run_match<float>(1, 1, 2, 1);
}

}  // namespace
}  // namespace disk_ops
