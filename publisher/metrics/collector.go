// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kvcast/kvcast/publisher"
)

// Source is whose figures are shown; *publisher.Publisher is one. Stats is called
// by whatever goroutine scrapes.
type Source interface {
	// Stats returns all figures as of one instant; see publisher.Publisher.Stats.
	Stats() publisher.Stats
}

// figure is one metric with how it is read.
type figure struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	read func(*publisher.Stats) float64
}

// Collector is a prometheus.Collector over one publisher. It may be used by
// several goroutines at once.
type Collector struct {
	source  Source
	figures []figure
	// drain and send are histograms, info the epoch and the state as labels; removed
	// has the reason as label.
	drain, send, info, removed *prometheus.Desc
	bounds                     []float64
}

// New returns a Collector. labels are put on every metric and tell several
// publishers of a process apart, such as rank; may be nil.
func New(source Source, labels prometheus.Labels) *Collector {
	c := &Collector{source: source}
	desc := func(name, help string, variable ...string) *prometheus.Desc {
		return prometheus.NewDesc("kvcast_"+name, help, variable, labels)
	}
	for _, f := range counters {
		c.figures = append(c.figures, figure{desc(f.name+"_total", f.help), prometheus.CounterValue, f.read})
	}
	for _, f := range gauges {
		c.figures = append(c.figures, figure{desc(f.name, f.help), prometheus.GaugeValue, f.read})
	}
	c.drain = desc("drain_seconds", "How long it took to take a batch from the attached stream.")
	c.send = desc("send_seconds", "How long it took to encode a batch and hand it to the socket.")
	c.info = desc("publisher_info", "Always 1; the life of the publisher (epoch, hexadecimal) and its state.", "epoch", "state")
	c.removed = desc("removed_blocks_total", "Blocks recorded as removed, by reason.", "reason")
	for _, b := range publisher.LatencyBounds() {
		c.bounds = append(c.bounds, b.Seconds())
	}
	return c
}

// Describe tells all metrics; see prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for i := range c.figures {
		to <- c.figures[i].desc
	}
	to <- c.drain
	to <- c.send
	to <- c.info
	to <- c.removed
}

// Collect reads the statistics once and tells all values.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	s := c.source.Stats()
	for i := range c.figures {
		f := &c.figures[i]
		to <- prometheus.MustNewConstMetric(f.desc, f.kind, f.read(&s))
	}
	for i := range removals {
		r := &removals[i]
		to <- prometheus.MustNewConstMetric(c.removed, prometheus.CounterValue, r.read(&s), r.reason.String())
	}
	to <- c.histogram(c.drain, &s.DrainLatency)
	to <- c.histogram(c.send, &s.SendLatency)
	to <- prometheus.MustNewConstMetric(c.info, prometheus.GaugeValue, 1, fmt.Sprintf("%016x", s.Epoch), string(s.State))
}

func (c *Collector) histogram(desc *prometheus.Desc, l *publisher.Latency) prometheus.Metric {
	buckets := make(map[float64]uint64, len(c.bounds))
	sum := uint64(0)
	for i, b := range c.bounds {
		sum += l.Buckets[i]
		buckets[b] = sum
	}
	return prometheus.MustNewConstHistogram(desc, l.Count, l.Sum.Seconds(), buckets)
}

// Handler serves the metrics of these collectors and nothing else, in the text
// form. Two collectors need different labels, else the error says so.
func Handler(collectors ...*Collector) (http.Handler, error) {
	registry := prometheus.NewRegistry()
	for _, c := range collectors {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{}), nil
}
