"""A provider that costs next to nothing: frames are encoded once and written as they are.

The model's name says what it does: `flood-1000` sends 1,000 chunks as fast as the socket takes them, `paced-20-100`
sends 100 chunks at 20 a second with the time of sending in each, `silent` sends one chunk and then nothing. A request
to `/closed/NAME` tells when the connection that carried `NAME` as its user was closed. Agents ask the model of their
own configuration; it is called `asked` then, and the first word of the last message says what it does. Run as a
process of its own.
"""

import asyncio
import json
import socket
import sys
import time

import uvloop

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
START = b'{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":'


def frame(payload: bytes) -> bytes:
    data = b"data: " + payload + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def text(content: bytes) -> bytes:
    return frame(START + b'[{"index":0,"delta":{"content":"' + content + b'"},"finish_reason":null}]}')


TOKEN = text(b" word")
END = (
    frame(START + b'[{"index":0,"delta":{},"finish_reason":"stop"}]}')
    + frame(START + b'[],"usage":{"prompt_tokens":5,"completion_tokens":5,"total_tokens":10}}')
    + frame(b"[DONE]")
    + b"0\r\n\r\n"
)
closed: dict[str, float] = {}


class Connection(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        self.data = b""
        self.user = ""
        self.left = 0
        self.writable = True
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        closed[self.user] = time.monotonic()
        if self.timer is not None:
            self.timer.cancel()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.flood()

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, blank, rest = self.data.partition(b"\r\n\r\n")
        if not blank:
            return
        if head.startswith(b"GET"):
            self.data = b""
            self.tell(head.split(b" ", 2)[1].decode())
            return
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]
        if len(rest) < int(length):
            return
        self.data = b""
        body = json.loads(rest)
        self.user = body.get("user") or ""
        model = body["model"].rpartition("/")[2]
        self.answer(body["messages"][-1]["content"].split()[0] if model == "asked" else model)

    def tell(self, path: str) -> None:
        value = json.dumps(closed.get(path.rpartition("/")[2])).encode()
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(value), value))

    def answer(self, model: str) -> None:
        kind, *numbers = model.split("-")
        self.transport.write(HEAD)
        if kind == "flood":
            self.left = int(numbers[0])
            self.flood()
        elif kind == "paced":
            self.gap, self.left = 1 / float(numbers[0]), int(numbers[1])
            self.due = asyncio.get_running_loop().time()
            self.pace()
        else:
            self.transport.write(TOKEN)

    def flood(self) -> None:
        # One frame a write and a turn of the loop: models send token by token, and many streams advance together.
        if self.left > 0 and self.writable:
            self.left -= 1
            self.transport.write(TOKEN)
            if self.left == 0:
                self.transport.write(END)
            else:
                asyncio.get_running_loop().call_soon(self.flood)

    def pace(self) -> None:
        if self.left == 0:
            self.transport.write(END)
            return
        self.left -= 1
        self.transport.write(text(b"@%.6f@" % time.monotonic()))
        self.due += self.gap
        self.timer = asyncio.get_running_loop().call_at(self.due, self.pace)


async def main(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", port, backlog=4096)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
