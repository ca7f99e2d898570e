// SPDX-License-Identifier: Apache-2.0
//
// What gRPC streams of bytes give, beside streams of equal messages that carry the bytes nowhere:
// data.py drives it.
//
//   empty    serves DataService whose Read sends chunks of one buffer and whose Write forgets them,
//            until its input ends
//   create   makes a dataset, written through and snapshotted as "NAME@full"
//   clones   makes clones NAME-0, NAME-1, ... of a snapshot
//   write    times one Write stream over a dataset
//   read     times one Read stream of a dataset or snapshot
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>

#include "bench/json_line.h"
#include "bench/service_client.h"

namespace cowshed::bench {
namespace {

constexpr uint64_t kChunkBytes = 1 << 20;
constexpr uint64_t kAckBytes = 8 << 20;

struct Arguments {
  std::string address;
  std::string name;
  uint64_t bytes = 0;
  uint64_t count = 16;
  uint64_t seed = 1;
  bool flush = false;
};

// Sends chunks of the range asked for.
class EmptyReader final : public grpc::ServerWriteReactor<v1::ReadChunk> {
 public:
  explicit EmptyReader(uint64_t bytes) : left_bytes_(bytes) {
    *chunk_.mutable_data() = RandomBytes(kChunkBytes, 1);
    Next();
  }
  void OnWriteDone(bool ok) override { ok ? Next() : Finish(grpc::Status::CANCELLED); }
  void OnDone() override { delete this; }

 private:
  void Next() {
    if (left_bytes_ == 0) return Finish(grpc::Status::OK);
    left_bytes_ -= std::min(left_bytes_, kChunkBytes);
    chunk_.set_offset_bytes(chunk_.offset_bytes() + kChunkBytes);
    StartWrite(&chunk_);
  }
  v1::ReadChunk chunk_;
  uint64_t left_bytes_;
};

// Takes chunks and acknowledges as often as the server does.
class EmptyWriter final : public grpc::ServerBidiReactor<v1::WriteRequest, v1::WriteAck> {
 public:
  EmptyWriter() { StartRead(&request_); }
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    accepted_bytes_ += request_.chunk().data().size();
    if (accepted_bytes_ - ack_.accepted_bytes() < kAckBytes && !request_.chunk().flush()) {
      return StartRead(&request_);
    }
    ack_.set_accepted_bytes(accepted_bytes_);
    if (request_.chunk().flush()) ack_.set_flushed_txg(1);
    StartWrite(&ack_);
  }
  void OnWriteDone(bool ok) override {
    ok ? StartRead(&request_) : Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  v1::WriteRequest request_;
  v1::WriteAck ack_;
  uint64_t accepted_bytes_ = 0;
};

class EmptyService final : public v1::DataService::CallbackService {
 public:
  grpc::ServerWriteReactor<v1::ReadChunk>* Read(grpc::CallbackServerContext* /*rpc*/,
                                                const v1::ReadRequest* request) override {
    return new EmptyReader(request->length_bytes());
  }
  grpc::ServerBidiReactor<v1::WriteRequest, v1::WriteAck>* Write(
      grpc::CallbackServerContext* /*rpc*/) override {
    return new EmptyWriter;
  }
};

void ServeEmpty(const Arguments& args) {
  EmptyService service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(args.address, grpc::InsecureServerCredentials());
  builder.SetMaxReceiveMessageSize(2 * kAckBytes);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) Die(args.address, "cannot be listened on");
  while (std::getchar() != EOF) {
  }
  server->Shutdown();
}

void WriteStream(ServiceClient& client, const Arguments& args) {
  grpc::ClientContext context;
  const auto stream = client.data->Write(&context);
  std::thread acks([&stream] {
    v1::WriteAck ack;
    while (stream->Read(&ack)) {
    }
  });
  v1::WriteRequest request;
  request.mutable_header()->set_dataset(args.name);
  stream->Write(request);
  v1::WriteChunk& chunk = *request.mutable_chunk();
  *chunk.mutable_data() = RandomBytes(kChunkBytes, args.seed);
  for (uint64_t at = 0; at < args.bytes; at += kChunkBytes) {
    chunk.set_offset_bytes(at);
    if (!stream->Write(request)) break;
  }
  if (args.flush) {
    chunk.set_flush(true);
    stream->Write(request);
  }
  stream->WritesDone();
  acks.join();
  const grpc::Status status = stream->Finish();
  if (!status.ok()) Die("Write", status.error_message());
}

void ReadStream(ServiceClient& client, const Arguments& args) {
  grpc::ClientContext context;
  v1::ReadRequest request;
  request.set_name(args.name);
  request.set_length_bytes(args.bytes);
  const auto stream = client.data->Read(&context, request);
  v1::ReadChunk chunk;
  uint64_t bytes = 0;
  while (stream->Read(&chunk)) bytes += chunk.data().size();
  const grpc::Status status = stream->Finish();
  if (!status.ok()) Die("Read", status.error_message());
  if (bytes != args.bytes) Die("Read", "not all of it came as data");
}

template <typename Work>
void Time(const Arguments& args, Work work) {
  ServiceClient client(args.address);
  const auto begin = Clock::now();
  work(client, args);
  JsonLine().Add("seconds", SecondsSince(begin)).Print();
}

void Create(Arguments args) {
  ServiceClient client(args.address);
  CreateDataset(client, args.name, args.bytes);
  args.flush = true;
  WriteStream(client, args);
  CreateSnapshot(client, args.name + "@full");
}

void Clones(const Arguments& args) {
  ServiceClient client(args.address);
  const std::string dataset = args.name.substr(0, args.name.find('@'));
  for (uint64_t i = 0; i < args.count; ++i) {
    CloneDataset(client, args.name, dataset + "-" + std::to_string(args.seed + i));
  }
}

}  // namespace
}  // namespace cowshed::bench

int main(int argc, char** argv) {
  using namespace cowshed::bench;
  CLI::App app("Measures gRPC streams of bytes.");
  Arguments args;
  app.fallthrough();
  app.require_subcommand(1);
  app.add_option("--address", args.address)->required();
  app.add_option("--name", args.name, "dataset or snapshot");
  app.add_option("--bytes", args.bytes);
  app.add_option("--count", args.count, "of clones");
  app.add_option("--seed", args.seed, "of the bytes; of clones: the first number");
  app.add_flag("--flush", args.flush, "end with a flush");
  app.add_subcommand("empty")->callback([&] { ServeEmpty(args); });
  app.add_subcommand("create")->callback([&] { Create(args); });
  app.add_subcommand("clones")->callback([&] { Clones(args); });
  app.add_subcommand("write")->callback([&] { Time(args, WriteStream); });
  app.add_subcommand("read")->callback([&] { Time(args, ReadStream); });
  CLI11_PARSE(app, argc, argv);
  return 0;
}
