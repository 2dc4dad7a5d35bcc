"""Spells refusals in JSON: one struct for each, in both dialects.

The reference sends ``{"Err": {"Variant": {…}}}`` instead of an answer. The published document
has a ``DatasetError``: the variant is its code, the members are its extras.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from lakeferry.transfer.chain.hashes import Multihash
from lakeferry.transfer.wire import failure_messages as f
from lakeferry.transfer.wire.json_values import hash_or_none, text_or_none
from lakeferry.transfer.wire.spelled_parts import Respelling, SpelledPart, given, respelled

_SHOWN = 200


class _Interval(SpelledPart):
    head: str
    tail: str

    @classmethod
    def of(cls, failure: f.InvalidInterval) -> Any:
        return cls(head=failure.head.text, tail=failure.tail.text)

    def value(self) -> f.InvalidInterval:
        return f.InvalidInterval(Multihash.parse(self.head), Multihash.parse(self.tail))


class _Heads(SpelledPart):
    actual_head: str | None = None
    expected_head: str | None = None

    @classmethod
    def of(cls, failure: f.InvalidHead) -> Any:
        claimed, actual = text_or_none(failure.claimed), text_or_none(failure.actual)
        return cls(actual_head=claimed, expected_head=actual)

    def value(self) -> f.InvalidHead:
        return f.InvalidHead(hash_or_none(self.actual_head), hash_or_none(self.expected_head))


class _Seed(SpelledPart):
    @classmethod
    def of(cls, _: f.SeedOverwrite) -> Any:
        return cls()

    def value(self) -> f.SeedOverwrite:
        return f.SeedOverwrite()


class _Id(SpelledPart):
    dataset_id: str

    @classmethod
    def of(cls, failure: f.RefCollision) -> Any:
        return cls(dataset_id=failure.dataset_id)

    def value(self) -> f.RefCollision:
        return f.RefCollision(given(self.dataset_id) or "")


class _Alias(SpelledPart):
    dataset_alias: str
    held_s: int | UnsetType | None = UNSET
    same: bool | UnsetType | None = UNSET

    @classmethod
    def of(cls, failure: f.NameCollision) -> Any:
        return cls(
            dataset_alias=failure.dataset_alias,
            held_s=UNSET if failure.held_s is None else failure.held_s,
            same=failure.by_same_client or UNSET,
        )

    def value(self) -> f.NameCollision:
        held_s, alias = given(self.held_s), given(self.dataset_alias) or ""
        return f.NameCollision(alias, held_s, held_s is not None and given(self.same) is True)


class _Internal(SpelledPart):
    phase: Any = None
    error_message: str | UnsetType = UNSET
    code: str | UnsetType | None = UNSET

    @classmethod
    def of(cls, failure: f.Internal) -> Any:
        direction, name = (failure.phase or f.Phase.PULL_REQUEST).value
        return cls(
            {direction: name},
            cls._said("error_message", failure.message),
            cls._said("code", failure.code),
        )

    def value(self) -> f.Internal:
        return f.Internal(_phase_of(self.phase), given(self.error_message) or "", given(self.code))


class _PublishedInternal(_Internal, kw_only=True):
    """Its text is the description of the ``DatasetError``; its phase is one text."""

    unsaid = ("error_message",)

    @classmethod
    def of(cls, failure: f.Internal) -> Any:
        phase = ".".join((failure.phase or f.Phase.PULL_REQUEST).value)
        return cls(phase=phase, code=cls._said("code", failure.code))


_VARIANTS: dict[str, tuple[type, type[Any]]] = {
    "InvalidInterval": (f.InvalidInterval, _Interval),
    "InvalidHead": (f.InvalidHead, _Heads),
    "SeedBlockOverwriteRestricted": (f.SeedOverwrite, _Seed),
    "RefCollision": (f.RefCollision, _Id),
    "NameCollision": (f.NameCollision, _Alias),
    "Internal": (f.Internal, _Internal),
}
_PHASES: dict[object, f.Phase] = {
    spelled: phase for phase in f.Phase for spelled in (phase.value, ".".join(phase.value))
}


def _phase_of(said: object) -> f.Phase | None:
    """Return the phase in ``{"Pull": "MetadataRequest"}`` or in its text."""
    if isinstance(said, dict) and len(said) == 1:
        [said] = said.items()
    try:
        return _PHASES.get(said)
    except TypeError:
        return None


_PUBLISHED: dict[type[Any], Respelling] = {
    _Id: Respelling(optional={"dataset_id": UNSET}),
    _Alias: Respelling(optional={"dataset_alias": UNSET}),
}


class _DatasetError(Struct, rename="camel", omit_defaults=True):
    error_code: str
    description: str
    extras: Raw | UnsetType = UNSET


_DATASET_ERROR_DECODER = msgspec.json.Decoder(_DatasetError)


class FailureSpelling:
    """How one dialect spells refusals; ``mark`` is the member that identifies one."""

    def __init__(self, *, published: bool) -> None:
        """Create the structs of the published document, or of the reference."""
        self._is_published = published
        self.mark = "errorDetails" if published else "Err"
        self._structs = {name: struct for name, (_, struct) in _VARIANTS.items()}
        if published:
            known: dict[type[Any], type[Any]] = {_Internal: _PublishedInternal}
            self._structs = {
                name: respelled(each, _PUBLISHED, known) for name, each in self._structs.items()
            }
        self._decoders = {name: msgspec.json.Decoder(each) for name, each in self._structs.items()}

    def failure(self, members: Mapping[str, Raw]) -> f.TransferFailure | None:
        """Return the refusal in a text, if it is one; an unknown variant becomes internal."""
        if self.mark not in members:
            return None
        said = bytes(members[self.mark])
        return self._of_error(said) if self._is_published else self._of_variant(said)

    def _of_variant(self, said: bytes) -> f.TransferFailure:
        try:
            variants = msgspec.json.decode(said, type=dict[str, Raw])
            name = next(name for name in self._structs if name in variants)
            return self._decode(name, bytes(variants[name]))
        except (msgspec.ValidationError, StopIteration):
            return f.Internal(None, said[:_SHOWN].decode(errors="replace"))

    def _of_error(self, said: bytes) -> f.TransferFailure:
        error = _DATASET_ERROR_DECODER.decode(said)
        name = error.error_code if error.error_code in self._structs else "Internal"
        extras = b"{}" if error.extras is UNSET else bytes(error.extras)
        for content in (extras, b"{}"):
            try:
                found = self._decode(name, content)
            except msgspec.ValidationError:
                continue
            if isinstance(found, f.Internal):
                return replace(found, message=error.description)
            return found
        return f.Internal(None, error.description)

    def _decode(self, name: str, said: bytes) -> f.TransferFailure:
        found: f.TransferFailure = self._decoders[name].decode(said).value()
        return found

    def document(self, failure: f.TransferFailure) -> Any:
        """Return a refusal as the value that its JSON encodes."""
        name = next(name for name, (kind, _) in _VARIANTS.items() if kind is type(failure))
        said = self._structs[name].of(failure)
        if not self._is_published:
            return {self.mark: {name: said}}
        text = failure.message if isinstance(failure, f.Internal) else ""
        error = _DatasetError(name, text or f.error_of(failure).message)
        extras = {key: each for key, each in msgspec.to_builtins(said).items() if each is not None}
        if extras:
            error.extras = Raw(msgspec.json.encode(extras))
        return {self.mark: error}
