// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Runs tests/scripts/*.txt over the C ABI. The Go driver (bindings/script_test.go)
// runs the same files over the Go API against the same expected output, so the
// two cannot drift apart. tests/scripts/README.md describes the language.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kvcast/kvcast.h"
#include "tests/native/abi_support.h"
#include "tests/native/owned_handle.h"
#include "tests/native/stepper.h"
#include "tests/native/table_script.h"

namespace {

using kvcast::testing::Cache;
using kvcast::testing::CacheOptions;
using kvcast::testing::kTableColumns;
using kvcast::testing::OwnedSnapshot;
using kvcast::testing::PromptOptions;
using kvcast::testing::ScopeSpec;
using kvcast::testing::Stepper;
using kvcast::testing::TableScript;
using kvcast::testing::WireKey;
using kvcast::testing::WireMirror;

[[noreturn]] void Bad(const std::string& what) { throw std::runtime_error(what); }

uint64_t Number(const std::string& text) {
  size_t end = 0;
  uint64_t value = 0;
  try {
    value = std::stoull(text, &end);
  } catch (const std::exception&) {
    end = std::string::npos;
  }
  if (text.empty() || end != text.size() || text[0] == '-') Bad("not a number: " + text);
  return value;
}

// 1,2 are two tokens, 1..4 four, 7x3 three, @a to @z digests; - is none.
std::vector<uint32_t> Tokens(const std::string& text) {
  std::vector<uint32_t> tokens;
  if (text == "-") return tokens;
  std::istringstream items(text);
  for (std::string item; std::getline(items, item, ',');) {
    if (item[0] == '@') {
      if (item.size() != 2 || item[1] < 'a' || item[1] > 'z') Bad("not a digest: " + item);
      tokens.push_back(KVC_DIGEST_TOKEN(1 + item[1] - 'a'));
    } else if (const size_t range = item.find(".."); range != std::string::npos) {
      const uint64_t last = Number(item.substr(range + 2));
      for (uint64_t t = Number(item.substr(0, range)); t <= last; ++t) {
        tokens.push_back(static_cast<uint32_t>(t));
      }
    } else if (const size_t times = item.find('x'); times != std::string::npos) {
      tokens.insert(tokens.end(), Number(item.substr(times + 1)),
                    static_cast<uint32_t>(Number(item.substr(0, times))));
    } else {
      tokens.push_back(static_cast<uint32_t>(Number(item)));
    }
  }
  return tokens;
}

std::string FromHex(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// An operation: its name, what stands by itself, and key=value pairs. Whoever
// takes something out of it uses it up; what is left over is a mistake.
class Operation {
 public:
  explicit Operation(const std::string& line) {
    std::istringstream words(line);
    words >> name;
    for (std::string word; words >> word;) {
      const size_t equals = word.find('=');
      if (equals == std::string::npos) {
        plain_.push_back(word);
      } else {
        named_[word.substr(0, equals)] = word.substr(equals + 1);
      }
    }
  }
  std::string name;

  [[nodiscard]] bool more() const { return next_ < plain_.size(); }
  std::string Next() {
    if (!more()) Bad(name + " needs another argument");
    return plain_[next_++];
  }
  std::string Named(const std::string& key, const std::string& otherwise) {
    const auto at = named_.find(key);
    if (at == named_.end()) return otherwise;
    const std::string value = at->second;
    named_.erase(at);
    return value;
  }
  uint64_t Count(const std::string& key, uint64_t otherwise) {
    return Number(Named(key, std::to_string(otherwise)));
  }
  void Done() const {
    if (more()) Bad(name + ": superfluous " + plain_[next_]);
    if (!named_.empty()) Bad(name + ": superfluous " + named_.begin()->first);
  }

 private:
  std::vector<std::string> plain_;
  std::map<std::string, std::string> named_;
  size_t next_ = 0;
};

class Script {
 public:
  std::string Run(const std::string& line) {
    if (line.rfind("together", 0) == 0) return Together(line);
    Operation op(line);
    std::string out = Dispatch(op);
    op.Done();
    return out;
  }

 private:
  struct Named {
    uint64_t id = 0;
    uint64_t device_stream = 0;
    std::vector<kvc_fence> waits;
  };

  // Several operations in one kvc_step: made twice, see Stepper.
  std::string Together(const std::string& line) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) Bad("together [options]: OPERATION; OPERATION...");
    Operation options(line.substr(0, colon));
    Stepper::Room room;
    room.evicted = static_cast<uint32_t>(options.Count("room", room.evicted));
    room.waiters = 64;
    options.Done();
    std::vector<std::string> lines;
    std::istringstream rest(line.substr(colon + 1));
    for (std::string each; std::getline(rest, each, ';');) lines.push_back(each);
    Stepper step(cache_->manager(), room);
    const auto run = [&] {
      std::string text;
      cache_->Through(&step);
      for (const std::string& each : lines) text += Run(each);
      cache_->Through(nullptr);
      if (!step.noting() && !step.waiters().empty()) text += Line("over: " + Over(step.waiters()));
      return text;
    };
    const auto sequences = sequences_;
    const auto holds = holds_;
    const auto pins = pins_;
    run();
    step.Run();
    // Names of sequences stay known: those that fail to be opened too.
    for (const auto& [name, sequence] : sequences) sequences_[name] = sequence;
    holds_ = holds;
    pins_ = pins;
    return run();
  }

  static std::string Status(kvc_status status) { return kvc_status_name(status); }
  static std::string Line(const std::string& text) { return text + "\n"; }

