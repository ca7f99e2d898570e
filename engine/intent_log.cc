// SPDX-License-Identifier: Apache-2.0
#include "engine/intent_log.h"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/base/failpoints.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/store/pool_uid.h"
#include "engine/trim.h"

namespace cowshed::engine {
namespace {

using Clock = std::chrono::steady_clock;

// Of one head in a batch. More goes to its place at once: copied into the log it would be written
// twice, and the others' batches would wait for it.
constexpr uint64_t kMaxHeadBytes = 256 << 10;
constexpr uint64_t kMinRingSectors = 64;  // 256 KiB
constexpr uint64_t kCapacityPart = 64;    // of the capacity, for a ring
constexpr uint64_t kBatchesInRing = 4;    // at least
constexpr size_t kCutsForgottenPerTxg = 1000;
constexpr auto kRingRetry = std::chrono::seconds(10);

// Appends what is not logged of `layer`, in order of address.
void LogLayer(const Head& head, Layer& layer, IntentBatchBuilder* batch, uint64_t* latest)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(head.mutex) {
  if (layer.unlogged_bytes == 0) return;
  const uint64_t block_bytes = head.tree.block_bytes;
  std::sort(layer.unlogged.begin(), layer.unlogged.end());
  for (const uint64_t block : layer.unlogged) {
    const auto it = layer.blocks.find(block);
    if (it == layer.blocks.end() || it->second.LogCost() == 0) continue;
    DirtyBlock& dirty = it->second;
    IntentEntry entry;
    entry.dataset = static_cast<uint64_t>(head.id);
    entry.offset_bytes = block * block_bytes + dirty.unlogged_begin;
    entry.length_bytes = dirty.unlogged_end - dirty.unlogged_begin;
    entry.layer = layer.number;
    entry.cut_txg = head.cut_txg;
    entry.flags = dirty.bytes == nullptr ? IntentEntry::kZeros : 0;
    batch->Add(entry, dirty.bytes == nullptr ? std::span<const std::byte>()
                                             : std::span(dirty.bytes.get() + dirty.unlogged_begin,
                                                         static_cast<size_t>(entry.length_bytes)));
    dirty.unlogged_begin = dirty.unlogged_end = 0;
  }
  layer.unlogged.clear();
  layer.unlogged_bytes = 0;
  *latest = std::max(*latest, layer.number);
}

}  // namespace

IntentLog::~IntentLog() { Stop(); }

void IntentLog::Start() {
  thread_ = std::thread([this] { Loop(); });
}

void IntentLog::Stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    work_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

// ---- Whoever waits ------------------------------------------------------------------------------

void IntentLog::MakeDurable(std::shared_ptr<Head> head, Done done) {
  if (const absl::Status health = txgs_.health(); !health.ok()) return done(health);
  Waiter waiter{std::move(head), std::move(done)};
  bool lead = false;
  LogFallback reason = LogFallback::kNoRing;
  {
    const MutexLock lock(mutex_);
    if (held_off_) reason = LogFallback::kCut;
    if (ring_.sectors != 0 && !stopping_ && !held_off_) {
      waiters_.push_back(std::move(waiter));
      if (leading_) return;
      lead = leading_ = true;
    }
  }
  if (!lead) return FallBack(std::move(waiter), reason);
  Written written = WriteBatch();
  {
    const MutexLock lock(mutex_);
    handed_over_ = !waiters_.empty();
    leading_ = handed_over_;
    work_.NotifyAll();  // Stop waits for the last, too
  }
  Answer(std::move(written));
}

void IntentLog::FallBack(Waiter waiter, LogFallback reason) {
  ++parts_.stats.log_fallbacks[reason];
  if (reason == LogFallback::kNoRing && WantsRing()) return MakeRing(std::move(waiter));
  Flush(std::move(waiter));
}

void IntentLog::Flush(Waiter waiter) {
  const Head* const head = waiter.head.get();
  txgs_.Flush(head, [waiter = std::move(waiter)](const absl::StatusOr<Txg>& txg) mutable {
    waiter.done(txg.status());
  });
}

// While it answers, whoever comes may lead, and takes along all who wait.
void IntentLog::Loop() {
  while (true) {
    {
      const MutexLock lock(mutex_);
      if (!leading_ && !waiters_.empty()) leading_ = handed_over_ = true;
      while (!handed_over_ && (!stopping_ || leading_)) work_.Wait(mutex_);
      if (!handed_over_) return;
    }
    Written written = WriteBatch();
    {
      const MutexLock lock(mutex_);
      leading_ = handed_over_ = false;
    }
    Answer(std::move(written));
  }
}

// ---- Whoever leads ------------------------------------------------------------------------------

// Sectors in one piece that a batch may be put into.
uint64_t IntentLog::FreeRun() const {
  const uint64_t next = next_offset_sectors_;
  const uint64_t tail = batches_.empty() ? next : batches_.front().offset_sectors;
  const bool ahead = batches_.empty() || next > tail;  // what is in use ends at `next`
  const uint64_t behind = ahead ? ring_.sectors - next : tail - next;
  const uint64_t at_start = ahead ? tail : 0;
  return std::max(behind, at_start);
}

IntentLog::Gathered IntentLog::Gather(std::vector<Waiter> waiters, uint64_t room_bytes) {
  Gathered gathered;
  for (Waiter& waiter : waiters) {
    Head& head = *waiter.head;
    const MutexLock lock(head.mutex);
    // A layer that is not listed holds what its writer has not been told to be accepted.
    const bool open = head.listed_dirty;
    const uint64_t cost = head.syncing.unlogged_bytes + (open ? head.open.unlogged_bytes : 0);
    if (cost > kMaxHeadBytes) {
      gathered.large.push_back(std::move(waiter));
    } else if (cost > 0 && builder_.bytes() + cost > room_bytes) {
      (builder_.empty() ? gathered.full : gathered.later).push_back(std::move(waiter));
    } else {
      LogLayer(head, head.syncing, &builder_, &gathered.layer);
      if (open) LogLayer(head, head.open, &builder_, &gathered.layer);
      gathered.logged.push_back(std::move(waiter));
    }
  }
  return gathered;
}

absl::Status IntentLog::Write(uint64_t layer) {
  uint64_t sector = 0;
  std::span<const std::byte> bytes;
  bool half_full = false;
  {
    const MutexLock lock(mutex_);
    Batch batch;
    batch.sequence = next_sequence_;
    batch.sectors = builder_.sectors();
    batch.layer = layer;
    // It fits into what is free behind the last one, or else at the start.
    const bool fits = next_offset_sectors_ + batch.sectors <= ring_.sectors;
    batch.offset_sectors = fits ? next_offset_sectors_ : 0;
    ++next_sequence_;
    next_offset_sectors_ = batch.offset_sectors + batch.sectors;
    sector = ring_.address + batch.offset_sectors;
    bytes = builder_.Finish(batch.offset_sectors);
    batches_.push_back(batch);
    half_full = UsedSectors() > ring_.sectors / 2;
    Show();
  }
  RETURN_IF_ERROR(Failpoints::Hit("log.before_write"));
  const auto begin = Clock::now();
  RETURN_IF_ERROR(parts_.blocks.WriteLog(sector, bytes));
  parts_.stats.log_write_seconds.Observe(
      std::chrono::duration<double>(Clock::now() - begin).count());
  RETURN_IF_ERROR(Failpoints::Hit("log.after_write"));
  ++parts_.stats.log_batches;
  parts_.stats.log_written_bytes += bytes.size();
  // In time for the next batches to find room.
  if (half_full) txgs_.RequestSync();
  return absl::OkStatus();
}

IntentLog::Written IntentLog::WriteBatch() {
  std::vector<Waiter> waiters;
  uint64_t room_bytes = 0;
  {
    const MutexLock lock(mutex_);
    waiters = std::exchange(waiters_, {});
    // A commit may give more room meanwhile, never less.
    room_bytes = std::min({FreeRun() * kSectorBytes, kMaxIntentBatchBytes,
                           ring_.sectors / kBatchesInRing * kSectorBytes});
    builder_.Begin(ring_.id, next_sequence_);
  }
  Written written{Gather(std::move(waiters), room_bytes), txgs_.health(), !health().ok()};
  if (written.status.ok() && !written.failed && !builder_.empty()) {
    written.status = Write(written.gathered.layer);
    written.failed = !written.status.ok();
    if (written.failed) Fail(written.status);
  }
  std::vector<Waiter>& later = written.gathered.later;
  const MutexLock lock(mutex_);
  waiters_.insert(waiters_.begin(), std::make_move_iterator(later.begin()),
                  std::make_move_iterator(later.end()));
  later.clear();
  return written;
}

// I7: the next attempt at a txg suspends the pool.
void IntentLog::Fail(const absl::Status& why) {
  {
    const MutexLock lock(mutex_);
    failure_.Update(why);  // the first says most
  }
  parts_.blocks.Fail();
}

// After the lead is passed on: whoever is answered writes to a socket, and the disk need not wait.
void IntentLog::Answer(Written written) {
  Gathered& gathered = written.gathered;
  if (written.failed) {
    for (auto* waiters : {&gathered.logged, &gathered.large, &gathered.full}) {
      for (Waiter& waiter : *waiters) {
        waiter.head = nullptr;  // of the pool: the next txg, which will not be
        Flush(std::move(waiter));
      }
    }
    return;
  }
  parts_.stats.log_waiters += gathered.logged.size();
  for (Waiter& waiter : gathered.logged) waiter.done(written.status);
  for (Waiter& waiter : gathered.large) FallBack(std::move(waiter), LogFallback::kLarge);
  for (Waiter& waiter : gathered.full) FallBack(std::move(waiter), LogFallback::kFull);
}

absl::Status IntentLog::health() {
  const MutexLock lock(mutex_);
  return failure_;
}

// ---- The ring -----------------------------------------------------------------------------------

// Whether this caller is the one to have it made.
bool IntentLog::WantsRing() {
  const MutexLock lock(mutex_);
  if (ring_.sectors != 0 || making_ring_ || stopping_ || Clock::now() < next_try_) return false;
  making_ring_ = true;
  return true;
}

// What `waiter` waits for is in the same txg: once it has its answer, the ring stands.
void IntentLog::MakeRing(Waiter waiter) {
  Task task;
  task.run = [this](TxgContext& context) { return AllocateRing(context); };
  task.done = [this, waiter = std::move(waiter)](const absl::StatusOr<Txg>& txg) mutable {
    {
      const MutexLock lock(mutex_);
      making_ring_ = false;
      if (!txg.ok() || ring_.sectors == 0) next_try_ = Clock::now() + kRingRetry;
    }
    Flush(std::move(waiter));
  };
  txgs_.Submit(std::move(task));
}

absl::StatusOr<Verdict> IntentLog::AllocateRing(TxgContext& context) {
  uint64_t sectors = std::min(parts_.options.intent_log_max_bytes / kSectorBytes,
                              parts_.allocator.capacity_sectors() / kCapacityPart);
  sectors = std::min(sectors, txgs_.available_sectors() / 2);
  if (context.pool.has_intent_log() || sectors < kMinRingSectors) return Verdict::kApplied;
  // From here on this has changed something: should it fail, the txg is done over without it.
  RETURN_IF_ERROR(StoreRecord(context.meta, PoolRecord::kKey, context.pool));
  absl::StatusOr<Run> run = absl::NotFoundError("no run");
  for (sectors = std::min<uint64_t>(sectors, kRegionSectors);
       absl::IsNotFound(run.status()) && sectors >= kMinRingSectors; sectors /= 2) {
    run = parts_.allocator.Allocate(context.meta, static_cast<uint32_t>(sectors), BlockKind::kData,
                                    context.txg);
  }
  if (absl::IsNotFound(run.status())) return Verdict::kApplied;
  RETURN_IF_ERROR(run.status());
  // Written once, so that no batch waits for the host to find room for it and to note that.
  RETURN_IF_ERROR(parts_.blocks.WriteZeros(*run));
  RETURN_IF_ERROR(Failpoints::Hit("log.ring_written"));
  context.pool.features.incompatible |= kIntentLogFeature;
  context.pool.intent_log = IntentLogRecord();
  context.pool.intent_log.id = NewPoolUid().low;
  context.pool.intent_log.address = run->address;
  context.pool.intent_log.sectors = run->sectors;
  return Verdict::kApplied;
}

// ---- What a txg means for the log ---------------------------------------------------------------

// The record once `layer` is committed.
IntentLogRecord IntentLog::Advance(const IntentLogRecord& record, uint64_t layer) const {
  IntentLogRecord next = record;
  next.committed_layer = std::max(record.committed_layer, layer);
  const auto first = std::find_if(batches_.begin(), batches_.end(), [&](const Batch& batch) {
    return batch.layer > next.committed_layer;
  });
  const bool found = first != batches_.end();
  next.first_sequence = found ? first->sequence : next_sequence_;
  next.first_offset_sectors = found ? first->offset_sectors : next_offset_sectors_;
  return next;
}

absl::Status IntentLog::Book(TxgContext& context, std::span<const std::shared_ptr<Head>> synced) {
  if (!context.pool.has_intent_log()) return absl::OkStatus();
  uint64_t layer = 0;
  for (const std::shared_ptr<Head>& head : synced) {
    const MutexLock lock(head->mutex);
    layer = std::max(layer, head->syncing.number);
  }
  const uint64_t open_layer = parts_.heads.open_number();
  std::vector<Cut> added;
  size_t over = 0;
  {
    const MutexLock lock(mutex_);
    held_off_ = false;
    if (replaying_) return absl::OkStatus();
    context.pool.intent_log = Advance(context.pool.intent_log, layer);
    for (const auto& [id, change] : context.publication.heads) {
      if (change.cut == LayerCut::kNone) continue;
      const uint64_t kept = change.cut == LayerCut::kShrink ? change.record.tree.size_bytes : 0;
      added.push_back({id, context.txg, kept, open_layer});
    }
    const bool alive = leading_ || context.pool.intent_log.first_sequence != next_sequence_;
    RETURN_IF_ERROR(BookCuts(context, alive, &added, &over));
  }
  context.after_commit.emplace_back([this, record = context.pool.intent_log,
                                     added = std::move(added),
                                     over]() { Committed(record, added, over); });
  return absl::OkStatus();
}

// Leaves the cuts that were `added` for a replay to find, where a batch is `alive` that they
// concern, and takes away those that concern none any more.
absl::Status IntentLog::BookCuts(TxgContext& context, bool alive, std::vector<Cut>* added,
                                 size_t* over) {
  for (const Cut& cut : cuts_) {
    if (cut.layer > context.pool.intent_log.committed_layer || *over == kCutsForgottenPerTxg) break;
    RETURN_IF_ERROR(
        context.meta.Delete(Table::kStates, Key(StateKey::kLogCut, cut.dataset, cut.txg)));
    ++*over;
  }
  if (!alive) {
    held_off_ = !added->empty();
    added->clear();
  }
  for (const Cut& cut : *added) {
    Encoder value;
    value.Put(IntentLogCut{cut.size_bytes, cut.layer});
    RETURN_IF_ERROR(context.meta.Put(Table::kStates, Key(StateKey::kLogCut, cut.dataset, cut.txg),
                                     value.Take()));
  }
  return absl::OkStatus();
}

void IntentLog::Committed(const IntentLogRecord& record, std::vector<Cut> added, size_t over) {
  const MutexLock lock(mutex_);
  ring_ = record;
  held_off_ = false;
  while (!batches_.empty() && batches_.front().sequence < record.first_sequence) {
    batches_.pop_front();
  }
  cuts_.erase(cuts_.begin(), cuts_.begin() + static_cast<std::ptrdiff_t>(over));
  cuts_.insert(cuts_.end(), added.begin(), added.end());
  Show();
}

uint64_t IntentLog::UsedSectors() const {
  if (batches_.empty()) return 0;
  const uint64_t tail = batches_.front().offset_sectors;
  return next_offset_sectors_ > tail ? next_offset_sectors_ - tail
                                     : ring_.sectors - tail + next_offset_sectors_;
}

void IntentLog::Show() {
  parts_.stats.log_ring_bytes = ring_.sectors * kSectorBytes;
  parts_.stats.log_used_bytes = UsedSectors() * kSectorBytes;
}

}  // namespace cowshed::engine
