"""Parses and normalises the URIs of locations.

Three kinds of text meet here, and each is decoded exactly once:

* a *table*, as a person types it: a local path (taken literally, a ``%`` is a
  ``%``) or a URI (percent-encoded; characters that a URI may not contain are accepted and encoded);
* a *URI* of ours: scheme, authority, and a path percent-encoded once, without a
  trailing slash. ``s3a`` and ``s3n`` are spelled ``s3``; every Azure spelling
  that names its account is ``abfss://container@account.dfs…``. In lakeFS a store is
  one ref of a repository: ``lakefs://repository/ref/path``, where a ref is any
  expression that lakeFS resolves and never holds a slash. Two places are the same
  when their URIs are equal;
* a *path in a log* (PROTOCOL.md, "Add File and Remove File"): an RFC 2396 URI
  reference, relative to the table or absolute.

A decoded, relative *name* is what a :class:`~lakeferry.storage.store.Store`
takes. Names never hold a segment that is empty, ``.`` or ``..``: no log and no
peer can lead us out of a table's folder.

Nothing here touches a store; only :func:`normalise` looks at the working folder,
and only for relative paths, and :func:`without_links` at local disk.
"""

from __future__ import annotations

import os
import posixpath
import re
import shlex
from dataclasses import dataclass
from urllib.parse import quote, unquote

from lakeferry.errors import InvalidInput

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:/")
_BAD_NAME = re.compile(r"(?:^|/)\.{0,2}(?:/|\Z)|\0")
_STRAY_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
_BAD_REF = re.compile(r"[\s/\x00-\x1f\x7f]")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_AZURE_ACCOUNT = re.compile(r"(?P<container>[^@/]+)@(?P<account>[A-Za-z0-9-]+)(?:\.(?P<host>.+))?")

# What java.net.URI leaves alone in a path, so that our URIs equal the ones that
# Spark prints for the same place.
_SAFE_IN_URI = "/!$&'()*+,;=:@~-._"
# A relative reference whose first segment holds a colon would read as a scheme.
_SAFE_IN_NAME = _SAFE_IN_URI.replace(":", "")
_SPECIAL_IN_SHELLS = re.compile(r"[!$&'()*;]")

_SPELLINGS = {
    "file": "file",
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "azure": "az",
    "abfs": "az",
    "abfss": "az",
    "wasb": "az",
    "wasbs": "az",
    "memory": "memory",
    "lakefs": "lakefs",
}
_CATALOGS = frozenset({"sql", "unity"})
_LAKEFS_REMEDY = "write lakefs://repository/ref/path; a ref is a branch, a tag or a commit"


@dataclass(frozen=True, slots=True)
class UriParts:
    """A URI of ours taken apart; ``path`` is decoded and has no slash at either end.

    The authority of a place in lakeFS is repository and ref, as the URI spells them.
    """

    scheme: str
    authority: str
    path: str

    @property
    def container(self) -> str:
        """The bucket or container that the authority names."""
        return self.authority.partition("@")[0]

    @property
    def account(self) -> str | None:
        """The Azure storage account, where the URI says which."""
        return self.authority.partition("@")[2].partition(".")[0] or None

    @property
    def repository_and_ref(self) -> tuple[str, str]:
        """The repository and the ref of a place in lakeFS; the ref is empty where none is named."""
        repository, _, ref = self.authority.partition("/")
        return repository, _decode(ref)

    def __str__(self) -> str:
        """Put the URI together again."""
        path = _encode(self.path, _SAFE_IN_URI)
        if self.scheme == "file":
            return f"file:///{path}"
        return (
            f"{self.scheme}://{self.authority}/{path}"
            if path
            else f"{self.scheme}://{self.authority}"
        )


def normalise(text: str, *, working_folder: str | None = None) -> str:
    """Return the URI of the place that ``text`` names.

    Raises :class:`~lakeferry.errors.InvalidInput` if it isn't a place in a store.
    """
    return str(_parse_text(text, working_folder))


def shell_safe(uri: str) -> str:
    """Return a URI as it can be pasted into a shell: its special characters percent-encoded.

    Other text, such as a name in a catalog, is quoted.
    """
    if "://" not in uri:
        return shlex.quote(uri)
    return _SPECIAL_IN_SHELLS.sub(lambda found: f"%{ord(found.group()):02X}", uri)


def split(uri: str) -> UriParts:
    """Take a URI apart, in any spelling."""
    if not _SCHEME.match(uri):
        raise InvalidInput("not a URI", cause=repr(uri), uri=uri)
    return _parse_text(uri, "/")


