// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"slices"
	"strings"
)

// profile is what one reader wants that differs from the defaults, as keys and
// values (wire contract, section 16).
type profile struct {
	name   string
	values [][2]string
}

// profiles is never changed.
var profiles = []profile{
	{"dynamo", [][2]string{{"multimodal", "extra_keys"}}},
	{"llm-d", [][2]string{{"topic", "kv@{pod}@{model}"}, {"multimodal", "extra_keys"},
		{"replay_pad_limit", "1000000"}}},
	{"aibrix", [][2]string{{"encoding", "array"}, {"max_blocks_per_event", "1"}, {"multimodal", "suppress"},
		{"lora", "id"}, {"truncated_history", "suffix"}}},
	{"sgl-router", [][2]string{{"multimodal", "tensorrt"}, {"restart_mark", "on"}}},
	{"kthena", [][2]string{{"encoding", "array"}, {"topic", "kv-events"}, {"multimodal", "suppress"}, {"lora", "id"},
		{"replay_dialect", "off"}}},
	{"mooncake", [][2]string{{"encoding", "array"}, {"hash", "portable63"}, {"multimodal", "suppress"}, {"lora", "id"}}},
	{"trtllm", [][2]string{{"hash_width", "minimal"}, {"multimodal", "tensorrt"}, {"lora", "id"},
		{"truncated_history", "suffix"}}},
	// What vLLM itself sends: hashes from the end of the digest, in their
	// smallest form, and extra_keys.
	{"vllm", [][2]string{{"hash", "unsigned64"}, {"hash_width", "minimal"}, {"multimodal", "extra_keys"}}},
	// What all readers of a mixed fleet can take: positive hashes of nine bytes,
	// integers alone among the tokens.
	{"mixed", [][2]string{{"hash", "portable63"}, {"multimodal", "extra_keys"}}},
}

// ProfileNames returns the names that ApplyProfile takes.
func ProfileNames() []string {
	names := make([]string, len(profiles))
	for i := range profiles {
		names[i] = profiles[i].name
	}
	return names
}

// ApplyProfile sets the keys that one reader wants; the others stay as they are.
// What is set afterwards wins over it. An unknown name is an *Error that wraps
// ErrOption. The profile llm-d needs Options.Pod and Options.Model.
func (o *Options) ApplyProfile(name string) error {
	i := slices.IndexFunc(profiles, func(p profile) bool { return p.name == name })
	if i < 0 {
		names := ProfileNames()
		last := len(names) - 1
		return &Error{Op: "config", Key: "profile", Value: name, Err: ErrOption,
			Detail: "want " + strings.Join(names[:last], ", ") + " or " + names[last]}
	}
	for _, v := range profiles[i].values {
		k, _ := lookupKey(v[0])
		if err := k.Set(o, v[1]); err != nil {
			return err
		}
	}
	return nil
}
