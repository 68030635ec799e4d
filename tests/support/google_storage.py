"""A fake of Google Cloud Storage and its JSON API; google_storage_server.py serves it at a port."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from uuid import uuid4

ACCOUNT = "trainer@cloud-7.iam.gserviceaccount.com"
QUANTUM = 1 << 18
"""Google keeps the parts of an upload in multiples of this, except the last one."""
LARGEST_PAGE = 1000
_BUCKET = r"(?:/storage/v1)?/b/(?P<bucket>[^/]+)"
_OBJECT = _BUCKET + r"/o/(?P<name>[^/]+)"
_TEXTS = {
    401: ("authError", "Invalid Credentials"),
    403: ("forbidden", "Forbidden"),
    412: ("conditionNotMet", "At least one of the pre-conditions you specified did not hold."),
    429: ("rateLimitExceeded", "The rate limit for object mutation operations is exceeded. Please reduce your rate."),
    503: ("backendError", "We encountered an internal error. Please try again."),
}


class Reply(NamedTuple):
    """An answer to a request."""

    code: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


class Refused(Exception):
    """Raised to send an error instead of an answer."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.code)
        self.reply = reply


@dataclass(frozen=True)
class Request:
    """A request with decoded names and parameters."""

    method: str
    path: str
    parameters: dict[str, str]
    headers: dict[str, str]
    body: bytes
    base: str = ""
    """The address of the request, before the path."""
    is_whole: bool = True
    """False if the connection ended before the body did."""


@dataclass
class Upload:
    """An upload in parts."""

    bucket: str
    about: dict[str, Any]
    conditions: dict[str, str]
    data: bytearray = field(default_factory=bytearray)
    made: dict[str, Any] | None = None
    """The object, once the upload is complete."""
    is_cancelled: bool = False


