# SPDX-FileCopyrightText: The kvcast authors
# SPDX-License-Identifier: Apache-2.0
#
# cmake -DIN=FILE -DOUT=FILE -P bytes.cmake: the bytes of IN as the elements of a C array.

file(READ "${IN}" bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE "${OUT}" "${bytes}\n")
