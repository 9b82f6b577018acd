// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// A process that opens whatever driver its library path has, once per word of its
// command line, and says what came of it: a driver can be opened only once in a
// process, so tests need many.
//   translated from now on the loader speaks another language
//   forbid from now on no file can be opened
//   open   opens
//   abi    opens by each call of the C ABI that does
//   fork   a child opens and uses the parent's table
//   opening a child opens that was forked while another thread of the parent is in cuInit
//   host   a manager on the host device is made and used
//   forked a manager on a GPU is made, and a child that has inherited it uses and ends it
//   forked_elastic the same with an elastic pool

#include <dlfcn.h>
#include <libintl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "cuda/src/context.h"
#include "cuda/src/driver_api.h"
#include "kvcast/kvcast.h"

namespace {

using kvcast::cuda::DriverError;

// As where the library's file may not be read.
int Forbid() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof filter / sizeof filter[0], filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
                 prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0
             ? 0
             : 1;
}

// A catalogue of translations in gettext's format: sizes and places of the words, sorted, then
// of what they become, then all of them.
std::string Catalogue() {
  const std::pair<std::string, std::string> kWords[] = {
      {"No such file or directory", "Datei fehlt"},
      {"Permission denied", "Keine Erlaubnis"},
      {"cannot open shared object file", "kann die Bibliothek nicht lesen"},
  };
  constexpr uint32_t kCount = 3;
  constexpr uint32_t kHead = 7;
  std::string text;
  uint32_t numbers[kHead + 4 * kCount] = {
      0x950412de, 0, kCount, 4 * kHead, 4 * (kHead + 2 * kCount), 0, 0};
  for (uint32_t i = 0; i < 2 * kCount; ++i) {
    const auto& word = kWords[i % kCount];
    const std::string& one = i < kCount ? word.first : word.second;
    numbers[kHead + 2 * i] = static_cast<uint32_t>(one.size());
    numbers[kHead + 2 * i + 1] = static_cast<uint32_t>(sizeof numbers + text.size());
    text += one + '\0';
  }
  return std::string(reinterpret_cast<const char*>(numbers), sizeof numbers) + text;
}

// 0 when the loader is found to speak it.
int Translated() {
  char folder[] = "/tmp/kvc_probe_XXXXXX";
  if (mkdtemp(folder) == nullptr) return 1;
  const std::string top = folder;
  const std::string language = top + "/xx";
  const std::string messages = language + "/LC_MESSAGES";
  const std::string file = messages + "/libc.mo";
  mkdir(language.c_str(), 0700);
  mkdir(messages.c_str(), 0700);
  std::ofstream(file, std::ios::binary) << Catalogue();
  setenv("LANGUAGE", "xx", 1);
  bindtextdomain("libc", folder);
  int failed = std::setlocale(LC_ALL, "C.UTF-8") == nullptr ? 1 : 0;
  if (dlopen("/nonexistent/libcuda.so.1", RTLD_NOW) != nullptr) failed = 1;
  if (std::strstr(dlerror(), "Datei fehlt") == nullptr) failed = 1;
  if (failed != 0) std::printf("the loader is not translated\n");
  unlink(file.c_str());
  for (const std::string& gone : {messages, language, top}) rmdir(gone.c_str());
  return failed;
}

int Open() {
  try {
    const auto& api = kvcast::cuda::OpenDriver();
    const kvcast::cuda::DeviceContext context(api, 0);
    kvc_cuda_device device{};
    kvc_error error{};
    if (kvc_cuda_device_get(0, &device, &error) != KVC_OK) std::printf("%s\n", error.message);
    std::printf("opened version=%u devices=%d batch=%u\n", device.driver_version, api.devices,
                device.batch_copies);
  } catch (const DriverError& error) {
    std::printf("fault=%d status=%d code=%d %s\n", static_cast<int>(error.fault()), error.status(),
                error.system_code(), error.what());
  } catch (const kvcast::Error& error) {
    std::printf("error status=%d code=%d %s\n", error.status(), error.system_code(), error.what());
  }
  std::fflush(stdout);
  return 0;
}

void PrintAbi(const char* call, kvc_status status, const kvc_error& error) {
  std::printf("%s status=%d told=%d code=%d cause=%u %s\n", call, status, error.status,
              error.system_code, error.cause, error.message);
  std::fflush(stdout);
}

int Abi() {
  // What was there before is no answer.
  kvc_error error{KVC_INTERNAL, 77, 77, "old"};
  kvc_config config;
  kvc_config_init(&config);
  config.device = KVC_DEVICE_CUDA;
  config.capacity_blocks = 4;
  kvc_manager* manager = nullptr;
  kvc_cuda_device device{};
  uint64_t pages = 0;
  kvc_status status = kvc_manager_create(&config, nullptr, &manager, &error);
  PrintAbi("create", status, error);
  status = kvc_cuda_open(nullptr, &error);
  PrintAbi("open", status, error);
  status = kvc_cuda_device_get(0, &device, &error);
  PrintAbi("device_get", status, error);
  status = kvc_cuda_budget(0, 4096, 4096, 0, &pages, &error);
  PrintAbi("budget", status, error);
  status = kvc_manager_create(&config, nullptr, &manager, &error);
  PrintAbi("create", status, error);
  if (manager != nullptr) kvc_manager_destroy(manager, nullptr);
  return 0;
}

int Fork() {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // one that hangs is a failure, not the end of the tests
    Open();
    _exit(0);
  }
  int status = 0;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}

