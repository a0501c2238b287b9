// The convolution of a block in tiles of 4x4 pixels, on the transforms of winograd_simd.h. Included by
// instruction_sets.h once per instruction set: hence no include guard.

// Products of a tile, [64] at point_step, to up to 4 x 4 pixels of kLanes outputs.
template <typename T>
void finish_tile(const float* products, int64_t point_step, const float* bias, int64_t rows, int64_t columns, T* out,
                 int64_t row_step, int64_t pixel_step) {
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
    for (int64_t x = 0; x < columns; ++x) Elements::store(out + y * row_step + x * pixel_step, pixel[x] + offset);
  }
}

// Products of transformed inputs and weights at each of the 64 points.
inline void multiply_points(const float* transformed, int64_t input_step, const Convolution& layer, int64_t channels,
                            int64_t count, float* products, int64_t product_step) {
  using T = Winograd;
  for (int64_t point = 0; point < 64; ++point)
    for (int64_t column = 0; column < layer.padded_outputs; column += T::kColumns)
      for (int64_t row = 0; row < count; row += T::kRows) {
        T::Vector sum[T::kRows][T::kVectors];
        T::multiply(transformed + point * input_step + row * channels, channels, 1,
                    layer.weight + (point * layer.padded_outputs + column) * channels, T::kColumns, channels, sum);
#pragma GCC unroll 16
        for (int r = 0; r < T::kRows; ++r)
          for (int v = 0; v < T::kVectors; ++v)
            T::store(products + point * product_step + (row + r) * layer.padded_outputs + column + v * T::kLanes,
                     sum[r][v]);
      }
}

// Tiles [first, first + count) of an image, counted along the rows.
template <Resample resample, typename T>
void convolve_tiles(const BlockInput<T>& input, const Convolution& layer, int64_t first, int64_t count, float* scratch,
                    T* out) {  // [height, width, outputs]
  const BlockInput<T> in = input;
  const int64_t channels = in.x_channels + in.skip_channels, tile_columns = (in.width + 3) / 4;
  const int64_t input_step = kTiles * channels + 16, product_step = kTiles * layer.padded_outputs + 16;
  float* const transformed = scratch;
  float* const products = transformed + 64 * input_step;
  float* const column_scratch = products + 64 * product_step;
  for (int64_t done = 0; done < count;) {
    const int64_t tile_row = (first + done) / tile_columns, tile_column = (first + done) % tile_columns;
    const int64_t run = std::min(count - done, tile_columns - tile_column);
    transform_tiles<resample>(input, tile_row, tile_column, run, channels, transformed + done * channels, input_step,
                              column_scratch);
    done += run;
  }
  multiply_points(transformed, input_step, layer, channels, count, products, product_step);
  for (int64_t tile = 0; tile < count; ++tile) {
    const int64_t y = 4 * ((first + tile) / tile_columns), x = 4 * ((first + tile) % tile_columns);
    for (int64_t k = 0; k < layer.outputs; k += Winograd::kLanes)
      finish_tile(products + tile * layer.padded_outputs + k, product_step, layer.bias + k,
                  std::min<int64_t>(4, in.height - y), std::min<int64_t>(4, in.width - x),
                  out + (y * in.width + x) * layer.outputs + k, in.width * layer.outputs, layer.outputs);
  }
}

// Weights [outputs, channels, 5, 5] of one input channel, transformed, to panels of kColumns outputs.
inline void pack_weight(const float* weight, int64_t channels, int64_t channel, int64_t outputs,
                        int64_t padded_outputs, float* packed) {  // [64, padded / kColumns, channels, kColumns]
  using T = Winograd;
  using Vector = T::Vector;
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
      T::transform_weight(column, half[x]);
    }
    for (int i = 0; i < 8; ++i) {
      Vector row[5], points[8];
      for (int x = 0; x < 5; ++x) row[x] = half[x][i];
      T::transform_weight(row, points);
      for (int j = 0; j < 8; ++j)
        T::store(packed + (((8 * i + j) * padded_outputs + k / T::kColumns * T::kColumns) * channels +
                           channel * T::kColumns + k % T::kColumns),
                 points[j]);
    }
  }
}
