"""Continuous batching: one engine step computes tokens for many sequences. Uses no Redis, no RQ and no HTTP.

The contract of the engine (the duties use the part in `workers/job_engine.py`):

1. `Engine.prepare(spec)` may be called from any thread. It renders the chat template, tokenizes the prompt and
   validates the job. It returns a `Prepared` or raises `JobRejected`. It reserves neither a slot nor cells.
2. `Engine.submit(prepared)` passes the job to the engine. After `submit` has returned, only the engine may use the
   job, and the engine emits exactly one `Ended` event for the job, whatever happens.
3. `Engine.cancel(key, drop=False)` asks the engine to end the job within one step. `drop=True` means that the
   worker lost the job's lease: the engine discards the sequence, its `Ended` event has the outcome `dropped`,
   and the worker must not settle the job.
4. `Engine.step()` may be called from one thread only, the engine's thread. A step takes in submitted jobs and
   cancels, ends expired sequences, plans, decodes, samples and emits events. `step` returns whether there was
   anything to do. It never blocks on anything but the model.
5. The engine calls the constructor's `emit` callable with each event, on the engine's thread. `emit` must not block.
6. `Engine.free_capacity()` may be called from any thread. It returns the numbers of slots and KV cells that no
   submitted job has reserved, and the number of slots that are about to become free and for which the worker may
   prefetch a job. When the engine first finds that a job will end soon, it calls `on_ending` on its own thread.
   `on_ending` must not block.
7. `Engine.run(stop)` runs steps until `stop` is set and `Engine.wake()` was called. While there is nothing to do,
   it blocks. Before it returns, it calls `drop_all()`, which ends the remaining sequences with the outcome `dropped`.
8. `Engine.recall()` asks the engine to return, within one step, every job that has no slot: those that wait for one
   and those that are paused. Each of these jobs ends with the outcome `returned`, and the worker that claimed the job
   then releases it.
9. `Engine.pause(key)` asks the engine to take the job's slot within one step. The job keeps its answer so far and its
   deadline, and its slot and reservation are free for other jobs. `Engine.resume(key)` asks the engine to continue it,
   before all jobs that wait for a slot. Both return whether they change anything. The engine handles jobs, pauses and
   resumes in the order of the calls, so a job that is submitted just before a pause gets the slot in the same step.
10. A job whose `JobSpec.answer` has tokens continues after them. `Text.tokens` are the tokens of an answer's new text.
The job can continue after the tokens of all events so far, here or on another worker.

A job is identified by its `key`, the claim under which the worker holds it, so that two attempts of one job have
different keys. Deadlines are times in seconds on the constructor's clock (`Clock.monotonic`).
"""