  std::string Dispatch(Operation& op) {
    if (op.name == "open") return Open(op);
    if (cache_ == nullptr) Bad("open comes first");
    if (op.name == "create") return Create(op);
    if (op.name == "probe") return Probe(op);
    if (op.name == "where") return Where(op);
    if (op.name == "grow") return Grow(op);
    if (op.name == "fork") return Fork(op);
    if (op.name == "commit") return Commit(op);
    if (op.name == "suspend") {
      const uint64_t id = Sequence(op.Next()).id;
      return Line(Status(cache_->Suspend(id, op.Count("keep", 0) != 0)));
    }
    if (op.name == "resume") return Resume(op);
    if (op.name == "over") {
      return Line(Over(cache_->TakeWaiters(static_cast<size_t>(op.Count("room", 64)))));
    }
    if (op.name == "hold") {
      const std::string name = op.Next();
      const uint64_t id = Sequence(name).id;
      const auto count = static_cast<uint32_t>(Number(op.Next()));
      const kvc_hold_result r = cache_->ReleaseHeld(id, count, op.Count("cancel", 0) != 0);
      if (r.status == KVC_OK) holds_[name] = r.hold;
      return Line(Status(r.status));
    }
    if (op.name == "end-hold") return Line(Status(cache_->ReleaseHold(holds_[op.Next()])));
    if (op.name == "step" || op.name == "step-done") {
      const std::string name = op.Next();
      const uint64_t stream = name == "all" ? 0 : StreamId(name);
      const uint64_t step = Number(op.Next());
      return Line(Status(op.name == "step"
                             ? kvc_step_begin(cache_->manager(), stream, step, nullptr)
                             : kvc_step_done(cache_->manager(), stream, step, nullptr)));
    }
    if (op.name == "truncate") return Truncate(op);
    if (op.name == "stop") {
      const uint64_t id = Sequence(op.Next()).id;
      return Line(Status(cache_->Stop(id, Number(op.Next()))));
    }
    if (op.name == "release" || op.name == "cancel" || op.name == "end") return Release(op);
    if (op.name == "retain") return Retain(op);
    if (op.name == "expire") return Expire(op);
    if (op.name == "pin") return Pin(op);
    if (op.name == "unpin") return Unpin(op);
    if (op.name == "drop") return Drop(op);
    if (op.name == "resize") return Resize(op);
    if (op.name == "ages") return Ages();
    if (op.name == "info") return Info(op);
    if (op.name == "shared") return Shared(op);
    if (op.name == "reset") return Line(Status(kvc_manager_reset(cache_->manager(), nullptr)));
    if (op.name == "check") {
      const std::string wrong = cache_->Check();
      return Line(wrong.empty() ? "ok" : wrong);
    }
    if (op.name == "close") return Line(Status(cache_->Close()));
    if (op.name == "stream") return NewStream(op);
    if (op.name == "end-stream") {
      return Line(
          Status(kvc_device_stream_destroy(cache_->manager(), StreamId(op.Next()), nullptr)));
    }
    if (op.name == "wait") return Wait(op);
    if (op.name == "fill") return Fill(op);
    if (op.name == "advance") return Advance(op);
    if (op.name == "drain") return Drain(op);
    if (op.name == "dense") return Dense(op);
    if (op.name == "indexed") return Indexed(op);
    if (op.name == "delta") return Delta(op);
    if (op.name == "upload") return Line(tables_.Upload(cache_->manager(), StreamId(op.Next())));
    if (op.name == "device-rows") return Line(tables_.DeviceRows(cache_->manager()));
    if (op.name == "mirror") return Mirror();
    if (op.name == "snapshot") return Snapshot(op);
    if (op.name == "stats") return Stats();
    if (op.name == "counters") return Counters();
    if (op.name == "stream-stats") return StreamStats();
    Bad("unknown operation " + op.name);
  }

  std::string Open(Operation& op) {
    static const std::map<std::string, kvc_hash_form> kForms = {{"signed64", KVC_HASH_SIGNED64},
                                                                {"unsigned64", KVC_HASH_UNSIGNED64},
                                                                {"portable63", KVC_HASH_PORTABLE63},
                                                                {"bytes", KVC_HASH_BYTES}};
    CacheOptions options;
    options.block = static_cast<uint32_t>(op.Count("block", 2));
    options.pages = static_cast<uint32_t>(op.Count("pages", 8));
    options.sequences = static_cast<uint32_t>(op.Count("sequences", 4));
    options.entries = static_cast<uint32_t>(op.Count("entries", 50000));
    options.gate = static_cast<uint32_t>(op.Count("gate", 1000));
    options.run = static_cast<uint32_t>(op.Count("run", 0));
    options.pins = static_cast<uint32_t>(op.Count("pins", 0));
    options.policy = op.Named("policy", "lru") == "lrfu" ? KVC_POLICY_LRFU : KVC_POLICY_LRU;
    options.tau = static_cast<uint32_t>(op.Count("tau", 1000));
    options.digests = static_cast<uint32_t>(op.Count("digests", 0));
    options.pending = static_cast<uint32_t>(op.Count("pending", 0));
    options.partial = op.Count("partial", 0) != 0;
    options.most = static_cast<uint32_t>(op.Count("most", 0));
    options.least = static_cast<uint32_t>(op.Count("least", 0));
    options.page_bytes = op.Count("bytes", 16);
    options.poison = options.page_bytes != 0;
    const std::string multimodal = op.Named("multimodal", "suppress");
    if (multimodal != "suppress" && multimodal != "announce") Bad("multimodal=" + multimodal);
    options.multimodal =
        multimodal == "announce" ? KVC_MULTIMODAL_ANNOUNCE : KVC_MULTIMODAL_SUPPRESS;
    options.form = kForms.at(op.Named("form", "signed64"));
    cache_ = nullptr;
    sequences_.clear();
    streams_.clear();
    names_.clear();
    ids_.clear();
    pins_.clear();
    cache_ = std::make_unique<Cache>(options);
    mirror_ = std::make_unique<WireMirror>(options.form, options.block);
    tables_ = {};
    return Line("ok");
  }

