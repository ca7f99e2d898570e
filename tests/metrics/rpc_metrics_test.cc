// SPDX-License-Identifier: Apache-2.0
#include "metrics/rpc_metrics.h"

#include <thread>

#include "cowshed/v1/data.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/metrics/scrape.h"

namespace cowshed::metrics {
namespace {

using v1::DataService;

constexpr char kService[] = "cowshed.v1.DataService";

// Answers with the number of messages that the request asks for, then with the code asked for.
class ReadReactor : public grpc::ServerWriteReactor<v1::ReadChunk> {
 public:
  ReadReactor(uint64_t messages, grpc::Status status)
      : left_(messages), status_(std::move(status)) {
    Next();
  }
  void OnWriteDone(bool) override { Next(); }
  void OnDone() override { delete this; }

 private:
  void Next() {
    if (left_ == 0) return Finish(status_);
    --left_;
    StartWrite(&chunk_);
  }
  uint64_t left_;
  const grpc::Status status_;
  v1::ReadChunk chunk_;
};

// Acknowledges every second message.
class WriteReactor : public grpc::ServerBidiReactor<v1::WriteRequest, v1::WriteAck> {
 public:
  WriteReactor() { StartRead(&request_); }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    if (++received_ % 2 == 0) return StartWrite(&ack_);
    StartRead(&request_);
  }
  void OnWriteDone(bool) override { StartRead(&request_); }
  void OnDone() override { delete this; }

 private:
  int received_ = 0;
  v1::WriteRequest request_;
  v1::WriteAck ack_;
};

// A unary call that ends only when it is cancelled, as one that waits for durability does.
class UntilCancelled : public grpc::ServerUnaryReactor {
 public:
  void OnCancel() override { Finish(grpc::Status(grpc::StatusCode::CANCELLED, "cancelled")); }
  void OnDone() override { delete this; }
};

class FakeData : public DataService::CallbackService {
 public:
  grpc::ServerUnaryReactor* ReadRange(grpc::CallbackServerContext* context,
                                      const v1::ReadRangeRequest* request,
                                      v1::ReadRangeResponse*) override {
    auto* reactor = context->DefaultReactor();
    reactor->Finish(
        grpc::Status(static_cast<grpc::StatusCode>(request->offset_bytes()), "as asked"));
    return reactor;
  }
  grpc::ServerUnaryReactor* Flush(grpc::CallbackServerContext*, const v1::FlushRequest*,
                                  v1::FlushResponse*) override {
    return new UntilCancelled;
  }
  grpc::ServerWriteReactor<v1::ReadChunk>* Read(grpc::CallbackServerContext*,
                                                const v1::ReadRequest* request) override {
    return new ReadReactor(request->offset_bytes(), grpc::Status::OK);
  }
  grpc::ServerBidiReactor<v1::WriteRequest, v1::WriteAck>* Write(
      grpc::CallbackServerContext*) override {
    return new WriteReactor;
  }
};

class RpcMetricsTest : public testing::Test {
 protected:
  RpcMetricsTest() : metrics_(MethodsOf(*DescriptorOfData())) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
    creators.push_back(metrics_.NewInterceptorFactory());
    builder.experimental().SetInterceptorCreators(std::move(creators));
    server_ = builder.BuildAndStart();
    grpc::ChannelArguments arguments;
    arguments.SetInt("grpc.enable_http_proxy", 0);
    channel_ = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(port_),
                                         grpc::InsecureChannelCredentials(), arguments);
    stub_ = DataService::NewStub(channel_);
  }

  static const google::protobuf::ServiceDescriptor* DescriptorOfData() {
    return v1::ReadRangeRequest::descriptor()->file()->FindServiceByName("DataService");
  }

  // Joins the server's threads: after it every call is over, and every interceptor gone.
  void Stop() {
    server_->Shutdown();
    server_->Wait();
    server_.reset();
  }

  grpc::StatusCode ReadRange(grpc::StatusCode wanted) {
    grpc::ClientContext context;
    v1::ReadRangeRequest request;
    request.set_offset_bytes(wanted);
    v1::ReadRangeResponse response;
    return stub_->ReadRange(&context, request, &response).error_code();
  }

  double Count(const std::string& family, const std::string& method, const std::string& type,
               const std::string& code = "", const std::string& service = kService) {
    std::map<std::string, std::string> labels = {
        {"grpc_service", service}, {"grpc_method", method}, {"grpc_type", type}};
    if (!code.empty()) labels["grpc_code"] = code;
    const auto value = ValueOf(metrics_.Collect(), "grpc_server_" + family, labels);
    EXPECT_TRUE(value) << family << " has no series " << method << " " << type << " " << code;
    return value.value_or(-1);
  }

  RpcMetrics metrics_;
  FakeData service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<DataService::Stub> stub_;
};

