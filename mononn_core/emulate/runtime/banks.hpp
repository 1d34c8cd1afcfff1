// Bank conflicts of shared memory, counted where the caller asks. Lanes run one after the other, so what each accessed is
// written down and put together when the warp meets: the n-th time that lanes came by one place is one access of the warp.
#pragma once
#include "events.hpp"

namespace emu {

struct BankGroup {
  uintptr_t pc;
  uint32_t turn, lanes, size;
  uint32_t offset[kLanes];
};

inline List<BankGroup> bank_groups;

inline mn_emu_bank *bank_of(uintptr_t pc) {
  mn_emu_result *r = E->result;
  for (uint32_t i = 0; i < r->banks; ++i)
    if (r->bank[i].pc == pc) return &r->bank[i];
  if (r->banks == MN_EMU_BANK_PLACES) return nullptr;
  r->bank[r->banks] = {pc, 0, 0};
  return &r->bank[r->banks++];
}

inline void count_banks(uintptr_t pc, uint64_t passes, uint64_t extra, uint64_t *all_passes, uint64_t *all_extra) {
  *all_passes += passes, *all_extra += extra;
  if (mn_emu_bank *b = bank_of(pc)) b->passes += passes, b->extra += extra;
}

// Words of 4 bytes that one pass must fetch from the busiest of 32 banks, less the first.
inline uint32_t extra_passes(const uint32_t *words, uint32_t count) {
  uint32_t most = 1;
  for (uint32_t i = 0; i < count; ++i) {
    uint32_t same = 1;
    for (uint32_t k = 0; k < count; ++k) {
      if (words[k] % 32 != words[i] % 32 || words[k] == words[i]) continue;
      bool seen = false;
      for (uint32_t m = 0; m < k; ++m) seen |= words[m] == words[k];
      same += !seen;
    }
    most = same > most ? same : most;
  }
  return most - 1;
}

// 32 lanes at once for 4 bytes or less, 16 for 8, 8 for 16.
inline void count_group(const BankGroup &g) {
  int together = g.size >= 16 ? 8 : g.size == 8 ? 16 : 32;
  uint64_t passes = 0, extra = 0;
  for (int first = 0; first < kLanes; first += together) {
    uint32_t words[64], count = 0;
    for (int lane = first; lane < first + together; ++lane) {
      if (!(g.lanes >> lane & 1)) continue;
      for (uint32_t w = g.offset[lane] / 4; w <= (g.offset[lane] + g.size - 1) / 4 && count < 64; ++w) words[count++] = w;
    }
    if (count) ++passes, extra += extra_passes(words, count);
  }
  count_banks(g.pc, passes, extra, &E->result->shared_accesses, &E->result->shared_conflicts);
}

inline void bank_note(Fiber *f, uintptr_t address, uint32_t size, uintptr_t pc) {
  uint32_t offset = static_cast<uint32_t>(address - reinterpret_cast<uintptr_t>(f->block->shared));
  f->bank_log.push({pc, offset, size});
}

inline void bank_meet(Warp *warp) {
  if (!asked(MN_EMU_BANKS)) return;
  bank_groups.clear();
  for (int lane = 0; lane < kLanes; ++lane) {
    List<BankAccess> &log = warp->fibers[lane].bank_log;
    for (uint32_t i = 0; i < log.count; ++i) {
      uint32_t turn = 0;
      for (uint32_t k = 0; k < i; ++k) turn += log[k].pc == log[i].pc;
      BankGroup *group = nullptr;
      for (BankGroup &g : bank_groups)
        if (g.pc == log[i].pc && g.turn == turn) group = &g;
      if (!group) group = &bank_groups.push({log[i].pc, turn, 0, log[i].size, {}});
      group->lanes |= 1u << lane, group->offset[lane] = log[i].offset;
    }
    log.clear();
  }
  for (const BankGroup &g : bank_groups) count_group(g);
}

}  // namespace emu
