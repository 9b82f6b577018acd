// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The stream part of the C ABI, without a manager: what it accepts, what it
// says, and who owns what.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "kvcast/kvcast.h"
#include "native/src/handles.h"
#include "tests/native/owned_handle.h"
#include "tests/native/sink_test_support.h"

namespace {

using kvcast::testing::OwnedStream;

uint64_t LiveStreams() { return kvcast::live_handles().streams.load(std::memory_order_relaxed); }

kvc_stream_config Config() {
  kvc_stream_config config;
  std::memset(&config, 0xAA, sizeof config);
  kvc_stream_config_init(&config);
  return config;
}

TEST(StreamApi, Defaults) {
  const kvc_stream_config config = Config();
  EXPECT_EQ(config.struct_size, sizeof config);
  EXPECT_EQ(config.hash_form, uint32_t{KVC_HASH_SIGNED64});
  EXPECT_EQ(config.max_entries, 50000u);
  EXPECT_EQ(config.max_blocks_per_event, 0u);
  EXPECT_EQ(config.multimodal, uint32_t{KVC_MULTIMODAL_SUPPRESS});
  kvc_stream_stats stats;
  kvc_stream_stats_init(&stats);
  EXPECT_EQ(stats.struct_size, sizeof stats);
  kvc_stream_config_init(nullptr);
  kvc_stream_stats_init(nullptr);
  kvc_stream_destroy(nullptr);
}

TEST(StreamApi, BackendHasOneOfItsNames) {
  const std::string name = kvc_sha256_backend();
  EXPECT_EQ(name, kvcast::Sha256ShaNi() != nullptr ? "sha-ni" : "portable");
}

TEST(StreamApi, BadConfigsAreRefusedByName) {
  struct Case {
    const char* name;
    void (*change)(kvc_stream_config&);
    const char* says;
  };
  const Case cases[] = {
      {"size", [](kvc_stream_config& c) { c.struct_size = 12; }, "struct_size is 12, not 20"},
      {"no init", [](kvc_stream_config& c) { c = {}; }, "kvc_stream_config_init"},
      {"form", [](kvc_stream_config& c) { c.hash_form = 4; }, "hash_form 4"},
      {"entries", [](kvc_stream_config& c) { c.max_entries = 0; }, "max_entries"},
      {"event", [](kvc_stream_config& c) { c.max_blocks_per_event = 65537; },
       "max_blocks_per_event is 65537"},
      {"multimodal", [](kvc_stream_config& c) { c.multimodal = 2; }, "multimodal 2"},
  };
  const uint64_t live = LiveStreams();
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    kvc_stream_config config = Config();
    test.change(config);
    OwnedStream stream;
    kvc_error error{};
    EXPECT_EQ(kvc_stream_create(&config, stream.out(), &error), KVC_INVALID_ARGUMENT);
    EXPECT_EQ(stream, nullptr);
    EXPECT_EQ(error.status, KVC_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error.message).find(test.says), std::string::npos) << error.message;
    EXPECT_EQ(std::string(error.message).find('\n'), std::string::npos);
    EXPECT_EQ(kvc_stream_create(&config, stream.out(), nullptr), KVC_INVALID_ARGUMENT);
  }
  OwnedStream stream;
  const kvc_stream_config config = Config();
  EXPECT_EQ(kvc_stream_create(nullptr, stream.out(), nullptr), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_stream_create(&config, nullptr, nullptr), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(LiveStreams(), live);
}

TEST(StreamApi, NullArguments) {
  const kvc_stream_config config = Config();
  OwnedStream stream;
  ASSERT_EQ(kvc_stream_create(&config, stream.out(), nullptr), KVC_OK);
  kvc_borrowed_batch batch;
  kvc_stream_stats stats;
  kvc_stream_stats_init(&stats);
  EXPECT_EQ(kvc_stream_drain(nullptr, 0, 0, &batch, nullptr), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_stream_drain(stream, 0, 0, nullptr, nullptr), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_stream_stats_get(nullptr, &stats, nullptr), KVC_INVALID_ARGUMENT);
  EXPECT_EQ(kvc_stream_stats_get(stream, nullptr, nullptr), KVC_INVALID_ARGUMENT);
  stats.struct_size = 8;
  kvc_error error{};
  EXPECT_EQ(kvc_stream_stats_get(stream, &stats, &error), KVC_INVALID_ARGUMENT);
  EXPECT_NE(std::string(error.message).find("kvc_stream_stats_init"), std::string::npos);
  kvc_stream_destroy(stream.Take());
}

