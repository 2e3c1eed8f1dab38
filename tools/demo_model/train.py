"""Trains the demo model on seeded stories and writes it as GGUF: `python -m tools.demo_model.train --help`.

This program needs PyTorch; no other part of the project does. It can be stopped at any time and resumes from its last
checkpoint when it is started again with the same `--work` folder.
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

from tools.demo_model.documents import EXERCISES_SHARE, N_VOCAB, TOOLS_SHARE, documents
from tools.demo_model.first_tensors import random_tensors, tensors_of
from tools.demo_model.network import Tensor, Tensors, hidden_of
from tools.demo_model.optimizer import Optimizer
from tools.demo_model.tokenizer import Tokenizer, learn_pieces
from workers.demo import DEMO_MODEL_NAME, demo_model_path
from workers.demo.gguf_file import ModelShape, write_gguf
from workers.demo.vocabulary import EOS_ID, FIRST_PIECE_ID, TOOL_CHAT_TEMPLATE, Vocabulary, vocabulary_of

log = logging.getLogger("tools.demo_model.train")

#: Small enough for a file below 8 MB in f16. Every backend has fast attention for heads of width 64.
SHAPE = ModelShape(n_vocab=N_VOCAB, n_ctx_train=2048, n_embd=192, n_layer=4, n_head=3, n_head_kv=3, n_ff=512)
#: Number of documents from which the vocabulary is learned.
N_VOCABULARY_DOCUMENTS = 2000

#: Minimum number of tokens in one step: about 13 documents. Each has its own row, because in use each stands alone.
STEP_TOKENS = 2048
#: Number of rows of similar length that are computed together, so that little padding is needed.
ROWS_AT_ONCE = 4
#: Rows are padded to a multiple of this, because few different shapes keep PyTorch's caches small.
ROW_UNIT = 32
#: One step in this many has rows as long as the context, packed with documents, so that the
#: model also learns distant positions.
LONG_ROWS_EVERY = 16

#: The learning rate rises during the first WARM_UP_STEPS, stays at its peak, and falls to 0 over the last FALLING_SHARE
#: of all steps.
PEAK_RATE = 3e-3
WARM_UP_STEPS = 100
FALLING_SHARE = 0.5
GRADIENT_NORM = 1.0

#: The shares of conversations with tools and of exercises among the documents, before and after COPYING_SHARE of the
#: steps. Copying is what takes the model longest to learn, and the other documents hold little of it.
FIRST_SHARES, SHARES = (0.45, 0.4), (TOOLS_SHARE, EXERCISES_SHARE)
COPYING_SHARE = 0.4
CHECKPOINT_EVERY = 100
#: Number of tokens, which no step trains on, on which the loss is measured.
N_HELD_OUT_TOKENS = 16384


def main() -> None:
    """Train the model, or resume training, and write the GGUF file."""
    arguments = _arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(arguments.threads)
    arguments.work.mkdir(parents=True, exist_ok=True)
    vocabulary = _vocabulary(arguments.work / "pieces.json", arguments.seed)
    first = arguments.from_gguf
    tensors = random_tensors(SHAPE, arguments.seed) if first is None else tensors_of(first, SHAPE, vocabulary)
    trainer = Trainer(tensors, Tokenizer(vocabulary), arguments.seed, arguments.steps, is_rounded=arguments.bfloat16)
    checkpoint = arguments.work / "checkpoint.pt"
    if checkpoint.exists():
        trainer.load(checkpoint)
    trainer.run(checkpoint)
    weights = ((name, values.detach().numpy()) for name, values in trainer.tensors.items())
    write_gguf(
        arguments.out,
        SHAPE,
        vocabulary,
        weights,
        name=DEMO_MODEL_NAME,
        file_type="f16",
        chat_template=TOOL_CHAT_TEMPLATE,
    )
    log.info("wrote %s, %d bytes", arguments.out, arguments.out.stat().st_size)


class Trainer:
    """The weights and their optimizer. The data of a step depends only on the seed and the step's number."""

    def __init__(
        self, tensors: Tensors, tokenizer: Tokenizer, seed: int, n_steps: int, *, is_rounded: bool = False
    ) -> None:
        self.tensors, self._is_rounded = tensors, is_rounded
        self._tokenizer, self._seed, self._n_steps = tokenizer, seed, n_steps
        self._step = 0
        self._optimizer = Optimizer(self.tensors)
        # Steps are numbered from 0, so no step trains on the documents of step -1.
        self._held_out = [self._documents_in_rows(-1, N_HELD_OUT_TOKENS, kinds) for kinds in ((0, 0), (1, 0), (0, 1))]

    def run(self, checkpoint: Path) -> None:
        """Run the remaining steps and write a checkpoint every CHECKPOINT_EVERY steps."""
        began, mean_loss = time.monotonic(), 0.0
        first_step = self._step
        while self._step < self._n_steps:
            loss = self._take_step()
            mean_loss += (loss - mean_loss) / (1 + (self._step - 1) % CHECKPOINT_EVERY)
            if self._step % CHECKPOINT_EVERY == 0 or self._step == self._n_steps:
                self.save(checkpoint)
                rate = (self._step - first_step) * STEP_TOKENS / (time.monotonic() - began)
                report = "step %d loss %.4f held out: stories %.4f, tools %.4f, exercises %.4f; tokens/s %.0f"
                log.info(report, self._step, mean_loss, *self.held_out_losses(), rate)
                mean_loss = 0.0

    def held_out_losses(self) -> list[float]:
        """Return the mean losses on stories and chats, on calls of tools and on exercises that no step trains on.

        They are in nats per learned token.
        """
        with torch.no_grad():
            return [sum(float(loss) for loss in self._losses(groups)) for groups in self._held_out]

    def save(self, path: Path) -> None:
        """Write a checkpoint. The previous one is replaced only when the new one is complete."""
        state = {"step": self._step, "tensors": self.tensors, "optimizer": self._optimizer.state()}
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def load(self, path: Path) -> None:
        """Load a checkpoint, so that training resumes after its step."""
        state = torch.load(path, weights_only=True)
        self._step = state["step"]
        with torch.no_grad():
            for name, values in state["tensors"].items():
                self.tensors[name].copy_(values)
        self._optimizer.restore(state["optimizer"])
        log.info("resuming after step %d", self._step)

    def _take_step(self) -> float:
        shares = FIRST_SHARES if self._step < COPYING_SHARE * self._n_steps else SHARES
        is_long = self._step % LONG_ROWS_EVERY == LONG_ROWS_EVERY - 1
        rows = self._packed_rows if is_long else self._documents_in_rows
        groups = rows(self._step, STEP_TOKENS, shares)
        self._optimizer.forget_gradients()
        loss = 0.0
        for part in self._losses(groups):
            part.backward()
            loss += float(part.detach())
        torch.nn.utils.clip_grad_norm_(self.tensors.values(), GRADIENT_NORM)
        self._optimizer.step(PEAK_RATE * rate_share(self._step, self._n_steps))
        self._step += 1
        return loss

    def _losses(self, groups: list[Tensor]) -> Iterator[Tensor]:
        """Yield each group's share of the mean loss over all learned tokens of all groups."""
        n_learned = sum(int(group[:, 1:, 1].sum()) for group in groups)
        for group in groups:
            ids, learned = group[..., 0], group[:, 1:, 1] == 1
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self._is_rounded):
                hidden = hidden_of(self.tensors, SHAPE, ids[:, :-1])[learned]
                logits = functional.linear(hidden, self.tensors["token_embd.weight"])
            yield functional.cross_entropy(logits.float(), ids[:, 1:][learned], reduction="sum") / n_learned

    def _documents_in_rows(self, step: int, n_tokens: int, shares: tuple[float, float]) -> list[Tensor]:
        """Return documents of at least `n_tokens` in total as tensors of shape (rows, length, 2).

        The last axis holds a token's id and whether the token is learned.
        """
        stream = self._stream(step, shares)
        rows: list[list[tuple[int, bool]]] = []
        while sum(map(len, rows)) < n_tokens:
            rows.append(next(stream)[: SHAPE.n_ctx_train])
        rows.sort(key=len)
        groups = [rows[first : first + ROWS_AT_ONCE] for first in range(0, len(rows), ROWS_AT_ONCE)]
        filled = []
        for group in groups:
            # The length is a multiple of ROW_UNIT plus one: the last position is only a target, never an input.
            length = -(-len(group[-1]) // ROW_UNIT) * ROW_UNIT + 1
            filled.append(torch.tensor([row + [(EOS_ID, False)] * (length - len(row)) for row in group]))
        return filled

    def _packed_rows(self, step: int, n_tokens: int, shares: tuple[float, float]) -> list[Tensor]:
        """Return `n_tokens` of documents in rows that are as long as the context and have no padding."""
        length = SHAPE.n_ctx_train
        pairs = list(islice(chain.from_iterable(self._stream(step, shares)), n_tokens))
        return [torch.tensor(pairs).view(-1, length, 2)]

    def _stream(self, step: int, shares: tuple[float, float]) -> Iterator[list[tuple[int, bool]]]:
        """Yield the step's documents, each as a list of pairs: a token's id and whether the token is learned."""
        for document in documents(self._seed * 1_000_000 + step, *shares):
            yield [
                (token, part.learned)
                for part in document
                for token in ([part.content] if isinstance(part.content, int) else self._tokenizer.encode(part.content))
            ]


def rate_share(step: int, n_steps: int) -> float:
    """Return a step's learning rate as a share of the peak rate."""
    falling = (n_steps - step) / (FALLING_SHARE * n_steps)
    return min(1.0, (step + 1) / WARM_UP_STEPS, falling)


def _vocabulary(path: Path, seed: int) -> Vocabulary:
    """Return the vocabulary from `path`; if the file does not exist, learn it from the first documents and write it."""
    if not path.exists():
        parts = (part for document in islice(documents(seed), N_VOCABULARY_DOCUMENTS) for part in document)
        texts = [part.content for part in parts if isinstance(part.content, str) and part.learned]
        path.write_text(json.dumps(learn_pieces(texts, SHAPE.n_vocab - FIRST_PIECE_ID)))
    return vocabulary_of(json.loads(path.read_text()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.demo_model.train", description=__doc__)
    parser.add_argument("--out", type=Path, default=demo_model_path(), help="the GGUF file to write")
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for the checkpoint; created if it does not exist"
    )
    parser.add_argument(
        "--from-gguf", type=Path, help="a model file of the same shape whose weights training begins with"
    )
    parser.add_argument("--steps", type=int, default=6300, help="total number of steps, of 2048 tokens each")
    parser.add_argument("--seed", type=int, default=1, help="seed of the stories and of the initial weights")
    parser.add_argument(
        "--bfloat16",
        action="store_true",
        help="compute most products in bfloat16: faster only on processors that have instructions for it",
    )
    parser.add_argument("--threads", type=int, default=1, help="number of PyTorch's threads")
    return parser.parse_args()


if __name__ == "__main__":
    main()
