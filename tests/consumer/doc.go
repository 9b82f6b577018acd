// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package consumer uses kvcast as other projects do: C and C++ by an installed CMake package, by pkg-config and as a
// part of their own CMake build; Go by a module from a proxy, by a replaced module and by a vendored one. Each way
// ends in a program that stores blocks and drains the event. The library is also configured with CUDA compilers, fit
// and unfit ones, which it can do without.
package consumer
