"""A network between a master and fencepost, that holds requests back when it is told to (SIGUSR1), until it is told to let go
(SIGUSR2). Who has sent them may have left meanwhile.
"""

import asyncio
import os
import signal

HOST, PORT = os.environ["TO"].rsplit(":", 1)


def say(line):
    print(line, flush=True)


async def main():
    passing = asyncio.Event()
    passing.set()

    async def relay(client, answers):
        try:
            head = await client.readuntil(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().lower().split("\r\n")[1:-2])
            body = await client.readexactly(int(fields.get("content-length", 0)))
            if not passing.is_set():
                say(f"holds back {body.decode()}")
                await passing.wait()
                say(f"lets go {body.decode()}")
            server, requests = await asyncio.open_connection(HOST, int(PORT))
            requests.write(head[:-2] + b"Connection: close\r\n\r\n" + body)
            answer = await server.read()
            requests.close()
            answers.write(answer)
            await answers.drain()
        except (OSError, asyncio.IncompleteReadError) as error:
            say(f"a request is lost: {error}")
        finally:
            answers.close()

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, passing.clear)
    loop.add_signal_handler(signal.SIGUSR2, passing.set)
    host, port = os.environ["LISTEN"].rsplit(":", 1)
    listener = await asyncio.start_server(relay, host, int(port))
    say(f"listening on port {listener.sockets[0].getsockname()[1]}")
    await listener.serve_forever()


asyncio.run(main())
