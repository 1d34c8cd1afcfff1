// Attention on tensor cores: keys are streamed through shared memory with a running maximum and sum of every row, as in
// FlashAttention-2 (Dao 2023); both products stay in registers.
#pragma once
#include "mononn_matmul.cuh"

namespace mn {

// softmax(score(q k^T)) v. T: f16, bf16, or float (three tf32 products); DEPTH columns of q and k, WIDTH of v. STRIPS
// warps cover 16 rows of q each at a time, WARPS / STRIPS groups of them share the STEP keys of a step, and their results
// are added in order. WHOLE: all keys fit one step, which is loaded once. LOADS: values that ``ahead``
// loads for a score. VEC: neighbours that ``element`` takes at once.
// GUARD: a row whose scores are all -infinity gives zeros, not NaN.
template <class T, int DEPTH, int WIDTH, int STRIPS, int STEP, bool WHOLE, int LOADS, int VEC, bool GUARD, int ALIGN> struct Attention {
  static constexpr bool HALF = sizeof(T) == 2;
  static constexpr int GROUPS = WARPS / STRIPS, ROWS = STRIPS * 16, STAGES = WHOLE ? 1 : 2;
  static constexpr int DP = round_up(DEPTH, 16), EP = round_up(WIDTH, 16);
  static constexpr int LDK = row_stride<T>(DP), LDV = row_stride<T>(EP), LDO = column_stride(EP);
  static constexpr int KEYS = STEP / GROUPS, NK = KEYS / 8, NE = EP / 8;  // a group's keys; fragments of keys and columns
  static constexpr int BYTES = (ROWS * LDK + STAGES * STEP * (LDK + LDV)) * (int)sizeof(T) + GROUPS * ROWS * (LDO + 2) * 4;
  static_assert(WARPS % STRIPS == 0 && STEP % (16 * GROUPS) == 0, "whole fragments");
  static_assert(EP % VEC == 0, "whole vectors");

  static MN_DEVICE T *k_slot(unsigned char *shared, int slot) { return (T *)shared + ROWS * LDK + slot * STEP * LDK; }
  static MN_DEVICE T *v_slot(unsigned char *shared, int slot) {
    return (T *)shared + ROWS * LDK + STAGES * STEP * LDK + slot * STEP * LDV;
  }
  static MN_DEVICE float *sums(unsigned char *shared) {
    return (float *)((T *)shared + ROWS * LDK + STAGES * STEP * (LDK + LDV));
  }

  // The state of a warp's 16 rows: lane l holds rows l / 4 and l / 4 + 8.
  struct Rows {
    float o[NE][4], most[2], sum[2];
  };

  // ``score(i, j, s, x)`` is the epilogue of the first product, x what ``ahead(i, j, x)`` has loaded; ``element`` (see
  // Visit) is that of the second.
  template <class Ahead, class Score, class Element>
  static MN_DEVICE void run(unsigned char *shared, const T *q, int ldq, const T *k, int ldk, const T *v, int ldv, int rows,
                            int keys, Ahead &&ahead, Score &&score, Element &&element) {
    const int steps = (keys + STEP - 1) / STEP;
    sync_block();  // what lay here has been read
    MN_NOUNROLL for (int first = 0; first < rows; first += ROWS) {
      if (first > 0) sync_block();
      copy_tile<T, ROWS, DP, LDK, ALIGN, false>((T *)shared, q + first * ldq, ldq, rows - first, DEPTH);
      if (!WHOLE || first == 0) load(shared, 0, k, ldk, v, ldv, keys);
      cp_async_commit();
      Rows state = {};
      state.most[0] = state.most[1] = -INFINITY;
      MN_NOUNROLL for (int step = 0; step < steps; ++step) {
        float x[LOADS ? NK : 1][4][LOADS ? LOADS : 1] = {};
        if constexpr (LOADS > 0) prepare(first, step * STEP, rows, keys, x, ahead);
        cp_async_wait<0>();
        sync_block();
        if (step + 1 < steps) {
          const int at = (step + 1) * STEP;
          load(shared, (step + 1) % STAGES, k + at * ldk, ldk, v + at * ldv, ldv, keys - at);
          cp_async_commit();
        }
        advance(shared, step % STAGES, first, step * STEP, rows, keys, state, x, score);
      }
      finish(shared, state, first, rows, element);
    }
  }

 private:
  static MN_DEVICE int strip() { return warp() % STRIPS; }
  static MN_DEVICE int group() { return warp() / STRIPS; }
  static MN_DEVICE void load(unsigned char *shared, int slot, const T *k, int ldk, const T *v, int ldv, int keys) {
    copy_tile<T, STEP, DP, LDK, ALIGN, false>(k_slot(shared, slot), k, ldk, keys, DEPTH);
    copy_tile<T, STEP, EP, LDV, ALIGN, false>(v_slot(shared, slot), v, ldv, keys, WIDTH);
  }

  // Row i and key j of the lane's c-th value of the n-th fragment.
  static MN_DEVICE int row_of(int first, int c) { return first + strip() * 16 + lane() / 4 + c / 2 * 8; }
  static MN_DEVICE int key_of(int key0, int n, int c) { return key0 + group() * KEYS + n * 8 + lane() % 4 * 2 + c % 2; }

  template <int F, int N, class Ahead>
  static MN_DEVICE void prepare(int first, int key0, int rows, int keys, float (&x)[F][4][N], Ahead &ahead) {
    MN_UNROLL for (int n = 0; n < F; ++n)
      MN_UNROLL for (int c = 0; c < 4; ++c)
        if (row_of(first, c) < rows && key_of(key0, n, c) < keys) ahead(row_of(first, c), key_of(key0, n, c), x[n][c]);
  }

  // One step of keys: scores, their exponentials against the running maximum, and what they weigh.
  template <int F, int N, class Score>
  static MN_DEVICE void advance(unsigned char *shared, int slot, int first, int key0, int rows, int keys, Rows &state,
                                const float (&x)[F][4][N], Score &score) {
    float s[NK][4] = {};
    const T *q = (const T *)shared + strip() * 16 * LDK, *k = k_slot(shared, slot) + group() * KEYS * LDK;
    if constexpr (HALF) scores_half(q, k, s);
    else scores_tf32(q, k, s);
    float most[2] = {state.most[0], state.most[1]};
    MN_UNROLL for (int n = 0; n < NK; ++n)
      MN_UNROLL for (int c = 0; c < 4; ++c) {
        const int i = row_of(first, c), j = key_of(key0, n, c);
        s[n][c] = i < rows && j < keys ? score(i, j, s[n][c], x[n % F][c]) : -INFINITY;
        most[c / 2] = fmaxf(most[c / 2], s[n][c]);
      }
    MN_UNROLL for (int h = 0; h < 2; ++h) {
      most[h] = fmaxf(most[h], shuffle_xor(most[h], 1));
      most[h] = fmaxf(most[h], shuffle_xor(most[h], 2));
      const float base = most[h] == -INFINITY ? 0.f : most[h], scale = mn::exp(state.most[h] - base);
      state.sum[h] *= scale;
      MN_UNROLL for (int e = 0; e < NE; ++e) state.o[e][2 * h] *= scale, state.o[e][2 * h + 1] *= scale;
      MN_UNROLL for (int n = 0; n < NK; ++n)
        MN_UNROLL for (int c = 2 * h; c < 2 * h + 2; ++c) {
          s[n][c] = mn::exp(s[n][c] - base);
          state.sum[h] += s[n][c];
        }
      state.most[h] = most[h];
    }
    const T *v = v_slot(shared, slot) + group() * KEYS * LDV;
    if constexpr (HALF) weigh_half(v, s, state);
    else weigh_tf32(v, s, state);
  }

  static MN_DEVICE void scores_half(const T *q, const T *k, float (&s)[NK][4]) {
    MN_UNROLL for (int d = 0; d < DP; d += 16) {
      uint32_t a[4];
      ldmatrix_x4(a, q + lane() % 16 * LDK + d + lane() / 16 * 8);
      MN_UNROLL for (int n = 0; n < NK; n += 2) {
        uint32_t r[4];
        ldmatrix_x4(r, k + (n * 8 + lane() % 8 + lane() / 16 * 8) * LDK + d + lane() / 8 % 2 * 8);
        const uint32_t left[2] = {r[0], r[1]}, right[2] = {r[2], r[3]};
        mma_16<T>(s[n], a, left);
        mma_16<T>(s[n + 1], a, right);
      }
    }
  }
  static MN_DEVICE void weigh_half(const T *v, const float (&p)[NK][4], Rows &state) {
    MN_UNROLL for (int n = 0; n < NK; n += 2) {
      const uint32_t a[4] = {pack2<T>(p[n][0], p[n][1]), pack2<T>(p[n][2], p[n][3]), pack2<T>(p[n + 1][0], p[n + 1][1]),
                             pack2<T>(p[n + 1][2], p[n + 1][3])};
      MN_UNROLL for (int e = 0; e < NE; e += 2) {
        uint32_t r[4];
        ldmatrix_x4_trans(r, v + (n * 8 + lane() % 16) * LDV + e * 8 + lane() / 16 * 8);
        const uint32_t left[2] = {r[0], r[1]}, right[2] = {r[2], r[3]};
        mma_16<T>(state.o[e], a, left);
        mma_16<T>(state.o[e + 1], a, right);
      }
    }
  }
  static MN_DEVICE void scores_tf32(const T *q, const T *k, float (&s)[NK][4]) {
    MN_UNROLL for (int d = 0; d < DP; d += 8) {
      uint32_t r[4], ah[4], al[4];
      ldmatrix_x4(r, q + lane() % 16 * LDK + d + lane() / 16 * 4);
      MN_UNROLL for (int e = 0; e < 4; ++e) split_tf32(bits_float(r[e]), ah[e], al[e]);
      MN_UNROLL for (int n = 0; n < NK; n += 2) {
        ldmatrix_x4(r, k + (n * 8 + lane() % 8 + lane() / 16 * 8) * LDK + d + lane() / 8 % 2 * 4);
        MN_UNROLL for (int h = 0; h < 2; ++h) {
          uint32_t bh[2], bl[2];
          MN_UNROLL for (int e = 0; e < 2; ++e) split_tf32(bits_float(r[2 * h + e]), bh[e], bl[e]);
          mma_tf32x3(s[n + h], ah, al, bh, bl);
        }
      }
    }
  }
  // The order of keys inside a fragment does not matter: lanes take keys 2 t and 2 t + 1, as the scores lie.
  static MN_DEVICE void weigh_tf32(const T *v, const float (&p)[NK][4], Rows &state) {
    MN_UNROLL for (int n = 0; n < NK; ++n) {
      uint32_t ah[4], al[4];
      MN_UNROLL for (int e = 0; e < 4; ++e) split_tf32(p[n][e % 2 * 2 + e / 2], ah[e], al[e]);
      const T *row = v + (n * 8 + lane() % 4 * 2) * LDV + lane() / 4;
      MN_UNROLL for (int e = 0; e < NE; ++e) {
        uint32_t bh[2], bl[2];
        MN_UNROLL for (int h = 0; h < 2; ++h) split_tf32(row[h * LDV + e * 8], bh[h], bl[h]);
        mma_tf32x3(state.o[e], ah, al, bh, bl);
      }
    }
  }

  // The groups' rows are brought to the largest of their maxima, added in order, and divided by their sums.
  template <class Element>
  static MN_DEVICE void finish(unsigned char *shared, Rows &state, int first, int rows, Element &element) {
    float *out = sums(shared), *most = out + GROUPS * ROWS * LDO, *total = most + GROUPS * ROWS;
    const int row = strip() * 16 + lane() / 4, own = group() * ROWS + row;
    MN_UNROLL for (int h = 0; h < 2; ++h) {
      state.sum[h] += shuffle_xor(state.sum[h], 1);
      state.sum[h] += shuffle_xor(state.sum[h], 2);
      if (lane() % 4 == 0) most[own + h * 8] = state.most[h], total[own + h * 8] = state.sum[h];
    }
    sync_block();
    MN_UNROLL for (int h = 0; h < 2; ++h) {
      float top = -INFINITY, sum = 0;
      MN_UNROLL for (int g = 0; g < GROUPS; ++g) top = fmaxf(top, most[g * ROWS + row + h * 8]);
      const float base = top == -INFINITY ? 0.f : top;
      MN_UNROLL for (int g = 0; g < GROUPS; ++g)
        sum += total[g * ROWS + row + h * 8] * mn::exp(most[g * ROWS + row + h * 8] - base);
      const float scale = mn::exp(state.most[h] - base) * (GUARD && sum == 0 ? 0.f : 1.f / sum);
      MN_UNROLL for (int e = 0; e < NE; ++e)
        *(pair *)(out + (own + h * 8) * LDO + e * 8 + lane() % 4 * 2) =
            pair{float_bits(state.o[e][2 * h] * scale), float_bits(state.o[e][2 * h + 1] * scale)};
    }
    sync_block();
    auto below = [&](int m, int n, auto width, bool valid) { return element(first + m, n, width, valid); };
    Visit<ROWS, EP, VEC, GROUPS, ROWS * LDO, LDO>::template rest<0>(out, rows - first, WIDTH, below);
  }
};

}  // namespace mn
