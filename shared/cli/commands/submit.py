"""`penstock submit`: offer a job to the door, show how it fares, print the answer."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.cli import output
from shared.cli.commands.jobs import shown_changes
from shared.cli.durations import parse_ms, shown_ms
from shared.cli.reach import FAULT, YIELD, Json, TenantOfKey, door
from shared.errors import ConfigError

if TYPE_CHECKING:
    from shared.cli.client import JobClient, Yielded
    from shared.cli.progress import Progress


def submit(
    prompt: Annotated[str, typer.Argument(help="The text to go on from; `-` reads it from stdin.")],
    *,
    stream: Annotated[bool, typer.Option("--stream", help="Print the answer while it is generated.")] = False,
    chat: Annotated[
        bool, typer.Option("--chat", help="Send it as a user's message, through the chat template.")
    ] = False,
    deadline: Annotated[
        str | None, typer.Option(metavar="SPAN", help="When nobody wants the answer any more, such as 20s.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="The most to generate.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="0: always the most likely token.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same answer.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text; may be given again.")] = None,
    model: Annotated[str | None, typer.Option(help="A served name.")] = None,
    tenant: TenantOfKey = None,
    wait: Annotated[
        str, typer.Option(metavar="SPAN", help="On `yield` come back after each hint, for at most this long.")
    ] = "0s",
    detach: Annotated[bool, typer.Option("--detach", help="Print the job's id and leave it to run.")] = False,
    json: Json = False,
) -> None:
    """Submit a prompt and print the answer; exit code 75 when the door says `yield`.

    Ctrl-C cancels the job.
    """
    body = _body(prompt, chat=chat)
    chosen = {
        "deadline_ms": None if deadline is None else parse_ms("deadline", deadline),
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "stop": stop or None,
        "model": model,
    }
    body |= {name: value for name, value in chosen.items() if value is not None}
    wait_ms = parse_ms("wait", wait)
    from shared.cli.client import Yielded
    from shared.cli.progress import Progress

    client = door(tenant)
    with Progress() as progress:
        job = client.submit(body, wait_s=wait_ms / 1000, on_yield=progress.yielded)
        if isinstance(job, Yielded):
            progress.hide()
            _say_yield(job, json=json)
            raise typer.Exit(YIELD)
        if detach:
            progress.hide()
            output.as_json(job) if json else output.data(job["id"])
            return
        try:
            ended, printed = _stream(client, job, progress, json=json) if stream else (_poll(client, job, progress), "")
        except KeyboardInterrupt:
            progress.hide()
            _cancel(client, job["id"])
            raise
    _finish(ended, printed, json=json, streamed=stream)


def _body(prompt: str, *, chat: bool) -> dict[str, Any]:
    text = _stdin() if prompt == "-" else prompt
    if not text:
        raise ConfigError("prompt='' is empty")
    return {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}


def _stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"the prompt on stdin is no UTF-8: {error.reason} at byte {error.start}") from None


def _say_yield(refusal: "Yielded", *, json: bool) -> None:
    if json:
        output.as_json(refusal.body)
    if refusal.retry_hint_ms is None:
        output.note(f"yield: {refusal.message}; coming back does not help")
    else:
        output.note(f"yield ({refusal.reason}): {refusal.message}; hint: {shown_ms(refusal.retry_hint_ms)}")


def _poll(client: "JobClient", job: dict[str, Any], progress: "Progress") -> dict[str, Any]:
    for found in client.watch(job):
        job = found
        progress.seen(job)
    return job


def _stream(
    client: "JobClient", job: dict[str, Any], progress: "Progress", *, json: bool
) -> tuple[dict[str, Any], str]:
    """Print tokens as they come; answer the ended job and the text that was printed of it.

    After a lost worker the job starts anew. What the new attempt repeats is not printed again; where
    it differs, it is printed whole on a line of its own.
    """
    printed = attempt = ""
    progress.seen(job)
    for event in client.follow(job["id"]):
        if json:
            progress.hide()
            output.json_line({"event": event.kind, "data": event.data})
        if event.kind == "ended":
            return event.data, printed
        if event.kind == "started":
            attempt = ""
            progress.seen(job | {"status": "running", "attempts": event.data.get("attempt")})
        elif event.kind == "token":
            progress.hide()
            attempt += str(event.data.get("text", ""))
            if not json:
                printed = _print_on(printed, attempt)
    raise AssertionError("a stream ends with `ended` or a fault")


def _print_on(printed: str, attempt: str) -> str:
    if printed.startswith(attempt):
        return printed
    if attempt.startswith(printed):
        output.data(attempt[len(printed) :], end="")
        return attempt
    output.data("")
    output.note("the worker was lost; another one answers from the start:")
    output.data(attempt, end="")
    return attempt


def _cancel(client: "JobClient", job_id: str) -> None:
    """Nobody waits for the answer any more, so it should cost nothing more."""
    client.cancel(job_id)
    output.note(f"canceled job {job_id}")


def _finish(job: dict[str, Any], printed: str, *, json: bool, streamed: bool) -> None:
    text = job.get("text") or ""
    if json and not streamed:
        output.as_json(job)
    elif not json:
        rest = _print_on(printed, text)
        if rest and not rest.endswith("\n"):
            output.data("")
    if changes := shown_changes(job):
        output.note(f"job {job['id']} was changed to fit: {changes}")
    if job["status"] != "succeeded":
        error = job.get("error") or {}
        why = error.get("message") or error.get("code") or job["status"]
        output.note(f"job {job['id']} {job['status']}: {why}")
        raise typer.Exit(FAULT)
