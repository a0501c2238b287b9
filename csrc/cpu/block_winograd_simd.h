// 5x5 convolution of 4x4 tiles by Winograd's F(4x4, 5x5): 64 products for 16 pixels, where 400 are needed directly.
// Points 0, 1, -1, 2, -2, 1/2, -1/2 and infinity (Lavin and Gray, "Fast algorithms for convolutional neural networks",
// 2016). Included by instruction_sets.h once per instruction set: hence no include guard.

struct Winograd : Tile<float> {
  // The transform of 8 inputs, in place.
  static inline __attribute__((always_inline)) void transform_input(Vector (&d)[8]) {
    const Vector even1 = d[2] + d[6] - 4.25f * d[4], odd1 = d[1] + d[5] - 4.25f * d[3];
    const Vector even2 = d[6] + 0.25f * d[2] - 1.25f * d[4], odd2 = 0.5f * d[1] - 2.5f * d[3] + 2.0f * d[5];
    const Vector even3 = d[6] + 4.0f * d[2] - 5.0f * d[4], odd3 = 2.0f * d[1] - 2.5f * d[3] + 0.5f * d[5];
    d[0] = d[0] - d[6] + 5.25f * (d[4] - d[2]);
    d[7] = d[7] - d[1] + 5.25f * (d[3] - d[5]);
    d[1] = even1 + odd1;
    d[2] = even1 - odd1;
    d[3] = even2 + odd2;
    d[4] = even2 - odd2;
    d[5] = even3 + odd3;
    d[6] = even3 - odd3;
  }

  // The transform of 8 products to 4 outputs.
  static inline __attribute__((always_inline)) void transform_output(const Vector (&m)[8], Vector (&y)[4]) {
    const Vector sum1 = m[1] + m[2], sum2 = m[3] + m[4], sum3 = m[5] + m[6];
    const Vector difference1 = m[1] - m[2], difference2 = m[3] - m[4], difference3 = m[5] - m[6];
    y[0] = m[0] + sum1 + sum2 + sum3;
    y[1] = difference1 + 2.0f * difference2 + 0.5f * difference3;
    y[2] = sum1 + 4.0f * sum2 + 0.25f * sum3;
    y[3] = difference1 + 8.0f * difference2 + 0.125f * difference3 + m[7];
  }
};

// A run of tiles in one row of tiles: inputs to [64][row_step], tile after tile `channels` apart.
template <Resample resample>
void transform_tiles(const BlockInput& in, int64_t tile_row, int64_t tile_column, int64_t tiles, int64_t channels,
                     float* transformed, int64_t point_step, float* scratch) {
  using Vector = Winograd::Vector;
  constexpr int kLanes = Winograd::kLanes;
  const int64_t columns = 4 * tiles + 4;
  for (int64_t channel = 0; channel < channels; channel += kLanes) {
    for (int64_t i = 0; i < columns; ++i) {
      Vector value[8];
      Input::activation_column<resample>(in, 4 * tile_row - 2, 4 * tile_column - 2 + i, channel, value);
      Winograd::transform_input(value);
#pragma GCC unroll 8
      for (int r = 0; r < 8; ++r) Winograd::store(scratch + (r * columns + i) * kLanes, value[r]);
    }
    for (int64_t tile = 0; tile < tiles; ++tile)
      for (int r = 0; r < 8; ++r) {
        Vector value[8];
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) value[i] = Winograd::load(scratch + (r * columns + 4 * tile + i) * kLanes);
        Winograd::transform_input(value);
        float* const to = transformed + 8 * r * point_step + tile * channels + channel;
#pragma GCC unroll 8
        for (int i = 0; i < 8; ++i) Winograd::store(to + i * point_step, value[i]);
      }
  }
}

// Products of a tile, [64] at point_step, to up to 4 x 4 pixels of kLanes outputs.
inline void finish_tile(const float* products, int64_t point_step, const float* bias, int64_t rows, int64_t columns,
                        float* out, int64_t row_step, int64_t pixel_step) {
  using Vector = Winograd::Vector;
  Vector half[8][4];
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    Vector value[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) value[i] = Winograd::load(products + (8 * i + j) * point_step);
    Winograd::transform_output(value, half[j]);
  }
  const Vector offset = Winograd::load(bias);
  for (int64_t y = 0; y < rows; ++y) {
    Vector value[8], pixel[4];
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) value[j] = half[j][y];
    Winograd::transform_output(value, pixel);
    for (int64_t x = 0; x < columns; ++x) Winograd::store(out + y * row_step + x * pixel_step, pixel[x] + offset);
  }
}

