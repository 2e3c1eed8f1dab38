"""Waits until replicas have the writes of a script, for the setting PENSTOCK_ACK_REPLICAS."""

from typing import Any

import redis

from shared.errors import Unconfirmed
from shared.store.decode import text
from shared.store.redis_errors import store_faults
from shared.store.scripts import Call, Script

#: How long to wait for the replicas, in ms. Replicas in the same network confirm within a few ms. The limit leaves the
#: door enough of its store timeout of one second (shared/store/connection.py) for the call itself.
ACK_TIMEOUT_MS = 500


def call_acknowledged(
    client: redis.Redis, script: Script, call: Call, *, word: str, replicas: int
) -> tuple[str, list[Any]]:
    """Run the script; if the first word of its answer is `word`, return only when `replicas` replicas have its writes.

    Return the script's answer, whose second element is the id of a job. Raises StoreUnavailable, which is Unconfirmed
    if fewer replicas confirmed within ACK_TIMEOUT_MS. The writes are then still in the primary, and a slow replica may
    yet receive them.

    WAIT covers the writes of the connection that sends it, so one connection makes both calls. If that connection
    breaks in between, the client does not send WAIT on another one, because it never repeats a command.
    """
    with store_faults(client), client.client() as connection:
        answer = script.call(connection, **call)
        if answer[0] != word:
            return answer
        confirmed: Any = connection.wait(replicas, ACK_TIMEOUT_MS)
    if confirmed < replicas:
        raise Unconfirmed(
            f"{confirmed} of {replicas} replicas (PENSTOCK_ACK_REPLICAS) confirmed the job within {ACK_TIMEOUT_MS} ms",
            text(answer[1][0]),
        )
    return answer


def too_few_replicas(client: redis.Redis, needed: int) -> str:
    """Return a warning if fewer replicas than `needed` are connected, or "" otherwise. Raises StoreUnavailable."""
    if not needed:
        return ""
    with store_faults(client):
        connected = int(client.info("replication").get("connected_slaves", 0))
    if connected >= needed:
        return ""
    return (
        f"PENSTOCK_ACK_REPLICAS is {needed}, but {connected} replicas are connected to the store; "
        "until there are more, every job is refused"
    )
