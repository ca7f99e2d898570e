// SPDX-License-Identifier: Apache-2.0
#include "bench/service_client.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace cowshed::bench {

ServiceClient::ServiceClient(const std::string& address) {
  channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  if (!channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::seconds(30))) {
    Die(address, "nobody answers");
  }
  datasets = v1::DatasetService::NewStub(channel);
  data = v1::DataService::NewStub(channel);
  operations = v1::OperationService::NewStub(channel);
  pool = v1::PoolService::NewStub(channel);
}

void CreateDataset(ServiceClient& client, const std::string& name, uint64_t size_bytes) {
  v1::CreateDatasetRequest request;
  request.set_name(name);
  request.set_size_bytes(size_bytes);
  Call(*client.datasets, &v1::DatasetService::Stub::CreateDataset, request);
}

void CreateSnapshot(ServiceClient& client, const std::string& name) {
  v1::CreateSnapshotsRequest request;
  request.add_names(name);
  Call(*client.datasets, &v1::DatasetService::Stub::CreateSnapshots, request);
}

void CloneDataset(ServiceClient& client, const std::string& source, const std::string& name) {
  v1::CloneDatasetRequest request;
  request.set_source(source);
  request.set_name(name);
  Call(*client.datasets, &v1::DatasetService::Stub::CloneDataset, request);
}

void WriteRange(ServiceClient& client, const std::string& name, uint64_t offset_bytes,
                const std::string& bytes) {
  v1::WriteRangeRequest request;
  request.set_dataset(name);
  request.set_offset_bytes(offset_bytes);
  request.set_data(bytes);
  Call(*client.data, &v1::DataService::Stub::WriteRange, request);
}

void Flush(ServiceClient& client, const std::string& name) {
  v1::FlushRequest request;
  request.set_dataset(name);
  Call(*client.data, &v1::DataService::Stub::Flush, request);
}

v1::Pool GetPool(ServiceClient& client) {
  return Call(*client.pool, &v1::PoolService::Stub::GetPool, v1::GetPoolRequest());
}

double RunBy(uint32_t callers, uint64_t count, const std::function<void(uint64_t)>& work) {
  std::atomic<uint64_t> next{0};
  const auto run = [&] {
    for (uint64_t i = next++; i < count; i = next++) work(i);
  };
  const auto begin = Clock::now();
  std::vector<std::thread> threads;
  for (uint32_t i = 1; i < callers; ++i) threads.emplace_back(run);
  run();
  for (std::thread& thread : threads) thread.join();
  return SecondsSince(begin);
}

std::string RandomBytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(count, '\0');
  for (size_t at = 0; at < count; at += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), count - at));
  }
  return bytes;
}

}  // namespace cowshed::bench