  static ScopeSpec Scope(Operation& op) {
    ScopeSpec scope;
    if (const std::string id = op.Named("lora", ""); !id.empty()) scope.lora_id = Number(id);
    if (const std::string salt = op.Named("salt", ""); !salt.empty()) scope.salt = Number(salt);
    scope.lora_name = op.Named("name", "");
    scope.salt_bytes = FromHex(op.Named("salt-bytes", ""));
    return scope;
  }
  static uint32_t MustCompute(Operation& op) {
    const std::string text = op.Named("must", "none");
    return text == "none" ? KVC_COMPUTE_NOTHING : static_cast<uint32_t>(Number(text));
  }
  uint64_t StreamId(const std::string& name) {
    for (const auto& [known, id] : streams_) {
      if (known == name) return id;
    }
    Bad("no device stream is called " + name);
  }
  std::string StreamName(uint64_t id) {
    for (const auto& [known, known_id] : streams_) {
      if (known_id == id) return known;
    }
    Bad("a device stream that the script did not create: " + std::to_string(id));
  }
  Named Sequence(const std::string& name) {
    if (name[0] == '#') {
      Named raw;
      raw.id = Number(name.substr(1));
      return raw;
    }
    const auto at = sequences_.find(name);
    if (at == sequences_.end()) Bad("no sequence is called " + name);
    return at->second;
  }

  std::string Waits(const kvc_fence* fences, uint32_t count) {
    // The device's own stream, on which a shrink makes its copies, has no name until it is met.
    for (uint32_t i = 0; cache_->options().most != 0 && i < count; ++i) Meet(fences[i]);
    std::string text;
    // In the order of the streams' creation.
    for (const auto& [name, id] : streams_) {
      for (uint32_t i = 0; i < count; ++i) {
        if (fences[i].device_stream == id) text += " " + name;
      }
    }
    for (uint32_t i = 0; i < count; ++i) {
      (void)StreamName(fences[i].device_stream);  // each must be the script's own
    }
    return text.empty() ? "" : ", waits for" + text;
  }

  void Meet(const kvc_fence& fence) {
    for (const auto& [name, id] : streams_) {
      if (id == fence.device_stream) return;
    }
    streams_.emplace_back("copies", fence.device_stream);
  }