def local_path(uri: str) -> str:
    """Return the path on this machine that a ``file`` URI means."""
    parts = split(uri)
    if parts.scheme != "file":
        raise InvalidInput("not a place on local disk", cause=uri, uri=uri)
    return f"/{parts.path}"


def same_place(a: str, b: str) -> bool:
    """Return whether two URIs mean the same place, however each is spelled."""
    return str(split(a)) == str(split(b))


def without_links(uri: str) -> str:
    """Return the URI of a folder with all links resolved; links exist on local disk only."""
    if split(uri).scheme != "file":
        return uri
    return normalise(os.path.realpath(local_path(uri)))


def join(uri: str, name: str) -> str:
    """Return the URI of the object (or the folder) ``name`` below ``uri``."""
    lead = uri if uri.endswith("/") else f"{uri}/"
    return lead + _encode(check_object_name(name), _SAFE_IN_URI)


def relative_name(root: str, uri: str) -> str | None:
    """Return the name that ``uri`` has below ``root``, or ``None`` if it isn't below it."""
    outer, inner = split(root), split(uri)
    if (outer.scheme, outer.authority) != (inner.scheme, inner.authority):
        return None
    lead = f"{outer.path}/" if outer.path else ""
    if inner.path.startswith(lead) and len(inner.path) > len(lead):
        return inner.path[len(lead) :]
    return None


def container_and_name(uri: str) -> tuple[str, str]:
    """Split an absolute URI into the root of its store and the name below that.

    The root is a bucket, a container, a ref of lakeFS, or ``file:///``: the one URI
    of ours that ends with a slash.
    """
    parts = split(uri)
    return str(UriParts(parts.scheme, parts.authority, "")), check_object_name(parts.path)


def is_absolute_uri(log_path: str) -> bool:
    """Return whether a path in a log is absolute: ``scheme:/…`` or ``/…``.

    A colon alone doesn't make one: ``part=10:30/x.parquet`` is relative.
    """
    return _ABSOLUTE.match(log_path) is not None


def decode_name(log_path: str) -> str:
    """Return the name that a relative path in a log stands for."""
    if is_absolute_uri(log_path):
        raise InvalidInput("not a relative path", cause=repr(log_path), path=log_path)
    return check_object_name(_decode(log_path) if "%" in log_path else log_path)


def encode_name(name: str) -> str:
    """Return the relative path that a log has for ``name``; undoes :func:`decode_name`."""
    return _encode(check_object_name(name), _SAFE_IN_NAME)


def resolve_path(root: str, log_path: str) -> str:
    """Return the absolute URI that a path in the log of the table at ``root`` means.

    A path with a leading slash and no scheme stays on the table's own store. As in lakeFS's S3
    gateway, a repository is a store, with refs as folders. A relative path may begin with ``..``,
    and lead out of the table's folder.
    """
    if leads_outside(log_path):
        return _beside(root, log_path)
    if not is_absolute_uri(log_path):
        return join(root, decode_name(log_path))
    if not log_path.startswith("/"):
        return str(split(log_path))
    parts = split(root)
    if parts.scheme == "lakefs":
        return str(split(f"lakefs://{parts.repository_and_ref[0]}{log_path}"))
    return str(UriParts(parts.scheme, parts.authority, _clean_path(_decode(log_path), log_path)))


def leads_outside(log_path: str) -> bool:
    """Return whether a path in a log, its segments normalised, begins with ``..``.

    It is relative, and leads to a file outside of the table's folder.
    """
    return log_path.startswith("../")


def _beside(root: str, log_path: str) -> str:
    """Return the URI of a file outside of a table's folder, in the same container."""
    parts = split(root)
    folders = parts.path.split("/") if parts.path else []
    while leads_outside(log_path):
        if not folders:
            raise InvalidInput("A path leads out of its store", cause=log_path, path=log_path)
        folders.pop()
        log_path = log_path.removeprefix("../")
    path = "/".join([*folders, decode_name(log_path)])
    return str(UriParts(parts.scheme, parts.authority, path))


def check_object_name(name: str) -> str:
    """Return ``name`` if a store can have an object of that name below its root.

    Raises :class:`~lakeferry.errors.InvalidInput` for an empty name, one that
    begins or ends with a slash, a NUL, or a segment that is empty, ``.`` or ``..``.
    """
    if _BAD_NAME.search(name):
        raise InvalidInput(
            "not a name of an object",
            cause=f"{name!r} is empty, or has a segment that is empty, '.' or '..', or a NUL",
            path=name,
        )
    return name


