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

  // The transposed transform of 4 outputs to 8 products.
  static inline __attribute__((always_inline)) void spread_output(const Vector (&y)[4], Vector (&m)[8]) {
    const Vector even1 = y[0] + y[2], odd1 = y[1] + y[3];
    const Vector even2 = y[0] + 4.0f * y[2], odd2 = 2.0f * y[1] + 8.0f * y[3];
    const Vector even3 = y[0] + 0.25f * y[2], odd3 = 0.5f * y[1] + 0.125f * y[3];
    m[0] = y[0];
    m[1] = even1 + odd1;
    m[2] = even1 - odd1;
    m[3] = even2 + odd2;
    m[4] = even2 - odd2;
    m[5] = even3 + odd3;
    m[6] = even3 - odd3;
    m[7] = y[3];
  }

  // The weights of 5 taps at 7 of the 8 points; at the last one there is the last tap alone.
  static constexpr float kWeights[7][5] = {{1, 0, 0, 0, 0},
                                           {-2.f / 9, -2.f / 9, -2.f / 9, -2.f / 9, -2.f / 9},
                                           {-2.f / 9, 2.f / 9, -2.f / 9, 2.f / 9, -2.f / 9},
                                           {1.f / 90, 2.f / 90, 4.f / 90, 8.f / 90, 16.f / 90},
                                           {1.f / 90, -2.f / 90, 4.f / 90, -8.f / 90, 16.f / 90},
                                           {32.f / 45, 16.f / 45, 8.f / 45, 4.f / 45, 2.f / 45},
                                           {32.f / 45, -16.f / 45, 8.f / 45, -4.f / 45, 2.f / 45}};

  // The transform of 5 taps.
  static inline void transform_weight(const Vector (&taps)[5], Vector (&points)[8]) {
    for (int p = 0; p < 7; ++p) {
      points[p] = kWeights[p][0] * taps[0];
      for (int i = 1; i < 5; ++i) points[p] += kWeights[p][i] * taps[i];
    }
    points[7] = taps[4];
  }

  // The transposed transform, of 8 products to 5 taps.
  static inline void gather_weight(const Vector (&points)[8], Vector (&taps)[5]) {
    for (int i = 0; i < 5; ++i) {
      taps[i] = kWeights[0][i] * points[0];
      for (int p = 1; p < 7; ++p) taps[i] += kWeights[p][i] * points[p];
    }
    taps[4] += points[7];
  }
};

// A run of tiles in one row of tiles: inputs to [64][row_step], tile after tile `channels` apart.
template <Resample resample, typename T>
void transform_tiles(const BlockInput<T>& input, int64_t tile_row, int64_t tile_column, int64_t tiles,
                     int64_t channels, float* transformed, int64_t point_step, float* scratch) {
  const BlockInput<T> in = input;
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
