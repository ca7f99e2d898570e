// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/service_fuzzer.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "google/protobuf/dynamic_message.h"
#include "google/protobuf/stubs/logging.h"
#include "google/protobuf/text_format.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpc/grpc.h"
#include "grpcpp/create_channel.h"
#include "spdlog/spdlog.h"
#include "tests/support/temp_pool.h"
#include "tests/support/testing.h"

namespace cowshed::fuzz {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::Message;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kAnswerMax{60};  // generous: the machine may be busy
constexpr int kWriteMessagesMax = 8;
constexpr uint8_t kOnTheWire = 0x80;  // of a step's first byte
constexpr uint8_t kAnyService = 0x40;

[[noreturn]] void Lose(const std::string& what) {
  std::fprintf(stderr, "LOSS: %s\n", what.c_str());
  std::abort();
}

std::unique_ptr<Message> NewMessage(const google::protobuf::Descriptor* descriptor) {
  return std::unique_ptr<Message>(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(descriptor)->New());
}

grpc::ByteBuffer ToBuffer(const Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

bool FromBuffer(const grpc::ByteBuffer& buffer, Message* message) {
  grpc::Slice slice;
  return buffer.DumpToSingleSlice(&slice).ok() &&
         message->ParseFromArray(slice.begin(), static_cast<int>(slice.size()));
}

// A wait is a wait: no input may spend a minute on one.
void ShortenWait(Message* message) {
  const auto* field = message->GetDescriptor()->FindFieldByName("timeout");
  if (field == nullptr) return;
  auto* timeout = message->GetReflection()->MutableMessage(message, field);
  timeout->GetReflection()->SetInt64(timeout, timeout->GetDescriptor()->FindFieldByName("seconds"),
                                     0);
}

// One operation of a call is done; false: it did not work out.
bool Await(grpc::CompletionQueue& queue) {
  void* tag = nullptr;
  bool ok = false;
  if (!queue.Next(&tag, &ok)) Lose("the client's queue ended");
  return ok;
}

}  // namespace

ServiceFuzzer::ServiceFuzzer(const std::string& service) {
  spdlog::set_level(spdlog::level::off);
  google::protobuf::SetLogHandler(nullptr);  // it complains of every string that is none
  for (const char* name :
       {"cowshed.v1.DatasetService", "cowshed.v1.DataService", "cowshed.v1.OperationService",
        "cowshed.v1.PoolService", "cowshed.v1.AttachmentService"}) {
    const auto* descriptor = DescriptorPool::generated_pool()->FindServiceByName(name);
    for (int i = 0; i < descriptor->method_count(); ++i) {
      all_.push_back(descriptor->method(i));
      if (service == name) own_.push_back(descriptor->method(i));
    }
  }
  attaches_ = service == "cowshed.v1.AttachmentService";  // else much would only be refused
  OpenPool();
}

ServiceFuzzer::~ServiceFuzzer() {
  CheckPool();
  ClosePool();
}

void ServiceFuzzer::OpenPool() {
  directory_ = engine::FastTempRoot() + "/fuzz." + std::to_string(getpid());
  std::filesystem::create_directories(directory_);
  engine::PoolOptions options;
  options.directory = directory_ + "/pool";
  options.capacity_bytes = uint64_t{256} << 20;
  options.meta_reserve_bytes = 4 << 20;
  options.blocks_reserve_bytes = 4 << 20;
  options.write_wait_max = milliseconds(50);
  options.txg_interval = milliseconds(50);
  options.node_cache_bytes = 1 << 20;
  pool_ = engine::ValueOf(engine::Pool::Open(options));
  service::ServerOptions server_options;
  server_options.listen = {"unix:" + directory_ + "/s"};
  server_options.limits.control_workers = 2;
  server_options.limits.data_workers = 2;
  stats_ = std::make_unique<metrics::ServiceStats>();
  server_ = engine::ValueOf(service::Server::Start(*pool_, server_options, *stats_, nullptr));
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  stub_ = std::make_unique<grpc::GenericStub>(grpc::CreateCustomChannel(
      server_options.listen[0], grpc::InsecureChannelCredentials(), arguments));
  devices_ = std::make_unique<FuzzDevices>(*pool_);
  maker_.Forget();
  Furnish();
}

void ServiceFuzzer::ClosePool() {
  devices_->Clear();
  stub_.reset();
  server_.reset();
  pool_.reset();
  std::filesystem::remove_all(directory_);
}

void ServiceFuzzer::Furnish() {
  Prepare("DatasetService.CreateDataset", "name: 'a' size_bytes: 1048576 request_id: 'r0'");
  Prepare("DatasetService.CreateDataset", "name: 'a/x' size_bytes: 300001 block_size_bytes: 4096");
  Prepare("DataService.WriteRange", "dataset: 'a' offset_bytes: 12345 data: 'some bytes'");
  Prepare("DatasetService.CreateSnapshots", "names: 'a@s' names: 'a/x@s'");
  Prepare("DataService.WriteRange", "dataset: 'a' offset_bytes: 70000 data: 'other bytes'");
  Prepare("DatasetService.CloneDataset", "source: 'a@s' name: 'b'");
  Prepare("DatasetService.CreateSnapshots", "names: 'b@t' names: 'a@u'");
  Prepare("DatasetService.HoldSnapshot", "snapshot: 'b@t' tag: 'tag'");
  Prepare("DatasetService.CreateDataset", "name: 'd' size_bytes: 4096");
  Prepare("DatasetService.DestroyDatasets", "names: 'd' reclaim_after { seconds: 1000 }");
  Prepare("DatasetService.CreateDataset", "name: 'd' size_bytes: 4096");
  Prepare("DatasetService.DestroyDatasets", "names: 'd'");
  Prepare("OperationService.ListOperations", "");
  Prepare("DatasetService.ListSnapshots", "page_size: 1");
  Prepare("PoolService.GetServerInfo", "");
}

void ServiceFuzzer::Prepare(const char* method, const std::string& request) {
  const auto* descriptor =
      DescriptorPool::generated_pool()->FindMethodByName(std::string("cowshed.v1.") + method);
  Requests requests;
  requests.push_back(NewMessage(descriptor->input_type()));
  if (!google::protobuf::TextFormat::ParseFromString(request, requests[0].get())) Lose(request);
  Call(*descriptor, requests, 1);
}

void ServiceFuzzer::CheckPool() {
  const auto report = pool_->Check();
  if (!report.ok()) Lose("the check failed: " + report.status().ToString());
  if (report->findings.empty()) return;
  const auto& finding = report->findings.front();
  Lose("the check found " + finding.invariant + " " + finding.name + ": " + finding.message);
}

void ServiceFuzzer::Run(const uint8_t* data, size_t size) {
  ByteSource source(data, size);
  if (attaches_) {
    for (const char* name : {"a", "a/x@s"}) devices_->Attach(name);
    Prepare("AttachmentService.ListAttachments", "");
  }
  for (int i = 0; i < kStepsMax && !source.empty(); ++i) Step(source);
  devices_->Clear();
  if (++inputs_ % kInputsPerCheck == 0) CheckPool();
  if (inputs_ % kInputsPerPool != 0) return;
  ClosePool();
  OpenPool();
}

void ServiceFuzzer::Step(ByteSource& source) {
  const uint8_t choice = source.Take();
  const auto& methods = (choice & kAnyService) != 0 ? all_ : own_;
  const Method& method = *methods[choice % kAnyService % methods.size()];
  const Requests requests = MakeRequests(method, (choice & kOnTheWire) == 0, source);
  const int chunks_max = method.server_streaming() ? source.Take() : 1;
  if (!requests.empty()) Call(method, requests, chunks_max);
}

ServiceFuzzer::Requests ServiceFuzzer::MakeRequests(const Method& method, bool drawn,
                                                    ByteSource& source) {
  Requests requests;
  const int count = method.client_streaming() ? source.Take() % kWriteMessagesMax + 1 : 1;
  for (int i = 0; i < count; ++i) {
    auto request = NewMessage(method.input_type());
    if (drawn) {
      maker_.Fill(source, request.get());
    } else {
      const std::string_view bytes = source.Bytes(source.Number<uint16_t>());
      if (!request->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) continue;
    }
    ShortenWait(request.get());
    requests.push_back(std::move(request));
  }
  return requests;
}

void ServiceFuzzer::Call(const Method& method, const Requests& requests, int chunks_max) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kAnswerMax);
  grpc::CompletionQueue queue;
  const auto call = stub_->PrepareCall(
      &context, "/" + method.service()->full_name() + "/" + method.name(), &queue);
  call->StartCall(nullptr);
  bool open = Await(queue);
  for (size_t i = 0; i < requests.size() && open; ++i) {
    call->Write(ToBuffer(*requests[i]), nullptr);
    open = Await(queue);
  }
  call->WritesDone(nullptr);
  Await(queue);
  bool cancelled = false;
  for (int chunks = 0; open; ++chunks) {
    if (method.server_streaming() && chunks == chunks_max) {
      context.TryCancel();
      cancelled = true;
    }
    grpc::ByteBuffer buffer;
    call->Read(&buffer, nullptr);
    if (!Await(queue)) break;
    const auto reply = NewMessage(method.output_type());
    if (!FromBuffer(buffer, reply.get())) Lose("a reply of " + method.name() + " is none");
    maker_.Remember(*reply);
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  Await(queue);
  if (!cancelled) Judge(method, requests, status);
  queue.Shutdown();
}

