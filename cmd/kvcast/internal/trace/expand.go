// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

package trace

const (
	// Vocabulary is the number of different token ids of an expansion.
	Vocabulary = 128256

	outputBase   = 1 << 63
	outputStride = MaxOutputLength
)

// splitmix64 is Vigna's generator as a function of its state.
func splitmix64(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// AppendPrompt appends the prompt of a request: InputLength tokens.
func AppendPrompt(dst []uint32, r *Request) []uint32 {
	left := r.InputLength
	for _, id := range r.HashIDs {
		n := min(left, TokensPerID)
		for p := range n {
			dst = append(dst, uint32(splitmix64(id*TokensPerID+uint64(p))%Vocabulary))
		}
		left -= n
	}
	return dst
}

// AppendOutput appends the OutputLength tokens that a request generates. They
// depend on the request's Index only.
func AppendOutput(dst []uint32, r *Request) []uint32 {
	base := outputBase + uint64(r.Index)*outputStride
	for j := range r.OutputLength {
		dst = append(dst, uint32(splitmix64(base+uint64(j))%Vocabulary))
	}
	return dst
}
