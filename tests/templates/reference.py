"""Renders conversations with Hugging Face's renderer. Runs in an environment of its own, which has transformers.

Each line of the input is the JSON of a template, its messages and its tools. Each line of the output is the JSON of the
prompt, or null if the renderer fails.
"""

import json
import sys

from transformers.utils.chat_template_utils import render_jinja_template


def main() -> None:
    """Render each line of the input."""
    for line in sys.stdin:
        given = json.loads(line)
        try:
            rendered, _ = render_jinja_template(
                [given["messages"]],
                tools=given["tools"],
                chat_template=given["source"],
                add_generation_prompt=True,
                bos_token=given["bos"],
                eos_token=given["eos"],
            )
            prompt = rendered[0]
        except Exception:  # noqa: BLE001 - a template may raise anything
            prompt = None
        print(json.dumps(prompt), flush=True)


if __name__ == "__main__":
    main()
