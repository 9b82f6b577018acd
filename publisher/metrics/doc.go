// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package metrics shows the statistics of publishers to Prometheus.
//
// A [Collector] reads [publisher.Publisher.Stats] once for each scrape, so all
// figures of a scrape belong together, and costs nothing in between. Names begin
// with kvcast_ and are otherwise those of the wire contract, with the endings
// that Prometheus asks for.
package metrics
