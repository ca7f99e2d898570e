// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/request_maker.h"

#include <iterator>
#include <vector>

namespace cowshed::fuzz {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

const std::vector<std::string>& Vocabulary() {
  static const auto& names = *new std::vector<std::string>{"a",
                                                           "b",
                                                           "a/x",
                                                           "a/y/z",
                                                           "c",
                                                           "a@s",
                                                           "b@t",
                                                           "a/x@s",
                                                           "s",
                                                           "a@latest",
                                                           "latest",
                                                           "c@s",
                                                           "tag",
                                                           "golden",
                                                           "",
                                                           "a//b",
                                                           "a@",
                                                           "@s",
                                                           "a@s@t",
                                                           "/a",
                                                           "a/",
                                                           "..",
                                                           "A.b:c",
                                                           "color",
                                                           "size_bytes",
                                                           "red",
                                                           "quota_bytes",
                                                           "expire_time",
                                                           std::string(63, 'k'),
                                                           std::string(64, 'k'),
                                                           std::string(255, 'n'),
                                                           std::string(256, 'n')};
  return names;
}

uint64_t Edge(ByteSource& source) {
  static constexpr uint64_t kEdges[] = {0,
                                        1,
                                        2,
                                        100,
                                        511,
                                        512,
                                        1000,
                                        1001,
                                        4095,
                                        4096,
                                        4097,
                                        8192,
                                        16384,
                                        65536,
                                        131072,
                                        1 << 20,
                                        (1 << 20) + 1,
                                        uint64_t{1} << 30,
                                        uint64_t{1} << 50,
                                        (uint64_t{1} << 50) + 1,
                                        INT64_MAX,
                                        UINT64_MAX};
  const uint8_t choice = source.Take();
  if (choice < 128) return kEdges[choice % std::size(kEdges)];
  if (choice < 224) return uint64_t{choice - 128u} << 12;
  return source.Number<uint64_t>();
}

std::string Data(ByteSource& source) {
  static constexpr size_t kSizes[] = {0, 1, 17, 512, 4096, 16384, 20000, 65537};
  const size_t size = kSizes[source.Take() % std::size(kSizes)];
  return std::string(size, static_cast<char>(source.Take()));
}

// The field of a reply whose value this field of a request wants.
std::string OriginOf(const std::string& field) {
  if (field == "page_token") return "next_page_token";
  if (field == "expected_uid") return "uid";
  if (field == "expect_boot_id") return "boot_id";
  if (field == "replace_etag" || field == "etags") return "etag";
  if (field == "operation") return "name";
  if (field == "attachment") return "id";
  return field == "names" ? "name" : field;
}

}  // namespace

std::string RequestMaker::String(ByteSource& source, const std::string& field) const {
  if (field == "request_id") {
    const uint8_t choice = source.Take();
    return choice < 250 ? "r" + std::to_string(choice % 4) : std::string(choice - 190, 'r');
  }
  const auto found = remembered_.find(OriginOf(field));
  const bool known = found != remembered_.end();
  const bool is_name = field.find("name") != std::string::npos;
  const uint8_t choice = source.Take();
  if (known && (choice >= 160 || !is_name) && choice < 224) {
    return found->second[choice % found->second.size()];
  }
  if (choice < 224) return Vocabulary()[choice % Vocabulary().size()];
  std::string text(source.Bytes(source.Take() % 80));
  for (char& c : text) c = static_cast<char>(c & 0x7f);  // else it is no string on the wire
  return text;
}

void RequestMaker::FillRepeated(ByteSource& source, const FieldDescriptor* field, Message* message,
                                int depth) {
  const Reflection& reflection = *message->GetReflection();
  const uint8_t choice = source.Take();
  const int count = choice < 250 ? choice % 4 : 70;
  for (int i = 0; i < count; ++i) {
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      Fill(source, reflection.AddMessage(message, field), depth + 1);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      reflection.AddString(message, field, String(source, field->name()));
    }
  }
}

void RequestMaker::FillField(ByteSource& source, const FieldDescriptor* field, Message* message,
                             int depth) {
  const Reflection& reflection = *message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.SetInt32(message, field, static_cast<int32_t>(Edge(source)));
    case FieldDescriptor::CPPTYPE_INT64:
      return reflection.SetInt64(message, field, static_cast<int64_t>(Edge(source)));
    case FieldDescriptor::CPPTYPE_UINT32:
      return reflection.SetUInt32(message, field, static_cast<uint32_t>(Edge(source)));
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.SetUInt64(message, field, Edge(source));
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(message, field, (source.Take() & 1) != 0);
    case FieldDescriptor::CPPTYPE_ENUM:
      return reflection.SetEnumValue(message, field, source.Take() % 9);
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.SetString(message, field,
                                  field->type() == FieldDescriptor::TYPE_BYTES
                                      ? Data(source)
                                      : String(source, field->name()));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return Fill(source, reflection.MutableMessage(message, field), depth + 1);
    default:
      return;  // no float is in the API
  }
}

void RequestMaker::Fill(ByteSource& source, Message* message, int depth) {
  if (depth > kDepthMax) return;
  const auto* descriptor = message->GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    // Names are nearly always there: without them a call gets nowhere.
    const bool wanted = field->cpp_type() == FieldDescriptor::CPPTYPE_STRING || depth > 0;
    const uint8_t choice = source.Take();
    if (choice % 8 >= (wanted ? 6 : 3)) continue;
    if (field->is_repeated()) {
      FillRepeated(source, field, message, depth);
    } else {
      FillField(source, field, message, depth);
    }
  }
}

void RequestMaker::Remember(const Message& reply, int depth) {
  const Reflection& reflection = *reply.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(reply, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->is_map()) continue;
    if (field->type() == FieldDescriptor::TYPE_STRING && !field->is_repeated()) {
      auto& kept = remembered_[field->name()];
      kept.push_back(reflection.GetString(reply, field));
      if (kept.size() > kKept) kept.pop_front();
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && depth < kDepthMax) {
      const int count = field->is_repeated() ? reflection.FieldSize(reply, field) : 1;
      for (int i = 0; i < count && i < static_cast<int>(kKept); ++i) {
        Remember(field->is_repeated() ? reflection.GetRepeatedMessage(reply, field, i)
                                      : reflection.GetMessage(reply, field),
                 depth + 1);
      }
    }
  }
}

}  // namespace cowshed::fuzz
