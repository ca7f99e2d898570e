// SPDX-License-Identifier: Apache-2.0
#include "service/log.h"

#include <memory>
#include <utility>

#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace cowshed::service {
namespace {

// The pattern flag %* : the message, escaped for JSON.
class EscapedMessage final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm&,  // NOLINT: spdlog's name
              spdlog::memory_buf_t& out) override {
    const std::string text =
        JsonEscaped(std::string(message.payload.data(), message.payload.size()));
    out.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override {  // NOLINT: spdlog's name
    return std::make_unique<EscapedMessage>();
  }
};

}  // namespace

std::string JsonEscaped(const std::string& text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out;
}

void SetUpLog(const std::string& format, const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>("cowshed",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  auto formatter = std::make_unique<spdlog::pattern_formatter>(spdlog::pattern_time_type::utc);
  formatter->add_flag<EscapedMessage>('*');
  formatter->set_pattern(format == "json"
                             ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","message":"%*"})"
                             : "%Y-%m-%dT%H:%M:%S.%eZ %l %v");
  logger->set_formatter(std::move(formatter));
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace cowshed::service
