"""A chat completion that is sent as a form with files, as nanobot's clients do (W2): read into the body it stands for.

Pictures become image parts, text files text parts; what is neither is refused by name. Nothing is written to the disk.
Bytes in, values out; knows no request.
"""

import base64
import re
from email.message import Message as Headers
from typing import Any, Final

import msgspec

from holdfast.errors import RequestError

FORM: Final = "multipart/form-data"
LOOK_AT_FILES: Final = "Please look at the attached files."
"""What files without a message mean."""
_FIELDS: Final = ("session_id", "model", "stream")
_PICTURES: Final = {
    "image/png": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "image/jpeg": re.compile(rb"\xff\xd8\xff"),
    "image/gif": re.compile(rb"GIF8"),
    "image/webp": re.compile(rb"RIFF....WEBP", re.DOTALL),
}
"""How the pictures that models can see begin."""
_MAX_HEAD_BYTES: Final = 8_192


class FormPart(msgspec.Struct, frozen=True):
    """A field of a form."""

    name: str
    filename: str | None
    content: bytes


def parse_upload(content_type: str, body: bytes) -> dict[str, Any]:
    """The JSON body that a form stands for: `message`, `files`, `session_id`, `model`, `stream`.

    Raises:
        RequestError: it is no form, says nothing, or has a file that is neither a picture nor text.
    """
    parts = parse_form(content_type, body)
    message = "".join(_text(part) for part in parts if part.name == "message")
    files = [part for part in parts if part.name == "files" or part.filename]
    if not message.strip() and not files:
        raise RequestError("message is empty, and there are no files.", param="message", code="empty_input")
    content = [{"type": "text", "text": message if message.strip() else LOOK_AT_FILES}]
    content += [_show(part, f"files[{place}]") for place, part in enumerate(files)]
    asked: dict[str, Any] = {part.name: _text(part).strip() for part in parts if part.name in _FIELDS}
    return {
        **{name: value for name, value in asked.items() if value},
        "messages": [{"role": "user", "content": content if files else message}],
    }


def parse_form(content_type: str, body: bytes) -> list[FormPart]:
    """The fields of a form, in order.

    Raises:
        RequestError: the bytes are no such form.
    """
    boundary = _parameters("content-type", content_type).get_param("boundary")
    if not isinstance(boundary, str) or not boundary:
        raise _malformed("its Content-Type names no boundary")
    pieces = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("latin-1", "replace"))
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise _malformed("it does not end with its boundary")
    parts: list[FormPart] = []
    for piece in pieces[1:-1]:
        head, blank, content = piece.partition(b"\r\n\r\n")
        if not blank or len(head) > _MAX_HEAD_BYTES:
            raise _malformed("a part has no end of its headers")
        found = re.search(rb"^content-disposition:([^\r]*)", head, re.IGNORECASE | re.MULTILINE)
        if found is None:
            raise _malformed("a part has no Content-Disposition")
        disposition = _parameters("content-disposition", found[1].decode("utf-8", "replace").strip())
        name = disposition.get_param("name", header="content-disposition")
        filename = disposition.get_filename()
        parts.append(FormPart(str(name or ""), filename, content))
    return parts


def _parameters(header: str, value: str) -> Headers:
    """A header's parameters are read as mail reads them."""
    headers = Headers()
    headers[header] = re.sub(r"[\r\n]", " ", value)
    return headers


def _show(part: FormPart, at: str) -> dict[str, Any]:
    name = re.sub(r"[^\w.() -]", "_", (part.filename or "file").replace("\\", "/").rpartition("/")[2])[:100]
    kind = next((kind for kind, beginning in _PICTURES.items() if beginning.match(part.content)), None)
    if kind is not None:
        url = f"data:{kind};base64,{base64.b64encode(part.content).decode()}"
        return {"type": "image_url", "image_url": {"url": url}}
    if b"\0" not in part.content:
        try:
            return {"type": "text", "text": f"The file {name}:\n\n{part.content.decode()}"}
        except UnicodeDecodeError:
            pass
    raise RequestError(
        f"The file {name} is neither a picture (PNG, JPEG, GIF, WebP) nor UTF-8 text, and cannot be read here.",
        param=at,
        code="unsupported_content_type",
    )


def _text(part: FormPart) -> str:
    return part.content.decode("utf-8", "replace")


def _malformed(why: str) -> RequestError:
    return RequestError(f"The form in the request body cannot be read: {why}.", code="invalid_body")
