"""The command `python -m web`, which runs gunicorn with web/gunicorn_conf.py and serves web.wsgi:app."""

import os
from argparse import ArgumentParser, Namespace
from typing import Any

from gunicorn.app.wsgiapp import WSGIApplication  # type: ignore[import-untyped]  # ships no types


class DoorServer(WSGIApplication):  # type: ignore[misc]  # its base class has no types
    """gunicorn's command line, with web/gunicorn_conf.py as the default configuration file."""

    def init(self, parser: ArgumentParser, options: Namespace, arguments: list[str]) -> Any:
        """Parse the command line. Without `-c`, use web/gunicorn_conf.py instead of a file in the current folder."""
        options.config = options.config or "python:web.gunicorn_conf"
        return super().init(parser, options, arguments)

    def chdir(self) -> None:
        """Change to the configured folder without putting it on the import path.

        gunicorn's own method would put the folder first on the import path. A subfolder named `web` or `redis` would
        then be imported instead of the installed package.
        """
        os.chdir(self.cfg.chdir)


if __name__ == "__main__":
    DoorServer("%(prog)s [OPTIONS] [APP_MODULE]", prog="penstock web").run()
