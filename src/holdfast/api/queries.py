"""Reading query parameters, with errors that name them. Sits on the vocabulary."""

from starlette.requests import Request

from holdfast.errors import RequestError


def query_number(request: Request, name: str, *, default: int, low: int, high: int) -> int:
    """A whole number; one that is too large becomes the largest.

    Raises:
        RequestError: it is no number, or too small.
    """
    raw = request.query_params.get(name)
    if raw is None or raw == "":
        return default
    try:
        number = int(raw)
    except ValueError:
        number = low - 1
    if number < low:
        raise RequestError(
            f"{name} must be a whole number of at least {low}, not {raw[:50]!r}.", param=name, code="invalid_value"
        )
    return min(number, high)