class GoogleStorage:
    """Buckets, objects and unfinished uploads, and the errors to simulate."""

    def __init__(self) -> None:
        self.buckets: dict[str, dict[str, tuple[bytes, dict[str, Any]]]] = {}
        self.uploads: dict[str, Upload] = {}
        self.asked: list[tuple[str, str]] = []
        """(method, path) of each request, in order, except sign-ins."""
        self.tokens: set[str] = set()
        """The valid tokens."""
        self._lock = threading.RLock()
        self._generation = time.time_ns() // 1000
        self._written: dict[tuple[str, str], float] = {}
        self.calm()

    def calm(self) -> None:
        """Stops all simulated errors."""
        self.refusals: deque[int] = deque()
        """HTTP codes that answer the next requests, one each."""
        self.denied: set[str] = set()
        """Permissions that the account does not have."""
        self.cuts: deque[int] = deque()
        """The numbers of bytes after which the next parts of uploads and their connections are cut off."""
        self.seconds_between_writes = 0.0
        """The least time between two writes of one object; Google's is about one second."""
        self.is_silent = False
        """Whether requests are read and not answered."""

    def names(self, bucket: str) -> list[str]:
        """The names of the objects in a bucket."""
        return sorted(self.buckets[bucket])

    def answer(self, request: Request) -> Reply:
        """The answer to a request."""
        with self._lock:
            self.asked.append((request.method, request.path))
            try:
                if self.refusals and not request.path.startswith("/token"):
                    raise _refused(self.refusals.popleft())
                return self._answer(request)
            except Refused as refused:
                # Google's download service answers errors in plain text.
                if request.path.startswith("/download/"):
                    message = json.loads(refused.reply.body)["error"]["message"]
                    return Reply(refused.reply.code, message.encode(), (("Content-Type", "text/html; charset=UTF-8"),))
                return refused.reply

    def _answer(self, request: Request) -> Reply:
        method, path = request.method, request.path
        if path == "/batch/storage/v1":
            return self._batch(request)
        if (match := re.fullmatch("/upload" + _BUCKET + "/o", path)) is not None:
            return self._upload(request, unquote(match["bucket"]))
        if path == "/storage/v1/b" and method == "POST":
            return self._make_bucket(request)
        path = path.removeprefix("/download")
        if (match := re.fullmatch(_BUCKET, path)) is not None:
            return self._about_bucket(request, unquote(match["bucket"]))
        if (match := re.fullmatch(_BUCKET + "/o", path)) is not None and method == "GET":
            return self._list(request, unquote(match["bucket"]))
        if (match := re.fullmatch(_OBJECT, path)) is not None and method in ("GET", "DELETE"):
            bucket, name = unquote(match["bucket"]), unquote(match["name"])
            return self._get(request, bucket, name) if method == "GET" else self._delete(request, bucket, name)
        copying = _OBJECT + "/(?P<how>rewriteTo|copyTo)/b/(?P<to_bucket>[^/]+)/o/(?P<to_name>[^/]+)"
        if (match := re.fullmatch(copying, path)) is not None and method == "POST":
            return self._copy(request, *(unquote(match[each]) for each in ("bucket", "name", "to_bucket", "to_name")))
        raise _refused(404, "Not Found", "notFound")

    def _allow(self, request: Request, permission: str) -> None:
        """Raises an error unless the request has a valid token and the account this permission."""
        kind = "bucket" if permission.endswith(("create", "list")) or ".buckets." in permission else "object"
        lacks = (
            f"does not have {permission} access to the Google Cloud Storage {kind}. Permission '{permission}' denied "
            "on resource (or it may not exist)."
        )
        given = request.headers.get("authorization", "")
        if not given:
            raise _refused(401, f"Anonymous caller {lacks}", "required")
        if given.removeprefix("Bearer ") not in self.tokens:
            raise _refused(401)
        if permission in self.denied:
            raise _refused(403, f"{ACCOUNT} {lacks}")

    def _bucket(self, bucket: str) -> dict[str, tuple[bytes, dict[str, Any]]]:
        if bucket not in self.buckets:
            raise _refused(404, "The specified bucket does not exist.", "notFound")
        return self.buckets[bucket]

    def _object(self, request: Request, bucket: str, name: str) -> tuple[bytes, dict[str, Any]]:
        found = self._bucket(bucket).get(name)
        wanted = request.parameters.get("generation")
        if found is None or wanted not in (None, found[1]["generation"]):
            raise _refused(404, f"No such object: {bucket}/{name}", "notFound")
        return found

    def _make_bucket(self, request: Request) -> Reply:
        self._allow(request, "storage.buckets.create")
        name = json.loads(request.body)["name"]
        if name in self.buckets:
            raise _refused(409, "Your previous request to create the named bucket succeeded.", "conflict")
        self.buckets[name] = {}
        return _json(_bucket_resource(name))

    def _about_bucket(self, request: Request, bucket: str) -> Reply:
        if request.method not in ("GET", "DELETE"):
            raise _refused(405, "Method Not Allowed", "methodNotAllowed")
        self._allow(request, f"storage.buckets.{request.method.lower()}")
        held = self._bucket(bucket)
        if request.method == "GET":
            return _json(_bucket_resource(bucket))
        if held:
            raise _refused(409, "The bucket you tried to delete is not empty.", "conflict")
        del self.buckets[bucket]
        return Reply(204)

    def _list(self, request: Request, bucket: str) -> Reply:
        """Lists objects in pages in the order of names; with a delimiter, folders count as entries."""
        self._allow(request, "storage.objects.list")
        held, asked = self._bucket(bucket), request.parameters
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
        entries: dict[str, dict[str, Any] | None] = {}
        for name in sorted(held):
            inside = asked.get("startOffset", "") <= name and ("endOffset" not in asked or name < asked["endOffset"])
            if not name.startswith(prefix) or not inside:
                continue
            head, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
            entries[f"{prefix}{head}{delimiter}" if found else name] = None if found else held[name][1]
        after = base64.urlsafe_b64decode(asked.get("pageToken", "")).decode()
        left = [each for each in sorted(entries) if each > after]
        page = left[: min(int(asked.get("maxResults", LARGEST_PAGE)), LARGEST_PAGE)]
        said: dict[str, Any] = {"kind": "storage#objects"}
        if items := [about for each in page if (about := entries[each]) is not None]:
            said["items"] = items
        if prefixes := [each for each in page if entries[each] is None]:
            said["prefixes"] = prefixes
        if len(page) < len(left):
            said["nextPageToken"] = base64.urlsafe_b64encode(page[-1].encode()).decode()
        return _json(said)

    def _get(self, request: Request, bucket: str, name: str) -> Reply:
        self._allow(request, "storage.objects.get")
        data, about = self._object(request, bucket, name)
        if request.parameters.get("alt") != "media":
            return _json(about)
        headers = (
            ("Content-Type", about["contentType"]),
            ("ETag", about["etag"]),
            ("X-Goog-Generation", about["generation"]),
            ("X-Goog-Metageneration", about["metageneration"]),
            ("X-Goog-Hash", f"crc32c={about['crc32c']},md5={about['md5Hash']}"),
        )
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
        if asked is None or asked[0] == "bytes=-":
            return Reply(200, data, headers)
        start = int(asked[1]) if asked[1] else max(0, len(data) - int(asked[2]))
        stop = min(int(asked[2]) + 1, len(data)) if asked[1] and asked[2] else len(data)
        if start >= len(data):
            raise _refused(416, "The requested range cannot be satisfied.", "requestedRangeNotSatisfiable")
        return Reply(206, data[start:stop], (*headers, ("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")))

    def _delete(self, request: Request, bucket: str, name: str) -> Reply:
        self._allow(request, "storage.objects.delete")
        self._object(request, bucket, name)
        self._check(request.parameters, bucket, name)
        del self.buckets[bucket][name]
        return Reply(204)

    def _copy(self, request: Request, bucket: str, name: str, to_bucket: str, to_name: str) -> Reply:
        self._allow(request, "storage.objects.get")
        self._allow(request, "storage.objects.create")
        data, about = self._object(request, bucket, name)
        self._bucket(to_bucket)
        self._check(request.parameters, to_bucket, to_name)
        made = self.keep(to_bucket, {"name": to_name, "contentType": about["contentType"]}, data)
        if "/copyTo/" in request.path:
            return _json(made)
        size = str(len(data))
        done = {"kind": "storage#rewriteResponse", "totalBytesRewritten": size, "objectSize": size, "done": True}
        return _json(done | {"resource": made})

    def _batch(self, request: Request) -> Reply:
        """Answers a batch: each part of it is a request, and each part of the answer its reply."""
        boundary = _boundary(request.headers)
        parts, mine = [], f"batch_{uuid4().hex}"
        for part in request.body.decode().split(f"--{boundary}")[1:-1]:
            method, target = re.findall(r"^(\w+) (\S+) HTTP/1.1", part, re.MULTILINE)[0]
            said = self._answered(Request(method, target.partition("?")[0], {}, request.headers, b""))
            identity = re.findall(r"Content-ID: <(.*)>", part)[0]
            parts.append(
                f"--{mine}\r\nContent-Type: application/http\r\nContent-ID: <response-{identity}>\r\n\r\n"
                f"HTTP/1.1 {said.code} -\r\nContent-Type: application/json\r\n\r\n{said.body.decode()}\r\n"
            )
        if len(parts) > 100:
            raise _refused(400, "The batch request exceeds the limit of 100 calls.", "badRequest")
        return Reply(
            200, f"{''.join(parts)}--{mine}--".encode(), (("Content-Type", f"multipart/mixed; boundary={mine}"),)
        )

    def _answered(self, request: Request) -> Reply:
        try:
            return self._answer(request)
        except Refused as refused:
            return refused.reply

    def _upload(self, request: Request, bucket: str) -> Reply:
        if "upload_id" in request.parameters:
            return self._part(request, self.uploads.get(request.parameters["upload_id"]))
        self._allow(request, "storage.objects.create")
        self._bucket(bucket)
        how, conditions = request.parameters.get("uploadType"), _conditions(request.parameters)
        named = {"name": request.parameters["name"]} if "name" in request.parameters else {}
        if how == "resumable":
            about = json.loads(request.body or b"{}") | named
            about.setdefault("contentType", request.headers.get("x-upload-content-type", "application/octet-stream"))
            identity = uuid4().hex
            self.uploads[identity] = Upload(bucket, about, conditions)
            query = f"uploadType=resumable&name={quote(about['name'], safe='')}&upload_id={identity}"
            where = f"{request.base}{request.path}?{query}"
            return Reply(200, b"", (("Location", where), ("X-GUploader-UploadID", identity)))
        if not request.is_whole:
            raise _refused(400, "The body is not whole.", "badRequest")
        if how == "media":
            about, data = named | {"contentType": request.headers.get("content-type")}, request.body
        elif how == "multipart":
            about, data = _two_parts(request)
        else:
            raise _refused(400, "Required parameter: uploadType", "required")
        self._check(conditions, bucket, (about | named)["name"])
        return _json(self.keep(bucket, about | named, data))

    def _part(self, request: Request, upload: Upload | None) -> Reply:
        """Takes one part of an upload, or reports its progress; the upload's address serves as the permission."""
        if upload is None:
            raise _refused(404, "Not Found", "notFound")
        if request.method == "DELETE" or upload.is_cancelled:
            upload.is_cancelled = True
            return Reply(499)
        if upload.made is not None:
            return _json(upload.made)
        said = re.fullmatch(r"bytes (?:\*|(\d+)-(\d+))/(\*|\d+)", request.headers.get("content-range", "bytes */*"))
        if said is None:
            raise _refused(400, "Failed to parse Content-Range header.", "badRequest")
        if said[1] is not None:
            self._append(upload, int(said[1]), int(said[2]) + 1, request, is_last=said[3] != "*")
        if said[3] != "*" and int(said[3]) == len(upload.data) and request.is_whole:
            self._check(upload.conditions, upload.bucket, upload.about["name"])
            upload.made = self.keep(upload.bucket, upload.about, bytes(upload.data))
            return _json(upload.made)
        held = (("Range", f"bytes=0-{len(upload.data) - 1}"),) if upload.data else ()
        return Reply(308, b"", held)

    def _append(self, upload: Upload, start: int, stop: int, request: Request, *, is_last: bool) -> None:
        """Skips bytes that were received before; keeps a part that was cut off down to a multiple of the quantum."""
        if start > len(upload.data):
            text = f"According to the Content-Range header, the upload offset is {start} byte(s), which exceeds already"
            raise _refused(400, f"{text} uploaded size of {len(upload.data)} byte(s).", "badRequest")
        if not is_last and stop - start < QUANTUM:
            text = f"The number of bytes uploaded is required to be equal or greater than {QUANTUM}, except for the"
            raise _refused(400, f"{text} final request.", "badRequest")
        end = start + len(request.body)
        if not (is_last and request.is_whole):
            end -= end % QUANTUM
        upload.data += request.body[len(upload.data) - start : max(0, end - start)]

    def _check(self, conditions: dict[str, str], bucket: str, name: str) -> None:
        about = self.buckets[bucket].get(name, (b"", {"generation": "0", "metageneration": "0"}))[1]
        for word, key in (("ifGenerationMatch", "generation"), ("ifMetagenerationMatch", "metageneration")):
            if conditions.get(word, about[key]) != about[key]:
                raise _refused(412)

    def keep(self, bucket: str, about: dict[str, Any], data: bytes) -> dict[str, Any]:
        """Makes an object, or a new generation of it; `about` has its name."""
        import google_crc32c

        name, now = about["name"], time.monotonic()
        if now - self._written.get((bucket, name), -1e9) < self.seconds_between_writes:
            raise _refused(429)
        self._written[bucket, name] = now
        self._generation += 1
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        crc = google_crc32c.Checksum(data).digest()
        made = {
            "kind": "storage#object",
            "id": f"{bucket}/{name}/{self._generation}",
            "contentType": "application/octet-stream",
            **about,
            "bucket": bucket,
            "generation": str(self._generation),
            "metageneration": "1",
            "size": str(len(data)),
            "storageClass": "STANDARD",
            "timeCreated": stamp,
            "updated": stamp,
            "md5Hash": base64.b64encode(hashlib.md5(data).digest()).decode(),
            "crc32c": base64.b64encode(crc).decode(),
            "etag": base64.b64encode(str(self._generation).encode()).decode(),
        }
        for checksum in ("md5Hash", "crc32c"):
            if about.get(checksum, made[checksum]) != made[checksum]:
                raise _refused(400, f'Provided {checksum} "{about[checksum]}" doesn\'t match.', "invalid")
        self.buckets[bucket][name] = (data, made)
        return made


