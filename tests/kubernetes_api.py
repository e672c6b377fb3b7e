"""A stand-in for a cluster: the few paths of the Kubernetes API that Snakemake's executor uses, over HTTP.

It keeps every manifest as it came over the wire. A job's container runs as a process in an empty folder of its own, as
in a pod; or, where nothing is to run, is over at once.
"""

import json
import re
import subprocess
import threading
from base64 import b64decode
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: test
contexts: [{{name: test, context: {{cluster: test, user: test}}}}]
clusters: [{{name: test, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: test, user: {{token: test}}}}]
"""


class Pod:
    """A job and the process that its only container is; without one, it runs until it has failed."""

    def __init__(self, manifest: dict[str, Any], process: "subprocess.Popen[bytes] | None", log: Path) -> None:
        self.manifest, self.process, self.log = manifest, process, log
        self.has_failed = False
        self.deleted = False

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])

    @property
    def exit_code(self) -> int | None:
        if self.process:
            return self.process.poll()
        return 1 if self.has_failed else None

    def status(self) -> dict[str, Any]:
        code = self.exit_code
        counts = {} if code is None else {"failed": 1} if code else {"succeeded": 1}
        return {**self.manifest, "status": counts or {"active": 1}}

    def as_pod(self) -> dict[str, Any]:
        code = self.exit_code
        state = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
        container = {"name": "snakemake", "state": state, "image": "x", "imageID": "", "ready": True, "restartCount": 0}
        labels = {"job-name": self.name}
        return {"metadata": {"name": self.name, "labels": labels}, "status": {"containerStatuses": [container]}}

    def end(self) -> None:
        """As the kubelet does when a pod is deleted: SIGTERM to its first process."""
        if self.process:
            self.process.terminate()


class KubernetesApi:
    """Answers from the beginning of its context to its end.

    Without an ``environment`` for them nothing runs in the pods, and all fail when ``fail_at`` of them have come.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None, *, fail_at: int = 1) -> None:
        self.folder, self.environment, self.fail_at = folder, environment, fail_at
        self.pods: dict[str, Pod] = {}
        self.secrets: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))

    def __enter__(self) -> "KubernetesApi":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.kubeconfig.write_text(KUBECONFIG.format(port=self._server.server_port), encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        for pod in self.pods.values():
            if pod.process and pod.process.poll() is None:
                pod.process.kill()
                pod.process.wait()

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def manifests(self) -> list[dict[str, Any]]:
        """The jobs that were submitted, as JSON said them."""
        return [pod.manifest for pod in self.pods.values()]

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and body for a request."""
        where, query = urlsplit(path).path, parse_qs(urlsplit(path).query)
        self.requests.append(f"{method} {where}")
        if method == "POST" and where.endswith("/secrets"):
            self.secrets.append(body)
            return 201, body
        if method == "DELETE" and "/secrets/" in where:
            return 200, {"kind": "Status", "status": "Success"}
        if method == "POST" and where.endswith("/jobs"):
            pod = self._start(body)
            self.pods[pod.name] = pod
            for each in self.pods.values():
                each.has_failed = len(self.pods) >= self.fail_at
            return 201, body
        if method == "GET" and where.endswith("/pods"):
            wanted = query["labelSelector"][0].removeprefix("job-name=")
            living = [pod for pod in self.pods.values() if pod.name == wanted and not pod.deleted]
            return 200, {"kind": "PodList", "apiVersion": "v1", "items": [pod.as_pod() for pod in living]}
        match = re.search(r"/(?:jobs|pods)/([^/]+)(/status|/log)?$", where)
        pod = self.pods[match[1]] if match else None
        if pod and match and method == "GET" and match[2] == "/log":  # the executor asks for that of a run before
            return 400, {"kind": "Status", "message": f"previous terminated container in pod {pod.name} not found"}
        if pod and method == "GET":
            return 200, pod.status()
        if pod and method == "DELETE":
            pod.deleted = True
            pod.end()
            return 200, {"kind": "Status", "status": "Success"}
        return 404, {"kind": "Status", "message": f"{method} {where}"}

    def _start(self, manifest: dict[str, Any]) -> Pod:
        container = manifest["spec"]["template"]["spec"]["containers"][0]
        folder = self.folder / manifest["metadata"]["name"]
        folder.mkdir()
        log = folder.with_suffix(".log")
        if self.environment is None:
            return Pod(manifest, None, log)
        values = {key: value for secret in self.secrets for key, value in (secret.get("data") or {}).items()}
        named = {each["name"]: values[each["valueFrom"]["secretKeyRef"]["key"]] for each in container.get("env", [])}
        environment = {**self.environment, **{name: b64decode(value).decode() for name, value in named.items()}}
        with log.open("wb") as stream:
            command = [*container["command"], *container["args"]]
            options: dict[str, Any] = {"cwd": folder, "env": environment, "start_new_session": True}
            process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, **options)
        return Pod(manifest, process, log)


def _handler_of(api: KubernetesApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _reply(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            status, answer = api.answer(self.command, self.path, body)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = _reply

    return Handler
