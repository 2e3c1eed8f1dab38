"""Trains the demo model on seeded stories and writes it as GGUF: `python -m workers.demo.train --help`.

Needs PyTorch, which nothing else here does. Stopped at any time, it goes on from its last
checkpoint when it is started again with the same folder.
"""

import argparse
import json
import logging
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from torch.nn import functional

from workers.demo import DEMO_MODEL_NAME, demo_model_path
from workers.demo.documents import Part, documents
from workers.demo.gguf_file import Shape, write_gguf
from workers.demo.network import Tensor, Tensors, first_tensors, logits_of
from workers.demo.tokenizer import Tokenizer, learn_pieces
from workers.demo.vocabulary import FIRST_PIECE_ID, Vocabulary, vocabulary_of

log = logging.getLogger("workers.demo.train")

#: Small enough for a file below 8 MB in f16; heads of 64, for which every backend has its fast attention.
SHAPE = Shape(n_vocab=2048, n_ctx_train=2048, n_embd=192, n_layer=6, n_head=3, n_head_kv=3, n_ff=512)
#: Documents that the vocabulary is learned from: about 3.5 MB of text.
N_VOCABULARY_DOCUMENTS = 6000

#: Places of one step; most windows hold three or four documents.
STEP_TOKENS = 4096
WINDOW = 512
#: Each this many steps the windows are as long as the context, so that far places are met, too.
LONG_WINDOW_EVERY = 16

#: The rate rises over the first steps, stays, and falls to nothing over the last share of all steps.
PEAK_RATE = 3e-3
WARM_UP_STEPS = 100
FALLING_SHARE = 0.3
WEIGHT_DECAY = 0.05
GRADIENT_NORM = 1.0

CHECKPOINT_EVERY = 100
#: The loss is measured on this many windows that no step trains on.
N_HELD_OUT_WINDOWS = 16
#: What cross_entropy leaves out: places that are only to be read.
NOT_LEARNED = -100


def main() -> None:
    """Train, or go on training, and write the model."""
    arguments = _arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(arguments.threads)
    arguments.work.mkdir(parents=True, exist_ok=True)
    vocabulary = _vocabulary(arguments.work / "pieces.json", arguments.seed)
    trainer = Trainer(SHAPE, Tokenizer(vocabulary), arguments.seed, arguments.steps)
    checkpoint = arguments.work / "checkpoint.pt"
    if checkpoint.exists():
        trainer.load(checkpoint)
    trainer.run(checkpoint)
    weights = ((name, values.detach().numpy()) for name, values in trainer.tensors.items())
    write_gguf(arguments.out, SHAPE, vocabulary, weights, name=DEMO_MODEL_NAME, file_type="f16")
    log.info("wrote %s, %d bytes", arguments.out, arguments.out.stat().st_size)


