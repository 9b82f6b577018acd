# SPDX-FileCopyrightText: The kvcast authors
# SPDX-License-Identifier: Apache-2.0
"""Decodes batches with msgspec (typed) and msgpack, as other people's readers do.

Takes lines of JSON on standard input, answers each with one on standard output:

  {"decode": HEX, "form": "map"}              -> one decoded payload
  {"tap": ENDPOINT, "count": N, "form": F}    -> {} once subscribed, then N times one decoded message

A decoded payload is {"hex", "msgspec", "msgpack"}; the latter two are {"ts", "rank", "events"}, each event an object of
its fields. Byte strings are {"$bytes": HEX}. The types are those that the wire contract lists for each field, and
nothing else is accepted: no unknown key, no missing one, no other type.
"""

import json
import sys
from typing import Any, Optional, Union

import msgpack
import msgspec
import zmq
from msgspec import UNSET, UnsetType

Hash = Union[int, bytes]
# Strings, byte strings and pairs in one list, which is more than msgspec's unions can say.
ExtraKeys = list[Optional[list[Any]]]


class MMKey(msgspec.Struct, tag_field="type", tag="mm_key", forbid_unknown_fields=True):
    hash: str
    start_offset: int
    uuid: Union[str, UnsetType] = UNSET


class StoredMap(msgspec.Struct, tag_field="type", tag="BlockStored", forbid_unknown_fields=True):
    block_hashes: list[Hash]
    parent_block_hash: Optional[Hash]
    token_ids: list[Union[int, str]]
    block_size: int
    lora_id: Optional[int]
    medium: Optional[str]
    lora_name: Optional[str]
    extra_keys: Union[ExtraKeys, UnsetType] = UNSET
    group_idx: Union[int, UnsetType] = UNSET
    kv_cache_spec_kind: Union[str, UnsetType] = UNSET
    kv_cache_spec_sliding_window: Union[int, UnsetType] = UNSET
    locality: Union[str, UnsetType] = UNSET
    ownership: Union[str, UnsetType] = UNSET
    session_id: Union[str, UnsetType] = UNSET
    mm_keys: Union[list[list[MMKey]], UnsetType] = UNSET


class RemovedMap(msgspec.Struct, tag_field="type", tag="BlockRemoved", forbid_unknown_fields=True):
    block_hashes: list[Hash]
    medium: Optional[str]
    group_idx: Union[int, UnsetType] = UNSET
    locality: Union[str, UnsetType] = UNSET
    ownership: Union[str, UnsetType] = UNSET


class ClearedMap(msgspec.Struct, tag_field="type", tag="AllBlocksCleared", forbid_unknown_fields=True):
    pass


class SglangStored(msgspec.Struct, tag_field="type", tag="BlockStored", forbid_unknown_fields=True):
    block_hashes: list[int]
    parent_block_hash: Optional[int]
    token_ids: list[int]
    block_size: int
    lora_id: Optional[int]
    medium: Union[str, None, UnsetType] = UNSET
    cache_salt: Union[str, None, UnsetType] = UNSET
    session_id: Union[str, None, UnsetType] = UNSET
    lora_name: Union[str, None, UnsetType] = UNSET


class SglangRemoved(msgspec.Struct, tag_field="type", tag="BlockRemoved", forbid_unknown_fields=True):
    block_hashes: list[int]
    medium: Union[str, None, UnsetType] = UNSET


class StoredArray(msgspec.Struct, array_like=True, tag="BlockStored", forbid_unknown_fields=True):
    block_hashes: list[Hash]
    parent_block_hash: Optional[Hash]
    token_ids: list[int]
    block_size: int
    lora_id: Optional[int]
    medium: Optional[str]
    lora_name: Optional[str]
    extra_keys: Optional[ExtraKeys]
    group_idx: Optional[int]
    kv_cache_spec_kind: Optional[str]
    kv_cache_spec_sliding_window: Optional[int]


class RemovedArray(msgspec.Struct, array_like=True, tag="BlockRemoved", forbid_unknown_fields=True):
    block_hashes: list[Hash]
    medium: Optional[str]
    group_idx: Optional[int]


class StoredShort(msgspec.Struct, array_like=True, tag="BlockStored", forbid_unknown_fields=True):
    block_hashes: list[Hash]
    parent_block_hash: Optional[Hash]
    token_ids: list[int]
    block_size: int
    lora_id: Optional[int]
    medium: Optional[str]
    lora_name: Optional[str]
    extra_keys: Optional[ExtraKeys]


class RemovedShort(msgspec.Struct, array_like=True, tag="BlockRemoved", forbid_unknown_fields=True):
    block_hashes: list[Hash]
    medium: Optional[str]


class ClearedArray(msgspec.Struct, array_like=True, tag="AllBlocksCleared", forbid_unknown_fields=True):
    pass


EVENTS = {
    "map": (StoredMap, RemovedMap, ClearedMap),
    "sglang": (SglangStored, SglangRemoved, ClearedMap),
    "array": (StoredArray, RemovedArray, ClearedArray),
    "array-short": (StoredShort, RemovedShort, ClearedArray),
}


def batch_of(events):
    return msgspec.defstruct(
        "Batch",
        [("ts", float), ("events", list[Union[events]]), ("data_parallel_rank", Optional[int])],
        array_like=True,
        forbid_unknown_fields=True,
    )


DECODERS = {form: msgspec.msgpack.Decoder(batch_of(events)) for form, events in EVENTS.items()}
# In place of the tag, which an array has first.
NAMES = {
    form: {e.__struct_config__.tag: ("type",) + e.__struct_fields__ for e in events}
    for form, events in EVENTS.items()
    if form.startswith("array")
}


def plain(value):
    """Returns a decoded value as JSON can have it."""
    if isinstance(value, msgspec.Struct):
        fields = {f: getattr(value, f) for f in value.__struct_fields__}
        fields = {f: plain(v) for f, v in fields.items() if v is not UNSET}
        return {"type": value.__struct_config__.tag, **fields}
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return value


def by_msgspec(payload, form):
    batch = DECODERS[form].decode(payload)
    return {"ts": batch.ts, "rank": batch.data_parallel_rank, "events": plain(batch.events)}


def by_msgpack(payload, form):
    ts, events, rank = msgpack.unpackb(payload, strict_map_key=True)
    if type(ts) is not float:
        raise TypeError(f"ts is {ts!r}")
    if form.startswith("array"):
        events = [dict(zip(NAMES[form][e[0]], e, strict=True)) for e in events]
    return {"ts": ts, "rank": rank, "events": plain(events)}


def decoded(payload, form):
    answer = {"hex": payload.hex()}
    for name, decode in (("msgspec", by_msgspec), ("msgpack", by_msgpack)):
        try:
            answer[name] = decode(payload, form)
        except Exception as e:  # the other side compares
            answer[name] = {"error": repr(e)}
    return answer


def tap(endpoint, count, form, say):
    context = zmq.Context()
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.RCVTIMEO, 30000)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(endpoint)
    say({})
    for _ in range(count):
        topic, seq, payload = socket.recv_multipart()
        say({"topic": topic.decode(), "seq": int.from_bytes(seq, "big"), "width": len(seq), **decoded(payload, form)})
    context.destroy()


def main():
    def say(answer):
        print(json.dumps(answer))

    for line in sys.stdin:
        question = json.loads(line)
        if "decode" in question:
            say(decoded(bytes.fromhex(question["decode"]), question["form"]))
        else:
            tap(question["tap"], question["count"], question["form"], say)


main()