int Opening() {
  void* const fake = dlopen("libcuda.so.1", RTLD_NOW);
  if (fake == nullptr) return 1;
  const auto stall =
      reinterpret_cast<void (*)(const char*, uint64_t)>(dlsym(fake, "fakecuda_stall"));
  const auto stalled = reinterpret_cast<int (*)()>(dlsym(fake, "fakecuda_stalled"));
  const auto let_go = reinterpret_cast<void (*)()>(dlsym(fake, "fakecuda_let_go"));
  if (stall == nullptr || stalled == nullptr || let_go == nullptr) return 1;
  stall("cuInit", 1);
  std::thread other(Open);
  while (stalled() == 0) std::this_thread::yield();
  const int failed = Fork();
  let_go();
  other.join();
  return failed;
}

int Host() {
  kvc_config config;
  kvc_config_init(&config);
  config.capacity_blocks = 16;
  kvc_manager* manager = nullptr;
  if (kvc_manager_create(&config, nullptr, &manager, nullptr) != KVC_OK) return 1;
  return kvc_manager_destroy(manager, nullptr) == KVC_OK ? 0 : 1;
}

// What a child does with a manager that it has inherited, and its handles. Nothing reaches the
// driver, and what only gives back works.
struct Inherited {
  kvc_manager* manager = nullptr;
  uint64_t stream = 0;
  uint64_t table = 0;
  uint64_t (*driver_calls)(const char*) = nullptr;
};

int InChild(const Inherited& of) {
  kvc_error error{};
  uint64_t stream = 0;
  uint64_t pages = 0;
  void* handle = nullptr;
  kvc_cuda_device device{};
  kvc_resize_result resized{};
  kvc_stats stats;
  kvc_stats_init(&stats);
  const uint64_t calls = of.driver_calls(nullptr);
  const auto forked = [&](kvc_status status) {
    return status == KVC_NO_DEVICE && error.cause == KVC_CAUSE_FORKED &&
           std::strstr(error.message, "forked") != nullptr;
  };
  if (!forked(kvc_device_stream_create(of.manager, &stream, &error))) return 2;
  if (!forked(kvc_cuda_open(nullptr, &error))) return 3;
  if (!forked(kvc_cuda_device_get(0, &device, &error))) return 4;
  if (!forked(kvc_cuda_budget(0, 4096, 4096, 0, &pages, &error))) return 5;
  if (!forked(kvc_cuda_stream_adopt(of.manager, nullptr, &stream, &error))) return 6;
  (void)kvc_cuda_stream_get(of.manager, of.stream, &handle, &error);
  (void)kvc_device_fences_query(of.manager, 0, nullptr, nullptr, &error);
  (void)kvc_pool_resize(of.manager, 16, 0, nullptr, 0, nullptr, 0, &resized, &error);
  if (kvc_manager_stats_get(of.manager, &stats, &error) != KVC_OK) return 7;
  if (kvc_manager_check(of.manager, &error) != KVC_OK) return 8;
  (void)kvc_device_table_destroy(of.manager, of.table, &error);
  (void)kvc_device_stream_destroy(of.manager, of.stream, &error);
  if (kvc_manager_destroy(of.manager, &error) != KVC_OK) return 9;
  return of.driver_calls(nullptr) == calls ? 0 : 10;
}

// With a pool of a fixed size, and with one that a thread grows, which rests meanwhile.
int Forked(bool elastic) {
  kvc_error error{};
  kvc_config config;
  kvc_config_init(&config);
  config.device = KVC_DEVICE_CUDA;
  config.capacity_blocks = 16;
  config.page_bytes = 4096;
  config.copies = KVC_COPY_PUBLISHED;
  if (elastic) config.max_blocks = 64;
  Inherited of;
  uint64_t address = 0;
  void* const fake = dlopen("libcuda.so.1", RTLD_NOW);
  if (fake == nullptr) return 1;
  of.driver_calls = reinterpret_cast<uint64_t (*)(const char*)>(dlsym(fake, "fakecuda_calls"));
  if (of.driver_calls == nullptr || kvc_cuda_open(nullptr, &error) != KVC_OK ||
      kvc_manager_create(&config, nullptr, &of.manager, &error) != KVC_OK ||
      kvc_device_stream_create(of.manager, &of.stream, &error) != KVC_OK ||
      kvc_device_table_create(of.manager, 2, 4, -1, 64, &of.table, &address, &error) != KVC_OK) {
    std::printf("%s\n", error.message);
    return 1;
  }
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(InChild(of));
  }
  int status = 0;
  const bool ended = child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status);
  std::printf("child %d\n", ended ? WEXITSTATUS(status) : -1);
  // The parent's is as it was.
  uint64_t stream = 0;
  if (kvc_device_stream_create(of.manager, &stream, &error) != KVC_OK) return 1;
  return kvc_manager_destroy(of.manager, &error) == KVC_OK ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    int failed = 1;
    if (std::strcmp(argv[i], "translated") == 0) failed = Translated();
    if (std::strcmp(argv[i], "forbid") == 0) failed = Forbid();
    if (std::strcmp(argv[i], "open") == 0) failed = Open();
    if (std::strcmp(argv[i], "abi") == 0) failed = Abi();
    if (std::strcmp(argv[i], "fork") == 0) failed = Fork();
    if (std::strcmp(argv[i], "opening") == 0) failed = Opening();
    if (std::strcmp(argv[i], "host") == 0) failed = Host();
    if (std::strcmp(argv[i], "forked") == 0) failed = Forked(false);
    if (std::strcmp(argv[i], "forked_elastic") == 0) failed = Forked(true);
    if (failed != 0) return 1;
  }
  return 0;
}