void ServiceFuzzer::Judge(const Method& method, const Requests& requests,
                          const grpc::Status& status) {
  if (status.ok()) return;
  google::rpc::Status details;
  std::string reason;
  int infos = 0;
  if (details.ParseFromString(status.error_details())) {
    for (const auto& detail : details.details()) {
      google::rpc::ErrorInfo info;
      v1::Blockers blockers;
      if (detail.UnpackTo(&info)) {
        reason = info.reason();
        ++infos;
      } else if (detail.UnpackTo(&blockers)) {
        maker_.Remember(blockers);
      }
    }
  }
  v1::ErrorReason known = v1::INTERNAL;
  const bool told = infos == 1 && v1::ErrorReason_Parse(reason, &known);
  // Nothing here damages the pool, so nothing may be found damaged, or be the server's own fault.
  if (told && known != v1::INTERNAL && known != v1::CHECKSUM_MISMATCH) return;
  std::string text = method.name() + " failed with code " + std::to_string(status.error_code()) +
                     " " + reason + ": " + status.error_message();
  for (const auto& request : requests) text += "\n" + request->ShortDebugString();
  Lose(text);
}

int FuzzService(const char* service, const uint8_t* data, size_t size) {
  static std::unique_ptr<ServiceFuzzer> fuzzer;
  static const bool made = [&] {
    grpc_init();  // kept up: see ServerTest
    fuzzer = std::make_unique<ServiceFuzzer>(service);
    std::atexit([] { fuzzer.reset(); });
    return true;
  }();
  if (made) fuzzer->Run(data, size);
  return 0;
}

}  // namespace cowshed::fuzz
