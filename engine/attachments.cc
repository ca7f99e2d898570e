// SPDX-License-Identifier: Apache-2.0
#include "engine/attachments.h"

#include <utility>

#include "engine/base/status_macros.h"
#include "engine/base/strings.h"
#include "engine/errors.h"

namespace cowshed::engine {

Attachment::Attachment(Attachments& table, const AttachArgs& args, std::shared_ptr<Volume> volume,
                       uint64_t number, int64_t since_ms)
    : table_(table),
      volume_(std::move(volume)),
      number_(number),
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

AttachmentInfo Attachment::Info() const {
  return {id_,
          name_,
          volume_->uid(),
          read_only_,
          shared_,
          client_,
          protocol_,
          since_ms_,
          counters_.read_bytes.load(),
          counters_.written_bytes.load(),
          counters_.requests.load()};
}

absl::StatusOr<std::unique_ptr<Attachment>> Attachments::Attach(const AttachArgs& args) {
  ASSIGN_OR_RETURN(std::shared_ptr<Volume> volume, open_(args.name));
  const bool writes = !args.read_only && !volume->read_only();
  const MutexLock lock(mutex_);
  for (const auto& [_, other] : attachments_) {
    if (!writes || other->read_only_ || other->volume_->uid() != volume->uid()) continue;
    if ((args.shared && other->shared_) || args.holder == other->holder_) continue;
    return MakeError(absl::StatusCode::kFailedPrecondition, "ATTACHED",
                     StrCat(args.name, " is attached for writing by ", other->client_,
                            ": detach it, or attach this one read-only or, both, shared"),
                     {{"name", args.name}, {"client", other->client_}, {"attachment", other->id_}});
  }
  const uint64_t number = next_++;
  std::unique_ptr<Attachment> attachment(
      new Attachment(*this, args, std::move(volume), number, clock_ms_()));
  attachments_.emplace(number, attachment.get());
  return attachment;
}

std::vector<AttachmentInfo> Attachments::List(const std::string& uid) const {
  std::vector<AttachmentInfo> list;
  const MutexLock lock(mutex_);
  for (const auto& [_, attachment] : attachments_) {
    if (uid.empty() || attachment->volume_->uid() == uid) list.push_back(attachment->Info());
  }
  return list;
}

size_t Attachments::Count() const {
  const MutexLock lock(mutex_);
  return attachments_.size();
}

bool Attachments::Cut(const std::string& id, const absl::Status& why) {
  return CutWhere([&](const Attachment& attachment) { return attachment.id_ == id; }, why) > 0;
}

size_t Attachments::CutAll(const std::string& uid, const absl::Status& why) {
  return CutWhere([&](const Attachment& attachment) { return attachment.volume_->uid() == uid; },
                  why);
}

// Calls without the lock: whoever is cut may end at once, and so come to Remove.
size_t Attachments::CutWhere(absl::FunctionRef<bool(const Attachment&)> chosen,
                             const absl::Status& why) {
  std::vector<std::function<void(const absl::Status&)>> cuts;
  {
    const MutexLock lock(mutex_);
    for (const auto& [_, attachment] : attachments_) {
      if (chosen(*attachment)) cuts.push_back(attachment->cut_);
    }
  }
  for (const auto& cut : cuts) cut(why);
  return cuts.size();
}

void Attachments::Remove(const Attachment& attachment) {
  const MutexLock lock(mutex_);
  attachments_.erase(attachment.number_);
}

}  // namespace cowshed::engine
