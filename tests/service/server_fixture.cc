// SPDX-License-Identifier: Apache-2.0
#include "tests/service/server_fixture.h"

#include <grpc/grpc.h>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/create_channel.h"

namespace cowshed::service {

Failure FailureOf(const grpc::Status& status) {
  Failure failure;
  failure.code = static_cast<absl::StatusCode>(status.error_code());
  failure.message = status.error_message();
  failure.details_bytes = status.error_details().size();
  google::rpc::Status details;
  // The library's own answers have no details.
  if (status.ok() || status.error_details().empty() ||
      !details.ParseFromString(status.error_details()))
    return failure;
  EXPECT_EQ(details.code(), static_cast<int>(status.error_code()));
  int infos = 0;
  for (const auto& detail : details.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::RetryInfo retry;
    if (detail.UnpackTo(&info)) {
      ++infos;
      EXPECT_EQ(info.domain(), "cowshed");
      failure.reason = info.reason();
      failure.metadata = {info.metadata().begin(), info.metadata().end()};
    } else if (detail.UnpackTo(&retry)) {
      failure.retry = retry.retry_delay().seconds() > 0 || retry.retry_delay().nanos() > 0;
    } else {
      EXPECT_TRUE(detail.UnpackTo(&failure.blockers)) << detail.type_url();
    }
  }
  if (infos != 1) failure.reason.clear();
  return failure;
}

ServerTest::ServerTest() {
  // Keeps gRPC up between tests: its last shutdown joins a client's poller, which may sleep for 10
  // s.
  static const bool kept = (grpc_init(), true);
  EXPECT_TRUE(kept);
  pool_options_.directory = dir_.Path("pool");
  pool_options_.capacity_bytes = uint64_t{1} << 30;
  server_options_.secret = "the same at every start";
  server_options_.listen = {"127.0.0.1:0", unix_address()};
}

ServerTest::~ServerTest() = default;

void ServerTest::Restart() {
  Stop();
  stats_ = std::make_unique<metrics::ServiceStats>();
  rpc_metrics_ = std::make_unique<metrics::RpcMetrics>(Server::Methods());
  pool_ = engine::ValueOf(engine::Pool::Open(pool_options_));
  server_ = engine::ValueOf(Server::Start(*pool_, server_options_, *stats_, rpc_metrics_.get()));
  const auto channel = Connect(unix_address());
  datasets_ = v1::DatasetService::NewStub(channel);
  data_ = v1::DataService::NewStub(channel);
  attachments_ = v1::AttachmentService::NewStub(channel);
  operations_ = v1::OperationService::NewStub(channel);
  pools_ = v1::PoolService::NewStub(channel);
}

void ServerTest::Stop() {
  datasets_.reset();
  data_.reset();
  attachments_.reset();
  operations_.reset();
  pools_.reset();
  server_.reset();
  pool_.reset();
}

void ServerTest::TearDown() {
  if (server_ != nullptr) server_->Stop();
  if (pool_ != nullptr && check_at_end_) {
    EXPECT_OK(pool_->DrainBackground());
    const auto report = engine::ValueOf(pool_->Check());
    for (const auto& finding : report.findings) {
      ADD_FAILURE() << finding.invariant << " " << finding.name << ": " << finding.message;
    }
  }
  Stop();
}

std::shared_ptr<grpc::Channel> ServerTest::Connect(const std::string& address) const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

v1::Dataset ServerTest::Create(const std::string& name, uint64_t size_bytes) {
  return Call(datasets(), &Datasets::CreateDataset,
              "name: '" + name + "' size_bytes: " + std::to_string(size_bytes))
      .dataset();
}

v1::CreateSnapshotsResponse ServerTest::Snapshot(const std::vector<std::string>& names) {
  std::string request;
  for (const auto& name : names) request += "names: '" + name + "' ";
  return Call(datasets(), &Datasets::CreateSnapshots, request);
}

v1::Dataset ServerTest::Clone(const std::string& source, const std::string& name) {
  return Call(datasets(), &Datasets::CloneDataset, "source: '" + source + "' name: '" + name + "'")
      .dataset();
}

void ServerTest::Write(const std::string& dataset, uint64_t offset_bytes,
                       const std::string& bytes) {
  v1::WriteRangeRequest request;
  request.set_dataset(dataset);
  request.set_offset_bytes(offset_bytes);
  request.set_data(bytes);
  v1::WriteRangeResponse reply;
  const grpc::Status status = Try(data(), &Data::WriteRange, request, &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

std::string ServerTest::Read(const std::string& name, uint64_t offset_bytes,
                             uint64_t length_bytes) {
  v1::ReadRangeRequest request;
  request.set_name(name);
  request.set_offset_bytes(offset_bytes);
  request.set_length_bytes(length_bytes);
  v1::ReadRangeResponse reply;
  const grpc::Status status = Try(data(), &Data::ReadRange, request, &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return reply.data();
}

std::vector<std::string> ServerTest::ListNames(const std::string& prefix) {
  std::vector<std::string> names;
  std::string token;
  do {
    const auto page = Call(datasets(), &Datasets::ListDatasets,
                           "prefix: '" + prefix + "' page_token: '" + token + "'");
    for (const auto& dataset : page.datasets()) names.push_back(dataset.name());
    token = page.next_page_token();
  } while (!token.empty());
  return names;
}

}  // namespace cowshed::service
