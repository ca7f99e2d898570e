// SPDX-License-Identifier: Apache-2.0
#include "service/pool_service.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "engine/base/strings.h"
#include "service/unary.h"

namespace cowshed::service {
namespace {

using engine::Alarm;
using Reactor = grpc::ServerUnaryReactor;

constexpr uint32_t kApiRevision =
    4;  // 2: Undestroy, UpdateReclaim; 3: scrub, Backup; 4: attachments

void FillPool(const engine::Pool& pool, v1::Pool* out) {
  const engine::PoolStats& stats = pool.stats();
  const engine::SpaceInfo space = pool.space();
  out->set_uid(pool.uid());
  out->set_state(pool.health().ok() ? v1::POOL_STATE_ACTIVE : v1::POOL_STATE_SUSPENDED);
  out->set_txg(pool.committed_txg());
  out->set_capacity_bytes(space.capacity_bytes);
  out->set_allocated_bytes(space.allocated_bytes);
  out->set_available_bytes(space.available_bytes);
  out->set_freeing_bytes(space.freeing_bytes);
  out->set_reserve_bytes(space.reserve_bytes);
  out->set_dataset_count(stats.datasets);
  out->set_clone_count(stats.clones);
  out->set_snapshot_count(stats.snapshots);
  out->set_deferred_snapshot_count(stats.deferred_snapshots);
  out->set_hold_count(stats.holds);
  out->set_livelist_count(stats.livelists);
  out->set_livelist_entries(stats.livelist_entries);
  out->set_livelist_sublists(stats.livelist_sublists);
  out->set_reclaim_pending_count(stats.reclaim_pending_items);
  const auto oldest_ms = static_cast<int64_t>(stats.reclaim_oldest_pending_ms.load());
  if (oldest_ms != 0) *out->mutable_reclaim_oldest_pending_time() = ToTimestamp(oldest_ms);
  out->set_dirty_bytes(stats.dirty_bytes);
  out->set_dirty_limit_bytes(stats.dirty_limit_bytes);
  out->set_metadata_map_bytes(stats.meta_map_bytes);
  out->set_metadata_used_bytes(stats.meta_used_bytes);
  out->set_read_bytes_total(stats.read_bytes);
  out->set_written_bytes_total(stats.write_bytes);
  out->set_freed_bytes_total(stats.reclaim_freed_bytes);
  Fill(pool.reclaim(), out->mutable_reclaim());
  // The names under which the metrics know them, see cowshed_alarm_active.
  constexpr std::pair<Alarm, const char*> kNames[] = {
      {Alarm::kPoolSuspended, "pool_suspended"},
      {Alarm::kPoolReserveReached, "pool_reserve_reached"},
      {Alarm::kHostFull, "host_full"},
      {Alarm::kLivelistDamaged, "livelist_damaged"},
      {Alarm::kReclaimStalled, "reclaim_stalled"},
      {Alarm::kExpiryBlocked, "expiry_blocked"}};
  static_assert(std::size(kNames) == static_cast<size_t>(Alarm::kCount));
  for (const auto& [alarm, name] : kNames) {
    if (stats.alarms[alarm] != 0) out->add_alarms(name);
  }
}

void AddPart(v1::SpaceKind kind, uint64_t bytes, const std::string& name,
             v1::GetSpaceResponse* out) {
  v1::SpacePart* part = out->add_parts();
  part->set_kind(kind);
  part->set_bytes(bytes);
  part->set_name(name);
}

uint64_t Less(uint64_t whole, uint64_t part) { return whole - std::min(whole, part); }

void FillPoolSpace(const engine::SpaceInfo& space, v1::GetSpaceResponse* out) {
  out->set_total_bytes(space.capacity_bytes);
  AddPart(v1::SPACE_KIND_USED,
          Less(space.allocated_bytes, space.freeing_bytes + space.waiting_bytes), "", out);
  AddPart(v1::SPACE_KIND_FREEING, space.freeing_bytes, "", out);
  AddPart(v1::SPACE_KIND_WAITING, space.waiting_bytes, "", out);
  // All that is neither allocated nor available is kept back: the reserve, and what the host lacks.
  AddPart(v1::SPACE_KIND_RESERVE,
          Less(space.capacity_bytes, space.allocated_bytes + space.available_bytes), "", out);
  AddPart(v1::SPACE_KIND_AVAILABLE, space.available_bytes, "", out);
}

void FillDatasetSpace(const engine::DatasetInfo& info, v1::GetSpaceResponse* out) {
  out->set_name(info.name);
  out->set_freed_by_destroy_bytes(info.used_bytes);
  AddPart(v1::SPACE_KIND_WRITTEN, info.written_bytes, info.name, out);
  const uint64_t older = Less(info.referenced_bytes, info.written_bytes);
  if (info.origin_uid.empty()) {
    out->set_total_bytes(info.used_bytes);
    AddPart(v1::SPACE_KIND_SHARED_WITH_SNAPSHOTS, older, "", out);
    AddPart(v1::SPACE_KIND_SNAPSHOTS, Less(info.used_bytes, info.referenced_bytes), "", out);
  } else if (info.used_bytes == info.written_bytes) {
    // No snapshot holds anything of its own: what the head did not write is the origin's.
    out->set_total_bytes(info.referenced_bytes);
    AddPart(v1::SPACE_KIND_ORIGIN, older, info.origin, out);
  } else {
    // How much of the older blocks is the origin's and how much the snapshots' is not kept as a
    // sum: what is paid for is told apart, what is free is left out.
    out->set_total_bytes(info.used_bytes);
    AddPart(v1::SPACE_KIND_SNAPSHOTS, Less(info.used_bytes, info.written_bytes), "", out);
  }
}

void FillSnapshotSpace(const engine::SnapshotInfo& info, v1::GetSpaceResponse* out) {
  out->set_name(info.name);
  out->set_total_bytes(info.referenced_bytes);
  out->set_freed_by_destroy_bytes(info.unique_bytes);
  AddPart(v1::SPACE_KIND_UNIQUE, info.unique_bytes, info.name, out);
  AddPart(v1::SPACE_KIND_SHARED, Less(info.referenced_bytes, info.unique_bytes), "", out);
}

void FillLivelist(const engine::LivelistInfo& info, v1::GetLivelistResponse* out) {
  out->set_dataset(info.dataset);
  out->set_uid(info.uid);
  out->set_origin_txg(info.origin_txg);
  out->set_exists(info.state == engine::LivelistState::kWhole);
  for (const auto& sublist : info.sublists) Fill(sublist, out->add_sublists());
  out->set_total_sublists(info.total.start_txg);
  out->set_total_entries(info.total.entries);
  out->set_total_blocks(info.total.blocks);
  out->set_total_bytes(info.total.bytes);
  out->set_txg(info.txg);
  const uint64_t logged = info.total.allocated_blocks;
  out->set_total_allocated_blocks(logged);
  const double freed = static_cast<double>(Less(logged, info.total.blocks));
  out->set_garbage_ratio(logged == 0 ? 0 : freed / static_cast<double>(logged));
  out->set_destroy_seconds(info.destroy_seconds);
}

}  // namespace

void PoolServiceImpl::FillServerInfo(v1::GetServerInfoResponse* reply) const {
  reply->set_version(COWSHED_VERSION);
  reply->set_api_revision(kApiRevision);
  reply->set_pool_uid(context_.pool.uid());
  reply->set_format_version(engine::kFormatVersion);
  reply->set_boot_id(context_.boot_id);
  *reply->mutable_start_time() = ToTimestamp(context_.start_time_ms);
  v1::Limits* limits = reply->mutable_limits();
  limits->set_max_name_bytes(engine::kMaxNameBytes);
  limits->set_min_block_size_bytes(engine::kMinBlockBytes);
  limits->set_max_block_size_bytes(engine::kMaxBlockBytes);
  limits->set_default_block_size_bytes(engine::CreateDatasetArgs().block_bytes);
  limits->set_max_dataset_size_bytes(engine::kMaxDatasetBytes);
  limits->set_max_chunk_bytes(kMaxChunkBytes);
  limits->set_write_ack_interval_bytes(kAckIntervalBytes);
  limits->set_max_page_size(kMaxPageSize);
  limits->set_max_names_per_call(engine::kMaxNamesPerCall);
  limits->set_max_data_streams(context_.limits.streams_max);
  limits->set_max_wait_seconds(kMaxWaitSeconds);
  limits->set_max_labels(engine::kMaxLabels);
  limits->set_max_labels_bytes(engine::kMaxLabelsBytes);
  limits->set_max_message_bytes(kMaxRequestBytes);
  limits->set_max_connections(context_.limits.connections_max);
  limits->set_max_waits(context_.limits.waits_max);
  limits->set_max_write_idle_seconds(
      std::chrono::ceil<std::chrono::seconds>(context_.limits.idle_timeout).count());
  limits->set_max_request_id_bytes(kMaxRequestIdBytes);
  limits->set_max_tag_bytes(engine::kMaxTagBytes);
}

Reactor* PoolServiceImpl::GetServerInfo(Rpc* rpc, const v1::GetServerInfoRequest* request,
                                        v1::GetServerInfoResponse* reply) {
  return Query(context_, rpc, context_.control, request, reply,
               [this](const auto&, v1::GetServerInfoResponse* to) {
                 FillServerInfo(to);
                 return absl::OkStatus();
               });
}

Reactor* PoolServiceImpl::GetPool(Rpc* rpc, const v1::GetPoolRequest* request, v1::Pool* reply) {
  return Query(context_, rpc, context_.control, request, reply, [this](const auto&, v1::Pool* to) {
    FillPool(context_.pool, to);
    return absl::OkStatus();
  });
}

Reactor* PoolServiceImpl::UpdateReclaim(Rpc* rpc, const v1::UpdateReclaimRequest* request,
                                        v1::UpdateReclaimResponse* reply) {
  return Deferred(
      context_, rpc, context_.control, request, reply,
      [this](const auto& from, v1::UpdateReclaimResponse* to, Done done) {
        auto args = Parse(from);
        if (!args.ok()) return done(args.status());
        context_.pool.UpdateReclaim(
            *std::move(args), std::nullopt,
            context_.Counted([this, to, done = std::move(done)](
                                 const absl::StatusOr<engine::Outcome>& outcome) mutable {
              if (outcome.ok()) {
                to->set_txg(outcome->txg);
                Fill(context_.pool.reclaim(), to->mutable_reclaim());
              }
              done(outcome.status());
            }));
      });
}

Reactor* PoolServiceImpl::GetSpace(Rpc* rpc, const v1::GetSpaceRequest* request,
                                   v1::GetSpaceResponse* reply) {
  return Query(context_, rpc, context_.control, request, reply,
               [this](const auto& from, v1::GetSpaceResponse* to) -> absl::Status {
                 to->set_txg(context_.pool.committed_txg());
                 if (from.name().empty()) {
                   FillPoolSpace(context_.pool.space(), to);
                 } else if (from.name().find('@') == std::string::npos) {
                   ASSIGN_OR_RETURN(const auto info, context_.pool.GetDataset(from.name()));
                   FillDatasetSpace(info, to);
                 } else {
                   ASSIGN_OR_RETURN(const auto info, context_.pool.GetSnapshot(from.name()));
                   FillSnapshotSpace(info, to);
                 }
                 return absl::OkStatus();
               });
}

Reactor* PoolServiceImpl::GetLivelist(Rpc* rpc, const v1::GetLivelistRequest* request,
                                      v1::GetLivelistResponse* reply) {
  return Query(context_, rpc, context_.control, request, reply,
               [this](const auto& from, v1::GetLivelistResponse* to) -> absl::Status {
                 ASSIGN_OR_RETURN(const auto page_size, ParsePageSize(from.page_size()));
                 ASSIGN_OR_RETURN(const auto position, context_.tokens.OpenPosition(from));
                 uint64_t start_txg = 0;
                 if (!position.empty() && !absl::SimpleAtoi(position, &start_txg)) {
                   return InvalidField("page_token", "holds no txg");
                 }
                 ASSIGN_OR_RETURN(const auto info,
                                  context_.pool.GetLivelist(from.dataset(), start_txg, page_size));
                 FillLivelist(info, to);
                 if (info.next_start == 0) return absl::OkStatus();
                 to->set_next_page_token(
                     context_.tokens.SealPosition(from, std::to_string(info.next_start)));
                 return absl::OkStatus();
               });
}

Reactor* PoolServiceImpl::SyncPool(Rpc* rpc, const v1::SyncPoolRequest* request,
                                   v1::SyncPoolResponse* reply) {
  return Deferred(
      context_, rpc, context_.control, request, reply,
      [this](const auto&, v1::SyncPoolResponse* to, Done done) {
        context_.pool.Sync(context_.Counted(
            [this, to, done = std::move(done)](const absl::StatusOr<engine::Txg>& txg) mutable {
              if (txg.ok()) to->set_txg(*txg);
              to->set_boot_id(context_.boot_id);
              done(txg.status());
            }));
      });
}

Reactor* PoolServiceImpl::Check(Rpc* rpc, const v1::CheckRequest* request,
                                v1::CheckResponse* reply) {
  return Query(context_, rpc, context_.data, request, reply,
               [this](const auto&, v1::CheckResponse* to) -> absl::Status {
                 if (checking_.exchange(true)) {
                   return Error(absl::StatusCode::kResourceExhausted, v1::SERVER_BUSY,
                                "another check is under way");
                 }
                 const auto report = context_.pool.CheckOnline();
                 checking_ = false;
                 if (report.ok()) Fill(*report, to);
                 return report.status();
               });
}

Reactor* PoolServiceImpl::StartScrub(Rpc* rpc, const v1::StartScrubRequest* request,
                                     v1::StartScrubResponse* reply) {
  return Lifecycle(context_, rpc, request, reply, &engine::Pool::StartScrub);
}

Reactor* PoolServiceImpl::CancelScrub(Rpc* rpc, const v1::CancelScrubRequest* request,
                                      v1::CancelScrubResponse* reply) {
  return Lifecycle(context_, rpc, request, reply, &engine::Pool::CancelScrub);
}

Reactor* PoolServiceImpl::Backup(Rpc* rpc, const v1::BackupRequest* request,
                                 v1::BackupResponse* reply) {
  // As Lifecycle, but by a worker: the engine looks at the directory, which may be slow.
  return Begin(context_, rpc, context_.data, request, reply, [request, reply](const Call& call) {
    auto args = Parse(*request);
    if (!args.ok()) return call.Finish(args.status());
    call.context.pool.Backup(*std::move(args), KeyOf<v1::BackupResponse>(call),
                             AnswerOf(call, reply));
  });
}

}  // namespace cowshed::service
