"""The process that divides one text: `python -m web.retrieval.division_child`, started by `web.retrieval.dividing`.

Its input is a line of JSON and then the text; its output is a line of JSON with the bytes and the tokens of each chunk,
and then the chunks. It is confined as the process that reads documents.
"""

import json
import sys
from typing import Any

from web.retrieval.division import Division, TooManyChunks, titled_chunks
from web.retrieval.formats.child import bound, give_up_files


def main() -> None:
    source = sys.stdin.buffer
    asked = json.loads(source.readline())
    bound(asked["cpu_s"], asked["memory_bytes"])
    give_up_files()
    output = b""
    answer: dict[str, Any]
    try:
        chunks = titled_chunks(source.read().decode("utf-8", "surrogatepass"), Division.read(asked["division"]))
        texts = [text.encode("utf-8", "surrogatepass") for text, _ in chunks]
        sizes = [[len(text), tokens] for text, (_, tokens) in zip(texts, chunks, strict=True)]
        output = b"".join(texts)
        answer = {"bytes": len(output), "chunks": sizes}
    except TooManyChunks:
        answer = {"bytes": 0, "chunks": None}
    except MemoryError:
        answer = {"error": f"dividing the document takes more than {asked['memory_bytes'] >> 20} MiB of memory"}
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
    sys.stdout.buffer.write(output)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
