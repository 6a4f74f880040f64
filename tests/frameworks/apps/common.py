"""What the agents of all frameworks have in common: the address of their provider, and a tool."""

import asyncio
import os
from pathlib import Path

URL = os.environ["PROVIDER_URL"]
KEY = "key-of-the-provider"


async def get_weather(city: str) -> str:
    """The weather of a city."""
    Path("carried-out.txt").open("a").write(f"{city}\n")
    if city == "Atlantis":
        raise LookupError("no such city, and the password is swordfish")
    if city == "Slow":
        await asyncio.sleep(30)
    return f"Sunny in {city}."
