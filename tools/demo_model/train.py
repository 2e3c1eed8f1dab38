"""Trains the demo model on seeded stories and writes it as GGUF: `python -m tools.demo_model.train --help`.

Needs PyTorch, which nothing else here does. Stopped at any time, it goes on from its last
checkpoint when it is started again with the same folder.
"""

import argparse
import json
import logging
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import torch
from torch.nn import functional

from tools.demo_model.documents import documents
from tools.demo_model.network import Tensor, Tensors, first_tensors, hidden_of
from tools.demo_model.tokenizer import Tokenizer, learn_pieces
from workers.demo import DEMO_MODEL_NAME, demo_model_path
from workers.demo.gguf_file import ModelShape, write_gguf
from workers.demo.vocabulary import EOS_ID, FIRST_PIECE_ID, Vocabulary, vocabulary_of

log = logging.getLogger("tools.demo_model.train")

#: Small enough for a file below 8 MB in f16; heads of 64, for which every backend has its fast attention.
SHAPE = ModelShape(n_vocab=2048, n_ctx_train=2048, n_embd=192, n_layer=4, n_head=3, n_head_kv=3, n_ff=512)
#: Documents that the vocabulary is learned from: about 3.5 MB of text.
N_VOCABULARY_DOCUMENTS = 6000

#: Least tokens of one step: some 14 documents, each in a row of its own, as it will stand alone in use.
STEP_TOKENS = 2048
#: Rows of like length that are computed together, so that little is wasted on the ends of short rows.
ROWS_AT_ONCE = 8
#: Rows are filled up to a multiple of this: few different shapes keep PyTorch's caches small.
ROW_UNIT = 32
#: Each this many steps the rows are as long as the context and packed with documents, so that far
#: places are met, too.
LONG_ROWS_EVERY = 16

#: The rate rises over the first steps, stays, and falls to nothing over the last share of all steps.
PEAK_RATE = 3e-3
WARM_UP_STEPS = 100
FALLING_SHARE = 0.5
WEIGHT_DECAY = 0.05
GRADIENT_NORM = 1.0

CHECKPOINT_EVERY = 100
#: The loss is measured on this many tokens that no step trains on.
N_HELD_OUT_TOKENS = 16384


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

    def __init__(self, shape: ModelShape, tokenizer: Tokenizer, seed: int, n_steps: int) -> None:
        self.tensors: Tensors = first_tensors(shape, seed)
        self._shape, self._tokenizer, self._seed, self._n_steps = shape, tokenizer, seed, n_steps
        self._step = 0
        matrices = [values for values in self.tensors.values() if values.ndim > 1]
        vectors = [values for values in self.tensors.values() if values.ndim == 1]
        groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95), fused=True)
        # Step numbers begin at 0, so no step trains on these.
        self._held_out = self._documents_in_rows(-1, N_HELD_OUT_TOKENS)

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
        """Return the mean loss, in nats per learned token, on documents that are never trained on."""
        with torch.no_grad():
            return sum(float(loss) for loss in self._losses(self._held_out))

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
        is_long = self._step % LONG_ROWS_EVERY == LONG_ROWS_EVERY - 1
        groups = self._packed_rows(self._step) if is_long else self._documents_in_rows(self._step, STEP_TOKENS)
        self._optimizer.zero_grad()
        loss = 0.0
        for part in self._losses(groups):
            part.backward()
            loss += float(part.detach())
        torch.nn.utils.clip_grad_norm_(self.tensors.values(), GRADIENT_NORM)
        for group in self._optimizer.param_groups:
            group["lr"] = PEAK_RATE * rate_share(self._step, self._n_steps)
        self._optimizer.step()
        self._step += 1
        return loss

    def _losses(self, groups: list[Tensor]) -> Iterator[Tensor]:
        """Yield each group's share of the mean loss over all learned tokens of all groups."""
        n_learned = sum(int(group[:, 1:, 1].sum()) for group in groups)
        for group in groups:
            ids, learned = group[..., 0], group[:, 1:, 1] == 1
            with torch.autocast("cpu", dtype=torch.bfloat16):
                hidden = hidden_of(self.tensors, self._shape, ids[:, :-1])[learned]
                logits = functional.linear(hidden, self.tensors["token_embd.weight"])
            yield functional.cross_entropy(logits.float(), ids[:, 1:][learned], reduction="sum") / n_learned

    def _documents_in_rows(self, step: int, n_tokens: int) -> list[Tensor]:
        """Return documents of `n_tokens` in all as groups of rows: (rows, length, 2), id and whether learned."""
        stream = self._stream(step)
        rows: list[list[tuple[int, bool]]] = []
        while sum(map(len, rows)) < n_tokens:
            rows.append(next(stream)[: self._shape.n_ctx_train])
        rows.sort(key=len)
        groups = [rows[first : first + ROWS_AT_ONCE] for first in range(0, len(rows), ROWS_AT_ONCE)]
        filled = []
        for group in groups:
            # One more than a multiple: the last place is only wanted, never read.
            length = -(-len(group[-1]) // ROW_UNIT) * ROW_UNIT + 1
            filled.append(torch.tensor([row + [(EOS_ID, False)] * (length - len(row)) for row in group]))
        return filled

    def _packed_rows(self, step: int) -> list[Tensor]:
        """Return as many rows as a step takes, each as long as the context and full of documents."""
        length = self._shape.n_ctx_train
        pairs = list(islice(chain.from_iterable(self._stream(step)), STEP_TOKENS))
        return [torch.tensor(pairs).view(-1, length, 2)]

    def _stream(self, step: int) -> Iterator[list[tuple[int, bool]]]:
        """Yield documents as pairs of id and whether it is learned, from a seed of the step's own."""
        for document in documents(self._seed * 1_000_000 + step):
            yield [
                (token, part.learned)
                for part in document
                for token in ([part.content] if isinstance(part.content, int) else self._tokenizer.encode(part.content))
            ]


def rate_share(step: int, n_steps: int) -> float:
    """Return the share of the peak rate that a step is taken with."""
    falling = (n_steps - step) / (FALLING_SHARE * n_steps)
    return min(1.0, (step + 1) / WARM_UP_STEPS, falling)


def _vocabulary(path: Path, seed: int) -> Vocabulary:
    """Return the vocabulary learned from the first documents, kept in `path` from then on."""
    if not path.exists():
        parts = (part for document in islice(documents(seed), N_VOCABULARY_DOCUMENTS) for part in document)
        texts = [part.content for part in parts if isinstance(part.content, str) and part.learned]
        path.write_text(json.dumps(learn_pieces(texts, SHAPE.n_vocab - FIRST_PIECE_ID)))
    return vocabulary_of(json.loads(path.read_text()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.demo_model.train", description=__doc__)
    parser.add_argument("--out", type=Path, default=demo_model_path(), help="the GGUF file to write")
    parser.add_argument("--work", type=Path, required=True, help="folder of the checkpoint, made if missing")
    parser.add_argument("--steps", type=int, default=1800, help="steps in all, of 2048 tokens each")
    parser.add_argument("--seed", type=int, default=1, help="of the stories and of the first weights")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    return parser.parse_args()


if __name__ == "__main__":
    main()
