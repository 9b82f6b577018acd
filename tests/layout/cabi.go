// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"regexp"
)

const (
	abiHeader = "native/include/kvcast/kvcast.h"
	abiTest   = "tests/native/capi_test.c"
)

// exported finds the functions that the header declares.
var exported = regexp.MustCompile(`(?m)^KVC_API [a-z0-9_ ]+\*? ?\b(kvc_[a-z0-9_]+)\(`)

// CTest demands that the C test calls every function of the ABI: C is how other languages see it.
func CTest(t *Tree) []string {
	if !t.set[abiHeader] {
		return nil
	}
	test := ""
	if t.set[abiTest] {
		test = t.read(abiTest)
	}
	var found []string
	for _, match := range exported.FindAllStringSubmatch(t.read(abiHeader), -1) {
		if !regexp.MustCompile(`\b` + match[1] + `\(`).MatchString(test) {
			found = append(found, abiTest+": does not call "+match[1])
		}
	}
	return found
}
