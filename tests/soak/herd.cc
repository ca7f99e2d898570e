// SPDX-License-Identifier: Apache-2.0
#include "tests/soak/herd.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "engine/base/strings.h"

namespace cowshed::soak {
namespace {

using engine::StrCat;

constexpr size_t kSnapshotsMax = 6;
constexpr size_t kClonesMax = 8;
constexpr size_t kUnflushedMax = 64;
constexpr size_t kHistoryMax = 120;
constexpr uint64_t kReplayOneIn = 8;

// A block of one version: its number, then words that depend on it and on their place.
std::string BlocksOf(uint64_t version, uint64_t count) {
  std::string bytes(count * kBlockBytes, '\0');
  for (uint64_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t word =
        at % kBlockBytes == 0 ? version : version * 0x9E3779B97F4A7C15 + at % kBlockBytes;
    std::memcpy(bytes.data() + at, &word, sizeof(word));
  }
  return bytes;
}

uint64_t VersionOf(const char* block) {
  uint64_t version = 0;
  std::memcpy(&version, block, sizeof(version));
  return version;
}

bool IsWhole(const char* block, uint64_t version) {
  const std::string expected = version == 0 ? std::string(kBlockBytes, '\0') : BlocksOf(version, 1);
  return std::memcmp(block, expected.data(), kBlockBytes) == 0;
}

void Apply(Versions& versions, uint64_t first, uint64_t count, uint64_t version) {
  std::fill_n(versions.begin() + static_cast<int64_t>(first), count, version);
}

std::string Describe(const grpc::Status& status) {
  return StrCat("code ", static_cast<int>(status.error_code()), ": ", status.error_message());
}

}  // namespace

Herd::Herd(const std::string& target, uint32_t number, uint64_t seed, Counters& counters)
    : base_(StrCat("c", number)),
      chance_(seed * 1000 + number),
      caller_(target, seed * 1000 + number, counters) {
  boot_id_ = caller_.BootId();
  caller_.OnLost([this] { Recover(); });
  golden_.name = StrCat(base_, "/golden");
  v1::CreateDatasetRequest request;
  request.set_name(golden_.name);
  request.set_size_bytes(kBlocks * kBlockBytes);
  request.set_block_size_bytes(kBlockBytes);
  created_ = Call(&v1::DatasetService::Stub::CreateDataset, std::move(request), golden_, "create");
}

bool Herd::Step() {
  static constexpr std::pair<void (Herd::*)(), int> kSteps[] = {
      {&Herd::WriteGolden, 30},    {&Herd::FlushGolden, 3},  {&Herd::Snapshot, 3},
      {&Herd::Clone, 6},           {&Herd::Replace, 2},      {&Herd::WriteClone, 8},
      {&Herd::Rename, 1},          {&Herd::Reset, 2},        {&Herd::DestroyClone, 5},
      {&Herd::DestroySnapshot, 3}, {&Herd::ReadSomething, 6}};
  int total = 0;
  for (const auto& [step, weight] : kSteps) total += weight;
  auto left = static_cast<int>(Below(static_cast<uint64_t>(total)));
  for (const auto& [step, weight] : kSteps) {
    left -= weight;
    if (left >= 0) continue;
    (this->*step)();
    break;
  }
  if (verify_all_ && !lost_) VerifyAll();
  return !lost_;
}

bool Herd::Finish() {
  if (!lost_) FlushGolden();
  if (!lost_) VerifyAll();
  if (lost_) return false;
  v1::DestroyDatasetsRequest request;
  request.set_prefix(base_);
  request.set_recursive(true);
  request.set_cascade(true);
  Call(&v1::DatasetService::Stub::DestroyDatasets, std::move(request), golden_, "destroy all");
  return !lost_;
}

// --- bytes ---

void Herd::WriteGolden() {
  if (unflushed_.size() >= kUnflushedMax) return FlushGolden();
  const uint64_t first = Below(kBlocks);
  const uint64_t count = 1 + Below(std::min<uint64_t>(8, kBlocks - first));
  const uint64_t version = ++last_version_;
  Note(golden_, StrCat("write ", first, "+", count, " version ", version));
  unflushed_.push_back({first, count, version});
  v1::WriteRangeRequest request;
  request.set_dataset(golden_.name);
  request.set_offset_bytes(first * kBlockBytes);
  request.set_data(BlocksOf(version, count));
  const grpc::Status status = caller_.Insist([&](grpc::ClientContext& context) {
    // Where Recover found that the write had not survived, it is the first one of the new boot.
    if (unflushed_.empty() || unflushed_.back().version != version) {
      unflushed_.push_back({first, count, version});
    }
    request.set_expect_boot_id(boot_id_);
    v1::WriteRangeResponse reply;
    return caller_.data().WriteRange(&context, request, &reply);
  });
  if (!status.ok()) return Lose(golden_, StrCat("write: ", Describe(status)));
}

void Herd::FlushGolden() {
  v1::FlushRequest request;
  request.set_dataset(golden_.name);
  const grpc::Status status = caller_.Insist([&](grpc::ClientContext& context) {
    request.set_expect_boot_id(boot_id_);
    v1::FlushResponse reply;
    return caller_.data().Flush(&context, request, &reply);
  });
  if (!status.ok()) return Lose(golden_, StrCat("flush: ", Describe(status)));
  durable_ = GoldenAfter(unflushed_.size());
  unflushed_.clear();
  Note(golden_, StrCat("flushed up to version ", last_version_));
}

void Herd::WriteClone() {
  Object* const clone = Pick(clones_);
  if (clone == nullptr) return;
  const uint64_t version = ++last_version_;
  const uint64_t first = Below(kBlocks - 16);
  const uint64_t count = 1 + Below(8);
  Note(*clone, StrCat("stream ", first, "+", count, " version ", version, ", zeros after it ..."));
  const grpc::Status status = caller_.Insist([&](grpc::ClientContext& context) {
    const auto stream = caller_.data().Write(&context);
    v1::WriteRequest header;
    header.mutable_header()->set_dataset(clone->name);
    v1::WriteRequest data;
    data.mutable_chunk()->set_offset_bytes(first * kBlockBytes);
    data.mutable_chunk()->set_data(BlocksOf(version, count));
    v1::WriteRequest zeros;
    zeros.mutable_chunk()->set_offset_bytes((first + count) * kBlockBytes);
    zeros.mutable_chunk()->set_zero_bytes(2 * kBlockBytes);
    v1::WriteRequest flush;
    flush.mutable_chunk()->set_flush(true);
    for (const auto* request : {&header, &data, &zeros, &flush}) {
      if (!stream->Write(*request)) break;
    }
    stream->WritesDone();
    bool flushed = false;
    for (v1::WriteAck ack; stream->Read(&ack);) flushed |= ack.has_flushed_txg();
    const grpc::Status end = stream->Finish();
    if (end.ok() && !flushed) return grpc::Status(grpc::StatusCode::INTERNAL, "no ack of a flush");
    return end;
  });
  if (!status.ok()) return Lose(*clone, StrCat("stream: ", Describe(status)));
  Apply(clone->versions, first, count, version);
  Apply(clone->versions, first + count, 2, 0);
  Note(*clone, "... flushed");
}

void Herd::ReadSomething() {
  switch (Below(3)) {
    case 0:
      if (Object* const object = Pick(clones_)) Verify(*object);
      return;
    case 1:
      if (Object* const object = Pick(snapshots_)) Verify(*object);
      return;
    default:
      VerifyGolden(/*restarted=*/false);
  }
}

// --- lifecycle ---

template <typename Request, typename Reply>
bool Herd::Call(grpc::Status (v1::DatasetService::Stub::*method)(grpc::ClientContext*,
                                                                 const Request&, Reply*),
                Request request, Object& object, const std::string& what) {
  request.set_request_id(caller_.NewRequestId());
  Note(object, what + " ...");
  Reply reply;
  const auto send = [&](Reply* into) {
    return caller_.Insist([&](grpc::ClientContext& context) {
      into->Clear();
      return (caller_.datasets().*method)(&context, request, into);
    });
  };
  if (const grpc::Status status = send(&reply); !status.ok()) {
    Lose(object, StrCat(what, ": ", Describe(status)));
    return false;
  }
  Note(object, "... acknowledged");
  if (Below(kReplayOneIn) != 0) return true;
  Reply again;
  const grpc::Status status = send(&again);
  ++caller_.counters().replayed;
  if (status.ok() && again.SerializeAsString() == reply.SerializeAsString()) return true;
  Lose(object, StrCat(what, ", sent again, is answered otherwise: ", Describe(status), "\n",
                      reply.ShortDebugString(), "\n", again.ShortDebugString()));
  return false;
}

void Herd::Snapshot() {
  if (snapshots_.size() >= kSnapshotsMax) return;
  auto snapshot = std::make_unique<Object>();
  snapshot->name = StrCat(golden_.name, "@s", ++last_name_);
  v1::CreateSnapshotsRequest request;
  request.add_names(snapshot->name);
  if (!Call(&v1::DatasetService::Stub::CreateSnapshots, std::move(request), golden_,
            StrCat("snapshot ", snapshot->name))) {
    return;
  }
  // It takes along what was acknowledged before; that is durable with it.
  durable_ = GoldenAfter(unflushed_.size());
  unflushed_.clear();
  snapshot->versions = durable_;
  snapshot->history = golden_.history;
  snapshots_.push_back(std::move(snapshot));
}

void Herd::Clone() {
  Object* const origin = Pick(snapshots_);
  if (origin == nullptr || clones_.size() >= kClonesMax) return;
  auto clone = std::make_unique<Object>();
  clone->name = NewName("k");
  clone->versions = origin->versions;
  clone->origin = origin;
  v1::CloneDatasetRequest request;
  request.set_source(origin->name);
  request.set_name(clone->name);
  if (!Call(&v1::DatasetService::Stub::CloneDataset, std::move(request), *clone,
            StrCat("clone of ", origin->name))) {
    return;
  }
  ++origin->clones;
  clones_.push_back(std::move(clone));
}

void Herd::Replace() {
  Object* const origin = Pick(snapshots_);
  Object* const clone = Pick(clones_);
  if (origin == nullptr || clone == nullptr) return;
  v1::CloneDatasetRequest request;
  request.set_source(origin->name);
  request.set_name(clone->name);
  request.set_replace(true);
  if (!Call(&v1::DatasetService::Stub::CloneDataset, std::move(request), *clone,
            StrCat("replaced by a clone of ", origin->name))) {
    return;
  }
  --clone->origin->clones;
  ++origin->clones;
  clone->origin = origin;
  clone->versions = origin->versions;
}

void Herd::Rename() {
  Object* const clone = Pick(clones_);
  if (clone == nullptr) return;
  v1::RenameDatasetRequest request;
  const std::string name = NewName("k");
  request.set_name(clone->name);
  request.set_new_name(name);
  if (Call(&v1::DatasetService::Stub::RenameDataset, std::move(request), *clone,
           StrCat("rename to ", name))) {
    clone->name = name;
  }
}

void Herd::Reset() {
  Object* const clone = Pick(clones_);
  if (clone == nullptr) return;
  v1::RollbackDatasetRequest request;
  request.set_name(clone->name);
  request.set_origin(true);
  if (Call(&v1::DatasetService::Stub::RollbackDataset, std::move(request), *clone, "reset")) {
    clone->versions = clone->origin->versions;
  }
}

void Herd::DestroyClone() {
  Object* const clone = Pick(clones_);
  if (clone == nullptr) return;
  v1::DestroyDatasetsRequest request;
  request.add_names(clone->name);
  if (!Call(&v1::DatasetService::Stub::DestroyDatasets, std::move(request), *clone, "destroy")) {
    return;
  }
  --clone->origin->clones;
  std::erase_if(clones_, [&](const auto& kept) { return kept.get() == clone; });
}

void Herd::DestroySnapshot() {
  Object* const snapshot = Pick(snapshots_);
  if (snapshot == nullptr || snapshot->clones > 0) return;
  v1::DestroySnapshotsRequest request;
  request.add_names(snapshot->name);
  if (Call(&v1::DatasetService::Stub::DestroySnapshots, std::move(request), *snapshot, "destroy")) {
    std::erase_if(snapshots_, [&](const auto& kept) { return kept.get() == snapshot; });
  }
}

// --- what is there ---

void Herd::Recover() {
  const std::string boot_id = caller_.BootId();
  if (boot_id == boot_id_ || lost_) return;
  boot_id_ = boot_id;
  ++caller_.counters().restarts;
  verify_all_ = true;
  if (created_) VerifyGolden(/*restarted=*/true);
}

Versions Herd::GoldenAfter(size_t writes) const {
  Versions versions = durable_;
  for (size_t i = 0; i < writes; ++i) {
    Apply(versions, unflushed_[i].first, unflushed_[i].count, unflushed_[i].version);
  }
  return versions;
}

void Herd::VerifyGolden(bool restarted) {
  const std::string boot_id = boot_id_;
  Versions found;
  std::string problem;
  if (!Read(golden_, &found, &problem)) return Lose(golden_, problem);
  if (boot_id != boot_id_ || lost_) return;  // a restart meanwhile has been recovered from
  for (size_t kept = unflushed_.size() + 1; kept-- > 0;) {
    if (found != GoldenAfter(kept)) continue;
    if (!restarted && kept == unflushed_.size()) return;
    if (!restarted && caller_.BootId() == boot_id_) {
      return Lose(golden_, "acknowledged writes are gone without a restart");
    }
    // What is left was committed before the restart, or it would not be there.
    Note(golden_, StrCat(kept, " of ", unflushed_.size(), " unflushed writes survived"));
    durable_ = found;
    unflushed_.clear();
    return;
  }
  Lose(golden_, "neither what was flushed nor what followed:" + Differences(found));
}

std::string Herd::Differences(const Versions& found) const {
  const Versions written = GoldenAfter(unflushed_.size());
  std::string told;
  for (uint64_t block = 0; block < kBlocks; ++block) {
    if (found[block] == written[block]) continue;
    told += StrCat(" block ", block, ": ", durable_[block], " flushed, ", written[block],
                   " written, ", found[block], " found;");
  }
  return told;
}

void Herd::VerifyAll() {
  while (verify_all_ && !lost_) {
    verify_all_ = false;
    for (auto& snapshot : snapshots_) Verify(*snapshot);
    for (auto& clone : clones_) Verify(*clone);
  }
}

void Herd::Verify(Object& object) {
  Versions found;
  std::string problem;
  if (lost_) return;
  if (!Read(object, &found, &problem)) return Lose(object, problem);
  for (uint64_t block = 0; block < kBlocks; ++block) {
    if (found[block] == object.versions[block]) continue;
    return Lose(object, StrCat("block ", block, " shows version ", found[block], ", not ",
                               object.versions[block]));
  }
}

bool Herd::Read(const Object& object, Versions* versions, std::string* problem) {
  std::string bytes;
  v1::ReadRequest request;
  request.set_name(object.name);
  const grpc::Status status = caller_.Insist([&](grpc::ClientContext& context) {
    bytes.clear();
    const auto stream = caller_.data().Read(&context, request);
    for (v1::ReadChunk chunk; stream->Read(&chunk);) {
      if (chunk.has_data()) bytes += chunk.data();
      if (chunk.has_zero_bytes()) bytes.append(chunk.zero_bytes(), '\0');
    }
    return stream->Finish();
  });
  if (!status.ok()) *problem = StrCat("read: ", Describe(status));
  if (status.ok() && bytes.size() != kBlocks * kBlockBytes) {
    *problem = StrCat("has ", bytes.size(), " bytes");
  }
  versions->clear();
  for (uint64_t block = 0; block < kBlocks && problem->empty(); ++block) {
    const char* const at = bytes.data() + block * kBlockBytes;
    versions->push_back(VersionOf(at));
    if (!IsWhole(at, versions->back())) *problem = StrCat("block ", block, " is torn");
  }
  return problem->empty();
}

// --- the rest ---

Object* Herd::Pick(std::vector<std::unique_ptr<Object>>& objects) {
  return objects.empty() ? nullptr : objects[Below(objects.size())].get();
}

std::string Herd::NewName(const char* kind) { return StrCat(base_, "/", kind, ++last_name_); }

void Herd::Note(Object& object, std::string what) {
  object.history.push_back(std::move(what));
  if (object.history.size() > kHistoryMax) object.history.pop_front();
}

void Herd::Lose(Object& object, const std::string& problem) {
  if (std::exchange(lost_, true)) return;
  ++caller_.counters().losses;
  std::string told = StrCat("LOSS ", object.name, ": ", problem, "\n");
  for (const std::string& step : object.history) told += "    " + step + "\n";
  std::fputs(told.c_str(), stdout);
}

}  // namespace cowshed::soak
