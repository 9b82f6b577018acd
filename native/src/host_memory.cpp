// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#include "native/src/host_memory.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <string>

#include "native/src/status.h"

namespace kvcast {

namespace host_memory {

// Below this nobody is killed, and asking costs more than it is worth.
constexpr uint64_t kSmall = uint64_t{64} << 20;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

// The first number after `label` ("" = at the beginning), or UINT64_MAX.
uint64_t ReadNumber(const char* path, const char* label) {
  const File file(std::fopen(path, "re"));
  if (file == nullptr) return UINT64_MAX;
  const std::string format = std::string(label) + " %" SCNu64;
  char line[256];
  while (std::fgets(line, sizeof line, file.get()) != nullptr) {
    uint64_t number = 0;
    if (std::sscanf(line, format.c_str(), &number) == 1) return number;
  }
  return UINT64_MAX;
}

std::string Mebibytes(uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace host_memory

uint64_t AvailableHostBytes() {
  uint64_t available = host_memory::ReadNumber("/proc/meminfo", "MemAvailable:");
  if (available != UINT64_MAX) available *= 1024;
  // Control group v2, as a container sees its own. "max" is no number.
  const uint64_t limit = host_memory::ReadNumber("/sys/fs/cgroup/memory.max", "");
  const uint64_t used = host_memory::ReadNumber("/sys/fs/cgroup/memory.current", "");
  if (limit != UINT64_MAX && used != UINT64_MAX) {
    available = std::min(available, limit > used ? limit - used : 0);
  }
  return available;
}

void RequireHostMemory(uint64_t bytes, const char* what) {
  if (bytes < host_memory::kSmall) return;
  const uint64_t available = AvailableHostBytes();
  if (bytes <= available) return;
  throw Error(KVC_OUT_OF_MEMORY, std::string(what) + " needs " + host_memory::Mebibytes(bytes) +
                                     " of host memory, " + host_memory::Mebibytes(available) +
                                     " are available");
}

}  // namespace kvcast
