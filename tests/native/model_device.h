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

// Two kinds of devices. On the host's every operation waits to be advanced, and work is
// queued when the call is made. A late one, a GPU, runs what is not held back by itself,
// and gets what a call of the manager has for it when the call ends (EndCall): a fence is
// never reached before. There the kernels of the engine alone wait to be advanced, if
// `gated`, and positions are counted in fences.
class ModelDevice {
 public:
  void BeLate(bool gated) {
    late_ = true;
    gated_ = gated;
  }
  [[nodiscard]] bool late() const { return late_; }
  [[nodiscard]] bool IsReached(const ModelFence& fence) const { return Reached(fence); }
  // The stream of each kernel that waits to be advanced.
  [[nodiscard]] std::vector<uint64_t> HeldFills() const {
    std::vector<uint64_t> of;
    for (const auto& [id, stream] : streams_) {
      for (const Op& op : stream.queue) {
        if (op.kind == Op::kFill) of.push_back(id);
      }
    }
    return of;
  }
  // The call of the manager is over whose operations have been made since the last time.
  void EndCall() {
    std::vector<Note> notes;
    notes.swap(notes_);
    for (const Note& note : notes) streams_.at(note.stream).queue.push_back(note.op);
    for (auto& [id, stream] : streams_) stream.record_last = false;
    PassWaits();
  }
  // Whether a stream cannot be made to wait for the fence: it stands for a step, or for
  // what waits for one.
  [[nodiscard]] bool Withheld(const ModelFence& fence) const {
    if (Reached(fence)) return false;
    if (streams_.at(fence.stream).steps) return true;
    if (!late_) return false;
    const auto before = [&](const Op& op) { return op.kind == Op::kWait && Withheld(op.fence); };
    const auto& queue = streams_.at(fence.stream).queue;
    uint64_t position = streams_.at(fence.stream).executed;
    for (const Op& op : queue) {
      if (before(op)) return true;
      if (op.kind == Op::kRecord && ++position >= fence.position) return false;
    }
    return std::any_of(notes_.begin(), notes_.end(), [&](const Note& note) {
      return note.stream == fence.stream && before(note.op);
    });
  }
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
  [[nodiscard]] bool HasWork(uint64_t id) const { return !streams_.at(id).queue.empty(); }
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
    if (stream == 0) return;  // the host's own work is done at once
    if (late_) {
      streams_.at(stream).queue.push_back({Op::kFill, {}});  // the manager is not told
      PassWaits();
    } else {
      Submit(stream, {Op::kFill, {}});
    }
  }
  void StreamWait(uint64_t stream, const std::vector<ModelFence>& fences) {
    for (const ModelFence& fence : fences) {
      if (!Reached(fence) && fence.stream != stream) Submit(stream, {Op::kWait, fence});
    }
  }
  // Up to `limit` fills of a stream and what they wait for.
  // *of gets the stream of each.
  uint64_t Advance(uint64_t id, uint64_t limit, std::vector<uint64_t>* of = nullptr) {
    uint64_t ran = 0;
    for (; ran < limit; ++ran) {
      Stream* stream = &streams_.at(id);
      uint64_t on = id;
      while (!stream->queue.empty() && stream->queue.front().kind == Op::kWait) {
        on = stream->queue.front().fence.stream;
        stream = &streams_.at(on);
      }
      if (stream->queue.empty()) break;
      stream->queue.pop_front();
      if (!late_) ++stream->executed;
      if (of != nullptr) of->push_back(on);
      PassWaits();
    }
    return ran;
  }
  uint64_t AdvanceAll(std::vector<uint64_t>* of = nullptr) {
    uint64_t ran = 0;
    for (const uint64_t id : order_) ran += Advance(id, UINT64_MAX, of);
    return ran;
  }

 protected:
  struct Op {
    enum Kind { kFill, kCopy, kWait, kRecord };
    Kind kind = kFill;
    ModelFence fence;
  };
  struct Note {
    uint64_t stream = 0;
    Op op;
  };
  struct Stream {
    std::deque<Op> queue;
    uint64_t submitted = 0;
    uint64_t executed = 0;
    bool open = false;
    bool steps = false;        // operations are steps, ended by the host
    bool record_last = false;  // nothing has been noted since, in the same call
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
  [[nodiscard]] std::vector<ModelFence> Record(uint64_t id) {
    if (id == 0) return {};
    Stream& stream = streams_.at(id);
    if (late_ && !stream.steps && !stream.record_last) {
      notes_.push_back({id, {Op::kRecord, {}}});
      ++stream.submitted;
      stream.record_last = true;
    }
    return {{id, stream.submitted}};
  }
  void Submit(uint64_t id, const Op& op) {
    Stream& stream = streams_.at(id);
    if (late_) {
      notes_.push_back({id, op});
      stream.record_last = false;
      return;
    }
    stream.queue.push_back(op);
    ++stream.submitted;
    PassWaits();
  }
  // A copy behind fences that have not been reached, in the order of their streams'
  // slots, which are the low bits of their ids.
  void Copy(uint64_t stream, std::vector<ModelFence> after) {
    std::sort(after.begin(), after.end(), [](const ModelFence& a, const ModelFence& b) {
      return a.stream % 64 < b.stream % 64;
    });
    for (const ModelFence& fence : after) Submit(stream, {Op::kWait, fence});
    Submit(stream, {Op::kCopy, {}});
  }
  // Waits that have nothing to wait for take no time, nor does what runs by itself.
  void PassWaits() {
    for (bool moved = true; moved;) {
      moved = false;
      for (auto& [id, stream] : streams_) {
        while (!stream.queue.empty() && Passes(stream.queue.front())) {
          const bool counts = !late_ || stream.queue.front().kind == Op::kRecord;
          stream.queue.pop_front();
          stream.executed += counts ? 1 : 0;
          moved = true;
        }
      }
    }
  }
  [[nodiscard]] bool Passes(const Op& op) const {
    if (op.kind == Op::kWait) return Reached(op.fence);
    return late_ && (op.kind != Op::kFill || !gated_);
  }

  std::map<uint64_t, Stream> streams_;
  std::vector<uint64_t> order_;  // of creation
  uint64_t own_ = 0;             // the device's own stream, once it is known
  bool late_ = false;
  bool gated_ = false;
  std::vector<Note> notes_;  // of a late device, until the call ends
};

}  // namespace kvcast::testing

#endif  // KVCAST_TESTS_NATIVE_MODEL_DEVICE_H_