  std::string Create(Operation& op) {
    const std::string name = op.Next();
    const std::vector<uint32_t> tokens = Tokens(op.Next());
    const ScopeSpec scope = Scope(op);
    const uint32_t must = MustCompute(op);
    const std::string on = op.Named("on", "");
    Named made;
    made.device_stream = on.empty() ? 0 : StreamId(on);
    PromptOptions options;
    if (op.Count("suspended", 0) != 0) options.flags |= KVC_PROMPT_SUSPENDED;
    if (op.Count("mark", 0) != 0) options.flags |= KVC_PROMPT_MARK;
    if (op.Count("wait", 0) != 0) options.flags |= KVC_PROMPT_WAIT;
    options.match_backoff = static_cast<uint32_t>(op.Count("backoff", 0));
    if (const std::string stop = op.Named("stop", ""); !stop.empty()) {
      options.flags |= KVC_PROMPT_STOP_BEFORE;
      options.stop_before = Number(stop);
    }
    const kvc_create_result r = cache_->Create(tokens, scope, must, made.device_stream, options);
    if (r.status != KVC_OK) return Line(Status(r.status));
    if (r.wait_count > KVC_MAX_WAITS) Bad("a script must not need more fences than a result holds");
    made.id = r.sequence;
    made.waits.assign(r.waits, r.waits + r.wait_count);
    sequences_[name] = made;
    const std::string copied = CopiedTail(r);
    return Line("matched " + std::to_string(r.matched_tokens) + copied +
                Pending(r.pending_tokens, r.pending_sequence) + Waits(r.waits, r.wait_count));
  }
  // Of a create: those of its tokens that were copied.
  std::string CopiedTail(const kvc_create_result& r) {
    if (r.copied_tokens == 0) return "";
    // The device's own stream has no name until it is met.
    for (uint32_t i = 0; i < r.wait_count; ++i) Meet(r.waits[i]);
    return ", copied " + std::to_string(r.copied_tokens);
  }
  std::string NameOf(uint64_t id) {
    for (const auto& [name, known] : sequences_) {
      if (known.id == id) return name;
    }
    return cache_->step() != nullptr ? "" : "unknown";
  }
  // What an older sequence computes.
  std::string Pending(uint64_t tokens, uint64_t sequence) {
    return tokens == 0 ? "" : ", pending " + std::to_string(tokens) + " of " + NameOf(sequence);
  }
  std::string Over(const std::vector<kvc_waiter>& waiters) {
    std::string text;
    for (const kvc_waiter& waiter : waiters) {
      text += (text.empty() ? "" : ", ") + NameOf(waiter.sequence) +
              (waiter.outcome == KVC_PENDING_COMMITTED ? " committed" : " given up");
    }
    return text.empty() ? "none" : text;
  }
  std::string Probe(Operation& op) {
    const std::vector<uint32_t> tokens = Tokens(op.Next());
    const ScopeSpec scope = Scope(op);
    const kvc_probe_result r = cache_->Probe(tokens, scope, MustCompute(op));
    if (r.status != KVC_OK) return Line(Status(r.status));
    return Line("matched " + std::to_string(r.matched_tokens) +
                (r.pending_tokens == 0 ? "" : ", pending " + std::to_string(r.pending_tokens)));
  }
  std::string Fork(Operation& op) {
    const std::string name = op.Next();
    const uint64_t from = Sequence(op.Next()).id;
    const std::string on = op.Named("on", "");
    Named made;
    made.device_stream = on.empty() ? 0 : StreamId(on);
    const kvc_fork_result r = cache_->Fork(from, made.device_stream);
    if (r.status != KVC_OK) return Line(Status(r.status));
    if (r.wait_count > KVC_MAX_WAITS) Bad("a script must not need more fences than a result holds");
    made.id = r.sequence;
    made.waits.assign(r.waits, r.waits + r.wait_count);
    sequences_[name] = made;
    return Line("committed " + std::to_string(r.committed_tokens) + Waits(r.waits, r.wait_count));
  }
  std::string Grow(Operation& op) {
    const std::string name = op.Next();
    const uint64_t id = Sequence(name).id;
    const uint64_t tokens = Number(op.Next());
    std::vector<kvc_evicted_block> told(op.Count("room", 0));
    const kvc_grow_result r = cache_->Grow(id, tokens, &told);
    if (cache_->step() != nullptr && cache_->step()->noting()) return "";
    if (r.status == KVC_NOT_NOW) {
      // In a step that has no room to tell what would be evicted.
      if (r.evicted_blocks != 0) {
        return Line("not now, to evict " + std::to_string(r.evicted_blocks));
      }
      return Line("not now, leaving " + std::to_string(r.leaving_pages));
    }
    if (r.status != KVC_OK) return Line(Status(r.status));
    return Line("added " + std::to_string(r.added_pages) + ", evicted " +
                std::to_string(r.evicted_blocks) + Copied(name, r) + Told(told));
  }
  std::string Copied(const std::string& name, const kvc_grow_result& r) {
    if (r.copied_block == KVC_NO_COPY) return "";
    if (r.wait_count != 0) {
      // The device's own stream has no name until it is met.
      const auto known = std::find_if(streams_.begin(), streams_.end(), [&](const auto& stream) {
        return stream.second == r.wait.device_stream;
      });
      if (known == streams_.end()) streams_.emplace_back("copies", r.wait.device_stream);
      sequences_.at(name).waits.assign(1, r.wait);
    }
    return ", copied block " + std::to_string(r.copied_block) + " with " +
           std::to_string(r.copied_tokens) + Waits(&r.wait, r.wait_count);
  }
  // Blocks by the tokens that `where` has met them with.
  std::string BlockById(uint64_t id) {
    if (id == KVC_NO_BLOCK) return "root";
    const auto at = ids_.find(id);
    return at == ids_.end() ? "unknown" : at->second;
  }
  static const std::string& ReasonName(kvc_evicted_reason reason) {
    static const std::map<kvc_evicted_reason, std::string> kReasons = {
        {KVC_EVICTED_CAPACITY, "capacity"},
        {KVC_EVICTED_TTL, "ttl"},
        {KVC_EVICTED_ENDED, "ended"},
        {KVC_EVICTED_SCOPE, "scope"}};
    return kReasons.at(reason);
  }
  std::string Told(const std::vector<kvc_evicted_block>& told) {
    std::string text;
    for (const kvc_evicted_block& block : told) {
      text += "; " + BlockById(block.block) + " under " + BlockById(block.parent) + " " +
              ReasonName(block.reason);
      text += " " + std::to_string(block.priority);
      if (block.announced != 0) text += " announced";
      if (block.copies != 0) text += " copies " + std::to_string(block.copies);
    }
    return text;
  }
  std::string Where(Operation& op) {
    const std::vector<uint32_t> tokens = Tokens(op.Next());
    const ScopeSpec scope = Scope(op);
    std::vector<kvc_block_residency> blocks;
    const kvc_residency_result r = cache_->Residency(tokens, scope, MustCompute(op), &blocks);
    if (r.status != KVC_OK) return Line(Status(r.status));
    const uint32_t size = cache_->options().block;
    std::string text =
        std::to_string(blocks.size()) + " of " + std::to_string(tokens.size() / size);
    for (size_t i = 0; i < blocks.size(); ++i) {
      ids_[blocks[i].block] = BlockName(&tokens[i * size], size);
      text += (i == 0 ? ": " : ", ") + BlockById(blocks[i].block) + " copies " +
              std::to_string(blocks[i].copies);
      if ((blocks[i].flags & KVC_BLOCK_HELD) != 0) text += " held";
      if ((blocks[i].flags & KVC_BLOCK_ANNOUNCED) != 0) text += " announced";
    }
    return Line(text);
  }
  std::string Commit(Operation& op) {
    const std::string name = op.Next();
    const std::vector<uint32_t> tokens = Tokens(op.Next());
    kvc_fence fence{};
    const std::string filled = op.Named("filled", "");
    if (!filled.empty()) fence = {StreamId(filled), op.Count("at", 0)};
    const kvc_commit_result r = cache_->Commit(Sequence(name).id, tokens.data(), tokens.size(),
                                               filled.empty() ? nullptr : &fence);
    if (r.status != KVC_OK) return Line(Status(r.status));
    sequences_.at(name).waits.assign(r.waits, r.waits + r.wait_count);
    std::string text = "stored " + std::to_string(r.stored_blocks) + ", deduplicated " +
                       std::to_string(r.deduplicated_blocks) + ", committed " +
                       std::to_string(r.committed_tokens);
    if (r.first_changed_block != UINT32_MAX) {
      text += ", changed from " + std::to_string(r.first_changed_block);
    }
    return Line(text + Waits(r.waits, r.wait_count));
  }
  std::string Release(Operation& op) {
    std::string text;
    do {
      const uint64_t id = Sequence(op.Next()).id;
      text += (text.empty() ? "" : ", ") + Status(op.name == "cancel" ? cache_->Cancel(id)
                                                  : op.name == "end"  ? cache_->End(id)
                                                                      : cache_->Release(id));
    } while (op.more());
    return Line(text);
  }
  std::string Resume(Operation& op) {
    const std::string name = op.Next();
    const kvc_resume_result r = cache_->Resume(Sequence(name).id);
    const std::string pending = Pending(r.pending_tokens, r.pending_sequence);
    if (r.status != KVC_OK) return Line(Status(r.status) + pending);
    sequences_.at(name).waits.assign(r.waits, r.waits + r.wait_count);
    return Line("committed " + std::to_string(r.committed_tokens) + ", lost " +
                std::to_string(r.lost_tokens) + pending + Waits(r.waits, r.wait_count));
  }
  std::string Truncate(Operation& op) {
    const uint64_t id = Sequence(op.Next()).id;
    const kvc_truncate_result r = cache_->Truncate(id, Number(op.Next()));
    if (r.status != KVC_OK) return Line(Status(r.status));
    return Line("freed " + std::to_string(r.freed_pages));
  }
  // A sequence by its name, or a prompt.
  std::string Pin(Operation& op) {
    const std::string name = op.Next();
    const std::string what = op.Next();
    const bool known = sequences_.count(what) != 0 || what[0] == '#';
    const ScopeSpec scope = Scope(op);
    const uint32_t must = MustCompute(op);
    const kvc_pin_result r =
        known ? cache_->Pin(Sequence(what).id) : cache_->PinPrompt(Tokens(what), scope, must);
    if (r.status != KVC_OK) return Line(Status(r.status));
    pins_[name] = r.pin;
    return Line("pinned " + std::to_string(r.pinned_blocks));
  }
  std::string Unpin(Operation& op) {
    std::string text;
    do {
      text += (text.empty() ? "" : ", ") + Status(cache_->Unpin(pins_.at(op.Next())));
    } while (op.more());
    return Line(text);
  }
  std::string Drop(Operation& op) {
    const ScopeSpec scope = Scope(op);
    std::vector<kvc_evicted_block> told(op.Count("room", 0));
    const kvc_drop_result r = cache_->DropScope(scope, op.Count("every", 0) != 0, &told);
    if (r.status != KVC_OK) return Line(Status(r.status));
    return Line("dropped " + std::to_string(r.dropped_scopes) + " scopes, " +
                std::to_string(r.dropped_blocks) + " blocks, detached " +
                std::to_string(r.detached_sequences) + Told(told));
  }
  std::string Resize(Operation& op) {
    const auto target = static_cast<uint32_t>(Number(op.Next()));
    const auto r = cache_->Resize(target, static_cast<uint32_t>(op.Count("max", 64)));
    if (r.status != KVC_OK && r.status != KVC_OUT_OF_MEMORY) return Line(Status(r.status));
    std::string text = r.status == KVC_OK ? "" : Status(r.status) + "; ";
    text += "target " + std::to_string(r.result.target_pages) + " of " +
            std::to_string(r.result.total_pages);
    for (const auto& [name, count] :
         std::vector<std::pair<const char*, uint32_t>>{{"growing", r.result.growing_pages},
                                                       {"doomed", r.result.doomed_pages},
                                                       {"held", r.result.held_pages},
                                                       {"leaving", r.result.leaving_pages}}) {
      if (count != 0) text += std::string(", ") + name + " " + std::to_string(count);
    }
    if (r.result.done != 0) text += ", done";
    for (const kvc_page_move& move : r.moves) {
      text += "; " + std::to_string(move.from) + " to " + std::to_string(move.to) + " with " +
              std::to_string(move.tokens);
    }
    return Line(text + Told(r.evicted));
  }
  static std::string Histogram(const char* name, const uint64_t* slots) {
    std::string text = name;
    for (uint32_t i = 0; i < KVC_HISTOGRAM_SLOTS; ++i) {
      if (slots[i] != 0) text += " " + std::to_string(i) + ":" + std::to_string(slots[i]);
    }
    return Line(text);
  }
  std::string Ages() {
    kvc_histograms h;
    kvc_histograms_init(&h);
    const kvc_status status = kvc_manager_histograms_get(cache_->manager(), &h, nullptr);
    if (status != KVC_OK) return Line(Status(status));
    return Histogram("idle at reuse", h.idle_at_reuse) +
           Histogram("idle at eviction", h.idle_at_eviction) +
           Histogram("reuses at eviction", h.reuses_at_eviction);
  }
  // Times are in seconds.
  static constexpr uint64_t kSecond = 1000000000;
  std::string Retain(Operation& op) {
    const uint64_t id = Sequence(op.Next()).id;
    const uint64_t first = Number(op.Next());
    const std::string end = op.Next();
    const auto priority = static_cast<uint32_t>(Number(op.Next()));
    return Line(Status(cache_->Retain(id, first, end == "end" ? KVC_TO_THE_END : Number(end),
                                      priority, op.Count("until", 0) * kSecond)));
  }
  std::string Expire(Operation& op) {
    uint32_t expired = 0;
    uint32_t more = 0;
    const uint64_t now = Number(op.Next()) * kSecond;
    const kvc_status status =
        kvc_expire(cache_->manager(), now, static_cast<uint32_t>(op.Count("max", 0)), &expired,
                   &more, nullptr);
    if (status != KVC_OK) return Line(Status(status));
    return Line("expired " + std::to_string(expired) + (more != 0 ? ", more" : ""));
  }
  std::string Info(Operation& op) {
    kvc_sequence_info info;
    std::vector<uint32_t> pages;
    const kvc_status status = cache_->Get(Sequence(op.Next()).id, &info, &pages);
    if (status != KVC_OK) return Line(Status(status));
    std::string text = "committed " + std::to_string(info.committed_tokens) + ", matched " +
                       std::to_string(info.matched_tokens) + ", capacity " +
                       std::to_string(info.capacity_tokens) + ", pages " +
                       std::to_string(info.page_count);
    if (info.device_stream != 0) text += ", on " + StreamName(info.device_stream);
    if (info.detached != 0) text += ", detached";
    if (info.state == KVC_SEQUENCE_SUSPENDED) text += ", suspended";
    const uint64_t full = info.committed_tokens / cache_->options().block;
    if (info.detached == 0 && info.state == KVC_SEQUENCE_ACTIVE && info.reusable_blocks != full) {
      text += ", reusable " + std::to_string(info.reusable_blocks);
    }
    return Line(text);
  }
  // How many leading blocks of two sequences are in the same pages.
  std::string Shared(Operation& op) {
    std::vector<uint32_t> a, b;
    kvc_sequence_info info;
    cache_->Get(Sequence(op.Next()).id, &info, &a);
    cache_->Get(Sequence(op.Next()).id, &info, &b);
    size_t n = 0;
    while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
    return Line(std::to_string(n));
  }

