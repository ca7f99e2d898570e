// SPDX-License-Identifier: Apache-2.0
#include "service/audit.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <utility>

#include "engine/base/strings.h"
#include "service/file_descriptor.h"
#include "service/log.h"
#include "service/parse.h"
#include "spdlog/async.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/rotating_file_sink.h"
#include "spdlog/spdlog.h"

namespace cowshed::service {
namespace {

std::string TimeText(int64_t unix_ms) {
  const std::time_t seconds = unix_ms / 1000;
  std::tm time{};
  gmtime_r(&seconds, &time);
  char text[40];
  const size_t size = std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &time);
  std::snprintf(text + size, sizeof(text) - size, ".%03dZ", static_cast<int>(unix_ms % 1000));
  return text;
}

std::string Quoted(const std::string& text) {
  return engine::StrCat("\"", JsonEscaped(text), "\"");
}

}  // namespace

std::string AuditLine(const AuditRecord& record, int64_t unix_ms) {
  std::string line = engine::StrCat("{\"time\":\"", TimeText(unix_ms), "\"");
  const auto add = [&line](const char* key, const std::string& value) {
    line += engine::StrCat(",\"", key, "\":", value);
  };
  add("who", Quoted(record.who));
  add("peer", Quoted(record.peer));
  add("method", Quoted(record.method));
  std::string names;
  const size_t shown = std::min(record.names.size(), AuditLog::kNamesInLine);
  for (size_t i = 0; i < shown; ++i) names += (i == 0 ? "" : ",") + Quoted(record.names[i]);
  add("names", engine::StrCat("[", names, "]"));
  if (record.names.size() > shown) add("names_total", std::to_string(record.names.size()));
  add("request_id", Quoted(record.request_id));
  add("code", Quoted(record.code));
  add("reason", Quoted(record.reason));
  add("txg", std::to_string(record.txg));
  if (record.validate_only) add("validate_only", "true");
  if (record.replayed) add("replayed", "true");
  return line + "}";
}

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(const Options& options,
                                                         metrics::ServiceStats& stats) {
  // Made by ourselves, with a mode of its own: the sink would follow the umask, and throw.
  const FileDescriptor file(
      open(options.path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600));
  if (!file.valid()) {
    return absl::UnavailableError(engine::StrCat(options.path, ": ", strerror(errno)));
  }
  std::unique_ptr<AuditLog> log(new AuditLog(stats));
  spdlog::file_event_handlers handlers;
  handlers.after_open = [](const spdlog::filename_t&, std::FILE* stream) {
    fchmod(fileno(stream), S_IRUSR | S_IWUSR);  // of the files that come by rotation
  };
  std::shared_ptr<spdlog::sinks::sink> sink;
  try {
    sink = std::make_shared<spdlog::sinks::rotating_file_sink_mt>(
        options.path, options.file_bytes, options.files, /*rotate_on_open=*/false, handlers);
  } catch (const spdlog::spdlog_ex& error) {
    return absl::UnavailableError(engine::StrCat(options.path, ": ", error.what()));
  }
  log->thread_ = std::make_shared<spdlog::details::thread_pool>(kQueueLines, 1);
  log->logger_ = std::make_shared<spdlog::async_logger>(
      "audit", std::move(sink), log->thread_, spdlog::async_overflow_policy::overrun_oldest);
  log->logger_->set_formatter(std::make_unique<spdlog::pattern_formatter>("%v"));
  log->logger_->set_level(spdlog::level::info);
  log->logger_->flush_on(spdlog::level::info);
  log->logger_->set_error_handler([&stats](const std::string& what) {
    if (stats.audit_failures.fetch_add(1, std::memory_order_relaxed) == 0) {
      spdlog::error("the audit log can not be written: {}", what);
    }
  });
  return log;
}

void AuditLog::Write(const AuditRecord& record) {
  logger_->log(spdlog::level::info, spdlog::string_view_t(AuditLine(record, NowMs())));
  stats_.audit_lines.fetch_add(1, std::memory_order_relaxed);
  const uint64_t overruns = thread_->overrun_counter();
  uint64_t counted = overruns_;
  while (overruns > counted && !overruns_.compare_exchange_weak(counted, overruns)) {
  }
  if (overruns > counted) stats_.audit_failures.fetch_add(overruns - counted);
}

void AuditLog::Close() {
  logger_.reset();
  thread_.reset();  // its destructor empties the queue
}

}  // namespace cowshed::service
