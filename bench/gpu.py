"""Measures on a GPU what could not be verified without one; results are kept after each part, so it can be resumed.

Run: `make bench-gpu`, or `python -m bench.gpu` with options. It takes at most ten minutes. Started again, it continues
where it ended: parts that have figures are not repeated, and a part that failed is tried after the others.
bench/README.md says what each part is for.
"""

import argparse
import json
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from llama_cpp import _ggml, llama_cpp

from bench.common import RESULTS, environment, print_environment
from bench.engine_models import SHAPES, model_file, rounded
from bench.gpu_parts import PARTS, Bench
from workers.engine.llama.devices import gpus

#: No part is begun that would have less time than this left. Each takes less on a card that can hold the model.
_PART_S = 60


def kept_results(path: Path, identity: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the figures that earlier runs have written to `path`, and the parts that they began.

    Both are empty if these runs measured something else.
    """
    if not path.exists():
        return {}, []
    found = json.loads(path.read_text())
    return (found["figures"], found["begun"]) if found["environment"].get("measured") == identity else ({}, [])


def main() -> None:
    """Run the parts that have no figures yet, and write the results after each."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--model", default="1b", help=f"a GGUF file, or random weights: {', '.join(SHAPES)}")
    options.add_argument("--file-type", default="f16", choices=["f16", "f32", "q8_0"])
    options.add_argument("--device", default="0", help="PENSTOCK_DEVICE; cpu only tests this program")
    options.add_argument("--minutes", type=float, default=10, help="the run ends after this time")
    options.add_argument("--server", type=Path, help="path of a llama-server of the same build, to be measured too")
    options.add_argument("--parts", default=",".join(PARTS), help="the parts to run")
    options.add_argument("--again", action="store_true", help="repeat the parts that have figures")
    options.add_argument("--models-folder", type=Path, default=Path(tempfile.gettempdir()) / "penstock-bench-models")
    options.add_argument("--results", type=Path, default=RESULTS)
    chosen = options.parse_args()
    began_s = time.monotonic()
    # The signal ends the process even while it waits for a device that does not answer.
    signal.setitimer(signal.ITIMER_REAL, 60 * chosen.minutes)
    llama_cpp.llama_backend_init()
    seen = gpus(_ggml.libggml)
    if not seen and chosen.device != "cpu":
        sys.exit("this build of llama-cpp-python sees no GPU, so nothing can be measured: make install GPU=cuda")
    device = "cpu" if chosen.device == "cpu" else "+".join(seen[int(i)].description for i in chosen.device.split(","))
    model = chosen.model if chosen.model in SHAPES else Path(chosen.model).name
    facts = environment(seed=1)
    facts["measured"] = {"device": device, "model": model, "file_type": chosen.file_type, "packages": facts["packages"]}
    print_environment(facts)
    path = chosen.results / f"gpu-{re.sub('[^a-z0-9]+', '-', f'{device}-{model}'.lower()).strip('-')}.json"
    figures, begun = ({}, []) if chosen.again else kept_results(path, facts["measured"])
    path.parent.mkdir(exist_ok=True)

    def write() -> None:
        written = path.with_suffix(".part")
        written.write_text(f"{json.dumps({'environment': facts, 'begun': begun, 'figures': figures}, indent=1)}\n")
        written.rename(path)

    file = model_file(model, chosen.file_type, chosen.models_folder) if model in SHAPES else Path(chosen.model)
    bench = Bench(file, chosen.device, seed=1, server=chosen.server)
    # A part that was begun and has no figures has ended the process, and might do so again.
    for name in sorted(chosen.parts.split(","), key=lambda part: part in begun and part not in figures):
        if name in figures:
            print(f"# {name}: kept from an earlier run")
            continue
        if 60 * chosen.minutes - (time.monotonic() - began_s) < _PART_S:
            sys.exit(
                f"{name} and the parts after it were not begun, because the time is up: run the same command again"
            )
        begun = [*(part for part in begun if part != name), name]
        write()
        figures[name] = rounded(PARTS[name](bench))
        print(f"{name}: {json.dumps(figures[name])}", flush=True)
        write()
    print(f"# {path}")


if __name__ == "__main__":
    main()
