// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/kvcast/kvcast/bindings/event"
	"github.com/kvcast/kvcast/publisher/wire"
)

// maxHashesPerEvent is the limit of invariant I8.
const maxHashesPerEvent = 1 << 16

// VerifierOptions configures a Verifier. The zero value finds the hash form
// out by itself.
type VerifierOptions struct {
	// Form is the hash form that the stream must have; meaningful only if
	// HasForm. Otherwise the first block whose key can be recomputed decides.
	Form    event.Form
	HasForm bool
	// MaxBlocks bounds the mirror; 0 means DefaultMaxBlocks.
	MaxBlocks int
}

// check returns ErrOption for what no verifier can be.
func (o VerifierOptions) check() error {
	switch {
	case o.MaxBlocks < 0:
		return &Error{"check", ErrOption, fmt.Sprintf("MaxBlocks %d: want at least 0", o.MaxBlocks)}
	case o.HasForm && o.Form > event.Bytes:
		return &Error{"check", ErrOption, fmt.Sprintf("Form %d: want one of package event", o.Form)}
	}
	return nil
}

// Report is what a Verifier has seen.
type Report struct {
	// FirstSeq and LastSeq are the first batch number since the start or the
	// newest Reset, and the newest one.
	FirstSeq, LastSeq uint64
	// Batches, Events and Clears count messages, events and clear events;
	// Lives counts publisher lives.
	Batches, Events, Clears, Lives uint64
	// StoredBlocks and RemovedBlocks count hashes in events.
	StoredBlocks, RemovedBlocks uint64
	// VerifiedKeys counts stored blocks whose hash was recomputed from the
	// tokens; UnverifiedKeys counts those for which that cannot be done: the
	// chain begins in a salted scope, or before the first batch seen, or holds
	// multimodal input, or the publisher makes its keys in another way.
	VerifiedKeys, UnverifiedKeys uint64
	// UnknownRemovals counts removals of blocks that may have been announced
	// before the first batch seen.
	UnknownRemovals uint64
	// Complete tells that all announced blocks are known: the stream was seen
	// from batch 0 or from a clear on.
	Complete bool
	// Form is the hash form; meaningful only if HasForm.
	Form    event.Form
	HasForm bool
}

// Verifier checks that a stream keeps the wire contract: numbers without a
// gap, each life opened by one clear, clears alone in their batch, time that
// never runs back, events of the right shape, stores only under an announced
// parent and only once, removals only of announced blocks without announced
// children, and hashes that are what the tokens say.
//
// Joined in the middle, it knows nothing of what was announced before; rules
// that need it are not applied until the next clear.
type Verifier struct {
	mirror *Mirror
	given  VerifierOptions
	report Report
	breach *Breach
	wrong  error // what is wrong with the options, nil if nothing is

	// joining: the next batch may have any number. afterSnapshot: so may the first
	// ordinary one after a snapshot, which continues what is known.
	joining, afterSnapshot bool
	next                   uint64
	lastTS                 float64
	sizes                  map[uint64]uint32 // block size by group
	bytes                  bool              // hashes are strings of bytes
	typed                  bool              // bytes is known
	form                   event.Form
	formed                 bool

	// keys holds, by id, the full key of each block of the mirror that is keyed.
	keys []event.Digest
	hash []byte // input of one SHA-256
}

// NewVerifier returns a verifier that has seen nothing. One with options that cannot be
// checks nothing: Check and CheckSnapshot return ErrOption.
func NewVerifier(o VerifierOptions) *Verifier {
	v := &Verifier{mirror: NewMirror(o.MaxBlocks), given: o, joining: true, wrong: o.check()}
	v.newLife()
	v.report.Lives = 0
	return v
}

// Reset forgets what is announced: the next batch need not follow the one
// before, and counts as that of another life that is joined there. Counts and a
// breach stay.
func (v *Verifier) Reset() {
	v.mirror.clear()
	v.joining = true
	v.report.Complete = false
}

// Mirror is the verifier's view of what is announced. Do not change it.
func (v *Verifier) Mirror() *Mirror { return v.mirror }

// Report returns what has been seen so far.
func (v *Verifier) Report() Report {
	r := v.report
	r.Form, r.HasForm = v.form, v.formed
	return r
}

// Check takes the next batch and its number. It returns a *Breach if the batch
// breaks a rule, and the same one for each batch after that; ErrMirrorFull if
// more blocks are announced than it may hold. What came before the bad place has
// been applied to the mirror. The batch is not kept.
func (v *Verifier) Check(seq uint64, b *wire.Batch) error {
	if v.wrong != nil {
		return v.wrong
	}
	if v.breach != nil {
		return v.breach
	}
	err := v.check(seq, b)
	var breach *Breach
	if errors.As(err, &breach) {
		breach.Seq = seq
		v.breach = breach
	}
	return err
}

