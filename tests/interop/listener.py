# SPDX-FileCopyrightText: The kvcast authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps an index of several streams with the parts that Dynamo's Python bindings have for it.

Takes lines of JSON on standard input, answers each with one on standard output:

  {"listen": [ENDPOINT OF RANK 0, ...], "block_size": N}  -> {}
  {"again": RANK}                                         -> {}, with a new listener for the rank
  {"match": [TOKEN, ...]}                                 -> {"blocks": {RANK: N}, "refused": EVENTS SO FAR}

Ranks are told apart as workers of the tree.
"""

import asyncio
import json
import sys

from dynamo._core import RadixTree, ZmqKvEventListener, compute_block_hash_for_seq_py


async def main():
    tree = RadixTree()
    endpoints, listeners, block_size, refused = [], [], 0, 0
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        question = json.loads(line)
        if "listen" in question:
            endpoints, block_size = question["listen"], question["block_size"]
            listeners = [ZmqKvEventListener(endpoint, "", block_size) for endpoint in endpoints]
            print("{}")
            continue
        if "again" in question:
            rank = question["again"]
            listeners[rank] = ZmqKvEventListener(endpoints[rank], "", block_size)
            print("{}")
            continue
        for rank, listener in enumerate(listeners):
            for event in await listener.get_events():
                try:
                    tree.apply_event(rank, event.encode())
                except RuntimeError:  # as Dynamo's indexers do: say so and go on
                    refused += 1
        hashes = compute_block_hash_for_seq_py(question["match"], block_size)
        scores = tree.find_matches(hashes).scores
        blocks = {}
        for worker, n in scores.items():
            rank = worker[0] if isinstance(worker, tuple) else worker
            blocks[str(rank)] = blocks.get(str(rank), 0) + n
        print(json.dumps({"blocks": blocks, "refused": refused}))


asyncio.run(main())
