// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/kvcast/kvcast/publisher/metrics"
)

// metricsTimeout bounds a request for figures: the answer is some kilobytes.
const metricsTimeout = 10 * time.Second

// metricsServer shows the figures of a publisher under /metrics.
type metricsServer struct {
	listener net.Listener
	server   *http.Server
	done     chan struct{}
}

// checkMetrics finds out what is wrong with an address without using it.
func checkMetrics(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		if _, err = net.LookupPort("tcp", port); err == nil && port == "" {
			err = errors.New("no port")
		}
	}
	var address2 *net.AddrError
	var dns *net.DNSError
	switch {
	case errors.As(err, &address2):
		err = errors.New(address2.Err)
	case errors.As(err, &dns):
		err = errors.New(dns.Err)
	}
	if err != nil {
		return fmt.Errorf("--metrics %q: want HOST:PORT: %w", address, err)
	}
	return nil
}

// serveMetrics listens and serves until close.
func serveMetrics(address string, source metrics.Source) (*metricsServer, error) {
	handler, err := metrics.Handler(metrics.New(source, nil))
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		return nil, fmt.Errorf("--metrics %q: %w", address, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", handler)
	m := &metricsServer{listener: listener, done: make(chan struct{}),
		server: &http.Server{Handler: mux, ReadHeaderTimeout: metricsTimeout, WriteTimeout: metricsTimeout}}
	go func() {
		defer close(m.done)
		m.server.Serve(listener) // ends with close
	}()
	return m, nil
}

func (m *metricsServer) address() string { return m.listener.Addr().String() }

// close may be called on nil.
func (m *metricsServer) close() {
	if m != nil {
		m.server.Close()
		<-m.done
	}
}
