// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package licences knows under which licence each Go module comes that this one is built or tested with, from the
// texts that the modules ship. One that it does not recognise must be read by a person before the module is used.
package licences

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// licence is told by sentences from its terms. A title alone proves nothing.
type licence struct {
	name     string
	says     []string
	saysNone []string
}

var known = []licence{
	{"Apache-2.0", []string{
		"terms and conditions for use, reproduction, and distribution",
		"apache license version 2.0, january 2004",
		"each contributor hereby grants to you a perpetual, worldwide, non-exclusive, no-charge, royalty-free, irrevocable",
	}, nil},
	{"MIT", []string{
		"permission is hereby granted, free of charge, to any person obtaining a copy of this software",
		"the above copyright notice and this permission notice shall be included in all copies",
		`the software is provided "as is"`,
	}, nil},
	{"BSD-3-Clause", []string{
		"redistributions of source code must retain the above copyright notice",
		"redistributions in binary form must reproduce the above copyright notice",
		"may be used to endorse or promote products derived from",
	}, []string{"all advertising materials"}},
	{"BSD-2-Clause", []string{
		"redistributions of source code must retain the above copyright notice",
		"redistributions in binary form must reproduce the above copyright notice",
	}, []string{"all advertising materials", "may be used to endorse or promote"}},
	{"MPL-2.0", []string{
		"mozilla public license version 2.0",
		"each contributor hereby grants you a world-wide, royalty-free, non-exclusive license",
		"covered software is provided under this license on an",
	}, nil},
}

// conditions make of any of the above something else.
var conditions = []string{"commons clause", "non-commercial", "noncommercial"}

var (
	marks  = regexp.MustCompile(`(?m)^\s*(//|#|\*)`)
	spaces = regexp.MustCompile(`[\s]+`)
	lists  = regexp.MustCompile(`(?m)^\s*(\*|-|\d+\.|\([a-z]\))\s`)
)

// Recognise returns the SPDX name of the licence that a text grants, or "".
func Recognise(text string) string {
	text = lists.ReplaceAllString(text, " ")
	text = marks.ReplaceAllString(text, " ")
	text = strings.NewReplacer("“", `"`, "”", `"`, "’", "'").Replace(text)
	text = strings.TrimSpace(strings.ToLower(spaces.ReplaceAllString(text, " ")))
	has := func(sentence string) bool { return strings.Contains(text, sentence) }
	if slices.ContainsFunc(conditions, has) {
		return ""
	}
	name := ""
	for _, l := range known {
		if slices.ContainsFunc(l.saysNone, has) || slices.ContainsFunc(l.says, func(s string) bool { return !has(s) }) {
			continue
		}
		if name != "" {
			return "" // more than one: which of them holds for what is for a person to find out
		}
		name = l.name
	}
	return name
}

var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|unlicense)([-._].*)?$`)

// OfModule returns the licences that the files at a module's root grant, joined by " AND ". It is an error when there
// is no such file or one is not recognised.
func OfModule(root fs.FS) (string, error) {
	entries, err := fs.ReadDir(root, ".")
	if err != nil {
		return "", err
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() || !licenceFile.MatchString(entry.Name()) || path.Ext(entry.Name()) == ".go" {
			continue
		}
		text, err := fs.ReadFile(root, entry.Name())
		if err != nil {
			return "", err
		}
		name := Recognise(string(text))
		if name == "" {
			return "", fmt.Errorf("%s is no licence that is known here", entry.Name())
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "", fmt.Errorf("no licence file")
	}
	return strings.Join(names, " AND "), nil
}
