// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode"

	"github.com/kvcast/kvcast/publisher/internal/ipcpath"
)

// maxPath is the longest path of a socket of the file system: what a system's
// address has, less the byte that ends it.
const maxPath = 107

// checkEndpoint returns where an endpoint is. It refuses what ZeroMQ would take and then
// never connect, such as a wildcard or a port above 65535 (which it takes modulo 65536).
func checkEndpoint(op, text string) (source, error) {
	bad := func(what string) (source, error) {
		return source{}, &Error{op, ErrEndpoint, fmt.Sprintf("%q: %s", text, what)}
	}
	if strings.ContainsFunc(text, unicode.IsControl) {
		return bad("control characters")
	}
	scheme, rest, ok := strings.Cut(text, "://")
	switch {
	case !ok:
		return bad("no scheme; want tcp:// or ipc://")
	case scheme == "ipc" && (rest == "" || rest == "*"):
		return bad("no path")
	case scheme == "ipc" && rest == "@":
		return bad("no name")
	case scheme == "ipc" && len(rest) > maxPath:
		return bad(fmt.Sprintf("a path of more than %d bytes", maxPath))
	case scheme == "ipc":
		return source{network: "unix", address: rest, endpoint: text}, nil
	case scheme != "tcp":
		return bad("unknown scheme; want tcp:// or ipc:// in lower case")
	}
	i := strings.LastIndexByte(rest, ':')
	if i < 0 || strings.HasSuffix(rest, "]") {
		return bad("no port")
	}
	host, digits := rest[:i], rest[i+1:]
	port, err := strconv.ParseUint(digits, 10, 64)
	switch {
	case err != nil || digits[0] == '+':
		return bad("the port is not a number")
	case port == 0 || port > 65535:
		return bad("the port must be 1 to 65535")
	}
	tcp := func(network, host string) (source, error) {
		address := net.JoinHostPort(host, strconv.FormatUint(port, 10))
		return source{network: network, address: address, endpoint: text, ipv6: network == "tcp"}, nil
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, closed := strings.CutSuffix(inner, "]")
		addr, err := netip.ParseAddr(inner)
		if !closed || err != nil || !addr.Is6() {
			return bad("no IPv6 address in the brackets")
		}
		if addr.Unmap().WithZone("").IsUnspecified() {
			return bad("an address of all interfaces cannot be connected to")
		}
		return tcp("tcp", inner)
	}
	if addr, err := netip.ParseAddr(host); host == "*" || err == nil && addr.IsUnspecified() {
		return bad("an address of all interfaces cannot be connected to")
	}
	if host == "" {
		return bad("no host")
	}
	if _, err := netip.ParseAddr(host); (err != nil || strings.Contains(host, ":")) && !isName(host) {
		return bad("bad host")
	}
	// A name has IPv4 addresses only, as it has for ZeroMQ, which connects with CURVE.
	return tcp("tcp4", host)
}

// isName tells whether something can be the name of a host. What consists of digits and
// dots is an address, or none.
func isName(host string) bool {
	labels := strings.Split(strings.TrimSuffix(host, "."), ".")
	letter := false
	for _, label := range labels {
		if label == "" || len(label) > 63 {
			return false
		}
		for _, c := range []byte(label) {
			switch {
			case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '-', c == '_':
				letter = true
			case c < '0' || c > '9':
				return false
			}
		}
	}
	return letter && len(host) <= 254
}

// sameEndpoint tells whether two endpoints are one under whatever spelling. Names of
// hosts are not looked up.
func sameEndpoint(a, b string) bool {
	first, isPath := strings.CutPrefix(a, "ipc://")
	second, both := strings.CutPrefix(b, "ipc://")
	if isPath && both {
		return ipcpath.Same(first, second)
	}
	return spelled(a) == spelled(b)
}

// spelled writes the endpoints that differ in zeros before the port, or in the case
// of the host, alike.
func spelled(endpoint string) string {
	i := strings.LastIndexByte(endpoint, ':') + 1
	return strings.ToLower(endpoint[:i]) + strings.TrimLeft(endpoint[i:], "0")
}