class Trainer:
    """The weights and their optimizer; a step depends on the seed and its number alone."""

    def __init__(self, shape: Shape, tokenizer: Tokenizer, seed: int, n_steps: int) -> None:
        self.tensors: Tensors = first_tensors(shape, seed)
        self._shape, self._tokenizer, self._seed, self._n_steps = shape, tokenizer, seed, n_steps
        self._step = 0
        matrices = [values for values in self.tensors.values() if values.ndim > 1]
        vectors = [values for values in self.tensors.values() if values.ndim == 1]
        groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95), fused=True)
        # Step numbers begin at 0, so no step trains on these.
        self._held_out = self._batch(-1, WINDOW, N_HELD_OUT_WINDOWS)

    def run(self, checkpoint: Path) -> None:
        """Take the steps that are left, with a checkpoint now and then."""
        began, mean_loss = time.monotonic(), 0.0
        first_step = self._step
        while self._step < self._n_steps:
            loss = self._take_step()
            mean_loss += (loss - mean_loss) / (1 + (self._step - 1) % CHECKPOINT_EVERY)
            if self._step % CHECKPOINT_EVERY == 0 or self._step == self._n_steps:
                self.save(checkpoint)
                rate = (self._step - first_step) * STEP_TOKENS / (time.monotonic() - began)
                held_out = self.held_out_loss()
                log.info("step %d loss %.4f held out %.4f tokens/s %.0f", self._step, mean_loss, held_out, rate)
                mean_loss = 0.0

    def held_out_loss(self) -> float:
        """Return the mean loss, in nats per learned token, on windows that are never trained on."""
        with torch.no_grad():
            return float(self._loss(*self._held_out))

    def save(self, path: Path) -> None:
        """Write a checkpoint; the last one stays until the new one is whole."""
        state = {"step": self._step, "tensors": self.tensors, "optimizer": self._optimizer.state_dict()}
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint."""
        state = torch.load(path, weights_only=True)
        self._step = state["step"]
        with torch.no_grad():
            for name, values in state["tensors"].items():
                self.tensors[name].copy_(values)
        self._optimizer.load_state_dict(state["optimizer"])
        log.info("goes on after step %d", self._step)

    def _take_step(self) -> float:
        window = self._shape.n_ctx_train if self._step % LONG_WINDOW_EVERY == 0 else WINDOW
        loss = self._loss(*self._batch(self._step, window, STEP_TOKENS // window))
        self._optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.tensors.values(), GRADIENT_NORM)
        for group in self._optimizer.param_groups:
            group["lr"] = PEAK_RATE * rate_share(self._step, self._n_steps)
        self._optimizer.step()
        self._step += 1
        return float(loss.detach())

    def _loss(self, ids: Tensor, wanted: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = logits_of(self.tensors, self._shape, ids)
        learned = wanted != NOT_LEARNED
        return functional.cross_entropy(logits[learned].float(), wanted[learned])

    def _batch(self, step: int, window: int, n_windows: int) -> tuple[Tensor, Tensor]:
        """Return ids and the ids wanted after each, both (n_windows, window)."""
        # Each step has a stream of documents of its own, so that going on needs no place in a stream.
        stream = documents(self._seed * 1_000_000 + step)
        rows = torch.tensor([_window(stream, self._tokenizer, window + 1) for _ in range(n_windows)])
        ids, learned = rows[..., 0], rows[..., 1] == 1
        return ids[:, :-1], torch.where(learned, ids, NOT_LEARNED)[:, 1:]


def rate_share(step: int, n_steps: int) -> float:
    """Return the share of the peak rate that a step is taken with."""
    falling = (n_steps - step) / (FALLING_SHARE * n_steps)
    return min(1.0, (step + 1) / WARM_UP_STEPS, falling)


def _window(stream: Iterator[list[Part]], tokenizer: Tokenizer, length: int) -> list[tuple[int, bool]]:
    """Return whole documents, and the beginning of one more, as `length` pairs of id and whether it is learned."""
    pairs: list[tuple[int, bool]] = []
    while len(pairs) < length:
        for part in next(stream):
            ids = [part.content] if isinstance(part.content, int) else tokenizer.encode(part.content)
            pairs += [(token, part.learned) for token in ids]
    return pairs[:length]


def _vocabulary(path: Path, seed: int) -> Vocabulary:
    """Return the vocabulary learned from the first documents, kept in `path` from then on."""
    if not path.exists():
        parts = (part for document in islice(documents(seed), N_VOCABULARY_DOCUMENTS) for part in document)
        texts = [part.content for part in parts if isinstance(part.content, str) and part.learned]
        path.write_text(json.dumps(learn_pieces(texts, SHAPE.n_vocab - FIRST_PIECE_ID)))
    return vocabulary_of(json.loads(path.read_text()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workers.demo.train", description=__doc__)
    parser.add_argument("--out", type=Path, default=demo_model_path(), help="the GGUF file to write")
    parser.add_argument("--work", type=Path, required=True, help="folder of the checkpoint, made if missing")
    parser.add_argument("--steps", type=int, default=2800, help="steps in all, of 4096 tokens each")
    parser.add_argument("--seed", type=int, default=1, help="of the stories and of the first weights")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    return parser.parse_args()


if __name__ == "__main__":
    main()
