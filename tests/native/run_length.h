// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

#ifndef KVCAST_TESTS_NATIVE_RUN_LENGTH_H_
#define KVCAST_TESTS_NATIVE_RUN_LENGTH_H_

#include <cstdint>

namespace kvcast::testing {

// How long a random test usually runs, and from where on it is judged not only by what goes
// wrong, but also by what it has met: a test that meets nothing shows nothing. Whether a short
// run meets everything is a matter of its seed. Of the usual one that is known, and it must; one
// with another seed, such as repeats a failure or searches on, must when it is so long that
// every seed does.
struct RunLength {
  uint64_t seed;        // of the usual run
  uint64_t operations;  // of the usual run
  uint64_t enough;      // for any seed

  [[nodiscard]] constexpr bool Judged(uint64_t of_seed, uint64_t run) const {
    return run >= enough || (of_seed == seed && run >= operations);
  }
};

}  // namespace kvcast::testing

#endif  // KVCAST_TESTS_NATIVE_RUN_LENGTH_H_
