// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
)

// Without a stream the summary is silent on what only a stream does; programs
// get all fields in any case.
func TestSummaryWithoutStream(t *testing.T) {
	for _, c := range []struct {
		publisher string
		streams   bool
	}{{"zmq", true}, {"null", true}, {publisherOff, false}} {
		s := summary{Publisher: c.publisher, ResidentBlocks: 7, UnannouncedBlocks: 7,
			CapacityBlocks: 9}
		var text, object bytes.Buffer
		if err := s.print(&text, false); err != nil {
			t.Fatal(err)
		}
		if err := s.print(&object, true); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text.String(), "resident    7 of 9 blocks") {
			t.Errorf("%s: no resident blocks in\n%s", c.publisher, &text)
		}
		for _, word := range []string{"announced", "deferred", "published"} {
			if strings.Contains(text.String(), word) != c.streams {
				t.Errorf("%s: %q is there: %t, in\n%s", c.publisher, word, !c.streams, &text)
			}
		}
		if !strings.Contains(object.String(), `"unannounced_blocks":7`) {
			t.Errorf("%s: %s lacks unannounced_blocks", c.publisher, &object)
		}
	}
}
