"""A stand-in for Docker: a client that only asks, and a daemon whose children the containers are.

``python fake_docker.py daemon SOCKET`` serves; ``python fake_docker.py run|rm|inspect …`` asks it at FAKE_DOCKER. A
container gets nothing of the client's environment but what ``--env NAME`` names. FAKE_DOCKER_RM=fails: ``rm`` fails.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

IMAGE = "image"


class Daemon:
    def __init__(self) -> None:
        self.containers: dict[str, subprocess.Popen[bytes]] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        name, container = request["name"], self.containers.get(request["name"])
        if request["verb"] == "run":
            self.containers[name] = subprocess.Popen(request["argv"], env=request["env"], start_new_session=True)
            return {}
        if container is None or (container.poll() is not None and request["verb"] != "wait"):
            return {"error": f"Error: No such container: {name}"}
        if request["verb"] == "wait":
            return {"code": container.wait()}
        if request["verb"] == "inspect":
            return {"pid": container.pid}
        container.send_signal(request["signal"])
        return {"code": container.wait()} if request["signal"] == signal.SIGKILL else {}


def serve(path: str) -> None:
    daemon, server = Daemon(), socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()

    def handle(connection: socket.socket) -> None:
        with connection, connection.makefile("rw") as stream:
            stream.write(json.dumps(daemon.answer(json.loads(stream.readline()))) + "\n")

    while True:
        threading.Thread(target=handle, args=[server.accept()[0]], daemon=True).start()


def ask(**request: Any) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["FAKE_DOCKER"])
        with connection.makefile("rw") as stream:
            stream.write(json.dumps(request) + "\n")
            stream.flush()
            return dict(json.loads(stream.readline()))


def run(words: list[str]) -> None:
    options, argv = words[: words.index(IMAGE)], words[words.index(IMAGE) + 1 :]
    name = options[options.index("--name") + 1]
    passed = [options[place + 1] for place, word in enumerate(options) if word == "--env"]
    environment = {variable: os.environ[variable] for variable in passed} | {"PATH": os.environ["PATH"]}
    ask(verb="run", name=name, argv=argv, env=environment)
    signal.signal(signal.SIGTERM, lambda *_: ask(verb="signal", name=name, signal=signal.SIGTERM))
    sys.exit(max(0, int(ask(verb="wait", name=name)["code"])))


def main() -> None:
    verb, words = sys.argv[1], sys.argv[2:]
    if verb == "daemon":
        serve(words[0])
    elif verb == "run":
        run(words)
    elif verb == "rm" and os.environ.get("FAKE_DOCKER_RM") == "fails":
        sys.exit("Cannot connect to the Docker daemon. Is the docker daemon running?")
    elif verb == "rm":
        answer = ask(verb="signal", name=words[-1], signal=signal.SIGKILL)
        sys.exit(answer.get("error"))
    elif verb == "inspect":
        answer = ask(verb="inspect", name=words[-1])
        print(answer.get("pid", ""))
        sys.exit(answer.get("error"))


def start_daemon(folder: Path) -> "subprocess.Popen[bytes]":
    """The daemon, and ``docker`` in ``folder``; the caller kills it."""
    client = folder / "docker"
    client.write_text(
        f'#!/bin/sh\nFAKE_DOCKER={folder}/socket exec {sys.executable} {__file__} "$@"\n', encoding="utf-8"
    )
    client.chmod(0o755)
    daemon = subprocess.Popen([sys.executable, __file__, "daemon", str(folder / "socket")], start_new_session=True)
    deadline = time.monotonic() + 20
    while not (folder / "socket").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return daemon


if __name__ == "__main__":
    main()
