/* SPDX-FileCopyrightText: The kvcast authors */
/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Linked into tests that are said to have one thread only and so are not run under ThreadSanitizer:
 * whichever of them starts a thread after all, itself or through a library, ends here and has to
 * move to the other list.
 */

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                   void* argument) {
  (void)thread;
  (void)attributes;
  (void)run;
  (void)argument;
  fputs(
      "a test that is listed as one of a single thread starts another: put it into "
      "KVC_THREADED_TESTS\n",
      stderr);
  abort();
}
