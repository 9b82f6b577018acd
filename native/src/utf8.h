// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Strict UTF-8: every reader of the wire refuses a whole batch for less.
#ifndef KVCAST_NATIVE_SRC_UTF8_H_
#define KVCAST_NATIVE_SRC_UTF8_H_

#include <cstdint>
#include <string_view>

namespace kvcast {

// RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
[[nodiscard]] inline bool IsUtf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    size_t more = 0;
    uint32_t code = 0;
    uint32_t lowest = 0;
    if (lead < 0x80) {
      ++i;
      continue;
    } else if ((lead & 0xe0u) == 0xc0u) {
      more = 1, code = lead & 0x1fu, lowest = 0x80;
    } else if ((lead & 0xf0u) == 0xe0u) {
      more = 2, code = lead & 0x0fu, lowest = 0x800;
    } else if ((lead & 0xf8u) == 0xf0u) {
      more = 3, code = lead & 0x07u, lowest = 0x10000;
    } else {
      return false;
    }
    if (text.size() - i <= more) return false;
    for (size_t k = 1; k <= more; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xc0u) != 0x80u) return false;
      code = code << 6 | (next & 0x3fu);
    }
    if (code < lowest || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return false;
    i += more + 1;
  }
  return true;
}

}  // namespace kvcast

#endif  // KVCAST_NATIVE_SRC_UTF8_H_
