"""A WebSocket worker that echoes."""

import asyncio

from websockets.asyncio.server import serve


async def echo(connection):
    print("opened", connection.request.path, flush=True)
    async for message in connection:
        await connection.send(message)


async def main():
    async with serve(echo, "127.0.0.1", 0, max_size=None) as server:
        print("port", server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


asyncio.run(main())
