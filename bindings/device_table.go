// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package bindings

import (
	"math"

	"github.com/kvcast/kvcast/cgo"
)

// DeviceTableConfig describes a block table in the device's memory.
type DeviceTableConfig struct {
	Rows, Columns int
	// Absent fills the table; nil = -1.
	Absent *int32
	// Staging is how many int32s of uploads (3 for a triple, a row's columns for
	// a row) may wait for the device; 0 = room for every entry once.
	Staging int
}

// DeviceTable is a block table in the memory of the manager's device: int32,
// row by row. Its methods may be called from any goroutine.
type DeviceTable struct {
	m       *Manager
	id      uint64
	address uint64
	columns int
}

// NewDeviceTable allocates all that the table will ever need. ErrNotNow: 256
// tables are open. The manager's Close frees it too.
func (m *Manager) NewDeviceTable(config DeviceTableConfig) (*DeviceTable, error) {
	const op = "new device table"
	var rows, columns, staging uint32
	if err := set32(op, "Rows", config.Rows, &rows); err != nil {
		return nil, err
	}
	if err := set32(op, "Columns", config.Columns, &columns); err != nil {
		return nil, err
	}
	staging = uint32(min(3*uint64(rows)*uint64(columns), math.MaxUint32))
	if err := set32(op, "Staging", config.Staging, &staging); err != nil {
		return nil, err
	}
	absent := int32(-1)
	if config.Absent != nil {
		absent = *config.Absent
	}
	if err := m.enter(op); err != nil {
		return nil, err
	}
	defer m.leave()
	var e cgo.Error
	id, address, s := m.raw.DeviceTableCreate(rows, columns, absent, staging, &e)
	if s != cgo.OK {
		return nil, callError(op, s, &e)
	}
	return &DeviceTable{m: m, id: id, address: address, columns: config.Columns}, nil
}

// Address is where kernels find the table.
func (t *DeviceTable) Address() uint64 { return t.address }

// Update queues triples on a device stream, in order with its kernels; stream 0 is
// the host, which does it at once. deltas may be reused when it returns. ErrNotNow:
// staging is full, retry when fences have been reached; ErrNeverFits: it is too small.
func (t *DeviceTable) Update(stream DeviceStream, deltas []TableDelta) error {
	const op = "update device table"
	if len(deltas) > math.MaxUint32 {
		return argumentError(op, "%d deltas", len(deltas))
	}
	return t.call(op, func(e *cgo.Error) cgo.Status {
		return cgo.DeviceTableUpdate(t.m.raw, t.id, uint64(stream), deltas, e)
	})
}

// Write queues whole rows, one behind the other in entries, from firstRow on. As
// Update otherwise.
func (t *DeviceTable) Write(stream DeviceStream, firstRow int, entries []int32) error {
	const op = "write device table"
	rows := len(entries) / t.columns
	if len(entries)%t.columns != 0 || firstRow < 0 || firstRow > math.MaxUint32 ||
		rows > math.MaxUint32 {
		return argumentError(op, "%d entries from row %d on, in rows of %d", len(entries), firstRow,
			t.columns)
	}
	return t.call(op, func(e *cgo.Error) cgo.Status {
		return t.m.raw.DeviceTableWrite(t.id, uint64(stream), uint32(firstRow), uint32(rows),
			t.columns, entries, e)
	})
}

// HostRead reads len(out) entries of a row from column on, without ordering
// against queued work. Host device only.
func (t *DeviceTable) HostRead(row, column int, out []int32) error {
	const op = "read device table"
	if row < 0 || row > math.MaxUint32 || column < 0 || column > math.MaxUint32 ||
		len(out) > math.MaxUint32 {
		return argumentError(op, "row %d, column %d, %d entries", row, column, len(out))
	}
	return t.call(op, func(e *cgo.Error) cgo.Status {
		return t.m.raw.HostTableRead(t.id, uint32(row), uint32(column), out, e)
	})
}

// Close frees the table. ErrBusy while uploads have not been executed; a second
// time, and after the manager's Close, it does nothing.
func (t *DeviceTable) Close() error {
	err := t.call("close device table", func(e *cgo.Error) cgo.Status {
		if s := t.m.raw.DeviceTableDestroy(t.id, e); s != cgo.StaleHandle {
			return s
		}
		return cgo.OK
	})
	if e, ok := err.(*Error); ok && e.Status == StatusClosed {
		return nil
	}
	return err
}

func (t *DeviceTable) call(op string, f func(e *cgo.Error) cgo.Status) error {
	if err := t.m.enter(op); err != nil {
		return err
	}
	defer t.m.leave()
	sc := t.m.scratch.get()
	defer t.m.scratch.put(sc)
	if s := f(&sc.err); s != cgo.OK {
		return callError(op, s, &sc.err)
	}
	return nil
}
