"""`penstock submit`: submit a job to the door, show its progress and print the answer."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.cli import output
from shared.cli.commands.jobs import describe_degradation
from shared.cli.reach import YIELD, ActingTenant, Json, door_client, end_with
from shared.cli.streams import OutputError
from shared.durations import parse_duration_ms
from shared.errors import ConfigError

if TYPE_CHECKING:
    from shared.cli.client import JobClient, YieldAnswer
    from shared.cli.progress import Progress


Stream = Annotated[bool, typer.Option("--stream", help="Print the answer while it is generated.")]
Chat = Annotated[
    bool,
    typer.Option("--chat", help="Send the prompt as a user message, so that the model's chat template applies."),
]
Deadline = Annotated[
    str | None,
    typer.Option(metavar="DURATION", help="The job ends after this time, such as 20s, even without a whole answer."),
]
MaxTokens = Annotated[int | None, typer.Option(metavar="N", min=1, help="Maximum number of tokens to generate.")]
Temperature = Annotated[
    float | None,
    typer.Option(metavar="NUMBER", min=0, help="Sampling temperature. 0 always takes the most likely token."),
]
Seed = Annotated[
    int | None, typer.Option(metavar="N", help="Seed of the sampler. The same seed gives the same answer.")
]
Stop = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="Stop the answer before this text. May be repeated.")
]
Model = Annotated[str | None, typer.Option(metavar="NAME", help="The name of a served model.")]
Priority = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=-1, max=1, help="1: before the tenant's other jobs. -1: batch work, after all tenants' jobs."
    ),
]
CallbackUrl = Annotated[
    str | None,
    typer.Option("--callback-url", metavar="URL", help="The door tells the job's end to this URL, by a webhook."),
]
Wait = Annotated[
    str, typer.Option(metavar="DURATION", help="After a `yield`, retry at each hint, for at most this long.")
]
Detach = Annotated[bool, typer.Option("--detach", help="Print the job's id and exit, while the job continues.")]


def submit(
    prompt: Annotated[str, typer.Argument(help="The prompt. `-` reads it from stdin.")],
    *,
    stream: Stream = False,
    chat: Chat = False,
    deadline: Deadline = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    stop: Stop = None,
    model: Model = None,
    priority: Priority = None,
    tenant: ActingTenant = None,
    callback_url: CallbackUrl = None,
    wait: Wait = "0s",
    detach: Detach = False,
    json: Json = False,
) -> None:
    """Submit a prompt and print the answer. Exit with code 75 if the door answers `yield`.

    Ctrl-C cancels the job.
    """
    body = _body(prompt, chat=chat)
    options = {
        "deadline_ms": None if deadline is None else parse_duration_ms("deadline", deadline),
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": seed,
        "stop": stop or None,
        "model": model,
        "priority": priority,
        "callback_url": callback_url,
    }
    body |= {name: value for name, value in options.items() if value is not None}
    wait_ms = parse_duration_ms("wait", wait)
    from shared.cli.client import YieldAnswer
    from shared.cli.progress import Progress

    client = door_client(tenant)
    with Progress() as progress:
        job = _offer(client, body, wait_ms, progress)
        if isinstance(job, YieldAnswer):
            progress.hide()
            _print_yield(job, json=json)
            raise typer.Exit(YIELD)
        try:
            if detach:
                progress.hide()
                output.write_json(job) if json else output.write_data(job["id"])
            else:
                _follow_to_end(client, job, progress, stream=stream, json=json)
        except KeyboardInterrupt:
            progress.hide()
            if stream and sys.stdout.isatty():
                output.write_data("")  # the text so far ends without a line end
            _cancel(client, job["id"], tenant)
            raise
        except OutputError as error:
            progress.hide()
            raise OutputError(f"{error}; `penstock job {_named(job['id'], tenant)}` shows the answer") from None


def _named(job_id: str, tenant: str | None) -> str:
    return f"{job_id} --tenant {tenant}" if tenant else job_id


def _follow_to_end(client: "JobClient", job: dict[str, Any], progress: "Progress", *, stream: bool, json: bool) -> None:
    """Print the job's answer. Exit with FAULT unless it succeeds."""
    ended, printed = _stream(client, job, progress, json=json) if stream else (_poll(client, job, progress), "")
    progress.hide()
    _finish(ended, printed, json=json, streamed=stream)


