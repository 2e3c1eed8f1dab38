"""Tests the bounds on the memory, time and connections that clients without a valid key hold in a gate process."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from shared.accounts.api_keys import ApiKeys
from tests.support.gate import SLOW, GateClient, a_gate, submit_frame
from tests.support.processes import Process, Stage, wait_for

pytestmark = pytest.mark.ways("direct", reason="the gate does not speak HTTP")

MIB = 1 << 20


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path, **(SLOW | {"PENSTOCK_AUTH": "required"})) as stage:
        yield stage
        stage.assert_sound()


def resident_bytes(process: Process) -> int:
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1_024 for line in lines if line.startswith("VmRSS:"))


def test_three_hundred_half_frames_of_a_mebibyte_from_nobody_take_no_more_memory_than_their_budget(
    stage: Stage,
) -> None:
    gate, port = a_gate(stage)
    stage.worker()
    key = ApiKeys(stage.client).create("blue").key
    with ExitStack() as stack:
        nobody = [stack.enter_context(GateClient.at(port)) for _ in range(300)]
        for client in nobody:
            assert client.ask({"op": "ping"}) == {"status": "pong"}
        before = resident_bytes(gate)
        growth = []
        for client in nobody:
            client.send(b'{"op":"submit","body":"' + b"x" * (MIB - 1_024))
            growth.append(resident_bytes(gate) - before)
        # The budget is 16 MiB. The margin is for what the allocator keeps of dropped frames; 15 MiB were measured.
        assert max(growth) < 16 * MIB + 24 * MIB
        # Meanwhile, a tenant can still submit, also a long prompt in the first frame.
        tenant = stack.enter_context(GateClient.at(port))
        assert tenant.ask(submit_frame(prompt="word " * 2_000) | {"tenant_key": key})["status"] == "accepted"


def test_a_client_that_shows_its_key_gets_a_connection_while_strangers_occupy_all(stage: Stage) -> None:
    key = ApiKeys(stage.client).create("blue").key
    _, port = a_gate(stage, PENSTOCK_GATE_MAX_CONNECTIONS_PER_ADDRESS="20")
    with ExitStack() as stack:
        first = stack.enter_context(GateClient.at(port))
        assert first.ask({"op": "auth", "tenant_key": key}) == {"status": "ok"}
        nobody = [stack.enter_context(GateClient.at(port)) for _ in range(60)]
        assert nobody[-1].ask({"op": "ping"}) == {"status": "pong"}
        assert nobody[0].is_closed()
        assert sum(is_open(client) for client in nobody) == 19
        known = [stack.enter_context(GateClient.at(port)) for _ in range(19)]
        for client in known:
            assert client.ask({"op": "auth", "tenant_key": key}) == {"status": "ok"}
        with GateClient.at(port) as refused:
            answer = refused.read()
            assert (answer["code"], "PER_ADDRESS" in answer["error"]["message"]) == ("too_many_connections", True)
            assert refused.is_closed()
        known[0].close()
        wait_for(lambda: is_accepted(port), "a place to be free")
        assert first.ask({"op": "ping"}) == {"status": "pong"}


def is_open(client: GateClient) -> bool:
    try:
        return client.ask({"op": "ping"}) == {"status": "pong"}
    except (AssertionError, OSError):
        return False


def is_accepted(port: int) -> bool:
    with GateClient.at(port) as client:
        return is_open(client)