  static kvc_table_format Format(Operation& op) {
    kvc_table_format format;
    kvc_table_format_init(&format);
    format.index_scale = static_cast<uint32_t>(op.Count("scale", 1));
    format.index_offset = static_cast<uint32_t>(op.Count("offset", 0));
    format.expansion = static_cast<uint32_t>(op.Count("expansion", 1));
    return format;
  }
  std::string Dense(Operation& op) {
    const kvc_table_item item{Sequence(op.Next()).id, 0, static_cast<uint32_t>(op.Count("new", 0))};
    const auto columns = static_cast<uint32_t>(op.Count("columns", kTableColumns));
    return Line(TableScript::Dense(cache_->manager(), Format(op), item, columns));
  }
  std::string Indexed(Operation& op) {
    const auto more = static_cast<uint32_t>(op.Count("new", 0));
    const kvc_table_format format = Format(op);
    std::vector<kvc_table_item> items;
    do {
      items.push_back({Sequence(op.Next()).id, 0, more});
    } while (op.more());
    return Line(TableScript::Indexed(cache_->manager(), format, items));
  }
  std::string Delta(Operation& op) {
    const auto row = static_cast<uint32_t>(Number(op.Next()));
    const std::string name = op.Next();
    const uint64_t id = name == "-" ? 0 : Sequence(name).id;
    const auto room = static_cast<uint32_t>(op.Count("room", kTableColumns));
    return Line(tables_.Delta(cache_->manager(), Format(op), row, id, room, cache_->step()));
  }