// CheckSnapshot is Check for a batch of a snapshot (Item.Snapshot). The first one
// begins with a clear, and a life that is joined there; the others only store. The
// next batch of Check may have any number.
func (v *Verifier) CheckSnapshot(seq uint64, b *wire.Batch) error {
	if v.wrong != nil {
		return v.wrong
	}
	if v.breach != nil {
		return v.breach
	}
	err := v.checkSnapshot(seq, b)
	var breach *Breach
	if errors.As(err, &breach) {
		breach.Seq = seq
		v.breach = breach
	}
	return err
}

func (v *Verifier) checkSnapshot(seq uint64, batch *wire.Batch) error {
	events := batch.Events
	if len(events) > 0 && events[0].Kind == wire.KindCleared {
		v.newLife()
		v.report.FirstSeq = seq
		v.report.Complete = true
		v.report.Clears++
		v.report.Events++
		events = events[1:]
	} else if !v.afterSnapshot {
		return broken(-1, "a snapshot begins with %s, not with a clear", contents(events))
	}
	v.joining, v.afterSnapshot = false, true
	v.report.Batches++
	v.report.LastSeq = seq
	if err := v.envelope(batch); err != nil {
		return err
	}
	for i := range events {
		v.report.Events++
		switch events[i].Kind {
		case wire.KindCleared:
			// The second one of a first batch that stores nothing.
			if v.mirror.Len() > 0 {
				return broken(i, "a clear in the middle of a snapshot")
			}
			continue
		case wire.KindStored:
		default:
			return broken(i, "a snapshot does not only store")
		}
		if err := v.stored(i, &events[i]); err != nil {
			return err
		}
	}
	return nil
}

// envelope checks what is around the events.
func (v *Verifier) envelope(batch *wire.Batch) error {
	for _, r := range batch.Remarks {
		if !extension(r.Kind) {
			what := r.Kind.String()
			if r.Key != "" {
				what += " " + strconv.QuoteToASCII(r.Key)
			}
			return broken(r.Event, "%s", what)
		}
	}
	// The decoder remarks upon a time that is not finite.
	if batch.TS < v.lastTS {
		return broken(-1, "the time %f is before that of the batch before, %f", batch.TS, v.lastTS)
	}
	v.lastTS = batch.TS
	return nil
}

// broken makes a Breach; Check adds the number of the batch.
func broken(index int, format string, args ...any) error {
	return &Breach{Event: index, What: fmt.Sprintf(format, args...)}
}

func (v *Verifier) newLife() {
	v.mirror.clear()
	v.report.Lives++
	v.report.Complete = false
	v.sizes = map[uint64]uint32{}
	v.lastTS = math.Inf(-1)
	v.typed, v.bytes = v.given.HasForm, v.given.Form == event.Bytes
	v.form, v.formed = v.given.Form, v.given.HasForm
}

