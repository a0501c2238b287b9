// Direct 5x5 convolutions of a block: of an image with few channels, and to a single output. Included by
// instruction_sets.h once per instruction set: hence no include guard.

// Rows [first, first + count) of the convolution of an image that is read as it is.
inline void convolve_rows(const Image& image, const Convolution& layer, int64_t first, int64_t count,
                          float* strip,  // [count + 4, padded width + 4, channels]
                          float* out) {  // [height, width, outputs]
  using T = Tile<float>;
  const int64_t channels = image.channels, columns = round_up(image.width, T::kRows) + 4;
  std::fill_n(strip, (count + 4) * columns * channels, 0.f);
  for (int64_t r = std::max<int64_t>(0, 2 - first); r < std::min(count + 4, image.height + 2 - first); ++r)
    for (int64_t c = 0; c < channels; ++c) {
      const float* const from = image.data + c * image.channel_step + (first - 2 + r) * image.row_step;
      float* const to = strip + (r * columns + 2) * channels + c;
      for (int64_t x = 0; x < image.width; ++x) to[x * channels] = from[x * image.column_step];
    }
  for (int64_t y = 0; y < count; ++y)
    for (int64_t k = 0; k < layer.padded_outputs; k += T::kColumns)
      for (int64_t x = 0; x < image.width; x += T::kRows) {
        T::Vector sum[T::kRows][T::kVectors];
#pragma GCC unroll 16
        for (int r = 0; r < T::kRows; ++r)
          for (int v = 0; v < T::kVectors; ++v) sum[r][v] = T::load(layer.bias + k + v * T::kLanes);
        for (int64_t v = 0; v < 5; ++v)
          T::multiply_add(strip + ((y + v) * columns + x) * channels, channels, 1,
                          layer.weight + (k * 5 + v * T::kColumns) * 5 * channels, T::kColumns, 5 * channels, sum);
        for (int64_t r = 0; r < std::min<int64_t>(T::kRows, image.width - x); ++r)
          for (int64_t v = 0; v < T::kVectors && k + v * T::kLanes < layer.outputs; ++v)
            T::store(out + ((first + y) * image.width + x + r) * layer.outputs + k + v * T::kLanes, sum[r][v]);
      }
}

// Pixels [top, top + rows) x [left, left + columns) of the convolution to one output. Each pixel's input is multiplied
// by the 25 weights that it can meet, and the products are added where they belong. `top` is even.
template <Resample resample>
void convolve_to_one(const BlockInput& in, const float* weight,  // [channels, padded 25]
                     float bias, int64_t top, int64_t left, int64_t rows, int64_t columns, float* scratch,
                     float* out) {  // [height, width]
  using T = Tile<float>;
  constexpr int64_t kPadded = (25 + T::kColumns - 1) / T::kColumns * T::kColumns;
  const int64_t channels = in.x_channels + in.skip_channels, wide = columns + 4, pixels = round_up(2 * wide, T::kRows);
  float* const activation = scratch;                      // [pixels, channels]
  float* const products = activation + pixels * channels;  // [pixels, kPadded]
  float* const sums = products + pixels * kPadded;         // [rows, columns]
  std::fill_n(sums, rows * columns, bias);
  for (int64_t row = 0; row < rows + 4; row += 2) {
    for (int64_t x = 0; x < wide; ++x)
      for (int64_t c = 0; c < channels; c += T::kLanes) {
        T::Vector value[2];
        Input::activation_column<resample>(in, top - 2 + row, left - 2 + x, c, value);
        T::store(activation + x * channels + c, value[0]);
        T::store(activation + (wide + x) * channels + c, value[1]);
      }
    for (int64_t pixel = 0; pixel < 2 * wide; pixel += T::kRows)
      for (int64_t k = 0; k < kPadded; k += T::kColumns) {
        T::Vector sum[T::kRows][T::kVectors];
        T::multiply(activation + pixel * channels, channels, 1, weight + k, kPadded, channels, sum);
#pragma GCC unroll 16
        for (int r = 0; r < T::kRows; ++r)
          for (int v = 0; v < T::kVectors; ++v)
            T::store(products + (pixel + r) * kPadded + k + v * T::kLanes, sum[r][v]);
      }
    for (int64_t half = 0; half < 2; ++half)
      for (int64_t v = 0; v < 5; ++v) {
        const int64_t y = row + half - v;
        if (y < 0 || y >= rows) continue;
        const float* const from = products + half * wide * kPadded + 5 * v;
        for (int64_t x = 0; x < columns; ++x)
          for (int64_t u = 0; u < 5; ++u) sums[y * columns + x] += from[(x + u) * kPadded + u];
      }
  }
  for (int64_t y = 0; y < rows; ++y)
    std::copy_n(sums + y * columns, columns, out + (top + y) * in.width + left);
}

// What the convolution reads in rows [first, first + count). `first` is even.
template <Resample resample>
void read_rows(const BlockInput& in, int64_t first, int64_t count, float* out) {  // [height, width, channels]
  const int64_t channels = in.x_channels + in.skip_channels;
  for (int64_t row = first; row < first + count; row += 2)
    for (int64_t column = 0; column < in.width; ++column) {
      float* const to = out + (row * in.width + column) * channels;
      for (int64_t channel = 0; channel < channels; channel += Input::kLanes) {
        Input::Vector value[2];
        Input::activation_column<resample>(in, row, column, channel, value);
        Input::store(to + channel, value[0]);
        if (row + 1 < first + count) Input::store(to + in.width * channels + channel, value[1]);
      }
    }
}

// What the convolution reads around a pixel: [5, 5, channels].
template <Resample resample>
void read_patch(const BlockInput& in, int64_t x, int64_t y, float* patch) {
  const int64_t channels = in.x_channels + in.skip_channels;
  for (int64_t u = 0; u < 5; ++u)
    for (int64_t c = 0; c < channels; c += Input::kLanes) {
      const int64_t row = (y - 2) >> 1 << 1;
      Input::Vector value[6];
      Input::activation_column<resample>(in, row, x - 2 + u, c, value);
      for (int64_t v = 0; v < 5; ++v) Input::store(patch + (v * 5 + u) * channels + c, value[y - 2 - row + v]);
    }
}
