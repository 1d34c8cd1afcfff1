// Positions of the K first of N elements in order, in generated CPU code.
//
// Elements are compared as whole numbers (keys) that are in the same order: a NaN is the greatest of all, zeros are
// equal whatever their sign, denormals are numbers. An item is a key with its position below it, so that no two items
// are equal and equal elements are in order of position. Everything is linear in N and K whatever the elements are:
//
//   1. Where K is a small share of N, minima of 2 K groups of elements are taken; the K-th of them is a bound that no
//      more than some of the elements meet, and the K first do.
//   2. What meets the bound is collected. Where room ends, all but the K first are dropped, which lowers the bound.
//   3. The K first items are selected by counting digits from the highest, and sorted by digits from the lowest.
#pragma once
#include "mononn_vec.hpp"

namespace mn {

template <int BYTES> struct Digits;
template <> struct Digits<4> {
  using Key = uint32_t;
  using Item = uint64_t;
};
template <> struct Digits<8> {
  using Key = uint64_t;
  __extension__ typedef unsigned __int128 Item;
};

// The first key is 0 once its sign bit is flipped; vectors compare keys as numbers with a sign.
template <class E, bool LARGEST> struct Keys {
  using D = Digits<sizeof(E) == 8 ? 8 : 4>;
  using Key = D::Key;
  using Item = D::Item;
  using Signed = std::make_signed_t<Key>;
  static constexpr int BITS = 8 * sizeof(Key), LANES = W * 4 / sizeof(Key) > 0 ? W * 4 / sizeof(Key) : 1;
  static constexpr Signed MOST = Signed(Key(-1) >> 1), INFINITE = sizeof(Key) == 4 ? 0x7f800000 : Signed(0x7ffull << 52);
  static constexpr Key SIGN = Key(1) << (BITS - 1);
  template <int N> using Vector = typename Packed<Signed, N>::Type;
  using V = Vector<LANES>;

  // Keys of N neighbours.
  template <int N> MN_INLINE Vector<N> load(const E *p) {
    using Stored = std::conditional_t<std::is_floating_point_v<E>, Signed, std::conditional_t<std::is_same_v<E, bool>, uint8_t, E>>;
    typename Packed<Stored, N>::Type raw;
    __builtin_memcpy(&raw, p, sizeof raw);
    Vector<N> key;
    if constexpr (std::is_floating_point_v<E>) {
      key = raw ^ ((raw >> (BITS - 1)) & MOST);
      key -= key == Signed(-1);  // of -0
      key = (raw & MOST) > INFINITE ? Vector<N>{} + MOST : key;
    } else if constexpr (std::is_unsigned_v<Stored> && sizeof(E) >= 4) {
      key = (Vector<N>)(raw ^ SIGN);
    } else {
      key = __builtin_convertvector(raw, Vector<N>);
    }
    return LARGEST ? ~key : key;
  }
  MN_INLINE Item item(Signed key, long position) { return Item(Key(key) ^ SIGN) << BITS | Item(position); }
  MN_INLINE Signed key(Item item) { return Signed(Key(item >> BITS) ^ SIGN); }
};

// The number of binary digits.
MN_INLINE int digits_of(uint64_t x) { return x ? 64 - __builtin_clzll(x) : 0; }
__extension__ MN_INLINE int digits_of(unsigned __int128 x) {
  return x >> 64 ? 64 + digits_of(uint64_t(x >> 64)) : digits_of(uint64_t(x));
}

template <class T> static void insertion_sort(T *a, long n) {
  for (long i = 1; i < n; ++i) {
    const T x = a[i];
    long j = i;
    for (; j > 0 && a[j - 1] > x; --j) a[j] = a[j - 1];
    a[j] = x;
  }
}

// The element of rank k (0: the least) among n; ``spare`` has room for n. Every round leaves those that share the
// highest eight digits in which the rest differ.
template <class T> static T select(const T *a, T *spare, long n, long k) {
  for (;; a = spare) {
    T low = a[0], high = a[0];
    for (long i = 1; i < n; ++i) {
      low = a[i] < low ? a[i] : low;
      high = a[i] > high ? a[i] : high;
    }
    if (low == high) return low;
    if (n <= 16) {
      for (long i = 0; i < n; ++i) spare[i] = a[i];
      insertion_sort(spare, n);
      return spare[k];
    }
    const int width = digits_of(T(high - low)), shift = width > 8 ? width - 8 : 0;
    uint32_t count[256] = {};
    for (long i = 0; i < n; ++i) ++count[uint8_t((a[i] - low) >> shift)];
    int digit = 0;
    for (; k >= long(count[digit]); ++digit) k -= count[digit];
    long kept = 0;
    for (long i = 0; i < n; ++i) {
      const T x = a[i];
      spare[kept] = x;  // at i or before it
      kept += uint8_t((x - low) >> shift) == digit;
    }
    n = kept;
  }
}

// Sorts n items, in order of position so far, by their keys, through ``spare``; returns where they are then.
template <class T, int BITS> static T *radix_sort(T *a, T *spare, long n) {
  if (n <= 24) {
    insertion_sort(a, n);
    return a;
  }
  T low = a[0], high = a[0];
  for (long i = 1; i < n; ++i) {
    low = a[i] < low ? a[i] : low;
    high = a[i] > high ? a[i] : high;
  }
  low = low >> BITS << BITS;
  const int passes = (digits_of(T((high - low) >> BITS)) + 7) / 8;
  uint32_t count[BITS / 8][256];
  __builtin_memset(count, 0, sizeof count[0] * passes);
  for (long i = 0; i < n; ++i) {
    uint64_t key = uint64_t((a[i] - low) >> BITS);
    for (int pass = 0; pass < passes; ++pass, key >>= 8) ++count[pass][uint8_t(key)];
  }
  for (int pass = 0; pass < passes; ++pass) {
    const int shift = BITS + 8 * pass;
    uint32_t at = 0;
    for (uint32_t &c : count[pass]) {
      const uint32_t own = c;
      c = at;
      at += own;
    }
    for (long i = 0; i < n; ++i) {
      const T x = a[i];
      spare[count[pass][uint8_t((x - low) >> shift)]++] = x;
    }
    T *sorted = spare;
    spare = a;
    a = sorted;
  }
  return a;
}

template <class E, bool LARGEST, long N, long K> struct Order {
  using O = Keys<E, LARGEST>;
  using Item = O::Item;
  using Key = O::Key;
  using Signed = O::Signed;
  using V = O::V;
  static constexpr int L = O::LANES;
  static constexpr bool ALL = N < 8 * K || N < 32;   // too large a share for a bound to pay
  static constexpr long ROOM = ALL ? N : 2 * K + 128;  // for the K first and what four vectors add
  static constexpr long FLOATS = K == 1 ? 0 : 2 * ROOM * sizeof(Item) / 4;
  static_assert(1 <= K && K <= N && N < 1l << 31 && 4 * L <= 64);

  // element(i, j, p): the j-th of row i is at p. Rows are ``stride`` elements apart.
  template <class Element> static void run(const E *x, long stride, long rows, float *scratch, Element &&element) {
    for (long i = 0; i < rows; ++i, x += stride) {
      if constexpr (K == 1) {
        element(i, 0, first(x));
      } else {
        const Item *sorted = row(x, (Item *)scratch, (Item *)scratch + ROOM);
        for (long j = 0; j < K; ++j) element(i, j, int64_t(Key(sorted[j])));
      }
    }
  }

 private:
  MN_INLINE V least(V a, V b) { return a < b ? a : b; }

  // The position of the first of all.
  MN_INLINE long first(const E *x) {
    V some = V{} + O::MOST;
    Signed low = O::MOST;
    long z = 0;
    for (; z + L <= N; z += L) some = least(some, O::template load<L>(x + z));
    MN_UNROLL for (int i = 0; i < L; ++i) low = some[i] < low ? some[i] : low;
    for (; z < N; ++z) {
      const Signed key = O::template load<1>(x + z)[0];
      low = key < low ? key : low;
    }
    for (z = 0; z + L <= N; z += L)
      if (any(O::template load<L>(x + z) == low)) break;
    while (O::template load<1>(x + z)[0] != low) ++z;
    return z;
  }

  // The items of a row in order, the K first of them sorted; in one of ``items`` and ``spare``, which have ROOM.
  static __attribute__((noinline)) const Item *row(const E *x, Item *items, Item *spare) {
    long count = N;
    if constexpr (ALL) {
      long z = 0;
      for (; z + L <= N; z += L) {
        const V key = O::template load<L>(x + z);
        MN_UNROLL for (int i = 0; i < L; ++i) items[z + i] = O::item(key[i], z + i);
      }
      for (; z < N; ++z) items[z] = O::item(O::template load<1>(x + z)[0], z);
    } else {
      count = collect(x, group_bound(x, items, spare), items, spare);
    }
    if (count > K) keep_first(items, spare, count);
    return radix_sort<Item, O::BITS>(items, spare, K);
  }

  // The K-th of the minima of groups that share no elements: at least K elements are not beyond it.
  static Signed group_bound(const E *x, Item *minima, Item *spare) {
    constexpr long BLOCKS = (2 * K + L - 1) / L, DEEP = N / L / BLOCKS;
    static_assert(DEEP >= 1);
    for (long b = 0; b < BLOCKS; ++b, x += DEEP * L) {
      V low = O::template load<L>(x);
      for (long z = 1; z < DEEP; ++z) low = least(low, O::template load<L>(x + z * L));
      for (int i = 0; i < L; ++i) minima[b * L + i] = O::item(low[i], 0);
    }
    return O::key(select(minima, spare, BLOCKS * L, K - 1));
  }

  // Items that are not beyond ``bound``, all of the K first among them; how many.
  static long collect(const E *x, Signed bound, Item *items, Item *spare) {
    long count = 0, z = 0;
    for (; z + 4 * L <= N; z += 4 * L) {
      V key[4], beyond = V{} - 1;
      MN_UNROLL for (int u = 0; u < 4; ++u) {
        key[u] = O::template load<L>(x + z + u * L);
        beyond &= key[u] > bound;
      }
      if (!any(~beyond)) continue;
      if (count + 4 * L > ROOM && !lower(bound, items, spare, count)) return count;
      for (int u = 0; u < 4; ++u) {
        const V some = key[u];
        for (int i = 0; i < L; ++i) {
          items[count] = O::item(some[i], z + u * L + i);
          count += some[i] <= bound;
        }
      }
    }
    if (count + N - z > ROOM && !lower(bound, items, spare, count)) return count;
    for (; z < N; ++z) {
      const Signed key = O::template load<1>(x + z)[0];
      items[count] = O::item(key, z);
      count += key <= bound;
    }
    return count;
  }
  // Drops all but the K first; what comes later has to be before the last of them. Whether anything can be.
  MN_INLINE bool lower(Signed &bound, Item *items, Item *spare, long &count) {
    const Signed last = O::key(keep_first(items, spare, count));
    count = K;
    bound = Signed(Key(last) - 1);
    return bound < last;
  }

  // The K first of ``count`` items come first, in order of position; the last of them.
  static Item keep_first(Item *items, Item *spare, long count) {
    const Item last = select(items, spare, count, K - 1);
    long kept = 0;
    for (long i = 0; i < count; ++i) {
      const Item x = items[i];
      items[kept] = x;
      kept += x <= last;
    }
    return last;
  }
};

}  // namespace mn
