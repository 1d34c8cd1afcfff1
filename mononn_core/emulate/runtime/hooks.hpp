// What the compiler's instrumentation calls: -fsanitize=thread before each access, -fsanitize=alignment and bounds where
// a pointer or an index is wrong.
#pragma once
#include "primitives.hpp"

#define MN_EMU_HOOK(size)                                                                                        \
  EXPORT void __tsan_read##size(void *p) { access(reinterpret_cast<uintptr_t>(p), size, MN_EMU_READ, CALLER); }   \
  EXPORT void __tsan_write##size(void *p) { access(reinterpret_cast<uintptr_t>(p), size, MN_EMU_WRITE, CALLER); } \
  EXPORT void __tsan_unaligned_read##size(void *p) {                                                             \
    access(reinterpret_cast<uintptr_t>(p), size, MN_EMU_READ, CALLER);                                           \
  }                                                                                                              \
  EXPORT void __tsan_unaligned_write##size(void *p) {                                                            \
    access(reinterpret_cast<uintptr_t>(p), size, MN_EMU_WRITE, CALLER);                                          \
  }
MN_EMU_HOOK(1)
MN_EMU_HOOK(2)
MN_EMU_HOOK(4)
MN_EMU_HOOK(8)
MN_EMU_HOOK(16)

EXPORT void __tsan_read_range(void *p, size_t n) {
  access(reinterpret_cast<uintptr_t>(p), static_cast<uint32_t>(n), MN_EMU_READ, CALLER);
}
EXPORT void __tsan_write_range(void *p, size_t n) {
  access(reinterpret_cast<uintptr_t>(p), static_cast<uint32_t>(n), MN_EMU_WRITE, CALLER);
}
EXPORT void *__tsan_memcpy(void *to, const void *from, size_t n) {
  access(reinterpret_cast<uintptr_t>(from), static_cast<uint32_t>(n), MN_EMU_READ, CALLER);
  access(reinterpret_cast<uintptr_t>(to), static_cast<uint32_t>(n), MN_EMU_WRITE, CALLER);
  return memcpy(to, from, n);
}
EXPORT void *__tsan_memmove(void *to, const void *from, size_t n) {
  access(reinterpret_cast<uintptr_t>(from), static_cast<uint32_t>(n), MN_EMU_READ, CALLER);
  access(reinterpret_cast<uintptr_t>(to), static_cast<uint32_t>(n), MN_EMU_WRITE, CALLER);
  return memmove(to, from, n);
}
EXPORT void *__tsan_memset(void *to, int value, size_t n) {
  access(reinterpret_cast<uintptr_t>(to), static_cast<uint32_t>(n), MN_EMU_WRITE, CALLER);
  return memset(to, value, n);
}
EXPORT void __tsan_init() {}
EXPORT void __tsan_func_entry(void *) {}
EXPORT void __tsan_func_exit() {}

// {file, line, column}, type, log2 of the alignment, kind of access
struct UbsanMismatch {
  const char *file;
  uint32_t line, column;
  const void *type;
  unsigned char log_alignment, kind;
};
EXPORT void __ubsan_handle_type_mismatch_v1(UbsanMismatch *data, uintptr_t pointer) {
  stop_with(MN_EMU_MISALIGNED, pointer, 1u << data->log_alignment, 1u << data->log_alignment, CALLER,
            data->kind == 1 ? MN_EMU_WRITE : MN_EMU_READ);
}
EXPORT void __ubsan_handle_out_of_bounds(void *, uintptr_t index) {
  stop_with(MN_EMU_BOUNDS, 0, 0, index, CALLER, MN_EMU_READ);
}