TEST(StreamApi, LifeOfAStream) {
  const uint64_t live = LiveStreams();
  kvc_stream_config config = Config();
  config.hash_form = KVC_HASH_UNSIGNED64;
  config.max_entries = 10;
  config.max_blocks_per_event = 2;
  OwnedStream stream;
  ASSERT_EQ(kvc_stream_create(&config, stream.out(), nullptr), KVC_OK);
  EXPECT_EQ(LiveStreams(), live + 1);
  EXPECT_FALSE(stream->used.load());

  kvcast::testing::Arena arena(4, 8);
  kvcast::testing::FakeHost host;
  std::shared_ptr<kvcast::EventSink> sink = stream->sink;  // as a manager does
  sink->Attach(arena.geometry(), &host);
  arena.Set(0, {0, 1, 2, 3});
  arena.Set(1, {4, 5, 6, 7});
  arena.Set(2, {8, 9, 10, 11});
  const uint32_t nodes[3] = {0, 1, 2};
  const kvcast::Scope scope;
  kvcast::StoreRun run;
  run.scope = &scope;
  run.nodes = nodes;
  run.count = 3;
  ASSERT_EQ(sink->Store(run, false), 3u);
  EXPECT_EQ(sink->announced_blocks(), 3u);

  kvc_borrowed_batch batch;
  ASSERT_EQ(kvc_stream_drain(stream, 0, 0, &batch, nullptr), KVC_OK);
  ASSERT_EQ(batch.event_count, 2u);
  EXPECT_EQ(batch.events[0].hash_count, 2u);
  EXPECT_EQ(static_cast<int64_t>(batch.hashes[0]), -4435174422587210830);
  EXPECT_EQ(batch.events[1].parent_hash, batch.hashes[1]);

  kvc_stream_stats stats;
  kvc_stream_stats_init(&stats);
  ASSERT_EQ(kvc_stream_stats_get(stream, &stats, nullptr), KVC_OK);
  EXPECT_EQ(stats.struct_size, sizeof stats);
  EXPECT_EQ(stats.attached, 1u);
  EXPECT_EQ(stats.stored_blocks, 3u);
  EXPECT_EQ(stats.drained_batches, 1u);
  EXPECT_EQ(stats.drained_events, 2u);
  EXPECT_EQ(stats.drained_stored_blocks, 3u);
  EXPECT_EQ(stats.mirror_blocks, 3u);
  EXPECT_EQ(stats.buffer_bytes, 4u * (2 * 8 + 5 + 10 * (3 + 4) + 133));

  sink->Seal();
  kvc_error error{};
  EXPECT_EQ(kvc_stream_drain(stream, 0, 0, &batch, &error), KVC_END);
  EXPECT_EQ(error.status, KVC_END);
  EXPECT_NE(error.message[0], '\0');
  kvc_stream_destroy(stream.Take());
  EXPECT_EQ(LiveStreams(), live);
  EXPECT_EQ(host.detaches, 0);
}

TEST(StreamApi, DestroyDetachesAndTheSinkOutlivesIt) {
  const kvc_stream_config config = Config();
  OwnedStream stream;
  ASSERT_EQ(kvc_stream_create(&config, stream.out(), nullptr), KVC_OK);
  kvcast::testing::Arena arena(4, 8);
  kvcast::testing::FakeHost host;
  std::shared_ptr<kvcast::EventSink> sink = stream->sink;
  sink->Attach(arena.geometry(), &host);
  kvc_stream_destroy(stream.Take());
  EXPECT_EQ(host.detaches, 1);
  // The manager may be anywhere when that happens; its counters stay valid.
  kvcast::Bump(sink->deferral_counters().dropped_events);
  sink->Seal();
}

}  // namespace
