// SPDX-License-Identifier: Apache-2.0
//
// The parts of the allocator that work on its records alone, for the checker and the repair.
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/store/allocator.h"
#include "engine/store/free_log.h"
#include "engine/store/region_bitmap.h"
#include "engine/store/region_records.h"
#include "engine/store/region_table.h"

namespace cowshed::engine {
namespace {

// Joins runs that touch, over region borders too.
class RunJoiner {
 public:
  explicit RunJoiner(const std::function<void(const Run&, bool)>& visit) : visit_(visit) {}
  ~RunJoiner() { Pass(); }
  RunJoiner(const RunJoiner&) = delete;
  RunJoiner& operator=(const RunJoiner&) = delete;

  void Add(uint64_t address, uint32_t sectors) {
    if (run_.sectors > 0 && run_.end() == address &&
        sectors <= std::numeric_limits<uint32_t>::max() - run_.sectors) {
      run_.sectors += sectors;
      return;
    }
    Pass();
    run_ = {.address = address, .sectors = sectors};
  }

 private:
  void Pass() const {
    if (run_.sectors > 0) {
      visit_(run_, false);
    }
  }

  const std::function<void(const Run&, bool)>& visit_;
  Run run_;
};

absl::Status DeleteAll(WriteTxn& txn, Table table) {
  while (true) {
    std::string key;
    {
      MetaCursor cursor(txn, table);
      cursor.Seek("");
      // A damaged value does not keep its key from being removed.
      key = cursor.key();
      if (!cursor.valid() && (key.empty() || !absl::IsDataLoss(cursor.status()))) {
        return cursor.status();
      }
    }
    RETURN_IF_ERROR(txn.Delete(table, key));
  }
}

}  // namespace

absl::Status Allocator::Enumerate(const MetaTxn& txn, uint64_t capacity_sectors,
                                  const std::function<void(const Run&, bool in_free_log)>& visit) {
  RegionTable table(0);
  RETURN_IF_ERROR(table.Load(txn, capacity_sectors));
  absl::Status first_damage;
  {
    RunJoiner joiner(visit);
    for (uint32_t region = 0; region < table.count(); ++region) {
      RegionBitmap copy;
      const absl::StatusOr<const RegionBitmap*> bitmap = table.Peek(txn, region, &copy);
      if (absl::IsDataLoss(bitmap.status())) {
        first_damage.Update(bitmap.status());
        continue;
      }
      RETURN_IF_ERROR(bitmap.status());
      const uint32_t end = table.size(region);
      for (uint32_t begin = (*bitmap)->NextSet(0, end); begin < end;) {
        const uint32_t run_end = (*bitmap)->NextClear(begin, end);
        joiner.Add(RegionBegin(region) + begin, run_end - begin);
        begin = (*bitmap)->NextSet(run_end, end);
      }
    }
  }
  FreeLog log;
  first_damage.Update(log.Load(txn, capacity_sectors, table.sums()));
  log.ForEach([&visit](const Run& run) { visit(run, true); });
  return first_damage;
}

absl::Status Allocator::Rebuild(WriteTxn& txn, uint64_t capacity_sectors,
                                std::span<const Run> referenced) {
  if (capacity_sectors <= kFirstDataSector || capacity_sectors > kMaxCapacitySectors) {
    return absl::InvalidArgumentError(StrCat("a pool of ", capacity_sectors, " sectors"));
  }
  for (const Table old : {Table::kRegions, Table::kRegionSums, Table::kFreeLog}) {
    RETURN_IF_ERROR(DeleteAll(txn, old));
  }
  RegionTable table(1);
  RETURN_IF_ERROR(table.Resize(txn, capacity_sectors, 0));
  RETURN_IF_ERROR(table.Bitmap(txn, 0).status());
  table.Allocate(0, 0, kFirstDataSector);
  uint64_t previous_end = kFirstDataSector;
  for (const Run& run : referenced) {
    if (run.sectors == 0 || run.address < previous_end || run.end() > capacity_sectors) {
      return absl::InvalidArgumentError(StrCat("referenced sectors [", run.address, ", ", run.end(),
                                               ") overlap others or lie outside the pool"));
    }
    // Write a region's bitmap when its last run is in: memory does not grow with the pool.
    for (uint64_t address = run.address; address < run.end();) {
      const uint32_t region = RegionOf(address);
      if (region != RegionOf(previous_end - 1)) {
        RETURN_IF_ERROR(table.WriteBack(txn));
      }
      const uint64_t part_end = std::min(run.end(), RegionBegin(region + 1));
      RETURN_IF_ERROR(table.Bitmap(txn, region).status());
      table.Allocate(region, static_cast<uint32_t>(address - RegionBegin(region)),
                     static_cast<uint32_t>(part_end - RegionBegin(region)));
      address = previous_end = part_end;
    }
  }
  return table.WriteBack(txn);
}

}  // namespace cowshed::engine
