// y = silu(A (x - m) r + B) and its gradient, bfloat16, channels last; the formulas are in norms.py.

#include <torch/extension.h>

#include <cmath>
#include <cstdint>
#include <vector>

using Short = uint16_t;  // bfloat16: the upper half of a float
using torch::Tensor;

static inline float wide(Short v) {
  union { uint32_t i; float f; } u;
  u.i = uint32_t(v) << 16;
  return u.f;
}

static inline Short narrow(float f) {  // to the nearest, ties to even
  union { uint32_t i; float f; } u;
  u.f = f;
  return Short((u.i + 0x7FFFu + ((u.i >> 16) & 1u)) >> 16);
}

static inline float sigmoid(float z) {  // 2^(k + f) with a polynomial for 2^f, error 3e-6
  z = z < -80.0f ? -80.0f : (z > 80.0f ? 80.0f : z);
  const float t = -1.44269504f * z, k = std::floor(t), f = t - k;
  const float p = 1.0f + f * (0.69314697f + f * (0.24022618f + f * (0.05550348f +
                  f * (0.00961835f + f * 0.00133980f))));
  union { int32_t i; float f; } u;
  u.i = (int32_t(k) + 127) << 23;
  return 1.0f / (1.0f + p * u.f);
}

// Channels as a constant where it is common: short loops are then unrolled.
#define FOR_CHANNELS(C, CALL) \
  switch (C) { \
    case 32: return CALL(32); case 56: return CALL(56); case 64: return CALL(64); \
    case 88: return CALL(88); case 96: return CALL(96); case 104: return CALL(104); \
    case 128: return CALL(128); case 192: return CALL(192); case 256: return CALL(256); \
    default: return CALL(0); \
  }

template <int Fixed>
static std::vector<Tensor> run_forward(
    const Tensor& x, const Tensor& a, const Tensor& b, int64_t groups, double eps, bool silu) {
  const int64_t N = x.size(0), C = Fixed ? Fixed : x.size(1), P = x.size(2) * x.size(3);
  const int64_t K = C / groups;
  Tensor y = torch::empty_like(x);
  Tensor mean = torch::empty({N, groups}, a.options()), scale = torch::empty_like(mean);
  const Short* X = (const Short*)x.data_ptr();
  Short* Y = (Short*)y.data_ptr();
  const float *A = a.data_ptr<float>(), *B = b.data_ptr<float>();
  float *M = mean.data_ptr<float>(), *R = scale.data_ptr<float>();
  at::parallel_for(0, N, 1, [&](int64_t first, int64_t last) {
    std::vector<float> space(4 * C);
    float *__restrict__ s1 = space.data(), *__restrict__ s2 = s1 + C;
    float *__restrict__ slope = s2 + C, *__restrict__ shift = slope + C;
    for (int64_t n = first; n < last; n++) {
      const Short* in = X + n * P * C;
      Short* out = Y + n * P * C;
      for (int64_t c = 0; c < C; c++) s1[c] = s2[c] = 0;
      for (int64_t p = 0; p < P; p++) {
        const Short* __restrict__ q = in + p * C;
        for (int64_t c = 0; c < C; c++) {
          const float v = wide(q[c]);
          s1[c] += v;
          s2[c] += v * v;
        }
      }
      for (int64_t g = 0; g < groups; g++) {
        double sum = 0, squares = 0;
        for (int64_t c = g * K; c < (g + 1) * K; c++) {
          sum += s1[c];
          squares += s2[c];
        }
        const double m = sum / (P * K), variance = std::max(0.0, squares / (P * K) - m * m);
        M[n * groups + g] = m;
        R[n * groups + g] = 1 / std::sqrt(variance + eps);
        for (int64_t c = g * K; c < (g + 1) * K; c++) {
          slope[c] = R[n * groups + g] * A[n * C + c];
          shift[c] = B[n * C + c] - float(m) * slope[c];
        }
      }
      for (int64_t p = 0; p < P; p++) {
        const Short* __restrict__ q = in + p * C;
        Short* __restrict__ o = out + p * C;
        if (silu) {
          for (int64_t c = 0; c < C; c++) {
            const float z = wide(q[c]) * slope[c] + shift[c];
            o[c] = narrow(z * sigmoid(z));
          }
        } else {
          for (int64_t c = 0; c < C; c++) o[c] = narrow(wide(q[c]) * slope[c] + shift[c]);
        }
      }
    }
  });
  return {y, mean, scale};
}

