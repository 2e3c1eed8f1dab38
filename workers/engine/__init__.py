"""Continuous batching: many sequences, one `llama_decode` a step. Knows no Redis, no RQ, no HTTP.

The contract of the engine, in prose:

1. `Engine.prepare(spec)` may be called by any thread. It renders the chat template, tokenizes and
   validates, and either returns a `Prepared` or raises `JobRejected`; nothing is charged.
2. `Engine.submit(prepared)` hands the job over: from its return on, the engine alone touches it, and
   exactly one `Ended` event will come for it, whatever happens.
3. `Engine.cancel(key, drop=False)` asks for its end within one step; `drop=True` means that the
   lease was lost: the sequence is thrown away and its `Ended` says so, and nobody settles it.
4. `Engine.step()` is called by one thread only. It takes in, drops what is late, plans, decodes,
   samples and emits events; it returns whether there was anything to do. It never blocks on
   anything but the model.
5. Events go to the `emit` callable given at birth, on the engine's thread; `emit` must not block.
6. `Engine.room()` may be read by any thread: free slots, slots whose jobs' ends are known to be near,
   and free KV cells, after all that was submitted. `on_ending` is called, on the engine's thread, when
   there are more of the second kind; it must not block.
7. `Engine.run(stop)` steps until `stop` is set and `Engine.wake()` was called; idle, it waits without
   spinning. What is inside when it ends, `drop_all()` ends as `dropped`.
8. `Engine.recall()` asks back, within one step, what waits inside without a slot: it ends as
   `returned`, and whoever claimed it gives it back.

A job is named by its `key`, `<id>:<claim token>`, so that two attempts of one job never meet.
Deadlines are moments of the clock given at birth (`Clock.monotonic`, seconds).
"""
