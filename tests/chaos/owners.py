"""A user whose connections own their jobs: OpenAI's chat route, plain and streamed, and the TCP gate."""

import json
import random
import socket
import time
import uuid
from hashlib import sha256
from typing import Any

from tests.chaos.calls import TIMEOUT_S, Answer, Doors, Unreachable
from tests.chaos.users import Shared, User


class Owner(User):
    """Closing such a connection cancels its job, so a job whose connection breaks may end in any way."""

    def __init__(
        self,
        shared: Shared,
        tenant: str,
        doors: Doors,
        rng: random.Random,
        words: tuple[int, int],
        gate: tuple[int, str],
    ) -> None:
        super().__init__(shared, tenant, doors, rng, words)
        self._gate_port, self._gate_key = gate
        self.actions = {self.chat: 2, self.stream_chat: 4, self.use_gate: 4, self.snoop: 1}

    def chat(self) -> None:
        since = time.monotonic()
        answer = self.doors.call("POST", "/v1/chat/completions", self._chat_body())
        if answer.status == 200:
            job_id, text = answer.body["id"].removeprefix("chatcmpl-"), answer.body["choices"][0]["message"]["content"]
            self.acknowledge(job_id, since, job_id, "chat", key=None, owned=True)
            self.write("stream", id=job_id, text=text, via="chat", job=None)
            self.poll(job_id)
        else:
            self._check_error(answer, "chat")

    def stream_chat(self) -> None:
        """Stream a chat; leave one in eight in the middle."""
        since, text, job_id, finished = time.monotonic(), "", "", False
        leaves_after = self.rng.randint(1, 10) if self.rng.random() < 0.125 else None
        ref = uuid.UUID(int=self.rng.getrandbits(128)).hex
        with self.doors.stream("POST", "/v1/chat/completions", self._chat_body() | {"stream": True}) as events:
            if isinstance(events, Answer):
                self._check_error(events, "chat, stream")
                return
            for number, event in enumerate(events):
                chunk = event.data
                if "choices" not in chunk:
                    break  # an error, which says how the job ended, or the marker [DONE]
                if not job_id:
                    job_id = chunk["id"].removeprefix("chatcmpl-")
                    self.acknowledge(job_id, since, ref, "chat, stream", key=None, owned=True)
                for choice in chunk["choices"]:
                    text += choice["delta"].get("content") or ""
                    finished = finished or bool(choice["finish_reason"])
                if number == leaves_after:
                    self.write("canceled", id=job_id)
                    break
        if finished:
            self.write("stream", id=job_id, text=text, via="chat, stream", job=None)
        if job_id:
            self.poll(job_id)

    def use_gate(self) -> None:
        """Send a few jobs on one connection to the gate and read their frames."""
        wanted = {str(number): uuid.UUID(int=self.rng.getrandbits(128)).hex for number in range(self.rng.randint(1, 3))}
        ids: dict[str, str] = {}
        texts: dict[str, str] = dict.fromkeys(wanted, "")
        since = time.monotonic()
        try:
            with socket.create_connection(("127.0.0.1", self._gate_port), timeout=TIMEOUT_S) as connection:
                lines = connection.makefile("rb")
                for ref, metadata_ref in wanted.items():
                    connection.sendall(self._submit_frame(ref, metadata_ref))
                while wanted and (line := lines.readline()).endswith(b"\n"):
                    frame = json.loads(line)
                    ref = frame["ref"]
                    self._note_frame(frame, wanted[ref], since, ids, texts)
                    if frame["status"] not in {"accepted", "started", "text"}:
                        del wanted[ref]
        except OSError as error:
            raise Unreachable(repr(error)) from error
        finally:
            for ref, metadata_ref in wanted.items():
                if ref in ids:
                    self.write("canceled", id=ids[ref])
                else:
                    self.write("unknown", ref=metadata_ref, key=None)
        for job_id in ids.values():
            self.poll(job_id)

    def _note_frame(
        self, frame: dict[str, Any], metadata_ref: str, since: float, ids: dict[str, str], texts: dict[str, str]
    ) -> None:
        ref, status = frame["ref"], frame["status"]
        if status == "accepted":
            ids[ref] = frame["id"]
            self.acknowledge(frame["id"], since, metadata_ref, "gate", key=None, owned=True)
        elif status == "started":
            texts[ref] = texts.get(ref, "") if frame.get("resumed") else ""
        elif status == "text":
            texts[ref] += frame["text"]
        elif status == "yield":
            self.write("refused", ref=metadata_ref, key=None, reason=frame["reason"])
        elif status == "error" and frame["code"] != "job_not_found":
            self.write("anomaly", what=f"gate: {frame}")
        elif status == "succeeded":
            self.write("stream", id=ids[ref], text=texts[ref], via="gate", job=None)
            self.write("stream", id=ids[ref], text=frame["text"], via="gate, result", job=None)

    def _submit_frame(self, ref: str, metadata_ref: str) -> bytes:
        text = json.dumps(self.job_body() | {"metadata": {"ref": metadata_ref}})
        digest = sha256(text.encode()).hexdigest()
        frame = {
            "op": "submit",
            "ref": ref,
            "tenant_key": self._gate_key,
            "stream": True,
            "body": text,
            "sha256": digest,
        }
        return json.dumps(frame).encode() + b"\n"

    def _chat_body(self) -> dict[str, Any]:
        body = self.job_body()
        return {"messages": [{"role": "user", "content": body.pop("prompt")}], **body}

    def _check_error(self, answer: Answer, via: str) -> None:
        """A yield, or an error that says how the job ended; the job's id is not known."""
        codes = {"deadline_exceeded", "job_canceled", "job_failed", "deadline_unmeetable", "job_not_found"}
        if answer.refusal is None and answer.body.get("error", {}).get("code") not in codes:
            self.write("anomaly", what=f"{via}: {answer.status} {answer.body}")
