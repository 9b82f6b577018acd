// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// The one file that the Go build compiles of this layer: it compiles C++ files
// one after the other, so a single unit is several times as fast.

#include "sink/src/projector.cpp"
#include "sink/src/scope_table.cpp"
#include "sink/src/sink_capi.cpp"
#include "sink/src/snapshot.cpp"
#include "sink/src/snapshot_capi.cpp"
#include "sink/src/streaming_event_sink.cpp"