def _offer(
    client: "JobClient", body: dict[str, Any], wait_ms: int, progress: "Progress"
) -> "dict[str, Any] | YieldAnswer":
    """Submit the job, and return it or the `yield`. After Ctrl-C, say where an admitted job is listed."""
    try:
        return client.submit(body, wait_s=wait_ms / 1000, on_yield=progress.show_yield)
    except KeyboardInterrupt:
        progress.hide()
        output.write_note("stopped before the door said that the job is admitted; if it was, `penstock jobs` lists it")
        raise


def _body(prompt: str, *, chat: bool) -> dict[str, Any]:
    text = _read_stdin() if prompt == "-" else prompt
    if not text:
        raise ConfigError("prompt='' is empty")
    return {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"the prompt on stdin is not UTF-8: {error.reason} at byte {error.start}") from None


def _print_yield(refusal: "YieldAnswer", *, json: bool) -> None:
    if json:
        output.write_json(refusal.body)
    # The message says when to retry, or when to send a new request, if the door has told a time.
    hopeless = "" if refusal.body.get("retry_hint_ms") else "; a retry would not help"
    output.write_note(f"yield ({refusal.reason}): {refusal.message}{hopeless}")


def _poll(client: "JobClient", job: dict[str, Any], progress: "Progress") -> dict[str, Any]:
    """Poll the job until it has ended, show each state, and return the ended job."""
    for current in client.poll(job):
        job = current
        progress.show_job(job)
    return job


def _stream(
    client: "JobClient", job: dict[str, Any], progress: "Progress", *, json: bool
) -> tuple[dict[str, Any], str]:
    """Print tokens as they arrive. Return the ended job and the part of its text that was printed.

    If the worker is lost and its tokens too, another worker generates the whole text again. Text that the new attempt
    repeats is not printed again. If the text of the new attempt differs, all of it is printed, on a new line.
    """
    printed = attempt = ""
    progress.show_job(job)
    for event in client.follow(job["id"]):
        if json:
            progress.hide()
            output.write_json({"event": event.kind, "data": event.data}, indent=None)
        if event.kind == "ended":
            return event.data, printed
        if event.kind == "started":
            attempt = attempt if event.data.get("resumed") else ""
            progress.show_job(job | {"status": "running", "attempts": event.data.get("attempt")})
        elif event.kind == "token":
            progress.hide()
            attempt += str(event.data.get("text", ""))
            if not json:
                printed = _print_rest(printed, attempt)
    raise AssertionError("unreachable: follow() ends with the event `ended` or raises")


def _print_rest(printed: str, attempt: str) -> str:
    """Print the part of `attempt` that is not yet in `printed`, and return the text that is now printed.

    If neither text begins with the other, print all of `attempt`, on a new line.
    """
    if printed.startswith(attempt):
        return printed
    if attempt.startswith(printed):
        output.write_data(attempt[len(printed) :], end="")
        return attempt
    output.write_data("")
    output.write_note("the worker was lost; another worker generates the answer from the start:")
    output.write_data(attempt, end="")
    return attempt


def _cancel(client: "JobClient", job_id: str, tenant: str | None) -> None:
    """Cancel the job after Ctrl-C, so that no worker continues an answer that the user will not read.

    If the door does not answer, or the user presses Ctrl-C again, the job continues, and a note says how to cancel it.
    """
    from shared.cli.door_client import DoorError

    named = _named(job_id, tenant)
    try:
        job = client.cancel(job_id)
    except (DoorError, KeyboardInterrupt) as error:
        why = f": {error}" if str(error) else ""
        output.write_note(f"job {job_id} continues, `penstock cancel {named}` cancels it{why}")
        return
    if job["status"] in {"running", "canceled"}:
        output.write_note(f"canceled job {job_id}; `penstock job {named}` shows the text so far")
    else:
        output.write_note(f"job {job_id} had already ended: {job['status']}; `penstock job {named}` shows it")


def _finish(job: dict[str, Any], printed: str, *, json: bool, streamed: bool) -> None:
    """Print the rest of the answer, and how the job ended. Exit with FAULT unless the job succeeded."""
    text = job.get("text") or ""
    if json and not streamed:
        output.write_json(job)
    elif not json:
        shown = _print_rest(printed, text)
        if shown and not shown.endswith("\n"):
            output.write_data("")
    if changes := describe_degradation(job):
        output.write_note(f"job {job['id']} was cut to end in time: {changes}")
    if job["status"] != "succeeded":
        error = job.get("error") or {}
        reason = error.get("message") or error.get("code") or job["status"]
        end_with(f"job {job['id']} {job['status']}: {reason}")