// Tiles [first, first + count) of an image, counted along the rows.
template <Resample resample>
void convolve_tiles(const BlockInput& in, const Convolution& layer, int64_t first, int64_t count, float* scratch,
                    float* out) {  // [height, width, outputs]
  using T = Winograd;
  const int64_t channels = in.x_channels + in.skip_channels, tile_columns = (in.width + 3) / 4;
  const int64_t input_step = kTiles * channels + 16, product_step = kTiles * layer.padded_outputs + 16;
  float* const transformed = scratch;
  float* const products = transformed + 64 * input_step;
  float* const column_scratch = products + 64 * product_step;
  for (int64_t done = 0; done < count;) {
    const int64_t tile_row = (first + done) / tile_columns, tile_column = (first + done) % tile_columns;
    const int64_t run = std::min(count - done, tile_columns - tile_column);
    transform_tiles<resample>(in, tile_row, tile_column, run, channels, transformed + done * channels, input_step,
                              column_scratch);
    done += run;
  }
  for (int64_t point = 0; point < 64; ++point)
    for (int64_t column = 0; column < layer.padded_outputs; column += T::kColumns)
      for (int64_t row = 0; row < count; row += T::kRows) {
        typename T::Vector sum[T::kRows][T::kVectors];
        T::multiply(transformed + point * input_step + row * channels, channels, 1,
                    layer.weight + (point * layer.padded_outputs + column) * channels, T::kColumns, channels, sum);
#pragma GCC unroll 16
        for (int r = 0; r < T::kRows; ++r)
          for (int v = 0; v < T::kVectors; ++v)
            T::store(products + point * product_step + (row + r) * layer.padded_outputs + column + v * T::kLanes,
                     sum[r][v]);
      }
  for (int64_t tile = 0; tile < count; ++tile) {
    const int64_t y = 4 * ((first + tile) / tile_columns), x = 4 * ((first + tile) % tile_columns);
    for (int64_t k = 0; k < layer.outputs; k += T::kLanes)
      finish_tile(products + tile * layer.padded_outputs + k, product_step, layer.bias + k,
                  std::min<int64_t>(4, in.height - y), std::min<int64_t>(4, in.width - x),
                  out + (y * in.width + x) * layer.outputs + k, in.width * layer.outputs, layer.outputs);
  }
}

// Weights [outputs, channels, 5, 5] of one input channel, transformed, to panels of kColumns outputs.
inline void transform_weight(const float* weight, int64_t channels, int64_t channel, int64_t outputs,
                             int64_t padded_outputs, float* packed) {  // [64, padded / kColumns, channels, kColumns]
  constexpr float kPoints[7][5] = {{1, 0, 0, 0, 0},
                                   {-2.f / 9, -2.f / 9, -2.f / 9, -2.f / 9, -2.f / 9},
                                   {-2.f / 9, 2.f / 9, -2.f / 9, 2.f / 9, -2.f / 9},
                                   {1.f / 90, 2.f / 90, 4.f / 90, 8.f / 90, 16.f / 90},
                                   {1.f / 90, -2.f / 90, 4.f / 90, -8.f / 90, 16.f / 90},
                                   {32.f / 45, 16.f / 45, 8.f / 45, 4.f / 45, 2.f / 45},
                                   {32.f / 45, -16.f / 45, 8.f / 45, -4.f / 45, 2.f / 45}};
  using T = Winograd;
  using Vector = T::Vector;
  const auto transform = [&](const Vector (&from)[5], Vector (&to)[8]) {
    for (int p = 0; p < 7; ++p) {
      to[p] = kPoints[p][0] * from[0];
      for (int i = 1; i < 5; ++i) to[p] += kPoints[p][i] * from[i];
    }
    to[7] = from[4];
  };
  for (int64_t k = 0; k < padded_outputs; k += T::kLanes) {
    Vector half[5][8];
    for (int x = 0; x < 5; ++x) {
      Vector column[5];
      for (int y = 0; y < 5; ++y) {
        float lanes[T::kLanes];
        for (int64_t lane = 0; lane < T::kLanes; ++lane)
          lanes[lane] = k + lane < outputs ? weight[((k + lane) * channels + channel) * 25 + 5 * y + x] : 0.f;
        column[y] = T::load(lanes);
      }
      transform(column, half[x]);
    }
    for (int i = 0; i < 8; ++i) {
      Vector row[5], points[8];
      for (int x = 0; x < 5; ++x) row[x] = half[x][i];
      transform(row, points);
      for (int j = 0; j < 8; ++j)
        T::store(packed + (((8 * i + j) * padded_outputs + k / T::kColumns * T::kColumns) * channels +
                           channel * T::kColumns + k % T::kColumns),
                 points[j]);
    }
  }
}
