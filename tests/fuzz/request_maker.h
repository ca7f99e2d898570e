// SPDX-License-Identifier: Apache-2.0
//
// Requests out of a fuzzer's bytes, such that they reach deep: names come mostly from a short list,
// so that calls meet what earlier calls made; tokens, etags and uids come from earlier replies;
// numbers lie mostly at the edges of what is allowed.
//
// Model       Each field of a message costs the input a byte that says whether it is there, then
//             what is in it. A request may also come as it is on the wire (what the seeds do).
// Threads     Externally synchronised.
// Cost        Remembers at most kKept values per field name.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "tests/fuzz/byte_source.h"

namespace cowshed::fuzz {

class RequestMaker {
 public:
  // Fills `message` from the source, field by field.
  void Fill(ByteSource& source, google::protobuf::Message* message) { Fill(source, message, 0); }
  // Keeps what a reply says for requests to come.
  void Remember(const google::protobuf::Message& reply) { Remember(reply, 0); }
  void Forget() { remembered_.clear(); }

 private:
  static constexpr size_t kKept = 8;
  static constexpr int kDepthMax = 4;

  void Fill(ByteSource& source, google::protobuf::Message* message, int depth);
  void FillField(ByteSource& source, const google::protobuf::FieldDescriptor* field,
                 google::protobuf::Message* message, int depth);
  void FillRepeated(ByteSource& source, const google::protobuf::FieldDescriptor* field,
                    google::protobuf::Message* message, int depth);
  void Remember(const google::protobuf::Message& reply, int depth);
  std::string String(ByteSource& source, const std::string& field) const;

  std::map<std::string, std::deque<std::string>> remembered_;  // by the reply's field name
};

}  // namespace cowshed::fuzz
