"""Amazon's cloud on loopback: moto's server, behind a fake of the add-ons of EKS, which moto does not have."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

ADDONS = re.compile(r"/clusters/(?P<cluster>[^/]+)/addons(?:/(?P<addon>[^/]+))?")


@dataclass
class AmazonCloud:
    """A fake of the add-ons of EKS, which records the requests to EKS and can refuse them."""

    asked: list[tuple[str, str, Any]] = field(default_factory=list)
    """(method, path, body) of each request to EKS, in order."""
    addons: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The add-on of each cluster."""
    refusals: dict[tuple[str, str], tuple[int, str, str]] = field(default_factory=dict)
    """(method, path) -> (HTTP code, kind, message) of the error that answers such a request."""
    url: str = ""

    def sent(self, path: str) -> Any:
        """The body of the only request that made the object at `path`."""
        (body,) = [body for method, where, body in self.asked if (method, where) == ("POST", path)]
        return body

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any] | None:
        """(HTTP code, JSON) of a request that moto does not answer, else None."""
        self.asked.append((method, path, body))
        if (method, path) in self.refusals:
            code, kind, message = self.refusals[method, path]
            return code, {"__type": kind, "message": message}
        match = ADDONS.fullmatch(path)
        if match is None:
            return None
        if method == "POST":
            self.addons[match["cluster"]] = {**body, "status": "CREATING"}
        addon = self.addons[match["cluster"]]
        answer = {"addon": dict(addon)}
        if method == "GET":
            addon["status"] = "ACTIVE"
        return 200, answer


def serve_amazon(cloud: AmazonCloud) -> Callable[[], None]:
    """Serves moto and the add-ons at a free port of loopback; returns the function that ends it."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server
    from werkzeug.wrappers import Request, Response

    moto = DomainDispatcherApplication(create_backend_app)

    class Quiet(WSGIRequestHandler):
        def log(self, *_: object) -> None:
            pass

    def application(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        request = Request(environ)
        if request.path.startswith("/clusters"):
            body = json.loads(request.get_data(cache=True) or b"null") if request.method == "POST" else None
            if body is not None:
                from io import BytesIO

                environ["wsgi.input"] = BytesIO(request.get_data())
            if (answer := cloud.answer(request.method, request.path, body)) is not None:
                code, data = answer
                headers = {"x-amzn-ErrorType": data["__type"]} if "__type" in data else {}
                made = Response(json.dumps(data), code, headers, content_type="application/json")
                return made(environ, start)
        return moto(environ, start)

    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    cloud.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def end() -> None:
        server.shutdown()
        server.server_close()

    return end