  std::string NewStream(Operation& op) {
    uint64_t id = 0;
    const std::string name = op.Next();
    const kvc_status status = op.Count("steps", 0) != 0
                                  ? kvc_step_stream_create(cache_->manager(), &id, nullptr)
                                  : kvc_device_stream_create(cache_->manager(), &id, nullptr);
    if (status == KVC_OK) streams_.emplace_back(name, id);
    return Line(Status(status));
  }
  // The sequence's stream waits for the fences that its last create or commit named.
  std::string Wait(Operation& op) {
    const Named s = Sequence(op.Next());
    return Line(Status(kvc_device_stream_wait(cache_->manager(), s.device_stream,
                                              static_cast<uint32_t>(s.waits.size()), s.waits.data(),
                                              nullptr)));
  }
  // A fake kernel on the sequence's stream that writes one of its pages.
  std::string Fill(Operation& op) {
    const Named s = Sequence(op.Next());
    kvc_sequence_info info;
    std::vector<uint32_t> pages;
    cache_->Get(s.id, &info, &pages);
    const kvc_host_fill fill{pages.at(Number(op.Next())), 0, 1};
    return Line(
        Status(kvc_host_enqueue_fill(cache_->manager(), s.device_stream, 1, &fill, nullptr)));
  }
  std::string Advance(Operation& op) {
    const std::string name = op.Next();
    const uint64_t id = name == "all" ? 0 : StreamId(name);
    uint64_t executed = 0;
    const kvc_status status =
        kvc_host_advance(cache_->manager(), id, Number(op.Next()), &executed, nullptr);
    if (status != KVC_OK) return Line(Status(status));
    return Line("executed " + std::to_string(executed));
  }

