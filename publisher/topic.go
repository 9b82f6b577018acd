// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package publisher

import (
	"strconv"
	"strings"

	"github.com/kvcast/kvcast/publisher/wire"
)

// expandTopic replaces the placeholders. What a placeholder stands for is not
// scanned again.
func (o Options) expandTopic() (string, *Error) {
	bad := func(detail string) (string, *Error) { return "", optionError("topic", o.Topic, detail) }
	var s strings.Builder
	for rest := o.Topic; ; {
		i := strings.IndexByte(rest, '{')
		if i < 0 {
			s.WriteString(rest)
			break
		}
		s.WriteString(rest[:i])
		rest = rest[i:]
		switch {
		case strings.HasPrefix(rest, "{pod}"):
			if o.Pod == "" {
				return "", optionError("pod", "", "the topic names it")
			}
			s.WriteString(o.Pod)
			rest = rest[len("{pod}"):]
		case strings.HasPrefix(rest, "{model}"):
			if o.Model == "" {
				return "", optionError("model", "", "the topic names it")
			}
			s.WriteString(o.Model)
			rest = rest[len("{model}"):]
		case strings.HasPrefix(rest, "{rank}"):
			s.WriteString(strconv.Itoa(o.Rank))
			rest = rest[len("{rank}"):]
		default:
			return bad("{ begins none of {pod}, {model}, {rank}")
		}
	}
	topic := s.String()
	if why := wire.BadTopic(topic); why != "" {
		return bad(why)
	}
	if strings.HasPrefix(topic, "kv@") {
		parts := strings.Split(topic, "@")
		if len(parts) != 3 || parts[1] == "" || parts[2] == "" {
			return bad("a topic that begins with kv@ must be kv@POD@MODEL")
		}
	}
	return topic, nil
}
