// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The device of the model: streams as queues of operations that are counted.
#ifndef KVCAST_TESTS_NATIVE_MODEL_DEVICE_H_
#define KVCAST_TESTS_NATIVE_MODEL_DEVICE_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

namespace kvcast::testing {

// A point on a device stream, in operations submitted to it.
struct ModelFence {
  uint64_t stream = 0;
  uint64_t position = 0;
};

class ModelDevice {
 public:
  void OpenStream(uint64_t id) {
    streams_[id].open = true;
    order_.push_back(id);
  }
  void OpenSteps(uint64_t id) {
    OpenStream(id);
    streams_[id].steps = true;
  }
  // The device's own, for copies; nobody else's work is on it.
  void OpenOwn(uint64_t id) {
    if (streams_.count(id) != 0) return;
    own_ = id;
    OpenStream(id);
    streams_[id].open = false;
  }
  [[nodiscard]] bool Knows(uint64_t id) const { return streams_.count(id) != 0; }
  [[nodiscard]] uint64_t own() const { return own_; }
  [[nodiscard]] bool IsSteps(uint64_t id) const { return id != 0 && streams_.at(id).steps; }
  [[nodiscard]] uint64_t Begun(uint64_t id) const { return streams_.at(id).submitted; }
  [[nodiscard]] bool Idle(uint64_t id) const {
    return streams_.at(id).submitted == streams_.at(id).executed;
  }
  void BeginStep(uint64_t id, uint64_t step) { streams_.at(id).submitted = step; }
  void EndStep(uint64_t id, uint64_t step) {
    streams_.at(id).executed = std::max(streams_.at(id).executed, step);
    PassWaits();
  }
  void EndSteps() {
    for (const uint64_t id : order_) {
      if (streams_.at(id).steps) EndStep(id, Begun(id));
    }
  }
  void CloseStream(uint64_t id) { streams_.at(id).open = false; }
  [[nodiscard]] std::vector<uint64_t> OpenStreams() const {
    std::vector<uint64_t> open = {0};
    for (const uint64_t id : order_) {
      if (streams_.at(id).open) open.push_back(id);
    }
    return open;
  }
  void Fill(uint64_t stream) {
    if (stream != 0) Submit(stream, {});  // the host's own work is done at once
  }
  void StreamWait(uint64_t stream, const std::vector<ModelFence>& fences) {
    for (const ModelFence& fence : fences) {
      if (!Reached(fence) && fence.stream != stream) Submit(stream, {true, fence});
    }
  }
  // Up to `limit` fills of a stream and what they wait for.
  uint64_t Advance(uint64_t id, uint64_t limit) {
    uint64_t ran = 0;
    for (; ran < limit; ++ran) {
      Stream* stream = &streams_.at(id);
      while (!stream->queue.empty() && stream->queue.front().wait) {
        stream = &streams_.at(stream->queue.front().fence.stream);
      }
      if (stream->queue.empty()) break;
      stream->queue.pop_front();
      ++stream->executed;
      PassWaits();
    }
    return ran;
  }
  uint64_t AdvanceAll() {
    uint64_t ran = 0;
    for (const uint64_t id : order_) ran += Advance(id, UINT64_MAX);
    return ran;
  }

 protected:
  struct Op {
    bool wait = false;
    ModelFence fence;
  };
  struct Stream {
    std::deque<Op> queue;
    uint64_t submitted = 0;
    uint64_t executed = 0;
    bool open = false;
    bool steps = false;  // operations are steps, ended by the host
  };

  [[nodiscard]] bool Reached(const ModelFence& fence) const {
    return fence.stream == 0 || streams_.at(fence.stream).executed >= fence.position;
  }
  [[nodiscard]] bool UsableBy(const std::vector<ModelFence>& fences, uint64_t stream) const {
    return std::all_of(fences.begin(), fences.end(), [&](const ModelFence& fence) {
      return Reached(fence) || (stream != 0 && fence.stream == stream);
    });
  }
  // A fence of everything submitted to the stream so far.
  [[nodiscard]] std::vector<ModelFence> Record(uint64_t stream) const {
    if (stream == 0) return {};
    return {{stream, streams_.at(stream).submitted}};
  }
  void Submit(uint64_t stream, const Op& op) {
    streams_.at(stream).queue.push_back(op);
    ++streams_.at(stream).submitted;
    PassWaits();
  }
  // A copy behind fences that have not been reached, in the order of their streams'
  // slots, which are the low bits of their ids.
  void Copy(uint64_t stream, std::vector<ModelFence> after) {
    std::sort(after.begin(), after.end(), [](const ModelFence& a, const ModelFence& b) {
      return a.stream % 64 < b.stream % 64;
    });
    for (const ModelFence& fence : after) Submit(stream, {true, fence});
    Submit(stream, {});
  }
  // Waits that have nothing to wait for take no time.
  void PassWaits() {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& [id, stream] : streams_) {
        while (!stream.queue.empty() && stream.queue.front().wait &&
               Reached(stream.queue.front().fence)) {
          stream.queue.pop_front();
          ++stream.executed;
          moved = true;
        }
      }
    }
  }

  std::map<uint64_t, Stream> streams_;
  std::vector<uint64_t> order_;  // of creation
  uint64_t own_ = 0;             // the device's own stream, once it is known
};

}  // namespace kvcast::testing

#endif  // KVCAST_TESTS_NATIVE_MODEL_DEVICE_H_
