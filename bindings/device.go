// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"github.com/kvcast/kvcast/cgo"
)

// DeviceStream names a stream of a manager's device. 0 is the host itself,
// whose work is always done.
type DeviceStream uint64

// Fence is a point on a device stream. It is reached when all work submitted
// to the stream before it has been executed.
type Fence struct {
	Stream   DeviceStream
	Position uint64
}

// Fill is a fake kernel of the host device: it writes Value to each 8 bytes of
// a page, little-endian.
type Fill struct {
	Page  uint32
	Value uint64
}

func appendFences(dst []Fence, raw []cgo.Fence) []Fence {
	for _, f := range raw {
		dst = append(dst, Fence{DeviceStream(f.DeviceStream), f.Position})
	}
	return dst
}

func (s *scratch) setFences(fences []Fence) {
	s.fences = sized(s.fences, len(fences))
	for i, f := range fences {
		s.fences[i] = cgo.Fence{DeviceStream: uint64(f.Stream), Position: f.Position}
	}
}

// maxStreams is how many streams a device has at once, the host apart.
const maxStreams = 63

// NewDeviceStream makes a stream of the manager's device; at most 63 exist at
// once. Ids are never reused.
func (m *Manager) NewDeviceStream() (DeviceStream, error) {
	const op = "new device stream"
	if err := m.enter(op); err != nil {
		return 0, err
	}
	defer m.leave()
	var e cgo.Error
	m.streams.Add(1)
	id, s := m.raw.DeviceStreamCreate(&e)
	if s != cgo.OK {
		return 0, callError(op, s, &e)
	}
	return DeviceStream(id), nil
}

// DestroyDeviceStream ends a stream without running or waiting for anything:
// its remaining work is executed later, its fences stay valid. ErrBusy while a
// sequence runs on it.
func (m *Manager) DestroyDeviceStream(stream DeviceStream) error {
	const op = "destroy device stream"
	if err := m.enter(op); err != nil {
		return err
	}
	defer m.leave()
	var e cgo.Error
	if s := m.raw.DeviceStreamDestroy(uint64(stream), &e); s != cgo.OK {
		return callError(op, s, &e)
	}
	return nil
}

// NewStepStream makes a stream whose fences are steps, for engines that know of
// their kernels no more than that a step has been completed. Nothing can be
// queued on it, and it cannot be made to wait: the engine waits itself for the
// fences it is told. DestroyDeviceStream ends it; ErrBusy as long as a step is
// not done.
func (m *Manager) NewStepStream() (DeviceStream, error) {
	const op = "new step stream"
	if err := m.enter(op); err != nil {
		return 0, err
	}
	defer m.leave()
	var e cgo.Error
	m.streams.Add(1)
	id, s := m.raw.StepStreamCreate(&e)
	if s != cgo.OK {
		return 0, callError(op, s, &e)
	}
	return DeviceStream(id), nil
}

// BeginStep makes the stream's fences those of this step, counted from 1, from
// now on: call it before the step's calls. Steps never go back. Stream 0: all
// step streams that are not beyond this step.
func (m *Manager) BeginStep(stream DeviceStream, step uint64) error {
	const op = "begin step"
	if err := m.enter(op); err != nil {
		return err
	}
	defer m.leave()
	var e cgo.Error
	if s := m.raw.StepBegin(uint64(stream), step, &e); s != cgo.OK {
		return callError(op, s, &e)
	}
	return nil
}

// StepDone says that all kernels of this step and those before it have been
// executed. Stream 0: all step streams, up to what each of them has begun.
func (m *Manager) StepDone(stream DeviceStream, step uint64) error {
	const op = "step done"
	if err := m.enter(op); err != nil {
		return err
	}
	defer m.leave()
	var e cgo.Error
	if s := m.raw.StepDone(uint64(stream), step, &e); s != cgo.OK {
		return callError(op, s, &e)
	}
	return nil
}

// FencesReached sets done[i] to whether fences[i] has been reached. done must
// be at least as long as fences. A GPU is asked for it, which calls that only keep the
// books or tell, such as Stats and Probe, never do: who waits for pages and has no other
// call to make calls this, with nil and nil if need be.
func (m *Manager) FencesReached(fences []Fence, done []bool) error {
	const op = "query fences"
	if err := checkCounts(op, len(fences), len(done)); err != nil {
		return err
	}
	if err := m.enter(op); err != nil {
		return err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	sc.setFences(fences)
	sc.done = sized(sc.done, len(fences))
	if s := m.raw.DeviceFencesQuery(sc.fences, sc.done, &sc.err); s != cgo.OK {
		return callError(op, s, &sc.err)
	}
	for i, d := range sc.done {
		done[i] = d != 0
	}
	return nil
}

// StreamWait makes later work of a stream wait for fences of others.
func (m *Manager) StreamWait(stream DeviceStream, fences []Fence) error {
	const op = "stream wait"
	if err := checkCounts(op, len(fences), len(fences)); err != nil {
		return err
	}
	if err := m.enter(op); err != nil {
		return err
	}
	defer m.leave()
	sc := m.scratch.get()
	defer m.scratch.put(sc)
	sc.setFences(fences)
	if s := m.raw.DeviceStreamWait(uint64(stream), sc.fences, &sc.err); s != cgo.OK {
		return callError(op, s, &sc.err)
	}
	return nil
}

// HostFill queues fake kernels on a stream of the host device, which executes
// them late: in HostAdvance.
func (m *Manager) HostFill(stream DeviceStream, fills []Fill) error {
	const op = "host fill"
	if err := checkCounts(op, len(fills), len(fills)); err != nil {
		return err
	}
	if err := m.enter(op); err != nil {
		return err
	}
	defer m.leave()
	raw := make([]cgo.HostFill, len(fills))
	for i, f := range fills {
		raw[i] = cgo.HostFill{Page: f.Page, Value: f.Value}
	}
	var e cgo.Error
	if s := m.raw.HostEnqueueFill(uint64(stream), raw, &e); s != cgo.OK {
		return callError(op, s, &e)
	}
	return nil
}

// HostAdvance executes up to maxOps queued operations of one stream of the
// host device and what they wait for, or, with stream 0, of all streams in a
// random legal order. It returns how many were executed.
func (m *Manager) HostAdvance(stream DeviceStream, maxOps int) (int, error) {
	const op = "host advance"
	if maxOps < 0 {
		return 0, argumentError(op, "maxOps is %d", maxOps)
	}
	if err := m.enter(op); err != nil {
		return 0, err
	}
	defer m.leave()
	var e cgo.Error
	executed, s := m.raw.HostAdvance(uint64(stream), uint64(maxOps), &e)
	if s != cgo.OK {
		return 0, callError(op, s, &e)
	}
	return int(executed), nil
}

// HostRead fills dst with the bytes of a page from offset on, without ordering
// against queued work.
func (m *Manager) HostRead(page uint32, offset uint64, dst []byte) error {
	const op = "host read"
	if err := m.enter(op); err != nil {
		return err
	}
	defer m.leave()
	var e cgo.Error
	if s := m.raw.HostRead(page, offset, dst, &e); s != cgo.OK {
		return callError(op, s, &e)
	}
	return nil
}
