"""An MCP server of 2025, over stdio, by hand: quick to start, and as odd as the first argument asks for."""

import json
import os
import sys
import time
from typing import Any

oddness = sys.argv[1] if len(sys.argv) > 1 else ""
tools = ["echo", "die", "hang", "learn", "nap", "odd"]
schema: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def called(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    match name:
        case "echo":
            return {"content": [{"type": "text", "text": str(arguments.get("text"))}]}
        case "die":
            os._exit(1)
        case "hang":
            time.sleep(300)
            return {}
        case "nap":
            send({"method": "notifications/tools/list_changed"})
            time.sleep(3)
            return {"content": [{"type": "text", "text": "rested"}]}
        case "learn":
            match arguments.get("text"):
                case None:
                    tools.append("learnt")
                case "manners":
                    schema["required"] = ["text"]
                case another:
                    tools[tools.index("odd")] = another
            send({"method": "notifications/tools/list_changed"})
            return {"content": []}
        case _:
            return {
                "isError": True,
                "content": [
                    {"type": "text", "text": "words"},
                    {"type": "image", "data": "AAAA", "mimeType": "image/png"},
                    {"type": "audio", "data": "AAAAAAAA", "mimeType": "audio/wav"},
                    {"type": "resource_link", "name": "notes", "uri": "file:///notes"},
                    {"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}},
                    {"type": "resource", "resource": {"uri": "file:///b", "blob": "AAAA", "mimeType": "x/y"}},
                ],
            }


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            return {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "old", "version": "1"},
            }
        case "tools/list":
            half = tools[:2] if params.get("cursor") is None else tools[2:]
            more = {"nextCursor": "2"} if params.get("cursor") is None else {}
            hints = {"nap": {"annotations": {"readOnlyHint": True}}}
            return {"tools": [{"name": name, "inputSchema": schema, **hints.get(name, {})} for name in half], **more}
        case "tools/call":
            return called(params["name"], params.get("arguments") or {})
        case _:
            return None


sys.stderr.write("this goes to stderr\n")
sys.stderr.flush()
if oddness.startswith("slow"):
    time.sleep(float(oddness.removeprefix("slow")))
if oddness == "flood":
    for number in range(2_000):
        sys.stderr.write(f"flood {number} {'x' * 1_000}\n")
    sys.stderr.flush()
if oddness == "exit":
    sys.exit("hush-hush, I will not")
if oddness == "garbage":
    print("this is no JSON", flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or oddness == "silent":
        continue
    result = answer(message["method"], message.get("params") or {})
    if oddness == "telling":
        send({"id": message["id"], "error": {"code": -32001, "message": f"I do not know {os.environ['TOKEN']}"}})
    elif result is None:
        send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
    else:
        send({"id": message["id"], "result": result})
