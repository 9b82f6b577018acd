// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The figures of a replay can be read while it holds, agree with its summary,
// and are gone with it.
func TestReplayShowsMetrics(t *testing.T) {
	folder := t.TempDir()
	trace := filepath.Join(folder, "trace")
	if err := os.WriteFile(trace, []byte(oneRequest), 0o600); err != nil {
		t.Fatal(err)
	}
	r := startCommand(t, "replay", "--trace", trace, "--endpoint", "ipc://"+filepath.Join(folder, "s"), "--json", "--hold", "1h",
		"--device", "host", "--metrics", "127.0.0.1:0", "--tail-mark", "off")
	note, err := r.err.ReadString('\n')
	said := regexp.MustCompile(`^kvcast: figures on (http://127\.0\.0\.1:\d+/metrics)\n$`).FindStringSubmatch(note)
	if err != nil || said == nil {
		t.Fatalf("%v, %q", err, note)
	}
	var s summary
	text, err := r.out.ReadString('\n')
	if err := errors.Join(err, json.Unmarshal([]byte(text), &s)); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: runPatience}
	answer, err := client.Get(said[1])
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatal(err, answer.Status)
	}
	for _, want := range []string{
		fmt.Sprintf("kvcast_published_batches_total %d\n", s.Batches), fmt.Sprintf("kvcast_stored_blocks_total %d\n", s.StoredBlocks),
		fmt.Sprintf("kvcast_resident_blocks %d\n", s.ResidentBlocks), `epoch="` + s.Epoch + `"`, "kvcast_send_seconds_count 2\n",
	} {
		if !strings.Contains(string(body), want) {
			t.Errorf("lacks %q:\n%s", want, body)
		}
	}
	r.cancel()
	if code := <-r.code; code != exitGood {
		t.Errorf("exit code %d", code)
	}
	if _, err := client.Get(said[1]); err == nil {
		t.Error("somebody still answers")
	}
}
