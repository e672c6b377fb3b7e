"""What a person would be told, for tests that something is let through."""

from collections.abc import Callable
from typing import Any

from pdkv.errors import UserError


def why_refused(call: Callable[..., Any], *arguments: Any, **options: Any) -> str | None:
    """The words with which ``call`` refuses its arguments; ``None`` if it does not."""
    try:
        call(*arguments, **options)
    except UserError as error:
        return str(error)
    return None
