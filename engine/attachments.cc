// SPDX-License-Identifier: Apache-2.0
#include "engine/attachments.h"

#include "absl/container/flat_hash_set.h"
#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/catalog.h"
#include "engine/errors.h"
#include "engine/head.h"
#include "engine/volume.h"

namespace cowshed::engine {
namespace {

// Why a commit ends the attachments of a head; OK: it does not.
absl::Status WhyCut(const HeadChange& change, const std::string& name) {
  if (change.destroyed) return DestroyedError(name);
  if (!change.damage.ok()) return change.damage;
  return change.cut == LayerCut::kNone ? absl::OkStatus() : ChangedError(name);
}

}  // namespace

Attachment::Attachment(Attachments& table, const AttachArgs& args, std::shared_ptr<Volume> volume,
                       uint64_t number, int64_t since_ms)
    : table_(table),
      volume_(std::move(volume)),
      number_(number),
      object_(ObjectOfUid(volume_->uid())),
      id_(StrCat(number)),
      name_(volume_->name()),
      read_only_(args.read_only || volume_->read_only()),
      shared_(args.shared),
      holder_(args.holder),
      client_(args.client),
      protocol_(args.protocol),
      since_ms_(since_ms),
      cut_(args.cut) {}

Attachment::~Attachment() { table_.Remove(*this); }

AttachmentInfo Attachment::Info(bool ending) const {
  AttachmentInfo info;
  info.id = id_;
  info.name = name_;
  info.uid = volume_->uid();
  info.read_only = read_only_;
  info.shared = shared_;
  info.client = client_;
  info.protocol = protocol_;
  info.since_ms = since_ms_;
  info.read_bytes = counters_.read_bytes.load();
  info.written_bytes = counters_.written_bytes.load();
  info.requests = counters_.requests.load();
  info.ending = ending;
  info.number = number_;
  info.object = object_;
  return info;
}

AttachMode Attachment::mode() const {
  if (read_only_) return AttachMode::kReadOnly;
  return shared_ ? AttachMode::kShared : AttachMode::kReadWrite;
}

absl::StatusOr<std::unique_ptr<Attachment>> Attachments::Attach(const AttachArgs& args) {
  while (true) {
    ASSIGN_OR_RETURN(std::shared_ptr<Volume> volume, open_(args.name));
    auto attachment = TryAttach(args, std::move(volume));
    // What was opened was destroyed or rolled back before it stood in the table: look again.
    if (!absl::IsAborted(attachment.status())) return attachment;
  }
}

absl::StatusOr<std::unique_ptr<Attachment>> Attachments::TryAttach(const AttachArgs& args,
                                                                   std::shared_ptr<Volume> volume) {
  const MutexLock lock(mutex_);
  // Of what a commit has ended, CutOff may have been here already.
  RETURN_IF_ERROR(volume->Read(0, {}));
  RETURN_IF_ERROR(CheckLease(args, *volume));
  const uint64_t number = next_++;
  std::unique_ptr<Attachment> attachment(
      new Attachment(*this, args, std::move(volume), number, clock_ms_()));
  entries_.emplace(number, Entry{attachment.get(), false});
  ++stats_.attachments[attachment->mode()];
  return attachment;
}

absl::Status Attachments::CheckLease(const AttachArgs& args, const Volume& volume) const {
  if (args.read_only || volume.read_only()) return absl::OkStatus();
  for (const auto& [_, entry] : entries_) {
    const Attachment& other = *entry.attachment;
    if (other.read_only_ || other.volume_->uid() != volume.uid()) continue;
    if ((args.shared && other.shared_) || args.holder == other.holder_) continue;
    return MakeError(absl::StatusCode::kFailedPrecondition, "ATTACHED",
                     StrCat(args.name, " is attached for writing by ", other.client_,
                            ": detach it, or attach this one read-only or, both, shared"),
                     {{"name", args.name}, {"client", other.client_}, {"attachment", other.id_}});
  }
  return absl::OkStatus();
}

std::vector<AttachmentInfo> Attachments::List(const std::string& uid) const {
  std::vector<AttachmentInfo> list;
  const MutexLock lock(mutex_);
  for (const auto& [_, entry] : entries_) {
    if (!uid.empty() && entry.attachment->volume_->uid() != uid) continue;
    list.push_back(entry.attachment->Info(entry.ending));
  }
  return list;
}

size_t Attachments::Count() const {
  const MutexLock lock(mutex_);
  return entries_.size();
}

std::vector<AttachedObject> Attachments::Objects() const {
  std::map<uint64_t, AttachedObject> objects;
  {
    const MutexLock lock(mutex_);
    for (const auto& [_, entry] : entries_) {
      if (entry.ending) continue;
      const Attachment& attachment = *entry.attachment;
      AttachedObject& object = objects[attachment.object_];
      object.object = attachment.object_;
      object.snapshot = attachment.volume_->read_only();
      ++object.count;
    }
  }
  std::vector<AttachedObject> list;
  list.reserve(objects.size());
  for (const auto& [_, object] : objects) list.push_back(object);
  return list;
}

std::vector<AttachmentInfo> Attachments::ListOf(uint64_t object, uint64_t after,
                                                size_t count_max) const {
  std::vector<AttachmentInfo> list;
  const MutexLock lock(mutex_);
  for (auto it = entries_.upper_bound(after); it != entries_.end(); ++it) {
    if (list.size() == count_max) break;
    if (it->second.ending || it->second.attachment->object_ != object) continue;
    list.push_back(it->second.attachment->Info(false));
  }
  return list;
}

void Attachments::End(absl::FunctionRef<absl::Status(const AttachmentInfo&)> why,
                      absl::AnyInvocable<void(size_t)> ended) {
  CutWhere([&](const Attachment& attachment) { return why(attachment.Info(false)); },
           std::move(ended));
}

void Attachments::CutOff(const Publication& publication) {
  if (Count() == 0) return;
  const absl::flat_hash_set<SnapshotId> snapshots(publication.destroyed_snapshots.begin(),
                                                  publication.destroyed_snapshots.end());
  CutWhere([&](const Attachment& attachment) {
    // Datasets and snapshots are numbered together: a number is of one or the other.
    const auto head = publication.heads.find(DatasetId{attachment.object_});
    if (head != publication.heads.end()) return WhyCut(head->second, attachment.name_);
    return snapshots.contains(SnapshotId{attachment.object_}) ? DestroyedError(attachment.name_)
                                                              : absl::OkStatus();
  });
}

// Calls without the lock: whoever is cut may end at once, and so come to Remove.
void Attachments::CutWhere(Why why, absl::AnyInvocable<void(size_t)> ended) {
  std::vector<std::pair<std::function<void(const absl::Status&)>, absl::Status>> cuts;
  {
    const MutexLock lock(mutex_);
    std::set<uint64_t> numbers;
    for (auto& [number, entry] : entries_) {
      absl::Status reason = why(*entry.attachment);
      if (reason.ok()) continue;
      if (!entry.ending) ++stats_.attachments_cut;
      entry.ending = true;
      numbers.insert(number);
      cuts.emplace_back(entry.attachment->cut_, std::move(reason));
    }
    if (ended && !numbers.empty()) {
      endings_.push_back({std::move(numbers), cuts.size(), std::exchange(ended, nullptr)});
    }
  }
  for (const auto& [cut, reason] : cuts) cut(reason);
  if (ended) ended(0);
}

void Attachments::Remove(const Attachment& attachment) {
  std::list<Ending> over;
  {
    const MutexLock lock(mutex_);
    entries_.erase(attachment.number_);
    --stats_.attachments[attachment.mode()];
    for (auto it = endings_.begin(); it != endings_.end();) {
      const auto ending = it++;
      ending->left.erase(attachment.number_);
      if (ending->left.empty()) over.splice(over.end(), endings_, ending);
    }
  }
  for (Ending& ending : over) ending.ended(ending.count);
}

}  // namespace cowshed::engine
