// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The main of every GoogleTest binary: as gtest_main, but a run that leaves a
// native handle behind fails. Sanitizers see a leaked handle only if nothing
// points to it any more.
#include <gtest/gtest.h>

#include <cstdio>

#include "kvcast/kvcast.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  kvc_live_handles live{};
  kvc_live_handles_get(&live);
  if (live.managers == 0 && live.sequences == 0 && live.streams == 0 && live.snapshots == 0) {
    return failed;
  }
  std::fprintf(stderr,
               "still alive at the end: %llu managers, %llu sequences, %llu streams, "
               "%llu snapshots\n",
               static_cast<unsigned long long>(live.managers),
               static_cast<unsigned long long>(live.sequences),
               static_cast<unsigned long long>(live.streams),
               static_cast<unsigned long long>(live.snapshots));
  return 1;
}
