// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// Package cuinterop lets programs that use gorgonia.org/cu hand their contexts
// and streams to kvcast, and get back its streams and addresses as that
// package's types. It only converts: no ownership changes hands.
//
// It is empty without the build tag cuda. With it gorgonia.org/cu is compiled,
// which needs a cuda.h of CUDA 11 or 12 and links libcuda; a program built so
// does not start where there is no driver. Nothing else of kvcast needs that:
// handles and addresses are plain numbers in package bindings.
//
//	err := cuinterop.InContext(ctx, func() (err error) {
//		config.CallersContext = true
//		manager, err = bindings.NewManager(config)
//		return err
//	})
//	stream, err := manager.AdoptCUDAStream(cuinterop.Handle(mine))
//	memory, err := manager.DeviceMemory()
//	pages := cuinterop.Pointer(memory.Base)
package cuinterop
