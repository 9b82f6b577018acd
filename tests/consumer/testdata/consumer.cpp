// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Stores a prompt of three blocks and prints the events, from C++: as examples/c/example.c does, in
// the words that C++ before 20 has. Ends with an exception of its own, caught: the library's C++
// and the program's must get along.
#include <cstdint>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvcast/kvcast.h"

namespace {

kvc_error error;

void Check(kvc_status status) {
  if (status != KVC_OK) throw std::runtime_error(std::string(kvc_status_name(status)));
}

struct DestroyStream {
  void operator()(kvc_stream* stream) const { kvc_stream_destroy(stream); }
};
struct DestroyManager {
  void operator()(kvc_manager* manager) const { kvc_manager_destroy(manager, nullptr); }
};

void Run() {
  kvc_stream_config stream_config;
  kvc_stream_config_init(&stream_config);
  kvc_stream* raw_stream = nullptr;
  Check(kvc_stream_create(&stream_config, &raw_stream, &error));
  const std::unique_ptr<kvc_stream, DestroyStream> stream(raw_stream);

  kvc_config config;
  kvc_config_init(&config);
  config.tokens_per_block = 4;
  kvc_manager* raw_manager = nullptr;
  Check(kvc_manager_create(&config, stream.get(), &raw_manager, &error));
  const std::unique_ptr<kvc_manager, DestroyManager> manager(raw_manager);

  std::vector<std::uint32_t> tokens;
  for (std::uint32_t i = 0; i < 12; ++i) tokens.push_back(i);
  kvc_prompt prompt{};
  prompt.token_count = tokens.size();
  prompt.scope = KVC_NO_SCOPE;
  kvc_create_result made;
  Check(kvc_sequences_create(manager.get(), 1, &prompt, tokens.data(), tokens.size(), nullptr, 0,
                             nullptr, 0, &made, &error));
  Check(made.status);
  const kvc_grow_item room{made.sequence, tokens.size()};
  kvc_grow_result grown;
  Check(kvc_sequences_grow(manager.get(), 1, &room, &grown, nullptr, 0, nullptr, &error));
  Check(grown.status);
  const kvc_commit_item computed{made.sequence, 0, tokens.size(), 0, 0, {}, 0};
  kvc_commit_result stored;
  Check(kvc_sequences_commit(manager.get(), 1, &computed, tokens.data(), tokens.size(), nullptr, 0,
                             &stored, &error));
  Check(stored.status);
  kvc_status released = KVC_INTERNAL;
  Check(kvc_sequences_release(manager.get(), 1, &made.sequence, &released, &error));
  Check(released);

  kvc_borrowed_batch batch;
  Check(kvc_stream_drain(stream.get(), 0, 0, &batch, &error));
  for (std::uint64_t i = 0; i < batch.event_count; ++i) {
    const kvc_event& event = batch.events[i];
    if (event.kind != KVC_EVENT_STORED) throw std::logic_error("an event that was not stored");
    for (std::uint64_t h = 0; h < event.hash_count; ++h) {
      std::printf("stored block %llu\n",
                  static_cast<unsigned long long>(batch.hashes[event.hash_offset + h]));
    }
  }
}

}  // namespace

int main() {
  if (kvc_abi_version() != KVC_ABI_VERSION) return 1;
  try {
    Run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", e.what(), error.message);
    return 1;
  }
  try {
    Check(kvc_stream_create(nullptr, nullptr, &error));
  } catch (const std::runtime_error&) {
    return 0;
  }
  return 1;
}
