// cp.async: the bytes arrive when their group is waited for, not before; until then the destination is poison.
#pragma once
#include "barriers.hpp"

namespace emu {

inline void copy_begin(Copy *copy) {
  copy->early = asked(MN_EMU_EARLY_COPIES) || (!asked(MN_EMU_LATE_COPIES) && next_random() >> 63);
  shadow_issue(copy);
  if (copy->early) memcpy(copy->data, copy->from, copy->bytes);
  memset(copy->to, 0xff, copy->size);  // NaN in every type
}

inline void copy_issue(void *to, const void *from, uint32_t size, uint32_t bytes, uintptr_t pc) {
  uintptr_t target = reinterpret_cast<uintptr_t>(to), source = reinterpret_cast<uintptr_t>(from);
  if (bytes > size) stop_with(MN_EMU_USAGE, target, size, bytes, pc, MN_EMU_COPY);
  if (target % size) stop_with(MN_EMU_MISALIGNED, target, size, size, pc, MN_EMU_COPY | MN_EMU_WRITE);
  if (bytes && source % size) stop_with(MN_EMU_MISALIGNED, source, size, size, pc, MN_EMU_COPY);
  uintptr_t base = reinterpret_cast<uintptr_t>(current->block->shared);
  if (target < base || target + size > base + E->request->shared_bytes)
    stop_with(MN_EMU_BOUNDS, target, size, 0, pc, MN_EMU_COPY | MN_EMU_WRITE);
  Copy copy{static_cast<unsigned char *>(to), static_cast<const unsigned char *>(from), size, bytes, current->group,
            false, 0, 0, pc, {}};
  copy_begin(&copy);
  current->copies.push(copy);
  ++E->result->copies;
}

inline void copy_land(Copy *copy, bool staged = false) {
  if (!copy->early) memcpy(copy->data, copy->from, copy->bytes);
  memcpy(copy->to, copy->data, copy->size);
  shadow_land(copy, staged);
}

// All but the ``groups`` last committed groups arrive.
inline void copy_wait(uint32_t groups) {
  List<Copy> &copies = current->copies;
  while (current->copies_head < copies.count && copies[current->copies_head].group + groups < current->group)
    copy_land(&copies[current->copies_head++]);
  if (current->copies_head == copies.count) current->copies_head = 0, copies.clear();
}

}  // namespace emu
