// SPDX-License-Identifier: Apache-2.0
#include "tests/metrics/scrape.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace cowshed::metrics {

std::string HttpGet(uint16_t port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request =
        "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    if (write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
      char buffer[16384];
      for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) answer.append(buffer, n);
    }
  }
  close(fd);
  return answer;
}

std::string BodyOf(const std::string& answer) {
  const size_t end = answer.find("\r\n\r\n");
  return end == std::string::npos ? "" : answer.substr(end + 4);
}

std::optional<double> ValueOf(const std::vector<prometheus::MetricFamily>& families,
                              const std::string& family,
                              const std::map<std::string, std::string>& labels) {
  for (const auto& candidate : families) {
    if (candidate.name != family) continue;
    for (const auto& metric : candidate.metric) {
      std::map<std::string, std::string> present;
      for (const auto& label : metric.label) present[label.name] = label.value;
      if (present != labels) continue;
      switch (candidate.type) {
        case prometheus::MetricType::Counter:
          return metric.counter.value;
        case prometheus::MetricType::Histogram:
          return static_cast<double>(metric.histogram.sample_count);
        default:
          return metric.gauge.value;
      }
    }
  }
  return std::nullopt;
}

}  // namespace cowshed::metrics
