// The gradient of the weights of a block's convolution. Included by instruction_sets.h once per instruction set: hence
// no include guard.

// The gradient at the 4x4 pixels of a tile, 0 outside the image, to [64] at point_step.
inline void transform_gradient(const float* grad,  // [height, width, outputs]
                               int64_t height, int64_t width, int64_t outputs, int64_t y, int64_t x, float* transformed,
                               int64_t point_step) {
  using Vector = Winograd::Vector;
  for (int64_t k = 0; k < outputs; k += Winograd::kLanes) {
    Vector half[4][8];
    for (int64_t j = 0; j < 4; ++j) {
      Vector column[4];
      for (int64_t i = 0; i < 4; ++i)
        column[i] = y + i < height && x + j < width ? Winograd::load(grad + ((y + i) * width + x + j) * outputs + k)
                                                    : Vector{};
      Winograd::spread_output(column, half[j]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const Vector row[4] = {half[0][i], half[1][i], half[2][i], half[3][i]};
      Vector points[8];
      Winograd::spread_output(row, points);
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) Winograd::store(transformed + (8 * i + j) * point_step + k, points[j]);
    }
  }
}

// Adds to the sums of all 64 points what tiles [first, first + count) of an image, counted along the rows, have in them.
template <Resample resample>
void sum_tiles(const BlockInput<float>& input, const float* grad,  // [height, width, outputs]
               int64_t outputs, int64_t first, int64_t count, float* scratch,
               float* sums) {  // [64, padded outputs, padded channels]
  const BlockInput<float> in = input;
  using T = Winograd;
  const int64_t channels = in.x_channels + in.skip_channels, tile_columns = (in.width + 3) / 4;
  const int64_t padded_outputs = round_up(outputs, T::kRows), padded_channels = round_up(channels, T::kColumns);
  const int64_t input_step = kWeightTiles * channels + 16, grad_step = kWeightTiles * outputs + 16;
  float* const inputs = scratch;
  float* const grads = inputs + 64 * input_step + 32;
  float* const column_scratch = grads + 64 * grad_step + 32;
  for (int64_t done = 0; done < count;) {
    const int64_t tile_row = (first + done) / tile_columns, tile_column = (first + done) % tile_columns;
    const int64_t run = std::min(count - done, tile_columns - tile_column);
    transform_tiles<resample>(input, tile_row, tile_column, run, channels, inputs + done * channels, input_step,
                              column_scratch);
    for (int64_t tile = 0; tile < run; ++tile)
      transform_gradient(grad, in.height, in.width, outputs, 4 * tile_row, 4 * (tile_column + tile),
                         grads + (done + tile) * outputs, grad_step);
    done += run;
  }
  for (int64_t point = 0; point < 64; ++point)
    for (int64_t c = 0; c < padded_channels; c += T::kColumns)
      for (int64_t k = 0; k < padded_outputs; k += T::kRows) {  // what lies beyond outputs and channels isn't read
        float* const to = sums + (point * padded_outputs + k) * padded_channels + c;
        typename T::Vector sum[T::kRows][T::kVectors];
#pragma GCC unroll 16
        for (int r = 0; r < T::kRows; ++r)
          for (int v = 0; v < T::kVectors; ++v) sum[r][v] = T::load(to + r * padded_channels + v * T::kLanes);
        T::multiply_add(grads + point * grad_step + k, 1, outputs, inputs + point * input_step + c, channels, count, sum);
#pragma GCC unroll 16
        for (int r = 0; r < T::kRows; ++r)
          for (int v = 0; v < T::kVectors; ++v) T::store(to + r * padded_channels + v * T::kLanes, sum[r][v]);
      }
}

// The gradient [channels, 5, 5] of one output's weights from its sums, [64] at point_step.
inline void finish_weight(const float* sums, int64_t point_step, int64_t channels, float* grad_weight) {
  using Vector = Winograd::Vector;
  for (int64_t c = 0; c < channels; c += Winograd::kLanes) {
    Vector half[8][5];
    for (int i = 0; i < 8; ++i) {
      Vector points[8];
      for (int j = 0; j < 8; ++j) points[j] = Winograd::load(sums + (8 * i + j) * point_step + c);
      Winograd::gather_weight(points, half[i]);
    }
    for (int u = 0; u < 5; ++u) {
      Vector points[8], taps[5];
      for (int i = 0; i < 8; ++i) points[i] = half[i][u];
      Winograd::gather_weight(points, taps);
      for (int v = 0; v < 5; ++v)
        for (int lane = 0; lane < Winograd::kLanes; ++lane) grad_weight[(c + lane) * 25 + 5 * v + u] = taps[v][lane];
    }
  }
}

// Adds the gradient of the weights of a convolution to one output that rows [first, first + count) of its input have.
// `first` is even.
template <Resample resample>
void sum_taps(const BlockInput<float>& input, const float* grad,  // [height, width]
              int64_t first, int64_t count, float* scratch,
              float* sums) {  // [25, channels]
  const BlockInput<float> in = input;
  using Vector = Input::Vector;
  const int64_t channels = in.x_channels + in.skip_channels;
  float* const line = scratch;                           // [6, kWeightColumns + 4]: gradients from row - 2, column - 2
  float* const values = line + 6 * (kWeightColumns + 4);  // [kWeightColumns, 2, lanes]
  for (int64_t row = first; row < first + count; row += 2)
    for (int64_t left = 0; left < in.width; left += kWeightColumns) {
      const int64_t columns = std::min(kWeightColumns, in.width - left);
      for (int64_t i = 0; i < 6; ++i)
        for (int64_t j = 0; j < columns + 4; ++j) {
          const int64_t y = row - 2 + i, x = left - 2 + j;
          line[i * (kWeightColumns + 4) + j] =
              y >= 0 && y < in.height && x >= 0 && x < in.width ? grad[y * in.width + x] : 0.f;
        }
      for (int64_t channel = 0; channel < channels; channel += Input::kLanes) {
        for (int64_t x = 0; x < columns; ++x) {
          Vector value[2];
          Input::activation_column<resample>(in, row, left + x, channel, value);
          Input::store(values + 2 * x * Input::kLanes, value[0]);
          Input::store(values + (2 * x + 1) * Input::kLanes, value[1]);
        }
        for (int64_t v = 0; v < 5; ++v) {
          const float* const upper = line + (4 - v) * (kWeightColumns + 4);  // of the output v - 2 rows above `row`
          const float* const lower = upper + kWeightColumns + 4;
          Vector sum[2][5] = {};
          for (int64_t x = 0; x < columns; ++x) {
            const Vector first_value = Input::load(values + 2 * x * Input::kLanes);
            const Vector second_value = Input::load(values + (2 * x + 1) * Input::kLanes);
#pragma GCC unroll 5
            for (int u = 0; u < 5; ++u) {
              sum[0][u] += upper[x + 4 - u] * first_value;
              sum[1][u] += lower[x + 4 - u] * second_value;
            }
          }
          for (int64_t u = 0; u < 5; ++u) {
            float* const to = sums + (5 * v + u) * channels + channel;
            Input::store(to, Input::load(to) + (sum[0][u] + sum[1][u]));
          }
        }
      }
    }
}
