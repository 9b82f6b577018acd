// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Finding the driver: each case is a process of its own with another libcuda on
// its library path. What would go wrong on a user's machine is told apart, and
// each story names a cure.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "cuda/src/driver_api.h"

// The build names them; without it the file is only looked at.
#if !defined(KVC_DRIVER_PROBE)
#define KVC_DRIVER_PROBE ""
#define KVC_FAKECUDA_DIR ""
#endif

namespace kvcast::cuda {
namespace {

struct Outcome {
  int status = -1;
  std::string text;
};

Outcome Probe(const std::string& folder, const std::string& options, const std::string& words,
              const std::string& log = "") {
  const std::string path =
      folder.empty() ? "/nonexistent" : std::string(KVC_FAKECUDA_DIR) + "/" + folder;
  const std::string command = "env LD_LIBRARY_PATH='" + path + "' KVC_FAKECUDA='" + options +
                              "' KVC_FAKECUDA_LOG='" + log + "' '" KVC_DRIVER_PROBE "' " + words +
                              " 2>&1";
  Outcome outcome;
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[512];
  while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) outcome.text += buffer;
  outcome.status = pclose(pipe);
  return outcome;
}

void ExpectFault(const Outcome& outcome, Fault fault, int code, const char* cure) {
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  const std::string head = "fault=" + std::to_string(static_cast<int>(fault)) +
                           " status=" + std::to_string(KVC_NO_DEVICE) +
                           " code=" + std::to_string(code);
  EXPECT_EQ(outcome.text.rfind(head, 0), 0u) << outcome.text;
  EXPECT_NE(outcome.text.find(cure), std::string::npos) << outcome.text;
}

// A machine with a real driver in its default folders has no absent one.
bool RealDriver() {
  return Probe("", "", "open").text.find("libcuda.so.1 was not found") == std::string::npos;
}

TEST(Driver, Opens) {
  EXPECT_EQ(Probe("current", "devices=2", "open").text, "opened version=13000 devices=2 batch=1\n");
}

TEST(Driver, OpensUnderItsSecondName) {
  if (RealDriver()) GTEST_SKIP() << "this machine has an NVIDIA driver under the first name";
  EXPECT_EQ(Probe("unversioned", "", "open").text, "opened version=13000 devices=1 batch=1\n");
}

// A toolkit's stub may have the second name where the driver has the first.
TEST(Driver, OpensTheFirstNameThoughThereIsTheSecond) {
  EXPECT_EQ(Probe("both", "", "open").text, "opened version=13000 devices=1 batch=1\n");
}

TEST(Driver, EntriesAreAskedForAtTheVersionOfOurPrototypes) {
  // 13.0 has a cuMemcpyBatchAsync with other parameters, 12.7 has none.
  EXPECT_EQ(Probe("current", "driver_version=12080", "open").text,
            "opened version=12080 devices=1 batch=1\n");
  EXPECT_EQ(Probe("current", "driver_version=12070", "open").text,
            "opened version=12070 devices=1 batch=0\n");
}

TEST(Driver, OfCuda11HasTheFirstFormOfTheLookup) {
  EXPECT_EQ(Probe("before_12", "driver_version=11080", "open").text,
            "opened version=11080 devices=1 batch=0\n");
}

// And one of 12.0 and later the second one, which tells why it finds nothing.
TEST(Driver, OfCuda12IsAskedByTheSecondFormOfTheLookup) {
  EXPECT_EQ(Probe("current", "refuse=cuGetProcAddress", "open").text,
            "opened version=13000 devices=1 batch=1\n");
  ExpectFault(Probe("current", "refuse=cuGetProcAddress_v2", "open"), Fault::kBroken, 0,
              "reinstall the driver");
  ExpectFault(Probe("before_12", "driver_version=11080,refuse=cuGetProcAddress", "open"),
              Fault::kBroken, 0, "reinstall the driver");
}

TEST(Driver, LackingAnEntryThatIsNeeded) {
  ExpectFault(Probe("current", "lacks=cuEventQuery", "open"), Fault::kBroken, 0,
              "the NVIDIA driver lacks cuEventQuery; reinstall the driver");
  EXPECT_EQ(Probe("current", "lacks=cuMemcpyBatchAsync", "open").text,
            "opened version=13000 devices=1 batch=0\n");
  // What is too old is told as that, whatever it lacks.
  ExpectFault(Probe("current", "lacks=cuEventQuery,driver_version=11040", "open"), Fault::kTooOld,
              0, "update the driver");
}

TEST(Driver, NotTellingItsVersion) {
  ExpectFault(Probe("current", "refuse=cuDriverGetVersion", "open"), Fault::kBroken, 0,
              "does not tell its version; reinstall the driver");
  ExpectFault(Probe("current", "lacks=cuDriverGetVersion", "open"), Fault::kBroken, 0,
              "does not tell its version; reinstall the driver");
}

TEST(Driver, CountingNoDevicesAfterAGoodInitialisation) {
  ExpectFault(Probe("current", "counted=0", "open"), Fault::kNoDevice, 100, "CUDA_VISIBLE_DEVICES");
  ExpectFault(Probe("current", "refuse=cuDeviceGetCount", "open"), Fault::kInitFailed, 801,
              "cuDeviceGetCount: CUDA error (801)");
}

TEST(Driver, Absent) {
  if (RealDriver()) GTEST_SKIP() << "this machine has an NVIDIA driver";
  ExpectFault(Probe("", "", "open"), Fault::kAbsent, 0, "install the driver");
}

TEST(Driver, NoLibraryUnderItsName) {
  if (RealDriver()) GTEST_SKIP() << "the loader passes over what is broken and finds the driver";
  ExpectFault(Probe("broken", "", "open"), Fault::kBroken, 0, "reinstall the driver");
}

TEST(Driver, NoLibraryUnderItsSecondName) {
  if (RealDriver()) GTEST_SKIP() << "this machine has an NVIDIA driver under the first name";
  ExpectFault(Probe("broken_unversioned", "", "open"), Fault::kBroken, 0, "reinstall the driver");
}

TEST(Driver, ForeignLibraryUnderItsName) {
  ExpectFault(Probe("foreign", "", "open"), Fault::kBroken, 0, "reinstall the driver");
}

// In a process that may open no file.
TEST(Driver, Forbidden) {
  ExpectFault(Probe("current", "", "forbid open"), Fault::kForbidden, 0,
              "Permission denied): let this user read the library");
}

// Told apart by what the loader says, in whatever language the process has it say that.
TEST(Driver, ToldApartInAnyLanguage) {
  ExpectFault(Probe("current", "", "translated forbid open"), Fault::kForbidden, 0,
              "Permission denied): let this user read the library");
  EXPECT_EQ(Probe("current", "", "translated open").text,
            "opened version=13000 devices=1 batch=1\n");
  if (RealDriver()) GTEST_SKIP() << "this machine has an NVIDIA driver";
  ExpectFault(Probe("", "", "translated open"), Fault::kAbsent, 0, "install the driver");
  ExpectFault(Probe("broken", "", "translated open"), Fault::kBroken, 0, "reinstall the driver");
}

TEST(Driver, TooOld) {
  ExpectFault(Probe("ancient", "driver_version=11020", "open"), Fault::kTooOld, 0,
              "update the driver");
  ExpectFault(Probe("before_12", "driver_version=11040", "open"), Fault::kTooOld, 0,
              "it supports CUDA 11.4, kvcast needs 11.8; update the driver");
}

TEST(Driver, Stub) {
  ExpectFault(Probe("current", "stub=1", "open"), Fault::kStub, 34, "library path");
  ExpectFault(Probe("before_12", "stub=1", "open"), Fault::kStub, 34, "library path");
  ExpectFault(Probe("current", "stub=2", "open"), Fault::kStub, 34, "library path");
  ExpectFault(Probe("current", "init_result=34", "open"), Fault::kStub, 34, "library path");
}

TEST(Driver, FailedInitialisation) {
  const struct {
    int code;
    Fault fault;
    const char* cure;
  } kCases[] = {
      {100, Fault::kNoDevice, "CUDA_VISIBLE_DEVICES"},
      {101, Fault::kNoDevice, "CUDA_VISIBLE_DEVICES"},
      {304, Fault::kForbidden, "/dev/nvidia"},
      {800, Fault::kForbidden, "/dev/nvidia"},
      {802, Fault::kNotReady, "nvidia-fabricmanager"},
      {803, Fault::kMismatch, "reboot"},
      {804, Fault::kIncompatible, "cuda-compat"},
      {805, Fault::kMps, "nvidia-cuda-mps-control"},
      {806, Fault::kMps, "nvidia-cuda-mps-control"},
      {807, Fault::kMps, "try again later"},
      {808, Fault::kMps, "end others"},
      {809, Fault::kMps, "end others"},
      {810, Fault::kInitFailed, "start it anew"},
      {999, Fault::kInitFailed, "nvidia-modprobe"},
      {2, Fault::kInitFailed, "start it anew"},
  };
  for (const auto& c : kCases) {
    const Outcome outcome = Probe("current", "init_result=" + std::to_string(c.code), "open open");
    ExpectFault(outcome, c.fault, c.code, c.cure);
    // It sticks: the second try says the same, and each says that it may.
    const size_t half = outcome.text.size() / 2;
    EXPECT_EQ(outcome.text.substr(0, half), outcome.text.substr(half)) << c.code;
    EXPECT_NE(outcome.text.find("can stick to the process"), std::string::npos) << outcome.text;
  }
  ExpectFault(Probe("current", "devices=0", "open"), Fault::kNoDevice, 100, "CUDA_VISIBLE_DEVICES");
}

// By numbers, in the order of the calls: a manager before anything has been opened, the three
// calls that open, and a manager again, whose device is still not known.
void ExpectCause(const Outcome& outcome, kvc_cause cause, int code) {
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  std::istringstream lines(outcome.text);
  std::string line;
  for (const char* call : {"create", "open", "device_get", "budget", "create"}) {
    ASSERT_TRUE(std::getline(lines, line)) << outcome.text;
    const bool opens = std::strcmp(call, "create") != 0;
    const std::string head =
        call + std::string(" status=12 told=12 code=") + std::to_string(opens ? code : 0) +
        " cause=" + std::to_string(opens ? cause : kvc_cause{KVC_CAUSE_NOT_OPENED}) + " ";
    EXPECT_EQ(line.rfind(head, 0), 0u) << "want " << head << "\ngot  " << line;
  }
}

TEST(Driver, TheAbiTellsCausesApart) {
  ExpectCause(Probe("foreign", "", "abi"), KVC_CAUSE_BROKEN, 0);
  ExpectCause(Probe("ancient", "driver_version=11020", "abi"), KVC_CAUSE_TOO_OLD, 0);
  ExpectCause(Probe("current", "stub=1", "abi"), KVC_CAUSE_STUB, 34);
  ExpectCause(Probe("current", "", "forbid abi"), KVC_CAUSE_FORBIDDEN, 0);
  const struct {
    int code;
    kvc_cause cause;
  } kCases[] = {
      {2, KVC_CAUSE_INIT_FAILED},   {34, KVC_CAUSE_STUB},          {100, KVC_CAUSE_NO_GPU},
      {304, KVC_CAUSE_FORBIDDEN},   {800, KVC_CAUSE_FORBIDDEN},    {802, KVC_CAUSE_NOT_READY},
      {803, KVC_CAUSE_MISMATCH},    {804, KVC_CAUSE_INCOMPATIBLE}, {805, KVC_CAUSE_MPS},
      {999, KVC_CAUSE_INIT_FAILED},
  };
  for (const auto& c : kCases) {
    ExpectCause(Probe("current", "init_result=" + std::to_string(c.code), "abi"), c.cause, c.code);
  }
  EXPECT_EQ(Probe("current", "", "abi").text,
            "create status=12 told=12 code=0 cause=1 the CUDA device has not been opened; call "
            "kvc_cuda_open first\n"
            "open status=0 told=0 code=0 cause=0 \n"
            "device_get status=0 told=0 code=0 cause=0 \n"
            "budget status=0 told=0 code=0 cause=0 \n"
            "create status=0 told=0 code=0 cause=0 \n");
  if (RealDriver()) GTEST_SKIP() << "this machine has an NVIDIA driver";
  ExpectCause(Probe("", "", "abi"), KVC_CAUSE_ABSENT, 0);
}

TEST(Driver, IsNotUsedAfterFork) {
  const Outcome outcome = Probe("current", "", "open fork");
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  const size_t second = outcome.text.find('\n') + 1;
  EXPECT_EQ(outcome.text.substr(0, second), "opened version=13000 devices=1 batch=1\n");
  EXPECT_EQ(outcome.text.substr(second).rfind(
                "fault=" + std::to_string(static_cast<int>(Fault::kForked)), 0),
            0u)
      << outcome.text;
}

TEST(Driver, AChildIsToldSoThoughAnotherThreadWasOpening) {
  const Outcome outcome = Probe("current", "", "opening");
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  EXPECT_EQ(outcome.text.rfind("fault=" + std::to_string(static_cast<int>(Fault::kForked)), 0), 0u)
      << outcome.text;
  const std::string parent = "opened version=13000 devices=1 batch=1\n";
  EXPECT_EQ(outcome.text.substr(outcome.text.find('\n') + 1), parent);
}

// Where there is no driver a child may look again.
TEST(Driver, AnAttemptThatFoundNoDriverIsNoReasonInAChild) {
  const Outcome outcome = Probe("ancient", "driver_version=11020", "open fork");
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  const size_t half = outcome.text.size() / 2;
  EXPECT_EQ(outcome.text.substr(0, half), outcome.text.substr(half));
}

TEST(Driver, ForkedBeforeItWasOpenedIsOurs) {
  EXPECT_EQ(Probe("current", "", "fork open").text,
            "opened version=13000 devices=1 batch=1\nopened version=13000 devices=1 batch=1\n");
}

TEST(Driver, AManagerThatAChildInheritsCanOnlyBeEndedThere) {
  for (const char* pool : {"forked", "forked_elastic"}) {
    const Outcome outcome = Probe("current", "", pool);
    EXPECT_EQ(outcome.status, 0) << pool << ": " << outcome.text;
    EXPECT_EQ(outcome.text, "child 0\n") << pool;
  }
}

TEST(Driver, IsNotCalledBeforeItIsOpened) {
  const std::string log = ::testing::TempDir() + "kvc_driver_log_" + std::to_string(getpid());
  std::remove(log.c_str());
  EXPECT_EQ(Probe("current", "", "host", log).status, 0);
  EXPECT_FALSE(std::ifstream(log).good()) << "the driver was loaded for a host manager";
  EXPECT_EQ(Probe("current", "", "host open", log).status, 0);
  std::stringstream calls;
  calls << std::ifstream(log).rdbuf();
  // Its version first, which needs no cuInit: an old one is then told as such.
  EXPECT_EQ(calls.str().rfind("cuDriverGetVersion\ncuInit\n", 0), 0u) << calls.str();
  std::remove(log.c_str());
}

// As cuda.h says of each: those after which the context, or the process, has to be made anew,
// and those without a device to work on. All others are of one call.
TEST(Driver, ErrorsThatLastAreToldFromThoseOfOneCall) {
  const std::map<Result, const char*> lasting = {
      {3, "not initialised"},
      {4, "deinitialised"},
      {34, "stub library"},
      {46, "device unavailable"},
      {100, "no device"},
      {101, "invalid device"},
      {201, "invalid context"},
      {214, "uncorrectable ECC error"},
      {220, "uncorrectable NVLink error"},
      {226, "contained memory error"},
      {700, "illegal address"},
      {702, "launch timeout"},
      {709, "context is destroyed"},
      {710, "assert"},
      {714, "hardware stack error"},
      {715, "illegal instruction"},
      {716, "misaligned address"},
      {717, "invalid address space"},
      {718, "invalid program counter"},
      {719, "launch failed"},
      {721, "tensor memory leak"},
      {810, "MPS client terminated"},
      {911, "external device failed"},
  };
  for (Result code = 0; code <= 1100; ++code) {
    const auto found = lasting.find(code);
    EXPECT_EQ(Lasting(code), found != lasting.end())
        << code << (found != lasting.end() ? found->second : "");
  }
}

}  // namespace
}  // namespace kvcast::cuda
