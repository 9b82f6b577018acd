// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// SHA-256, block keys and wire hashes against published and golden values, and
// every code path of them against every other.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "native/src/block_key.h"
#include "native/src/sha256.h"

namespace {

using Key = std::array<uint8_t, kvcast::kKeyBytes>;

std::string Hex(const uint8_t* bytes, size_t size) {
  static const char digits[] = "0123456789abcdef";
  std::string out;
  for (size_t i = 0; i < size; ++i) {
    out += digits[bytes[i] >> 4];
    out += digits[bytes[i] & 15];
  }
  return out;
}
std::string Hex(const Key& key) { return Hex(key.data(), key.size()); }

Key FromHex(const std::string& text) {
  Key key{};
  for (size_t i = 0; i < key.size() && 2 * i + 1 < text.size(); ++i) {
    key[i] = static_cast<uint8_t>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
  }
  return key;
}

std::vector<const kvcast::Sha256Kernels*> AllKernels() {
  std::vector<const kvcast::Sha256Kernels*> all = {&kvcast::Sha256Portable()};
  if (kvcast::Sha256ShaNi() != nullptr) all.push_back(kvcast::Sha256ShaNi());
  return all;
}

std::string HashOf(const kvcast::Sha256Kernels& kernels, const std::string& message) {
  kvcast::Sha256 hash(kernels);
  hash.Update(message.data(), message.size());
  Key key{};
  hash.Final(key.data());
  return Hex(key);
}

TEST(Sha256, PublishedVectors) {
  // FIPS 180-4 examples and the empty message.
  const std::vector<std::pair<std::string, std::string>> vectors = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrl"
       "mnopqrsmnopqrstnopqrstu",
       "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
      {std::string(1000000, 'a'),
       "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
  };
  for (const auto* kernels : AllKernels()) {
    for (const auto& [message, expected] : vectors) {
      EXPECT_EQ(HashOf(*kernels, message), expected)
          << kernels->name << ", " << message.size() << " bytes";
    }
  }
}

TEST(Sha256, PathsAndPiecesAgree) {
  constexpr uint64_t kSeed = 7001;
  std::mt19937_64 random(kSeed);
  for (size_t size = 0; size <= 300; ++size) {
    std::string message(size, '\0');
    for (char& c : message) c = static_cast<char>(random());
    const std::string expected = HashOf(kvcast::Sha256Portable(), message);
    for (const auto* kernels : AllKernels()) {
      EXPECT_EQ(HashOf(*kernels, message), expected) << kernels->name << ", " << size << " bytes";
      kvcast::Sha256 pieces(*kernels);
      for (size_t at = 0; at < size;) {
        const size_t take = std::min<size_t>(size - at, random() % 90);
        pieces.Update(message.data() + at, take);
        at += take;
      }
      Key key{};
      pieces.Final(key.data());
      EXPECT_EQ(Hex(key), expected) << kernels->name << " in pieces, " << size << " bytes";
    }
  }
}

TEST(Sha256, LanesAgreeWithOneLane) {
  constexpr uint64_t kSeed = 7002;
  std::mt19937_64 random(kSeed);
  for (const auto* kernels : AllKernels()) {
    const kvcast::Sha256Hash by_lanes[5] = {nullptr, kernels->one, kernels->two, nullptr,
                                            kernels->four};
    for (const size_t lanes : {size_t{1}, size_t{2}, size_t{4}}) {
      for (size_t size = 0; size <= 300; ++size) {
        std::vector<std::vector<uint8_t>> messages(lanes);
        std::vector<const uint8_t*> pointers;
        std::array<Key, 4> digests{};
        std::vector<uint8_t*> outs;
        std::vector<std::string> expected;
        for (size_t lane = 0; lane < lanes; ++lane) {
          messages[lane].resize(kvcast::Sha256PaddedBytes(size));
          for (uint8_t& byte : messages[lane]) byte = static_cast<uint8_t>(random());
          expected.push_back(
              HashOf(kvcast::Sha256Portable(),
                     std::string(messages[lane].begin(),
                                 messages[lane].begin() + static_cast<std::ptrdiff_t>(size))));
          kvcast::Sha256Pad(messages[lane].data(), size);
          pointers.push_back(messages[lane].data());
          outs.push_back(digests[lane].data());
        }
        by_lanes[lanes](pointers.data(), messages[0].size() / kvcast::kSha256BlockBytes,
                        outs.data());
        for (size_t lane = 0; lane < lanes; ++lane) {
          ASSERT_EQ(Hex(digests[lane]), expected[lane])
              << kernels->name << ", " << size << " bytes, lane " << lane << " of " << lanes
              << ", seed " << kSeed;
        }
      }
    }
  }
}

TEST(BlockKey, GoldenRoots) {
  const auto root = [](uint32_t parts, uint64_t lora_id, uint64_t salt) {
    kvcast::ScopeView scope;
    scope.parts = parts;
    scope.lora_id = lora_id;
    scope.salt = salt;
    Key key{};
    kvcast::RootKey(scope, key.data());
    return Hex(key);
  };
  EXPECT_EQ(root(0, 0, 0), "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d");
  EXPECT_EQ(root(KVC_SCOPE_LORA_ID, 7, 0),
            "bf20e9c9b8addef74f91d399e9ebb5bc7778de38c127e968d34d1ba3dea17cb2");
  EXPECT_EQ(root(KVC_SCOPE_SALT, 0, 5),
            "054cf7d9d119099e90e449f8448d9b53e00b51508f5f56a2dfd58151ffdbe8ce");
  EXPECT_EQ(root(KVC_SCOPE_LORA_ID | KVC_SCOPE_SALT, 7, 5),
            "0efe4cc8f2450f4cb5bfc8bddf7a146df8b33e6e5dd795ad0baf627eff1432f3");
}

TEST(BlockKey, TextsInTheRoot) {
  kvcast::ScopeView scope;
  scope.parts = KVC_SCOPE_LORA_NAME;
  scope.lora_name = "de";
  Key key{};
  kvcast::RootKey(scope, key.data());
  EXPECT_EQ(Hex(key), HashOf(kvcast::Sha256Portable(), std::string("\x04\x02\x00\x00\x00"
                                                                   "de",
                                                                   7)));
  // The name stands in for the id.
  scope.parts |= KVC_SCOPE_LORA_ID;
  scope.lora_id = 9;
  Key with_id{};
  kvcast::RootKey(scope, with_id.data());
  EXPECT_EQ(with_id, key);
  // All the rest, in the order of the mask bits.
  scope.parts = KVC_SCOPE_SALT | KVC_SCOPE_LORA_NAME | KVC_SCOPE_SALT_BYTES | KVC_SCOPE_LORA_ID;
  scope.salt = 0x0102030405060708;
  scope.salt_bytes = "xyz";
  kvcast::RootKey(scope, key.data());
  EXPECT_EQ(Hex(key), HashOf(kvcast::Sha256Portable(),
                             std::string("\x0e\x08\x07\x06\x05\x04\x03\x02\x01\x02\x00\x00\x00"
                                         "de\x03\x00\x00\x00xyz",
                                         22)));
}

TEST(BlockKey, GoldenChain) {
  Key root{};
  kvcast::RootKey({}, root.data());
  const uint32_t tokens[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  Key first{};
  Key second{};
  kvcast::BlockKey(root.data(), tokens, 4, first.data());
  kvcast::BlockKey(first.data(), tokens + 4, 4, second.data());
  EXPECT_EQ(Hex(first), "7b894451a88bc03088bd0c44f01139922b089a1ab691d157c273185c78ca83b2");
  EXPECT_EQ(Hex(second), "181684b4f09a9fc1689624a565bc5c9ed96cede3e0863cf373463b1a93c45369");
  EXPECT_EQ(kvcast::WireHash(first.data(), KVC_HASH_SIGNED64), 8901721255985266736u);
  EXPECT_EQ(kvcast::WireHash(second.data(), KVC_HASH_SIGNED64), 1735720619063549889u);
  EXPECT_EQ(static_cast<int64_t>(kvcast::WireHash(first.data(), KVC_HASH_UNSIGNED64)),
            -4435174422587210830);
  EXPECT_EQ(kvcast::WireHash(first.data(), KVC_HASH_BYTES), 8901721255985266736u);
}

TEST(BlockKey, LanesAgreeWithOneByOne) {
  constexpr uint64_t kSeed = 7003;
  std::mt19937_64 random(kSeed);
  for (const uint32_t tokens_per_block : {1u, 2u, 4u, 5u, 6u, 16u, 32u, 64u, 129u, 4096u}) {
    for (const auto* kernels : AllKernels()) {
      kvcast::ChainHasher hasher(tokens_per_block, *kernels);
      for (uint32_t lanes = 1; lanes <= kvcast::kSha256Lanes; ++lanes) {
        std::array<Key, 4> keys{};
        std::array<Key, 4> expected{};
        std::array<std::vector<uint32_t>, 4> tokens;
        const uint8_t* parents[4];
        const uint32_t* token_pointers[4];
        uint8_t* outs[4];
        for (uint32_t lane = 0; lane < lanes; ++lane) {
          for (uint8_t& byte : keys[lane]) byte = static_cast<uint8_t>(random());
          tokens[lane].resize(tokens_per_block);
          for (uint32_t& token : tokens[lane]) token = static_cast<uint32_t>(random());
          kvcast::BlockKey(keys[lane].data(), tokens[lane].data(), tokens_per_block,
                           expected[lane].data());
          parents[lane] = outs[lane] = keys[lane].data();
          token_pointers[lane] = tokens[lane].data();
        }
        hasher.Hash(lanes, parents, token_pointers, outs);
        for (uint32_t lane = 0; lane < lanes; ++lane) {
          EXPECT_EQ(Hex(keys[lane]), Hex(expected[lane]))
              << kernels->name << ", " << tokens_per_block << " tokens, lane " << lane << " of "
              << lanes << ", seed " << kSeed;
        }
      }
    }
  }
}

// The value of `"name": {"$int": "..."}` or `"name": "..."` after position `at`.
std::string JsonText(const std::string& json, const std::string& name, size_t at) {
  at = json.find('"' + name + '"', at);
  if (at == std::string::npos) return "";
  at = json.find(':', at) + 1;
  while (json[at] == ' ' || json[at] == '\n') ++at;
  if (json[at] == '{') at = json.find(':', at) + 1;
  while (json[at] == ' ' || json[at] == '\n') ++at;
  const bool quoted = json[at] == '"';
  if (quoted) ++at;
  const size_t end = json.find_first_of(quoted ? "\"" : ",}\n ", at);
  return json.substr(at, end - at);
}

TEST(WireHash, GoldenReductions) {
  std::ifstream file("tests/vectors/wire_vectors.json");
  ASSERT_TRUE(file) << "run from the root of the repository";
  std::stringstream text;
  text << file.rdbuf();
  const std::string json = text.str();
  size_t at = json.find("\"hash_reductions\"");
  ASSERT_NE(at, std::string::npos);
  const size_t end = json.find(']', at);
  int count = 0;
  for (at = json.find("\"digest\"", at); at < end; at = json.find("\"digest\"", at + 1)) {
    const Key key = FromHex(JsonText(json, "digest", at));
    EXPECT_EQ(std::to_string(static_cast<int64_t>(kvcast::WireHash(key.data(), KVC_HASH_SIGNED64))),
              JsonText(json, "i64_first8", at));
    EXPECT_EQ(std::to_string(kvcast::WireHash(key.data(), KVC_HASH_UNSIGNED64)),
              JsonText(json, "u64_last8", at));
    EXPECT_EQ(std::to_string(kvcast::WireHash(key.data(), KVC_HASH_PORTABLE63)),
              JsonText(json, "portable63", at));
    EXPECT_EQ(std::to_string(kvcast::WireHash(key.data(), KVC_HASH_BYTES)),
              JsonText(json, "u64_first8", at));
    ++count;
  }
  EXPECT_GE(count, 3);
}

TEST(WireHash, PortableIsNeverShort) {
  Key key{};  // all zero: first8 >> 1 is 0
  EXPECT_EQ(kvcast::WireHash(key.data(), KVC_HASH_PORTABLE63), uint64_t{1} << 62);
  key = FromHex("00000001ffffffff");  // >> 1 is 2^32 - 1
  EXPECT_EQ(kvcast::WireHash(key.data(), KVC_HASH_PORTABLE63), (uint64_t{1} << 62) | 0xffffffffu);
  key = FromHex("0000000200000000");  // >> 1 is exactly 2^32
  EXPECT_EQ(kvcast::WireHash(key.data(), KVC_HASH_PORTABLE63), uint64_t{1} << 32);
  key = FromHex("ffffffffffffffff");
  EXPECT_EQ(kvcast::WireHash(key.data(), KVC_HASH_PORTABLE63), (uint64_t{1} << 63) - 1);
}

}  // namespace
