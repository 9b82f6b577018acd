// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"unicode"

	"github.com/kvcast/kvcast/publisher/internal/ipcpath"
)

const (
	schemeTCP    = "tcp"
	schemeIPC    = "ipc"
	schemeInproc = "inproc"

	// keyEndpoint and keyReplay are how errors call the two endpoints.
	keyEndpoint = "endpoint"
	keyReplay   = "replay_endpoint"

	// maxIPCPath is what fits into a socket address, without the final zero.
	maxIPCPath = 107
)

// endpoint is an endpoint of one rank.
type endpoint struct {
	scheme string
	// host and port belong to tcp; port 0 = any free one. host is as given,
	// with brackets.
	host string
	port int
	// first is the port of rank 0.
	first int
	// name is the path or name of ipc and inproc, rank suffix included.
	name string
	// base is name without the suffix.
	base string
}

// parseEndpoint applies the rules for endpoints and ranks to the whole rank
// range and returns the endpoint of one rank. key is what errors call it.
func parseEndpoint(key, text string, rank, ranks int) (endpoint, *Error) {
	bad := func(detail string) (endpoint, *Error) {
		return endpoint{}, optionError(key, text, detail)
	}
	if text == "" {
		return bad("empty")
	}
	if strings.ContainsFunc(text, unicode.IsControl) {
		return bad("control characters")
	}
	// The scheme is the literal prefix: tcp://ipc-host:1 is tcp.
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return bad("no scheme; want tcp://, ipc:// or inproc://")
	}
	switch scheme {
	case schemeTCP:
		return parseTCP(key, text, rest, rank, ranks)
	case schemeIPC, schemeInproc:
		if rest == "" {
			return bad("no path or name")
		}
		if n := len(rest + rankSuffix(ranks-1)); scheme == schemeIPC && n > maxIPCPath {
			return bad(fmt.Sprintf("path of %d bytes for the last rank, want at most %d", n, maxIPCPath))
		}
		return endpoint{scheme: scheme, name: rest + rankSuffix(rank), base: rest}, nil
	}
	return bad("unknown scheme; want tcp://, ipc:// or inproc:// in lower case")
}

func rankSuffix(rank int) string {
	if rank == 0 {
		return ""
	}
	return "_dp" + strconv.Itoa(rank)
}

func parseTCP(key, text, rest string, rank, ranks int) (endpoint, *Error) {
	bad := func(detail string) (endpoint, *Error) {
		return endpoint{}, optionError(key, text, detail)
	}
	// The port is what follows the last colon.
	i := strings.LastIndexByte(rest, ':')
	if i < 0 || rest[i:] == ":" || strings.HasSuffix(rest, "]") {
		return bad("no port")
	}
	host, digits := rest[:i], rest[i+1:]
	if host == "" {
		return bad("no host")
	}
	if detail := checkHost(host); detail != "" {
		return bad(detail)
	}
	if digits == "*" {
		digits = "0"
	}
	for _, c := range digits {
		if c < '0' || c > '9' {
			return bad("the port is not a number")
		}
	}
	// ZeroMQ itself would take 70000 as 4464.
	port, err := strconv.ParseUint(digits, 10, 16)
	if err != nil {
		return bad("the port is above 65535")
	}
	e := endpoint{scheme: schemeTCP, host: host, port: int(port), first: int(port)}
	if e.port == 0 {
		return e, nil
	}
	if last := uint64(port) + uint64(ranks-1); last > 65535 {
		return bad(fmt.Sprintf("the port of the last of %d ranks is %d, above 65535", ranks, last))
	}
	e.port += rank
	return e, nil
}

// conflict returns what keeps two endpoints from being bound by all
// ranks, or "". Ranks that share a machine follow one another, so two tcp ranges
// meet exactly when their first ports are closer than perHost; the hosts are not
// compared, because two names can mean one address.
func conflict(a, b endpoint, ranks, perHost int) string {
	switch {
	case a.scheme != b.scheme:
		return ""
	case a.scheme == schemeTCP:
		if distance := max(a.first, b.first) - min(a.first, b.first); a.port != 0 && b.port != 0 && distance < perHost {
			return fmt.Sprintf("%s overlap %s of endpoint; want the first ones at least ranks_per_host (%d) apart",
				b.portRange(perHost), a.portRange(perHost), perHost)
		}
		return ""
	}
	first, second := a.base, b.base
	if a.scheme == schemeIPC {
		if first == "*" && second == "*" && ranks == 1 {
			return "" // ZeroMQ makes up two names
		}
		first, second = ipcpath.Clean(first), ipcpath.Clean(second)
	}
	if first == second {
		return "the same as endpoint"
	}
	// Suffixes are told apart by their digits, so names of two ranks can be equal
	// only if one base is the other one with a suffix.
	if r := suffixRank(first, second); r > 0 && r < ranks {
		return fmt.Sprintf("the same as endpoint of rank %d", r)
	}
	if r := suffixRank(second, first); r > 0 && r < ranks {
		return fmt.Sprintf("for rank %d the same as endpoint", r)
	}
	return ""
}