TEST_F(RpcMetricsTest, MethodsOfReadsTypesFromTheDescriptor) {
  std::map<std::string, RpcType> types;
  for (const RpcMethod& method : MethodsOf(*DescriptorOfData())) {
    EXPECT_EQ(method.service, kService);
    types[method.method] = method.type;
  }
  EXPECT_EQ(types, (std::map<std::string, RpcType>{{"ReadRange", RpcType::kUnary},
                                                   {"WriteRange", RpcType::kUnary},
                                                   {"Read", RpcType::kServerStream},
                                                   {"Write", RpcType::kBidiStream},
                                                   {"Flush", RpcType::kUnary},
                                                   {"Diff", RpcType::kServerStream}}));
}

TEST_F(RpcMetricsTest, EverySeriesExistsBeforeTheFirstCall) {
  for (const auto& family : metrics_.Collect()) {
    // Six methods and "other" in four types; `handled` once per code.
    const size_t rows = 6 + 4;
    EXPECT_EQ(family.metric.size(),
              family.name == "grpc_server_handled_total" ? rows * RpcMetrics::kCodes : rows)
        << family.name;
    for (const auto& metric : family.metric) {
      EXPECT_EQ(metric.counter.value + metric.histogram.sample_sum, 0) << family.name;
    }
  }
}

// The counters are up to date when the client has its answer, not some time later.
TEST_F(RpcMetricsTest, CountsAUnaryCallBeforeItsClientHasTheAnswer) {
  for (int i = 1; i <= 200; ++i) {
    ASSERT_EQ(ReadRange(grpc::StatusCode::OK), grpc::StatusCode::OK);
    ASSERT_EQ(Count("started_total", "ReadRange", "unary"), i);
    ASSERT_EQ(Count("handled_total", "ReadRange", "unary", "OK"), i);
    ASSERT_EQ(Count("msg_received_total", "ReadRange", "unary"), i);
    ASSERT_EQ(Count("msg_sent_total", "ReadRange", "unary"), i);
    ASSERT_EQ(Count("handling_seconds", "ReadRange", "unary"), i);
  }
}

TEST_F(RpcMetricsTest, CountsEveryCodeUnderGosSpelling) {
  const std::vector<std::string> names = {
      "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
      "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
      "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
      "DataLoss", "Unauthenticated"};
  ASSERT_EQ(names.size(), RpcMetrics::kCodes);
  for (size_t code = 0; code < names.size(); ++code) {
    const auto grpc_code = static_cast<grpc::StatusCode>(code);
    ASSERT_EQ(ReadRange(grpc_code), grpc_code);
    EXPECT_EQ(Count("handled_total", "ReadRange", "unary", names[code]), 1) << names[code];
  }
  EXPECT_EQ(Count("started_total", "ReadRange", "unary"), names.size());
  EXPECT_EQ(Count("msg_sent_total", "ReadRange", "unary"), 1) << "an error carries no message";
}

