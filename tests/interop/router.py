# SPDX-FileCopyrightText: The kvcast authors
# SPDX-License-Identifier: Apache-2.0
"""Runs Dynamo's relay and KV router in one process, as a deployment runs them in several.

What they would ask etcd and NATS for is in memory (discovery) and on sockets (events, requests). Takes lines of JSON on
standard input, answers each with one on standard output:

  {"listen": [ENDPOINT OF RANK 0, ...], "block_size": N}  -> {}
  {"match": [TOKEN, ...]}                                 -> {"blocks": {RANK: N}, "best": RANK}
"""

import asyncio
import json
import sys

from dynamo._core import (
    DistributedRuntime,
    KvEventPublisher,
    KvRouter,
    KvRouterConfig,
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    WorkerType,
    register_model,
)


async def generate(request):
    """Is what the worker would serve; nobody asks for it."""
    yield {}


async def main():
    loop = asyncio.get_running_loop()
    runtime = DistributedRuntime(loop, "mem", "tcp", event_plane="zmq")
    endpoint = runtime.endpoint("kvcast.worker.generate")
    serving = asyncio.ensure_future(endpoint.serve_endpoint(generate))
    relays, router = [], None
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        question = json.loads(line)
        if "listen" in question:
            endpoints, block_size = question["listen"], question["block_size"]
            config = ModelRuntimeConfig()
            config.data_parallel_start_rank, config.data_parallel_size = 0, len(endpoints)
            config.enable_local_indexer = True
            await (await endpoint.client()).wait_for_instances()
            await register_model(
                ModelInput.Tokens, ModelType.Chat, endpoint, "model", worker_type=WorkerType.Aggregated,
                kv_cache_block_size=block_size, runtime_config=config, skip_model_assets=True)
            router = KvRouter(endpoint, block_size, KvRouterConfig())
            relays = [
                KvEventPublisher(endpoint, kv_block_size=block_size, dp_rank=rank, enable_local_indexer=True,
                                 zmq_endpoint=at, zmq_topic="")
                for rank, at in enumerate(endpoints)
            ]
            print("{}")
            continue
        scores = await router.get_overlap_scores(question["match"])
        best = await router.best_worker(question["match"])
        print(json.dumps({"blocks": {str(w["dp_rank"]): w["device_blocks"] for w in scores["workers"]}, "best": best}))
    for relay in relays:
        relay.shutdown()
    runtime.shutdown()
    serving.cancel()


asyncio.run(main())