  std::string KeyText(const WireKey& key) {
    if (cache_->options().form == KVC_HASH_BYTES) {
      std::string text;
      for (const char c : key) {
        char hex[3];
        std::snprintf(hex, sizeof hex, "%02x", static_cast<unsigned>(static_cast<uint8_t>(c)));
        text += hex;
      }
      return text;
    }
    uint64_t hash = 0;
    std::memcpy(&hash, key.data(), sizeof hash);
    if (cache_->options().form != KVC_HASH_SIGNED64) return std::to_string(hash);
    return std::to_string(static_cast<int64_t>(hash));
  }
  // A block by its tokens, as a stored event has told them.
  std::string Block(const WireKey& key, bool with_key) {
    const auto at = names_.find(key);
    if (at == names_.end()) return "unknown=" + KeyText(key);
    return with_key ? at->second + "=" + KeyText(key) : at->second;
  }
  static std::string BlockName(const uint32_t* tokens, uint32_t count) {
    std::string text = "[";
    for (uint32_t i = 0; i < count; ++i) {
      if (i != 0) text += " ";
      if ((tokens[i] & KVC_DIGEST_BIT) != 0) {
        text += {'@', static_cast<char>('a' + (tokens[i] & ~KVC_DIGEST_BIT) - 1)};
      } else {
        text += std::to_string(tokens[i]);
      }
    }
    return text + "]";
  }
  std::string Events(const kvc_borrowed_batch& batch, bool with_keys, bool with_reasons = false) {
    if (const std::string wrong = mirror_->Apply(batch); !wrong.empty()) Bad(wrong);
    std::string text;
    for (uint64_t e = 0; e < batch.event_count; ++e) {
      const kvc_event& event = batch.events[e];
      if (event.kind == KVC_EVENT_CLEARED) {
        text += Line("cleared");
        continue;
      }
      std::string line = "removed:";
      std::string wrong;
      const std::vector<uint32_t> tokens = kvcast::testing::EventTokens(batch, event, &wrong);
      if (!wrong.empty()) Bad(wrong);
      if (event.kind == KVC_EVENT_STORED) {
        const WireKey parent = mirror_->ParentOf(batch, e);
        line = "stored under " + (parent.empty() ? "root" : Block(parent, with_keys)) + ":";
      }
      for (uint64_t i = 0; i < event.hash_count; ++i) {
        const WireKey key = mirror_->KeyOf(batch, event.hash_offset + i);
        if (event.kind == KVC_EVENT_STORED) {
          names_[key] = BlockName(tokens.data() + i * event.block_size, event.block_size);
        }
        line += " " + Block(key, with_keys);
        if (with_reasons && event.kind == KVC_EVENT_REMOVED) {
          line += " " + ReasonName(batch.reasons[event.hash_offset + i]);
        }
      }
      if (event.kind == KVC_EVENT_STORED) {
        const kvc_event_scope& scope = batch.scopes[event.scope];
        if ((scope.parts & KVC_SCOPE_LORA_ID) != 0) {
          line += " lora " + std::to_string(scope.lora_id);
        }
        if ((scope.parts & KVC_SCOPE_LORA_NAME) != 0) {
          line +=
              " name " + std::string(batch.strings + scope.lora_name_offset, scope.lora_name_size);
        }
      }
      text += Line(line);
    }
    return text;
  }
  std::string Drain(Operation& op) {
    bool all = false;
    bool keys = false;
    bool reasons = false;
    while (op.more()) {
      const std::string word = op.Next();
      if (word != "all" && word != "keys" && word != "reasons") Bad("drain " + word);
      (word == "all" ? all : word == "keys" ? keys : reasons) = true;
    }
    const uint64_t events = op.Count("events", 0);
    const uint64_t blocks = op.Count("blocks", 0);
    std::string text;
    uint64_t pending = 0;
    for (int round = 0; round < (all ? 64 : 1); ++round) {
      kvc_borrowed_batch batch;
      const kvc_status status = cache_->Drain(&batch, events, blocks);
      if (status != KVC_OK) return text + Line(Status(status));
      pending = batch.pending_blocks;
      text += Events(batch, keys, reasons);
      if (batch.event_count == 0 && pending == 0 && batch.remaining_bytes == 0) break;
    }
    if (text.empty()) text = Line("nothing");
    if (pending != 0) text += Line("pending " + std::to_string(pending));
    return text;
  }
  std::string Snapshot(Operation& op) {
    OwnedSnapshot snapshot;
    if (kvc_stream_snapshot_open(cache_->stream(), snapshot.out(), nullptr) != KVC_OK) Bad("open");
    const uint64_t events = op.Count("events", 0);
    const uint64_t blocks = op.Count("blocks", 0);
    std::string text;
    // Who hears the snapshot instead of what has been drained.
    auto drained = std::make_unique<WireMirror>(cache_->options().form, cache_->options().block);
    std::swap(drained, mirror_);
    kvc_borrowed_batch batch;
    while (kvc_stream_snapshot_next(snapshot, events, blocks, &batch, nullptr) == KVC_OK) {
      text += Events(batch, false);
    }
    std::swap(drained, mirror_);
    return text + Line(drained->blocks() == mirror_->blocks() ? "the same" : "different");
  }
  std::string Mirror() {
    const auto resident = cache_->Resident();
    uint64_t announced = 0;
    for (const auto& block : resident) announced += block.announced;
    const std::string wrong = mirror_->Compare(resident, false);
    return Line("mirror " + std::to_string(mirror_->blocks().size()) + ", announced " +
                std::to_string(announced) + ", resident " + std::to_string(resident.size()) +
                (wrong.empty() ? ", equal" : ", different"));
  }