def _two_parts(request: Request) -> tuple[dict[str, Any], bytes]:
    """(the description of an object, its content)."""
    boundary = b"--" + _boundary(request.headers).encode()
    # The first line decides which line ends are used: the content may itself end with a part of one.
    newline = b"\r\n" if request.body.startswith(boundary + b"\r\n") else b"\n"
    _, first, second, _ = (newline + request.body).split(newline + boundary)
    (_, text), (head, data) = (part.split(2 * newline, 1) for part in (first, second))
    about = json.loads(text)
    with contextlib.suppress(IndexError):
        about.setdefault("contentType", re.findall(rb"(?i)content-type: *(\S+)", head)[0].decode())
    return about, data


def _boundary(headers: dict[str, str]) -> str:
    return re.findall(r'boundary="?([^";]+)"?', headers["content-type"])[0]


def _conditions(parameters: dict[str, str]) -> dict[str, str]:
    return {word: value for word, value in parameters.items() if word.startswith("if")}


def _bucket_resource(name: str) -> dict[str, Any]:
    return {"kind": "storage#bucket", "id": name, "name": name, "location": "US", "storageClass": "STANDARD"}


def _json(data: Any, code: int = 200) -> Reply:
    return Reply(code, json.dumps(data).encode(), (("Content-Type", "application/json; charset=UTF-8"),))


def _refused(code: int, message: str = "", reason: str = "") -> Refused:
    usual = _TEXTS.get(code, ("", ""))
    message, reason = message or usual[1], reason or usual[0]
    one = {"message": message, "domain": "global", "reason": reason}
    return Refused(_json({"error": {"code": code, "message": message, "errors": [one]}}, code))
