// SPDX-License-Identifier: Apache-2.0
//
// What an opening does with the log that it finds.
//
// Until all of it is committed the pool's record keeps saying that none of it is: a crash in the
// middle replays from the start again. The order of the log decides what a byte is in the end, and
// nothing but the log writes meanwhile, so doing it twice changes nothing.
#include <algorithm>
#include <future>
#include <optional>
#include <utility>
#include <vector>

#include "engine/base/failpoints.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/catalog.h"
#include "engine/intent_log.h"
#include "engine/trim.h"
#include "engine/volume.h"

namespace cowshed::engine {
namespace {

// Calls `submit` with a callback and waits for what that is called with.
template <typename Submit>
absl::StatusOr<Txg> Wait(const Submit& submit) {
  std::promise<absl::StatusOr<Txg>> promise;
  submit([&promise](absl::StatusOr<Txg> txg) { promise.set_value(std::move(txg)); });
  return promise.get_future().get();
}

// Of a hole that is replayed, in one piece.
constexpr uint64_t kReplayedHoleBytes = 1 << 20;

// Writes `length` bytes into a head, zeros if `data` is empty.
absl::Status WriteInto(Volume& volume, uint64_t offset, std::span<const std::byte> data,
                       uint64_t length) {
  if (!data.empty()) return volume.Write(offset, data);
  while (length > 0) {
    const uint64_t part = std::min<uint64_t>(length, kReplayedHoleBytes);
    absl::Status status;
    volume.Discard(offset, part, [&status](absl::Status result) { status = std::move(result); });
    RETURN_IF_ERROR(status);
    offset += part;
    length -= part;
  }
  return absl::OkStatus();
}

// Block by block, around what is damaged: that was lost before, and reads so.
absl::Status WriteAround(Volume& volume, uint64_t offset, std::span<const std::byte> data,
                         uint64_t length) {
  const uint64_t block_bytes = volume.block_bytes();
  while (length > 0) {
    const uint64_t part = std::min(length, block_bytes - offset % block_bytes);
    const auto bytes = data.first(data.empty() ? 0 : static_cast<size_t>(part));
    const absl::Status status = WriteInto(volume, offset, bytes, part);
    if (!absl::IsDataLoss(status)) RETURN_IF_ERROR(status);
    data = data.subspan(bytes.size());
    offset += part;
    length -= part;
  }
  return absl::OkStatus();
}

absl::Status WithRemedy(const absl::Status& damage, std::string_view remedy) {
  return absl::DataLossError(StrCat(StdView(damage.message()), remedy));
}

}  // namespace

absl::Status CheckIntentLog(const PoolRecord& pool, const File& blocks, CheckReport* report) {
  if (!pool.has_intent_log()) return absl::OkStatus();
  const absl::StatusOr<IntentLogBacklog> backlog = ReadIntentLogBacklog(blocks, pool.intent_log);
  if (absl::IsDataLoss(backlog.status())) {
    ++report->total_findings;
    report->findings.push_back(
        {"damage", "intent log", std::string(StdView(backlog.status().message()))});
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(backlog.status());
  report->log_batches = backlog->batches;
  report->log_bytes = backlog->bytes;
  return absl::OkStatus();
}

absl::Status IntentLog::Load(const PoolRecord& record) {
  uint64_t latest_layer = record.intent_log.committed_layer;
  if (record.has_intent_log()) {
    IntentLogReader reader(parts_.blocks.file(), record.intent_log);
    const MutexLock lock(mutex_);
    ring_ = record.intent_log;
    while (true) {
      const absl::StatusOr<std::optional<IntentLogReader::Batch>> next = reader.Next();
      if (absl::IsDataLoss(next.status())) {
        return WithRemedy(next.status(),
                          "; `cowshed check --repair` drops the log, and with it "
                          "what only the log holds");
      }
      RETURN_IF_ERROR(next.status());
      if (!next->has_value()) break;
      const IntentLogReader::Batch& batch = **next;
      batches_.push_back({batch.sequence, batch.offset_sectors, batch.sectors, batch.layer});
      latest_layer = std::max(latest_layer, batch.layer);
    }
    next_sequence_ = reader.next_sequence();
    next_offset_sectors_ = reader.next_offset_sectors();
    RETURN_IF_ERROR(LoadCuts());
    Show();
  }
  parts_.heads.Begin(record.txg, latest_layer);
  return absl::OkStatus();
}

absl::Status IntentLog::LoadCuts() {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, parts_.meta.BeginRead());
  const Key prefix(StateKey::kLogCut);
  MetaCursor cursor(*txn, Table::kStates);
  for (cursor.Seek(prefix); cursor.ValidFor(prefix); cursor.Next()) {
    IntentLogCut record;
    Decoder decoder(cursor.value());
    decoder.Get(&record);
    RETURN_IF_ERROR(decoder.Finish("a cut of the intent log"));
    cuts_.push_back({KeyNumber<DatasetId>(cursor.key(), 1), KeyNumber<Txg>(cursor.key(), 9),
                     record.size_bytes, record.layer});
  }
  std::sort(cuts_.begin(), cuts_.end(),
            [](const Cut& a, const Cut& b) { return a.layer < b.layer; });
  return cursor.status();
}

absl::Status IntentLog::Replay() {
  IntentLogRecord ring;
  bool waits = false;
  {
    const MutexLock lock(mutex_);
    if (batches_.empty()) return absl::OkStatus();
    ring = ring_;
    waits = std::any_of(batches_.begin(), batches_.end(),
                        [&](const Batch& batch) { return batch.layer > ring.committed_layer; });
    replaying_ = waits;
  }
  // The last batch may have been on its way to the disk when its writer died: no later one may get
  // there before it.
  RETURN_IF_ERROR(parts_.blocks.file().Sync());
  if (!waits) return absl::OkStatus();
  IntentLogReader reader(parts_.blocks.file(), ring);
  Replayed replayed;
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<IntentLogReader::Batch> batch, reader.Next());
    if (!batch.has_value()) break;
    RETURN_IF_ERROR(ReplayBatch(*batch, &replayed));
    RETURN_IF_ERROR(Failpoints::Hit("log.batch_replayed"));
  }
  return FinishReplay(replayed);
}