  std::string Stats() {
    const kvc_stats s = cache_->Stats();
    return Line(
        "live " + std::to_string(s.live_pages) + ", cached " + std::to_string(s.cached_pages) +
        ", free " + std::to_string(s.free_pages) + ", quarantined " +
        std::to_string(s.quarantined_pages) + "; blocks " + std::to_string(s.blocks) + ", roots " +
        std::to_string(s.roots) + ", sequences " + std::to_string(s.sequences) +
        (s.suspended_sequences == 0 ? ""
                                    : ", suspended " + std::to_string(s.suspended_sequences) +
                                          ", kept " + std::to_string(s.kept_pages)) +
        (s.holds == 0
             ? ""
             : ", holds " + std::to_string(s.holds) + ", held " + std::to_string(s.held_pages)) +
        (s.digests == 0 ? "" : ", digests " + std::to_string(s.digests)) +
        (s.leaving_pages == 0 ? "" : ", leaving " + std::to_string(s.leaving_pages)) +
        (s.doomed_pages == 0 ? "" : ", doomed " + std::to_string(s.doomed_pages)));
  }
  using Counts = std::vector<std::pair<const char*, uint64_t>>;
  static std::string Nonzero(const Counts& counts) {
    std::string text;
    for (const auto& [name, count] : counts) {
      if (count != 0)
        text += (text.empty() ? "" : ", ") + std::string(name) + " " + std::to_string(count);
    }
    return Line(text.empty() ? "nothing" : text);
  }
  std::string Counters() {
    const kvc_stats s = cache_->Stats();
    return Nonzero({{"created", s.created_sequences},
                    {"forked", s.forked_sequences},
                    {"copied", s.copied_pages},
                    {"copied bytes", s.copied_bytes},
                    {"asked", s.asked_blocks},
                    {"matched", s.matched_blocks},
                    {"stored", s.stored_blocks},
                    {"deduplicated", s.deduplicated_blocks},
                    {"evicted", s.evicted_blocks},
                    {"ttl", s.evicted_ttl_blocks},
                    {"ended", s.evicted_ended_blocks},
                    {"expired", s.expired_blocks},
                    {"dropped", s.dropped_blocks},
                    {"pins", s.pins},
                    {"pinned", s.pinned_pages},
                    {"peak pinned", s.peak_pinned_pages},
                    {"reset", s.reset_blocks},
                    {"resets", s.resets},
                    {"not now", s.refused_not_now},
                    {"never fits", s.refused_never_fits},
                    {"gate", s.refused_gate},
                    {"reclaimed", s.reclaimed_pages},
                    {"cancelled", s.cancelled_sequences},
                    {"marked", s.marked_blocks},
                    {"marks committed", s.committed_marks},
                    {"marks given up", s.given_up_marks},
                    {"pending", s.pending_blocks},
                    {"unmarked", s.unmarked_blocks},
                    {"waits", s.waits},
                    {"tails", s.partial_blocks},
                    {"tails kept", s.kept_partial_blocks},
                    {"partial hits", s.partial_hits},
                    {"partial hit tokens", s.partial_hit_tokens},
                    {"waiting", s.waiting_sequences},
                    {"moved", s.moved_pages},
                    {"resizes", s.resizes},
                    {"failed resizes", s.failed_resizes},
                    {"unreturned", s.unreturned_bytes},
                    {"peak live", s.peak_live_pages}});
  }
  std::string StreamStats() {
    const kvc_stream_stats s = cache_->StreamStats();
    return Nonzero({{"stored", s.stored_blocks},
                    {"removed", s.removed_blocks},
                    {"cleared", s.cleared_blocks},
                    {"clears", s.clears},
                    {"deferred", s.deferred_blocks},
                    {"healed", s.healed_blocks},
                    {"deferred evicted", s.deferred_evicted_blocks},
                    {"pending", s.pending_blocks},
                    {"announced", s.announced_blocks},
                    {"dropped", s.dropped_events},
                    {"unannounced removals", s.unannounced_removals},
                    {"partial", s.partial_blocks_suppressed},
                    {"multimodal", s.multimodal_blocks_suppressed},
                    {"suppressed", s.suppressed_blocks},
                    {"superseded", s.superseded_records},
                    {"drained stored", s.drained_stored_blocks},
                    {"drained removed", s.drained_removed_blocks},
                    {"removed ttl", s.removed_ttl_blocks},
                    {"removed ended", s.removed_ended_blocks},
                    {"removed scope", s.removed_scope_blocks}});
  }

  std::unique_ptr<Cache> cache_;
  std::unique_ptr<WireMirror> mirror_;
  TableScript tables_;
  std::map<WireKey, std::string> names_;  // of every block that was ever stored
  std::map<std::string, uint64_t> pins_;
  std::map<uint64_t, std::string> ids_;  // of blocks that `where` has met
  std::map<std::string, Named> sequences_;
  std::map<std::string, uint64_t> holds_;
  std::vector<std::pair<std::string, uint64_t>> streams_;
};

void RunFile(const std::filesystem::path& path) {
  std::ifstream file(path);
  ASSERT_TRUE(file) << path;
  Script script;
  std::string line;
  int number = 0;
  int steps = 0;
  while (std::getline(file, line)) {
    ++number;
    if (line.empty() || line[0] == '#') continue;
    std::vector<std::pair<int, std::string>> operations;
    for (; line != "----"; ++number) {
      ASSERT_FALSE(line.empty()) << path << ":" << number << ": ---- is missing";
      operations.emplace_back(number, line);
      ASSERT_TRUE(std::getline(file, line)) << path << ":" << number << ": ---- is missing";
    }
    std::string expected;
    while (std::getline(file, line)) {
      ++number;
      if (line.empty()) break;
      expected += line + "\n";
    }
    std::string got;
    for (const auto& [at, text] : operations) {
      try {
        got += script.Run(text);
      } catch (const std::exception& e) {
        FAIL() << path << ":" << at << ": " << text << ": " << e.what();
      }
    }
    ASSERT_EQ(got, expected) << path << ":" << operations.front().first << ": "
                             << operations.front().second;
    ++steps;
  }
  EXPECT_GT(steps, 0) << path << " tests nothing";
}

TEST(Scripts, All) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/scripts")) {
    if (entry.path().extension() != ".txt") continue;
    SCOPED_TRACE(entry.path().string());
    RunFile(entry.path());
    ++files;
  }
  EXPECT_GE(files, 12) << "scripts are missing";
}

}  // namespace