// portRange names the ports of the first ranks that share a machine.
func (e endpoint) portRange(perHost int) string {
	return fmt.Sprintf("the ports %d to %d", e.first, e.first+perHost-1)
}

// unreachable returns why nobody can connect to what one can bind, or "".
func (e endpoint) unreachable() string {
	switch {
	case e.scheme == schemeIPC && e.name == "*":
		return "with bind false it needs a path"
	case e.scheme != schemeTCP:
		return ""
	case e.port == 0:
		return "with bind false it needs a port"
	case e.host == "*":
		return "with bind false it needs an address: * is all interfaces"
	}
	if addr, err := netip.ParseAddr(strings.Trim(e.host, "[]")); err == nil && addr.IsUnspecified() {
		return "with bind false it needs an address: " + e.host + " is all interfaces"
	}
	return ""
}

// suffixRank returns the rank for which base becomes name, 0 if there is none.
func suffixRank(base, name string) int {
	digits, ok := strings.CutPrefix(name, base+"_dp")
	if !ok {
		return 0
	}
	rank, err := strconv.Atoi(digits)
	if err != nil || rankSuffix(rank) != "_dp"+digits {
		return 0
	}
	return rank
}

// checkHost returns what is wrong with a host, or "".
func checkHost(host string) string {
	if host == "*" {
		return ""
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, closed := strings.CutSuffix(inner, "]")
		if addr, err := netip.ParseAddr(inner); !closed || err != nil || !addr.Is6() {
			return "no IPv6 address in the brackets"
		}
		return ""
	}
	if strings.Contains(host, ":") {
		return "an IPv6 address needs brackets"
	}
	for _, c := range host {
		if !unicode.IsLetter(c) && !unicode.IsDigit(c) && !strings.ContainsRune("-._", c) {
			return fmt.Sprintf("%q in the host", c)
		}
	}
	return ""
}

// String returns the endpoint as a subscriber of this rank would write it.
func (e endpoint) String() string {
	if e.scheme == schemeTCP {
		return fmt.Sprintf("tcp://%s:%d", e.host, e.port)
	}
	return e.scheme + "://" + e.name
}

// bindText returns what is given to ZeroMQ, whether IPv6 must be on, and
// whether other machines can reach the endpoint. Host names are resolved here
// because ZeroMQ does not resolve them when it binds.
func (e endpoint) bindText(ctx context.Context) (text string, ipv6, exposed bool, err error) {
	if e.scheme != schemeTCP {
		return e.String(), false, false, nil
	}
	port := strconv.Itoa(e.port)
	if e.port == 0 {
		port = "*"
	}
	if e.host == "*" {
		return "tcp://*:" + port, false, true, nil
	}
	if inner, ok := strings.CutPrefix(e.host, "["); ok {
		addr := netip.MustParseAddr(strings.TrimSuffix(inner, "]"))
		return "tcp://" + e.host + ":" + port, true, !isLoopback(addr), nil
	}
	addr, err := netip.ParseAddr(e.host)
	if err != nil {
		if iface, ifErr := net.InterfaceByName(e.host); ifErr == nil {
			return "tcp://" + e.host + ":" + port, false, iface.Flags&net.FlagLoopback == 0, nil
		}
		if addr, err = resolve(ctx, e.host); err != nil {
			return "", false, false, err
		}
	}
	if addr.Is6() {
		return "tcp://[" + addr.String() + "]:" + port, true, !isLoopback(addr), nil
	}
	return "tcp://" + addr.String() + ":" + port, false, !isLoopback(addr), nil
}

// resolve prefers IPv4: readers are configured with host names, too, and more
// of them can do IPv4.
func resolve(ctx context.Context, host string) (netip.Addr, error) {
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range addrs {
		if a = a.Unmap(); a.Is4() {
			return a, nil
		}
	}
	if len(addrs) == 0 {
		return netip.Addr{}, fmt.Errorf("%s has no address", host)
	}
	return addrs[0], nil
}

func isLoopback(a netip.Addr) bool { return a.Unmap().IsLoopback() }
