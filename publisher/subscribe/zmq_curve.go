// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"fmt"

	zmq "github.com/pebbe/zmq4"

	"github.com/kvcast/kvcast/publisher/internal/curvekey"
	"github.com/kvcast/kvcast/publisher/internal/descriptors"
)

// mechanismMismatch is what ZeroMQ's monitor says when one side speaks CURVE and
// the other does not (ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH in zmq.h).
const mechanismMismatch = 0x11000002

// oneSided is why there is no connection with only one side that speaks CURVE.
const oneSided = "one side speaks CURVE and the other does not"

// curve are the keys of a connection as text; nil without CURVE.
type curve struct {
	server         string
	secret, public string
	ctx            *zmq.Context // from begin to close
	opened         int          // sources, of any kind
}

// loadCurve reads the key files, if there are any. No error tells a key.
func loadCurve(o *ClientOptions) (*curve, error) {
	bad := func(field, path, what string) error {
		return &Error{"connect", ErrOption, fmt.Sprintf("%s %q: %s", field, path, what)}
	}
	const server, secret = "CurveServerKeyFile", "CurveSecretKeyFile"
	switch {
	case o.CurveServerKeyFile == "" && o.CurveSecretKeyFile == "":
		return nil, nil
	case curvekey.Misplaced(o.CurveServerKeyFile):
		return nil, bad(server, "", curvekey.ErrMisplaced.Error())
	case curvekey.Misplaced(o.CurveSecretKeyFile):
		return nil, bad(secret, "", curvekey.ErrMisplaced.Error())
	case o.CurveServerKeyFile == "":
		return nil, bad(secret, o.CurveSecretKeyFile, "there is no "+server)
	case o.CurveSecretKeyFile == "":
		return nil, bad(server, o.CurveServerKeyFile, "there is no "+secret)
	case !zmq.HasCurve():
		return nil, bad(secret, o.CurveSecretKeyFile, "this libzmq was built without CURVE")
	}
	c := new(curve)
	var err error
	if c.server, err = curvekey.ReadPublic(o.CurveServerKeyFile); err != nil {
		return nil, bad(server, o.CurveServerKeyFile, err.Error())
	}
	if c.secret, err = curvekey.ReadSecret(o.CurveSecretKeyFile); err != nil {
		return nil, bad(secret, o.CurveSecretKeyFile, err.Error())
	}
	if c.public, err = zmq.AuthCurvePublic(c.secret); err != nil {
		return nil, bad(secret, o.CurveSecretKeyFile, "not a secret key")
	}
	return c, nil
}

// begin makes the context of the connections; close ends it, after all of them.
func (c *curve) begin() (err error) {
	if c == nil {
		return nil
	}
	if why := descriptors.Short(); why != "" {
		return fmt.Errorf("%w: %s", ErrDescriptors, why)
	}
	if c.ctx, err = zmq.NewContext(); err != nil {
		return err
	}
	c.ctx.SetRetryAfterEINTR(true)
	return nil
}

func (c *curve) close() error {
	if c == nil || c.ctx == nil {
		return nil
	}
	ctx := c.ctx
	c.ctx = nil
	return ctx.Term()
}

// apply is called before the socket connects.
func (c *curve) apply(s *zmq.Socket) error {
	return s.ClientAuthCurve(c.server, c.public, c.secret)
}

// refusal says why a handshake failed, "" if the connection is tried again: then
// the publisher may just have ended, or its key is another one.
func refusal(event zmq.Event, value int) string {
	switch {
	case event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
		return "our key is not on its list"
	case event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL && value == mechanismMismatch:
		return oneSided
	}
	return ""
}