TEST_F(RpcMetricsTest, CountsTheMessagesOfStreams) {
  grpc::ClientContext read_context;
  v1::ReadRequest read;
  read.set_offset_bytes(5);
  auto reader = stub_->Read(&read_context, read);
  v1::ReadChunk chunk;
  while (reader->Read(&chunk)) {
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_EQ(Count("msg_received_total", "Read", "server_stream"), 1);
  EXPECT_EQ(Count("msg_sent_total", "Read", "server_stream"), 5);
  EXPECT_EQ(Count("handled_total", "Read", "server_stream", "OK"), 1);

  grpc::ClientContext write_context;
  auto writer = stub_->Write(&write_context);
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(writer->Write(v1::WriteRequest()));
  writer->WritesDone();
  v1::WriteAck ack;
  while (writer->Read(&ack)) {
  }
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_EQ(Count("msg_received_total", "Write", "bidi_stream"), 7);
  EXPECT_EQ(Count("msg_sent_total", "Write", "bidi_stream"), 3);
  EXPECT_EQ(Count("handled_total", "Write", "bidi_stream", "OK"), 1);
}

// Failed now and then: the client's clock is ahead of the deadline that arrives here.
TEST_F(RpcMetricsTest, TellsAnExpiredDeadlineFromACancellation) {
  v1::FlushResponse response;
  grpc::ClientContext late;
  late.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  EXPECT_EQ(stub_->Flush(&late, v1::FlushRequest(), &response).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);

  grpc::ClientContext cancelled;
  cancelled.set_deadline(std::chrono::system_clock::now() + std::chrono::hours(1));
  std::thread canceller([&] {
    while (metrics_.RowOf("/cowshed.v1.DataService/Flush", RpcType::kUnary).started < 2) {
      std::this_thread::yield();
    }
    cancelled.TryCancel();
  });
  EXPECT_EQ(stub_->Flush(&cancelled, v1::FlushRequest(), &response).error_code(),
            grpc::StatusCode::CANCELLED);
  canceller.join();
  Stop();
  EXPECT_EQ(Count("started_total", "Flush", "unary"), 2);
  EXPECT_EQ(Count("handled_total", "Flush", "unary", "DeadlineExceeded"), 1);
  EXPECT_EQ(Count("handled_total", "Flush", "unary", "Canceled"), 1);
}

TEST_F(RpcMetricsTest, ACallWithoutDeadlineThatIsCancelledIsCanceled) {
  grpc::ClientContext context;
  v1::FlushResponse response;
  std::thread canceller([&] {
    while (metrics_.RowOf("/cowshed.v1.DataService/Flush", RpcType::kUnary).started < 1) {
      std::this_thread::yield();
    }
    context.TryCancel();
  });
  stub_->Flush(&context, v1::FlushRequest(), &response);
  canceller.join();
  Stop();
  EXPECT_EQ(Count("handled_total", "Flush", "unary", "Canceled"), 1);
}

// A client that dies in the middle of a stream leaves a call without a status of ours.
TEST_F(RpcMetricsTest, AnAbandonedStreamIsHandledOnce) {
  {
    grpc::ClientContext context;
    auto writer = stub_->Write(&context);
    ASSERT_TRUE(writer->Write(v1::WriteRequest()));
    context.TryCancel();
    writer->Finish();
  }
  Stop();
  const auto& row = metrics_.RowOf("/cowshed.v1.DataService/Write", RpcType::kBidiStream);
  uint64_t handled = 0;
  for (const auto& count : row.handled) handled += count;
  EXPECT_EQ(handled, row.started);
  EXPECT_EQ(row.seconds.count(), row.started);
}

// Returns the status of a raw call: any method, any bytes.
grpc::Status CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                     const std::string& bytes) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::Slice slice(bytes);
  grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::Status status;
  auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
  call->StartCall();
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status;
}

TEST_F(RpcMetricsTest, MethodsOutsideTheListMakeNoSeries) {
  size_t before = 0, after = 0;
  for (const auto& family : metrics_.Collect()) before += family.metric.size();
  for (const char* method : {"/cowshed.v1.DataService/Nonsense", "/made.up.Service/Call"}) {
    EXPECT_EQ(CallRaw(channel_, method, "").error_code(), grpc::StatusCode::UNIMPLEMENTED);
  }
  Stop();
  for (const auto& family : metrics_.Collect()) after += family.metric.size();
  EXPECT_EQ(before, after);

  auto& other = metrics_.RowOf("/made.up.Service/Call", RpcType::kBidiStream);
  EXPECT_EQ(other.method.service, "other");
  EXPECT_EQ(other.method.method, "other");
  EXPECT_EQ(other.method.type, RpcType::kBidiStream);
  other.started = 9;
  EXPECT_EQ(Count("started_total", "other", "bidi_stream", "", "other"), 9);
}

TEST_F(RpcMetricsTest, ARequestThatCannotBeParsedIsHandledOnce) {
  const grpc::Status status = CallRaw(channel_, "/cowshed.v1.DataService/ReadRange", "\xff\xff");
  EXPECT_FALSE(status.ok());
  Stop();
  const auto& row = metrics_.RowOf("/cowshed.v1.DataService/ReadRange", RpcType::kUnary);
  uint64_t handled = 0;
  for (const auto& count : row.handled) handled += count;
  EXPECT_EQ(row.started, 1u);
  EXPECT_EQ(handled, 1u);
  EXPECT_EQ(row.received, 0u);
  EXPECT_EQ(row.handled[static_cast<size_t>(status.error_code())], 1u) << status.error_code();
}

TEST_F(RpcMetricsTest, LosesNoCallUnderConcurrency) {
  constexpr int kThreads = 4, kCallsPerThread = 250;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this] {
      for (int i = 0; i < kCallsPerThread; ++i) {
        ReadRange(i % 5 == 0 ? grpc::StatusCode::NOT_FOUND : grpc::StatusCode::OK);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(Count("started_total", "ReadRange", "unary"), kThreads * kCallsPerThread);
  EXPECT_EQ(Count("handled_total", "ReadRange", "unary", "OK"), kThreads * kCallsPerThread * 4 / 5);
  EXPECT_EQ(Count("handled_total", "ReadRange", "unary", "NotFound"),
            kThreads * kCallsPerThread / 5);
  EXPECT_EQ(Count("handling_seconds", "ReadRange", "unary"), kThreads * kCallsPerThread);
}

}  // namespace
}  // namespace cowshed::metrics
