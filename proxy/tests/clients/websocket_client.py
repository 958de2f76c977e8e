"""Opens a WebSocket under a token, sends frames of many sizes and checks that each comes back."""

import asyncio
import sys

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

address, owner, revision = sys.argv[1:]
token = {"Fence-Owner": owner, "Fence-Revision": revision}


async def main():
    async with connect(f"ws://{address}/socket", additional_headers=token, max_size=None, open_timeout=20) as socket:
        for size in (0, 125, 126, 65535, 65536, 1000000):
            for kind, message in (("text", "x" * size), ("binary", b"x" * size)):
                await socket.send(message)
                answer = await asyncio.wait_for(socket.recv(), 20)
                print(kind, size, "ok" if answer == message else "WRONG")
        await socket.close(1000, "done")
    print("closed", socket.close_code, socket.close_reason)


try:
    asyncio.run(main())
except InvalidStatus as refusal:
    print("refused", refusal.response.status_code, refusal.response.headers.get("Fence-Reason"))
