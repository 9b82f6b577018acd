// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A shared mutex in which waiting writers bar new readers.
#ifndef KVCAST_NATIVE_SRC_WRITER_FIRST_MUTEX_H_
#define KVCAST_NATIVE_SRC_WRITER_FIRST_MUTEX_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace kvcast {

// The writer is the scheduler, readers are probes, and a reader pays for
// everything. std::shared_mutex lets two threads that read without pause starve
// a writer (measured: writer wait p50 85 ms), and so does any gate that is an
// ordinary mutex, because readers overtake whoever sleeps on it. Here a reader
// does not touch the lock's word while a writer waits: it looks at the count of
// waiting writers, steps back, and looks again later; so a writer that lets go
// never has to wake readers. A reader that was inside when the writer came may
// still leave; each can be overtaken by that one writer only.
//
// Readers that stay long ask writer_waiting() and step out when it is true.
// Meets the standard's Lockable and SharedLockable requirements, so that
// std::unique_lock and std::shared_lock work on it.
class WriterFirstMutex {
 public:
  WriterFirstMutex() = default;
  WriterFirstMutex(const WriterFirstMutex&) = delete;
  WriterFirstMutex& operator=(const WriterFirstMutex&) = delete;

  void lock() {
    if (try_lock()) return;
    waiting_.fetch_add(1);
    // A short look first: what runs inside is short. Then sleep, because a
    // reader that has been preempted inside needs a processor to get out.
    bool mine = false;
    for (int i = 0; i < kWriterSpins && !mine; ++i) {
      Pause();
      mine = try_lock();
    }
    if (!mine) {
      std::unique_lock<std::mutex> sleeping(sleep_mutex_);
      sleepers_.fetch_add(1);
      while (!try_lock()) left_.wait(sleeping);
      sleepers_.fetch_sub(1);
    }
    waiting_.fetch_sub(1);
  }
  bool try_lock() {
    uint32_t nobody = 0;
    return state_.compare_exchange_strong(nobody, kWriter);
  }
  void unlock() {
    state_.store(0);
    WakeWriter();
  }

  void lock_shared() {
    for (uint32_t tries = 0; !try_lock_shared(); ++tries) {
      if (tries < kReaderSpins) {
        Pause();
      } else if (tries < 2 * kReaderSpins) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    }
  }
  bool try_lock_shared() {
    if (writer_waiting()) return false;
    uint32_t state = state_.load(std::memory_order_relaxed);
    while ((state & kWriter) == 0) {
      if (state_.compare_exchange_weak(state, state + 1)) return true;
      if (writer_waiting()) return false;
    }
    return false;
  }
  void unlock_shared() {
    if (state_.fetch_sub(1) == 1) WakeWriter();
  }

  [[nodiscard]] bool writer_waiting() const {
    return waiting_.load(std::memory_order_relaxed) != 0;
  }

 private:
  static constexpr uint32_t kWriter = 1u << 31;
  static constexpr int kWriterSpins = 64;
  static constexpr uint32_t kReaderSpins = 64;

  static void Pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
  }
  // The state was changed before; a sleeper registers before it tries. Both in
  // the one order of sequentially consistent operations: one sees the other.
  void WakeWriter() {
    if (sleepers_.load() == 0) return;
    { const std::lock_guard<std::mutex> asleep(sleep_mutex_); }
    left_.notify_one();
  }

  std::atomic<uint32_t> state_{0};    // readers inside, or kWriter
  std::atomic<uint32_t> waiting_{0};  // writers that want in
  std::atomic<uint32_t> sleepers_{0};
  std::mutex sleep_mutex_;
  std::condition_variable left_;
};

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_WRITER_FIRST_MUTEX_H_