absl::Status IntentLog::ReplayBatch(const IntentLogReader::Batch& batch, Replayed* replayed) {
  for (const IntentLogReader::Entry& entry : batch.entries) {
    IntentLogReader::Entry kept = entry;
    {
      const MutexLock lock(mutex_);
      if (entry.layer <= ring_.committed_layer) continue;
      for (const Cut& cut : cuts_) {
        if (static_cast<uint64_t>(cut.dataset) != entry.dataset || cut.txg <= entry.cut_txg) {
          continue;
        }
        const uint64_t room = cut.size_bytes - std::min(cut.size_bytes, entry.offset_bytes);
        kept.length_bytes = std::min(kept.length_bytes, room);
      }
    }
    RETURN_IF_ERROR(ReplayEntry(kept, replayed));
  }
  return absl::OkStatus();
}

absl::Status IntentLog::ReplayEntry(const IntentLogReader::Entry& entry, Replayed* replayed) {
  const auto id = static_cast<DatasetId>(entry.dataset);
  std::optional<DatasetRecord> record;
  Txg txg = 0;
  {
    ASSIGN_OR_RETURN(const std::unique_ptr<ReadTxn> txn, parts_.meta.BeginRead());
    ASSIGN_OR_RETURN(const PoolRecord pool, LoadRecord<PoolRecord>(*txn, PoolRecord::kKey));
    txg = pool.txg;
    ASSIGN_OR_RETURN(record, FindRecord<DatasetRecord>(*txn, Key(id)));
  }
  if (!record.has_value() || record->doomed) return absl::OkStatus();
  const uint64_t size = record->tree.size_bytes;
  const uint64_t room = size - std::min(size, entry.offset_bytes);
  const uint64_t length = std::min(entry.length_bytes, room);
  if (length == 0) return absl::OkStatus();
  auto found = replayed->find(entry.dataset);
  if (found == replayed->end()) {
    const std::string uid = FormatUid(parts_.uid, entry.dataset);
    std::shared_ptr<Head> head = parts_.heads.Open(id, uid, *record, txg);
    if (head == nullptr) return ReplayEntry(entry, replayed);  // a commit came between: read again
    found = replayed
                ->emplace(entry.dataset,
                          MakeHeadVolume(parts_, txgs_, std::move(head),
                                         StrCat("dataset #", entry.dataset), Holding::kReplays))
                .first;
  }
  Volume& volume = *found->second;
  const std::span<const std::byte> data =
      entry.is_zeros() ? std::span<const std::byte>() : entry.data.first(length);
  absl::Status status = WriteInto(volume, entry.offset_bytes, data, length);
  if (absl::IsDataLoss(status)) {
    ++parts_.stats.log_lost_entries;
    return WriteAround(volume, entry.offset_bytes, data, length);
  }
  RETURN_IF_ERROR(status);
  ++parts_.stats.log_replayed_entries;
  return absl::OkStatus();
}

// Once all of it is in the trees the record says so, and no cut is of any use any more.
absl::Status IntentLog::FinishReplay(const Replayed& replayed) {
  RETURN_IF_ERROR(Wait([this](auto done) { txgs_.Flush(nullptr, std::move(done)); }).status());
  for (const auto& entry : replayed) {
    // A head that the txg could not sync lost what was replayed, and reads as it did before.
    const absl::Status status =
        Wait([&](auto done) { entry.second->Flush(std::move(done)); }).status();
    if (absl::IsDataLoss(status)) {
      return WithRemedy(status,
                        ": the intent log cannot be replayed; `cowshed check --repair` makes "
                        "the lists anew and keeps the log, --drop-intent-log gives it up");
    }
    RETURN_IF_ERROR(status);
  }
  RETURN_IF_ERROR(Failpoints::Hit("log.replayed"));
  Task task;
  task.run = [this](TxgContext& context) -> absl::StatusOr<Verdict> {
    const uint64_t layer = parts_.heads.open_number() - 1;
    const MutexLock lock(mutex_);
    context.pool.intent_log = Advance(context.pool.intent_log, layer);
    for (const Cut& cut : cuts_) {
      RETURN_IF_ERROR(
          context.meta.Delete(Table::kStates, Key(StateKey::kLogCut, cut.dataset, cut.txg)));
    }
    RETURN_IF_ERROR(StoreRecord(context.meta, PoolRecord::kKey, context.pool));
    context.after_commit.emplace_back([this, record = context.pool.intent_log,
                                       over = cuts_.size()] { Committed(record, {}, over); });
    return Verdict::kApplied;
  };
  RETURN_IF_ERROR(Wait([&](auto done) {
                    task.done = std::move(done);
                    txgs_.Submit(std::move(task));
                  }).status());
  const MutexLock lock(mutex_);
  replaying_ = false;
  return absl::OkStatus();
}

}  // namespace cowshed::engine
