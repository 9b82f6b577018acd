// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package interop lets foreign software read our stream: msgspec, msgpack-python
// and vmihailenco/msgpack decode it, and Dynamo's own consumers keep an index of
// it that must match what the workers themselves would find.
//
// The Python side lives in build/interop-venv, which venv.sh makes with pip
// ("make interop" and "make test" call it). Without it the tests are skipped.
package interop
