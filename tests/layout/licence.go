// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// The two lines are put together here so that this file's own header is the only place where they stand whole.
const (
	spdxCopyright = "SPDX-FileCopyrightText: " + "The kvcast authors"
	spdxLicence   = "SPDX-License-Identifier: " + "Apache-2.0"
)

// headerLines is how far down the header may stand: below a #! line, never below code.
const headerLines = 4

// needsLicence tells whether a file is source: by its extension, its name, or a #! line.
func (t *Tree) needsLicence(name string) bool {
	if strings.Contains(name, "/testdata/") {
		return false
	}
	if isGo(name) || isNative(name) ||
		slices.Contains([]string{".py", ".sh", ".cmake", ".yml", ".yaml", ".ptx"}, path.Ext(name)) ||
		slices.Contains([]string{"CMakeLists.txt", "Makefile"}, path.Base(name)) {
		return true
	}
	return path.Ext(name) == "" && strings.HasPrefix(t.read(name), "#!")
}

// Licences: every source file names its copyright and licence in its first lines.
func Licences(t *Tree) []string {
	var found []string
	for _, name := range t.files {
		if !t.needsLicence(name) {
			continue
		}
		lines := strings.SplitN(t.read(name), "\n", headerLines+1)
		head := strings.Join(lines[:min(len(lines), headerLines)], "\n")
		if !strings.Contains(head, spdxCopyright) || !strings.Contains(head, spdxLicence) {
			found = append(found, fmt.Sprintf("%s: lacks the two-line SPDX header", name))
		}
	}
	return found
}
