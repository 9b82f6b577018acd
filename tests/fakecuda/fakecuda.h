// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// fakecuda: a test double of the CUDA driver, built as libcuda.so.1. What it runs,
// it runs on the CPU, late and in random legal order; no figure that is measured
// on it says anything about a GPU. These are the calls by which tests turn it;
// the driver's own entries are found as in a real libcuda.
//
// Programs that do not link it set the environment variable KVC_FAKECUDA to
// "name=value,..." with the names of fakecuda_options, or "refuse" and the name of a call
// that always answers 801, or "lacks" and the name of an entry that is not there, and
// KVC_FAKECUDA_LOG to a file that gets one line for each driver call: its name and, where the
// thread has a context current, the number of that one's device.
#ifndef KVCAST_TESTS_FAKECUDA_FAKECUDA_H_
#define KVCAST_TESTS_FAKECUDA_FAKECUDA_H_

#include <cstddef>
#include <cstdint>

struct fakecuda_options {
  // The first is called "fake CUDA device", others have their number behind it. Each has a
  // multiprocessor more than the one before; the first has 2.
  int devices = 1;
  int counted = -1;  // what cuDeviceGetCount tells instead, unless negative
  int driver_version = 13000;
  int init_result = 0;        // what cuInit answers, for the life of the process
  int stub = 0;               // 1 = every call answers 34, as the toolkit's stub does;
                              // 2 = all but those that look up entries
  int virtual_memory = 1;     // 0 = the device has no virtual memory management
  int refuse_fat_binary = 0;  // 1 = a fat binary holds nothing for the device (209)
  int host_page_tables = 0;   // 1 = a coherent link between host and device
  int unified_addressing = 1;
  int capability = 90;      // 10 x major + minor
  int multiprocessors = 2;  // of the first device; each further one has one more
  uint64_t memory_bytes = uint64_t{256} << 20;
  uint64_t granularity = uint64_t{2} << 20;
  uint64_t reserved_bytes = 0;  // of the memory, taken by others
  unsigned queue_depth = 1024;  // operations a stream holds before a call blocks
  unsigned max_delay_us = 20;   // an operation starts up to so much late
  uint64_t seed = 1;
};

struct fakecuda_live {
  uint64_t contexts;  // retained primary ones and created ones
  uint64_t streams;
  uint64_t events;
  uint64_t modules;
  uint64_t allocations;  // plain device memory
  uint64_t ranges;       // reserved
  uint64_t chunks;       // created or mapped
  uint64_t pinned;       // allocated or registered host memory
};

// What has run on a stream between two events.
struct fakecuda_work {
  uint64_t kernels;     // launches
  uint64_t copies;      // of the copy engine, those of a batch one by one
  uint64_t bytes;       // that copies, and kernels that copy, have written
  uint64_t host_bytes;  // of those, read from host memory that is pinned
};

#pragma GCC visibility push(default)
extern "C" {
// Waits for all work, then forgets contexts, memory, streams, log and injections.
void fakecuda_reset(const fakecuda_options* options);
// The nth (1 = next) coming driver call with that name (null = any) answers `code`
// and does nothing. nth 0 takes the injection back.
void fakecuda_inject(const char* call, uint64_t nth, int code);
// The same for the nth and all after it, `times` of them.
void fakecuda_inject_many(const char* call, uint64_t nth, uint64_t times, int code);
// The same, and from then on all contexts are broken: the device is lost.
void fakecuda_inject_loss(uint64_t nth, int code);
// 1 if the injection has struck.
int fakecuda_injected();
// The call that it has struck, or "".
const char* fakecuda_injected_call();
// The nth coming call with that name waits before it does anything, until it is let go.
void fakecuda_stall(const char* call, uint64_t nth);
// 1 while it waits.
int fakecuda_stalled();
void fakecuda_let_go();
// From now on the calls of all threads but the calling one wait before they do anything,
// until they are let through, all but those that put a context away; 0: no longer.
void fakecuda_hold_others(int held);
// Returns when one of them waits; 0 if none does within a minute.
int fakecuda_await_others();
// Lets so many of the held calls through, then holds again. Returns when each thread that has
// a context current, or that waits, waits once more, or has put its context away; 0 if that
// takes more than a minute.
int fakecuda_let_others(uint64_t calls);
// Driver calls with that name (null = any) since the last reset or clear.
uint64_t fakecuda_calls(const char* call);
void fakecuda_clear_log();
// While held, no queued operation starts. A synchronising call then waits for ever.
void fakecuda_hold(int held);
// Queues an operation behind which the stream's later ones stay until a gate is opened.
void fakecuda_gate(void* stream);
// Opens the oldest closed gate of the stream.
void fakecuda_open_gate(void* stream);
// Waits until everything has run that can: what is left waits for gates.
void fakecuda_settle();
// Operations that have run since the last reset.
uint64_t fakecuda_executed();
// From now on cuEventElapsedTime answers what `milliseconds` says of the work between its events,
// until the next reset or, with null, again the time that has passed. It must not call the driver.
void fakecuda_script_elapsed(float (*milliseconds)(const fakecuda_work* work, void* user),
                             void* user);
// Calls that had to wait because a stream's queue was full.
uint64_t fakecuda_blocked();
// Misuse that a real driver would punish at random: count, and the first one in words.
uint64_t fakecuda_violations();
const char* fakecuda_first_violation();
// Forgets them: for tests that misuse it on purpose.
void fakecuda_forgive();
fakecuda_live fakecuda_live_objects();
// Contexts of the calling program, not primary ones.
void* fakecuda_context_create(int device);
void fakecuda_context_destroy(void* context);
void fakecuda_context_push(void* context);
void* fakecuda_context_pop();
void* fakecuda_context_current();
int fakecuda_context_depth();
// A stream in that context, blocking ones obey the NULL stream.
void* fakecuda_stream_create(void* context, int blocking);
// As cuStreamDestroy, at once: what is queued there still runs, behind its gates, and the
// handle is none from now on but for fakecuda_open_gate.
void fakecuda_stream_destroy(void* stream);
// As cuStreamBeginCapture in its relaxed mode, and cuStreamEndCapture.
void fakecuda_stream_capture(void* stream, int capturing);
// As cuStreamBeginCapture on the calling thread: 0 global, 1 thread-local, 2 relaxed.
// While it lasts, what is queued on the stream goes into a graph and does not run,
// and so on streams that come to wait for it. In the first two modes calls that could
// wait are refused (900) and spoil the capture, on any thread or on this one, unless the
// thread has made itself relaxed.
void fakecuda_capture_begin(void* stream, int mode);
// The operations that the graph has got, or -1 when the capture has been spoilt.
int64_t fakecuda_capture_end(void* stream);
// Breaks the context of a device: every later call answers `code`.
void fakecuda_break(int device, int code);
}
#pragma GCC visibility pop

#endif  // KVCAST_TESTS_FAKECUDA_FAKECUDA_H_