template <int Fixed>
static std::vector<Tensor> run_backward(
    const Tensor& dy, const Tensor& x, const Tensor& a, const Tensor& b, const Tensor& mean,
    const Tensor& scale, int64_t groups, bool silu) {
  const int64_t N = x.size(0), C = Fixed ? Fixed : x.size(1), P = x.size(2) * x.size(3);
  const int64_t K = C / groups;
  Tensor dx = torch::empty_like(x), da = torch::empty_like(a), db = torch::empty_like(b);
  const Short *X = (const Short*)x.data_ptr(), *D = (const Short*)dy.data_ptr();
  Short* O = (Short*)dx.data_ptr();
  const float *A = a.data_ptr<float>(), *B = b.data_ptr<float>();
  const float *M = mean.data_ptr<float>(), *R = scale.data_ptr<float>();
  float *DA = da.data_ptr<float>(), *DB = db.data_ptr<float>();
  at::parallel_for(0, N, 1, [&](int64_t first, int64_t last) {
    std::vector<float> space(7 * C), slopes(P * C);
    float *__restrict__ slope = space.data(), *__restrict__ shift = slope + C;
    float *__restrict__ s = shift + C, *__restrict__ sx = s + C;
    float *__restrict__ k1 = sx + C, *__restrict__ k2 = k1 + C, *__restrict__ k3 = k2 + C;
    for (int64_t n = first; n < last; n++) {
      const Short *in = X + n * P * C, *grad = D + n * P * C;
      for (int64_t c = 0; c < C; c++) {
        const int64_t g = n * groups + c / K;
        slope[c] = R[g] * A[n * C + c];
        shift[c] = B[n * C + c] - M[g] * slope[c];
        s[c] = sx[c] = 0;
      }
      for (int64_t p = 0; p < P; p++) {
        const Short* __restrict__ q = in + p * C;
        const Short* __restrict__ d = grad + p * C;
        float* __restrict__ dz = slopes.data() + p * C;
        if (silu) {
          for (int64_t c = 0; c < C; c++) {
            const float z = wide(q[c]) * slope[c] + shift[c], t = sigmoid(z);
            dz[c] = wide(d[c]) * t * (1.0f + z * (1.0f - t));
          }
        } else {
          for (int64_t c = 0; c < C; c++) dz[c] = wide(d[c]);
        }
        for (int64_t c = 0; c < C; c++) {
          s[c] += dz[c];
          sx[c] += dz[c] * wide(q[c]);
        }
      }
      for (int64_t g = 0; g < groups; g++) {
        const float m = M[n * groups + g], r = R[n * groups + g];
        double u = 0, v = 0;  // means of A dz and of A dz (x - m) r
        for (int64_t c = g * K; c < (g + 1) * K; c++) {
          DB[n * C + c] = s[c];
          DA[n * C + c] = (sx[c] - m * s[c]) * r;
          u += A[n * C + c] * s[c];
          v += A[n * C + c] * DA[n * C + c];
        }
        u /= P * K;
        v /= P * K;
        for (int64_t c = g * K; c < (g + 1) * K; c++) {
          k1[c] = r * A[n * C + c];
          k2[c] = r * r * v;
          k3[c] = r * r * v * m - r * u;
        }
      }
      for (int64_t p = 0; p < P; p++) {
        const Short* __restrict__ q = in + p * C;
        const float* __restrict__ dz = slopes.data() + p * C;
        Short* __restrict__ o = O + (n * P + p) * C;
        for (int64_t c = 0; c < C; c++) o[c] = narrow(dz[c] * k1[c] - wide(q[c]) * k2[c] + k3[c]);
      }
    }
  });
  return {dx, da, db};
}

std::vector<Tensor> forward(Tensor x, Tensor a, Tensor b, int64_t groups, double eps, bool silu) {
#define CALL(C) run_forward<C>(x, a, b, groups, eps, silu)
  FOR_CHANNELS(x.size(1), CALL)
#undef CALL
}

std::vector<Tensor> backward(
    Tensor dy, Tensor x, Tensor a, Tensor b, Tensor mean, Tensor scale, int64_t groups, bool silu) {
#define CALL(C) run_backward<C>(dy, x, a, b, mean, scale, groups, silu)
  FOR_CHANNELS(x.size(1), CALL)
#undef CALL
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("forward", &forward);
  module.def("backward", &backward);
}
