"""Answers in one piece. Sits on Starlette's responses; knows nothing of what is said."""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.responses import Response


def json_answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A JSON answer."""
    return Response(msgspec.json.encode(body), status, headers, "application/json")
