// Direct 5x5 convolutions of a block: of an image with few channels, and to a single output. Included by
// instruction_sets.h once per instruction set: hence no include guard.

// Rows [first, first + count) of the convolution of an image that is read as it is.
template <typename T>
void convolve_rows(const Image& image, const Convolution& layer, int64_t first, int64_t count,
                   float* strip,  // [count + 4, padded width + 4, channels]
                   T* out) {      // [height, width, outputs]
  using Real = Tile<float>;
  const int64_t channels = image.channels, columns = round_up(image.width, Real::kRows) + 4;
  std::fill_n(strip, (count + 4) * columns * channels, 0.f);
  for (int64_t r = std::max<int64_t>(0, 2 - first); r < std::min(count + 4, image.height + 2 - first); ++r)
    for (int64_t c = 0; c < channels; ++c) {
      const float* const from = image.data + c * image.channel_step + (first - 2 + r) * image.row_step;
      float* const to = strip + (r * columns + 2) * channels + c;
      for (int64_t x = 0; x < image.width; ++x) to[x * channels] = from[x * image.column_step];
    }
  for (int64_t y = 0; y < count; ++y)
    for (int64_t k = 0; k < layer.padded_outputs; k += Real::kColumns)
      for (int64_t x = 0; x < image.width; x += Real::kRows) {
        Real::Vector sum[Real::kRows][Real::kVectors];
#pragma GCC unroll 16
        for (int r = 0; r < Real::kRows; ++r)
          for (int v = 0; v < Real::kVectors; ++v) sum[r][v] = Real::load(layer.bias + k + v * Real::kLanes);
        for (int64_t v = 0; v < 5; ++v)
          Real::multiply_add(strip + ((y + v) * columns + x) * channels, channels, 1,
                          layer.weight + (k * 5 + v * Real::kColumns) * 5 * channels, Real::kColumns, 5 * channels, sum);
        for (int64_t r = 0; r < std::min<int64_t>(Real::kRows, image.width - x); ++r)
          for (int64_t v = 0; v < Real::kVectors && k + v * Real::kLanes < layer.outputs; ++v)
            Elements::store(out + ((first + y) * image.width + x + r) * layer.outputs + k + v * Real::kLanes, sum[r][v]);
      }
}

// kOnePixels pixels in a row of the convolution to one output. Lanes are channels; each pixel has a vector of its own,
// whose lanes are added up at the end.
inline void convolve_pixels(const float* const (&lines)[5],  // [kOnePixels + 4, channels] each: inputs above to below
                            const float* weight,             // [channels / kLanes, 5, 5, kLanes]
                            int64_t channels, float* sums) {  // [kOnePixels]
  using T = Lanes<float>;
  T::Vector sum[kOnePixels] = {};
  for (int64_t c = 0; c < channels; c += T::kLanes, weight += 25 * T::kLanes)
    for (int64_t v = 0; v < 5; ++v) {
      T::Vector taps[5];
#pragma GCC unroll 5
      for (int u = 0; u < 5; ++u) taps[u] = T::load(weight + (5 * v + u) * T::kLanes);
#pragma GCC unroll 12
      for (int x = 0; x < kOnePixels + 4; ++x) {
        const T::Vector value = T::load(lines[v] + x * channels + c);
#pragma GCC unroll 5
        for (int u = 0; u < 5; ++u)
          if (x - u >= 0 && x - u < kOnePixels) sum[x - u] += value * taps[u];
      }
    }
  T::sums(sum, sums);
}

// Pixels [top, top + rows) x [left, left + columns) of the convolution to one output. `top` is even.
template <Resample resample, typename T>
void convolve_to_one(const BlockInput<T>& input, const float* weight,  // [channels / kLanes, 5, 5, kLanes]
                     float bias, int64_t top, int64_t left, int64_t rows, int64_t columns, float* scratch,
                     float* out) {  // [height, width]
  const BlockInput<T> in = input;
  using Real = Lanes<float>;
  const int64_t channels = in.x_channels + in.skip_channels, wide = round_up(columns, kOnePixels) + 4;
  const auto line = [&](int64_t row) { return scratch + (row + 6) % 6 * wide * channels; };  // of six, row after row
  for (int64_t row = -2; row < rows + 2; row += 2) {  // the rows that are read, relative to `top`
    float* const upper = line(row);
    float* const lower = line(row + 1);
    for (int64_t x = 0; x < wide; ++x)
      for (int64_t c = 0; c < channels; c += Real::kLanes) {
        Real::Vector value[2];
        Input::activation_column<resample>(in, top + row, left - 2 + x, c, value);
        Real::store(upper + x * channels + c, value[0]);
        Real::store(lower + x * channels + c, value[1]);
      }
    for (int64_t y = std::max<int64_t>(0, row - 2); y < std::min(row, rows); ++y)
      for (int64_t x = 0; x < columns; x += kOnePixels) {
        const float* const lines[5] = {line(y - 2) + x * channels, line(y - 1) + x * channels, line(y) + x * channels,
                                       line(y + 1) + x * channels, line(y + 2) + x * channels};
        float sums[kOnePixels];
        convolve_pixels(lines, weight, channels, sums);
        for (int64_t i = 0; i < std::min<int64_t>(kOnePixels, columns - x); ++i)
          out[(top + y) * in.width + left + x + i] = bias + sums[i];
      }
  }
}

// What the convolution reads in rows [first, first + count). `first` is even.
template <Resample resample, typename T>
void read_rows(const BlockInput<T>& input, int64_t first, int64_t count, T* out) {  // [height, width, channels]
  const BlockInput<T> in = input;
  const int64_t channels = in.x_channels + in.skip_channels;
  for (int64_t row = first; row < first + count; row += 2)
    for (int64_t column = 0; column < in.width; ++column) {
      T* const to = out + (row * in.width + column) * channels;
      for (int64_t channel = 0; channel < channels; channel += Input::kLanes) {
        Input::Vector value[2];
        Input::activation_column<resample>(in, row, column, channel, value);
        Input::store(to + channel, value[0]);
        if (row + 1 < first + count) Input::store(to + in.width * channels + channel, value[1]);
      }
    }
}

// What the convolution reads around a pixel: [5, 5, channels].
template <Resample resample, typename T>
void read_patch(const BlockInput<T>& input, int64_t x, int64_t y, T* patch) {
  const BlockInput<T> in = input;
  const int64_t channels = in.x_channels + in.skip_channels;
  for (int64_t u = 0; u < 5; ++u)
    for (int64_t c = 0; c < channels; c += Input::kLanes) {
      const int64_t row = (y - 2) >> 1 << 1;
      Input::Vector value[6];
      Input::activation_column<resample>(in, row, x - 2 + u, c, value);
      for (int64_t v = 0; v < 5; ++v) Input::store(patch + (v * 5 + u) * channels + c, value[y - 2 - row + v]);
    }
}
