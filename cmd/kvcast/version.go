// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/kvcast/kvcast/cgo"
	"github.com/kvcast/kvcast/publisher/subscribe"
)

// versionInfo is what "version --json" prints.
type versionInfo struct {
	Version    string `json:"version"`
	ABIVersion uint32 `json:"abi_version"`
	SHA256     string `json:"sha256"`
	ZMQ        string `json:"libzmq"`
	Go         string `json:"go"`
	Platform   string `json:"platform"`
}

func newVersion(std streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of the tool and of what it links",
		Args:  exactArgs(),
		RunE: func(*cobra.Command, []string) error {
			v := versionInfo{
				Version:    cgo.Version(),
				ABIVersion: cgo.LinkedABIVersion(),
				SHA256:     cgo.SHA256Backend(),
				ZMQ:        subscribe.ZMQVersion(),
				Go:         runtime.Version(),
				Platform:   runtime.GOOS + "/" + runtime.GOARCH,
			}
			if asJSON {
				return printJSON(std.out, v)
			}
			_, err := fmt.Fprintf(std.out, "kvcast %s (ABI %d, SHA-256 %s, libzmq %s, %s, %s)\n",
				v.Version, v.ABIVersion, v.SHA256, v.ZMQ, v.Go, v.Platform)
			return outputError(err)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// outputError names standard output in an error of a write to it.
func outputError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("standard output: %w", bareError(err))
}

// printJSON writes v in one line.
func printJSON(w interface{ Write([]byte) (int, error) }, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return outputError(err)
}