def _parse_text(text: str, working_folder: str | None) -> UriParts:
    if not text or not text.strip():
        raise InvalidInput("an empty table name", remedy="give a path, a URI or a catalog name")
    if "\0" in text:
        raise InvalidInput("A table name can't hold a NUL character", cause=repr(text))
    match = _SCHEME.match(text)
    if match is None:
        path = posixpath.join(working_folder or os.getcwd(), text)
        return UriParts("file", "", posixpath.normpath(path).strip("/"))
    scheme, rest = match[1].lower(), text[match.end() :]
    if scheme == "file":
        return _parse_file(text, rest)
    if scheme in _SPELLINGS:
        return _parse_object_uri(text, scheme, rest)
    raise _unknown_scheme(text, scheme)


def _parse_file(text: str, rest: str) -> UriParts:
    if rest.startswith("//"):
        host, _, path = rest[2:].partition("/")
        if host.lower() not in ("", "localhost"):
            raise InvalidInput(
                f"{text!r} names a file on another host",
                remedy="write file:///path for a path on this machine",
            )
    elif rest.startswith("/"):
        path = rest[1:]
    else:
        raise InvalidInput(
            f"{text!r} is a file URI without an absolute path",
            remedy="write file:///path, or leave out 'file:' for a relative path",
        )
    return UriParts("file", "", posixpath.normpath(f"/{_decode(path)}").strip("/"))


def _parse_object_uri(text: str, scheme: str, rest: str) -> UriParts:
    family = _SPELLINGS[scheme]
    if not rest.startswith("//"):
        raise InvalidInput(f"{text!r} lacks the two slashes after '{scheme}:'")
    authority, _, raw = rest[2:].partition("/")
    ref = ""
    if family == "lakefs":
        ref, _, raw = raw.lstrip("/").partition("/")
    path = _clean_path(_decode(raw), text)
    if family == "az" and (match := _AZURE_ACCOUNT.fullmatch(authority)):
        host = (match["host"] or "dfs.core.windows.net").replace("blob.", "dfs.", 1)
        account = f"{match['container']}@{match['account'].lower()}.{host.lower()}"
        return UriParts("abfss", account, path)
    if "@" in authority:
        # The text before the @ may be a secret: it isn't repeated.
        raise InvalidInput(
            f"A {scheme} URI with credentials in it",
            remedy="give credentials by environment variables or --storage-option",
        )
    if not _BUCKET.fullmatch(authority):
        if family == "lakefs":
            raise InvalidInput(f"{text!r} names no repository", remedy=_LAKEFS_REMEDY, uri=text)
        raise InvalidInput(
            f"{text!r} names no bucket", remedy=f"write {scheme}://bucket/path", uri=text
        )
    if ref:
        authority = f"{authority}/{_encode(_checked_ref(_decode(ref), text), _SAFE_IN_URI)}"
    return UriParts(family, authority, path)


def _checked_ref(ref: str, text: str) -> str:
    if _BAD_REF.search(ref) or ref in (".", ".."):
        raise InvalidInput(f"{text!r} names no ref of lakeFS", remedy=_LAKEFS_REMEDY, uri=text)
    return ref


def _unknown_scheme(text: str, scheme: str) -> InvalidInput:
    if scheme in _CATALOGS:
        return InvalidInput(
            f"{text!r} is a name in a catalog, which isn't a place in a store",
            remedy="give the table's path or URI here",
        )
    return InvalidInput(
        f"{text!r} begins with an unknown scheme: {scheme!r}",
        remedy=f"use one of {', '.join(sorted(set(_SPELLINGS.values())))}; "
        "a local path with a colon in it begins with './'",
        scheme=scheme,
    )


def _clean_path(path: str, text: str) -> str:
    """Drop empty segments, as Hadoop's and object_store's paths do, and refuse dots."""
    segments = [segment for segment in path.split("/") if segment]
    if "." in segments or ".." in segments or "\0" in path:
        raise InvalidInput(f"{text!r} has a segment '.' or '..', which names no object", uri=text)
    return "/".join(segments)


def _decode(path: str) -> str:
    if "%" not in path:
        return path
    try:
        # A percent sign without two hexadecimal digits is taken literally.
        return unquote(_STRAY_PERCENT.sub("%25", path), errors="strict")
    except UnicodeDecodeError:
        raise InvalidInput(f"{path!r} isn't UTF-8 after percent-decoding", path=path) from None


def _encode(path: str, safe: str) -> str:
    # Python keeps bytes of a file's name that aren't UTF-8 as lone surrogates.
    return quote(path, safe=safe, errors="surrogateescape")
