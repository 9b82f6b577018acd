// SPDX-FileCopyrightText: The kvcast authors
// SPDX-License-Identifier: Apache-2.0

// All kernels as one translation unit, which becomes kernels.ptx.

#include "cuda/kernels/page_copy.cu"
#include "cuda/kernels/page_fill.cu"
#include "cuda/kernels/table_update.cu"
