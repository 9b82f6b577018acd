// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cuda

package cuinterop

import (
	"os"
	"testing"

	"github.com/kvcast/kvcast/tests/endcheck"
)

func TestMain(m *testing.M) { os.Exit(endcheck.Run(m)) }