func (v *Verifier) check(seq uint64, batch *wire.Batch) error {
	switch {
	case seq == wire.EndSeq:
		return broken(-1, "the number is the end mark of replays")
	case v.joining:
		v.joining = false
		v.report.FirstSeq = seq
		v.newLife()
	case v.afterSnapshot && seq > 0:
	case seq == 0:
		v.newLife()
	case seq != v.next:
		return broken(-1, "the number before was %d: %s", v.next-1, gap(v.next, seq))
	}
	v.next, v.afterSnapshot = seq+1, false
	v.report.Batches++
	v.report.LastSeq = seq

	if err := v.envelope(batch); err != nil {
		return err
	}
	events := batch.Events
	if seq == 0 && (len(events) != 1 || events[0].Kind != wire.KindCleared) {
		return broken(-1, "a life begins with %s, not with one clear alone", contents(events))
	}
	for i := range events {
		v.report.Events++
		e := &events[i]
		var err error
		switch e.Kind {
		case wire.KindCleared:
			if len(events) != 1 {
				return broken(i, "a clear is not alone in its batch, which has %d events", len(events))
			}
			v.mirror.clear()
			v.report.Clears++
			v.report.Complete = true
		case wire.KindStored:
			err = v.stored(i, e)
		case wire.KindRemoved:
			err = v.removed(i, e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// extension reports whether a remark is about something that a later version
// of the contract may add: readers skip it.
func extension(k wire.RemarkKind) bool {
	return k == wire.RemarkUnknownKey || k == wire.RemarkExtraElements || k == wire.RemarkLongEnvelope
}

func contents(events []wire.Event) string {
	switch {
	case len(events) == 1 && events[0].Kind == wire.KindStored:
		return "a store"
	case len(events) == 1 && events[0].Kind == wire.KindRemoved:
		return "a removal"
	default:
		return fmt.Sprintf("a batch of %d events", len(events))
	}
}

func gap(want, got uint64) string {
	if got > want {
		return strconv.FormatUint(got-want, 10) + " batches are missing"
	}
	return "the numbers run back"
}

// hashType checks that hashes are there, not too many, and all integers or all
// bytes of a length that a digest can have, for the whole life (I7, I8).
func (v *Verifier) hashType(i int, hashes []wire.Hash) error {
	switch n := len(hashes); {
	case n == 0:
		return broken(i, "no block hashes")
	case n > maxHashesPerEvent:
		return broken(i, "%d hashes in one event, %d are allowed", n, maxHashesPerEvent)
	}
	if !v.typed {
		v.typed, v.bytes = true, hashes[0].Kind == wire.HashBytes
	}
	for _, h := range hashes {
		if err := v.hashKind(i, h); err != nil {
			return err
		}
	}
	return nil
}

func (v *Verifier) hashKind(i int, h wire.Hash) error {
	// The length first: what is longer does not belong in a message.
	bytes := h.Kind == wire.HashBytes
	if n := len(h.Raw); bytes && (n == 0 || n > maxHashBytes) {
		return broken(i, "a hash of %d bytes, 1 to %d are allowed", n, maxHashBytes)
	}
	if bytes != v.bytes {
		return broken(i, "hash %s is %s, it should be %s", h, hashKind(bytes), hashKind(v.bytes))
	}
	return nil
}

func hashKind(bytes bool) string {
	if bytes {
		return "bytes"
	}
	return "an integer"
}

func (v *Verifier) stored(i int, e *wire.Event) error {
	if err := v.hashType(i, e.Hashes); err != nil {
		return err
	}
	bit, err := v.mirror.bit(e)
	if err != nil {
		return broken(i, "%s", tooManyPlaces())
	}
	if err := v.shape(i, e); err != nil {
		return err
	}
	m := v.mirror
	m.stamp++
	var parent uint32
	hasParent := e.HasParent
	if hasParent {
		if parent = m.find(e.Parent); parent == 0 && v.report.Complete {
			return broken(i, "parent %s is not announced", e.Parent)
		}
	}
	key, known := v.startKey(e, parent)
	for j, h := range e.Hashes {
		if e.HasParent && h == e.Parent {
			return broken(i, "hash %s is in the event twice", h)
		}
		if known {
			tokens := e.Tokens[j*int(e.BlockSize) : (j+1)*int(e.BlockSize)]
			if key, known, err = v.checkKey(i, h, key, tokens, !hasParent); err != nil {
				return err
			}
		}
		id, what, err := m.store(h, parent, hasParent, bit)
		switch {
		case err != nil:
			return err
		case what != done && m.blocks[id].stamp == m.stamp:
			return broken(i, "hash %s is in the event twice", h)
		case what == again:
			return broken(i, "hash %s is announced already", h)
		case what == otherParent:
			return broken(i, "hash %s was announced under another parent", h)
		}
		if known {
			v.setKey(id, key)
		} else {
			v.report.UnverifiedKeys++
		}
		v.report.StoredBlocks++
		parent, hasParent = id, true
	}
	return nil
}

func (v *Verifier) setKey(id uint32, key event.Digest) {
	if n := len(v.mirror.blocks); len(v.keys) < n {
		v.keys = slices.Grow(v.keys, n-len(v.keys))[:n]
	}
	v.keys[id] = key
	v.mirror.blocks[id].keyed = true
}

// shape checks what can be said of a store without what came before it, except
// the block size.
func (v *Verifier) shape(i int, e *wire.Event) error {
	if e.BlockSize == 0 {
		return broken(i, "block size 0")
	}
	var group uint64
	if e.Extra != nil {
		group = e.Extra.GroupIdx
	}
	if size, ok := v.sizes[group]; ok && size != e.BlockSize {
		return broken(i, "block size %d, it was %d before", e.BlockSize, size)
	}
	v.sizes[group] = e.BlockSize
	if uint64(len(e.Tokens)) != uint64(len(e.Hashes))*uint64(e.BlockSize) {
		return broken(i, "%d tokens for %d blocks of %d", len(e.Tokens), len(e.Hashes), e.BlockSize)
	}
	if e.HasLoRAID && e.LoRAID > math.MaxInt64 {
		return broken(i, "LoRA id %d is above 2^63-1", e.LoRAID)
	}
	if e.HasParent {
		return v.hashKind(i, e.Parent)
	}
	return nil
}

// startKey returns the key before the first block of an event, or false if it
// cannot be known.
func (v *Verifier) startKey(e *wire.Event, parent uint32) (event.Digest, bool) {
	if x := e.Extra; x != nil &&
		(x.StringTokens != nil || x.ExtraKeys != nil || x.MMKeys != nil || x.CacheSalt != "") {
		return event.Digest{}, false
	}
	switch {
	case !e.HasParent:
		return rootKey(e), true
	case v.mirror.blocks[parent].keyed:
		return v.keys[parent], true
	default:
		return event.Digest{}, false
	}
}

// rootKey is the key of the scope without a salt: salts are never on the wire.
func rootKey(e *wire.Event) event.Digest {
	const hasLoRAID, hasLoRAName = 1, 4
	in := []byte{0}
	switch {
	case e.LoRAName != "":
		in[0] = hasLoRAName
		in = binary.LittleEndian.AppendUint32(in, uint32(len(e.LoRAName)))
		in = append(in, e.LoRAName...)
	case e.HasLoRAID:
		in[0] = hasLoRAID
		in = binary.LittleEndian.AppendUint64(in, e.LoRAID)
	}
	return sha256.Sum256(in)
}

// checkKey recomputes the key of one block. It returns false if the block is
// the first of a chain that is not recomputable.
func (v *Verifier) checkKey(i int, h wire.Hash, before event.Digest, tokens []uint32, root bool) (event.Digest, bool, error) {
	v.hash = append(v.hash[:0], before[:]...)
	for _, t := range tokens {
		v.hash = binary.LittleEndian.AppendUint32(v.hash, t)
	}
	key := event.Digest(sha256.Sum256(v.hash))
	found, ok := formOf(h, key)
	switch {
	case ok && (!v.formed || found == v.form):
		v.form, v.formed = found, true
		v.report.VerifiedKeys++
		return key, true, nil
	case ok:
		return key, false, broken(i, "hash %s has the form %s, it should be %s",
			h, FormName(found), FormName(v.form))
	case !root:
		return key, false, broken(i, "hash %s is not the key of its parent and tokens, %s",
			h, hashOf(key, v.form))
	case v.given.HasForm && len(h.Raw) == len(key):
		// Told that bytes are block keys, we can follow a salted chain from its
		// first block on.
		v.report.UnverifiedKeys++
		copy(key[:], h.Raw)
		return key, true, nil
	default:
		return key, false, nil
	}
}

// formOf finds the form in which h is the hash of key.
func formOf(h wire.Hash, key event.Digest) (event.Form, bool) {
	if h.Kind == wire.HashBytes {
		return event.Bytes, h.Raw == string(key[:])
	}
	for f := event.Signed64; f < event.Bytes; f++ {
		if h == wire.HashOf(wire.Reduce(key, f), f) {
			return f, true
		}
	}
	return 0, false
}

func hashOf(key event.Digest, f event.Form) wire.Hash {
	if f == event.Bytes {
		return wire.HashOfBytes(key[:])
	}
	return wire.HashOf(wire.Reduce(key, f), f)
}

func (v *Verifier) removed(i int, e *wire.Event) error {
	if err := v.hashType(i, e.Hashes); err != nil {
		return err
	}
	bit, err := v.mirror.bit(e)
	if err != nil {
		return broken(i, "%s", tooManyPlaces())
	}
	for _, h := range e.Hashes {
		what := v.mirror.remove(h, bit)
		switch {
		case what == unknown && v.report.Complete:
			return broken(i, "hash %s is removed but not announced", h)
		case what == unknown:
			v.report.UnknownRemovals++
		case what == hasChildren && v.report.Complete:
			return broken(i, "hash %s is removed before a block that hangs on it", h)
		}
		v.report.RemovedBlocks++
	}
	return nil
}

// formNames are the values of the configuration key "hash".
var formNames = [...]string{"signed64", "unsigned64", "portable63", "bytes"}

// FormName returns the configuration name of a hash form.
func FormName(f event.Form) string {
	if int(f) < len(formNames) {
		return formNames[f]
	}
	return "unknown"
}

// ParseForm is the inverse of FormName.
func ParseForm(name string) (event.Form, bool) {
	for i, n := range formNames {
		if n == name {
			return event.Form(i), true
		}
	}
	return 0, false
}
