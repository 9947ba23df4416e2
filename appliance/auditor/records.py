"""The records of a chained audit log, each read by itself: its spelling and its fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from appliance.audit import record as form
from appliance.audit.events import CHAINED, ENVELOPE_2, Vocabularies, schema
from appliance.audit.fields import WordSet
from appliance.auditor import unsealing
from appliance.codec import strict
from appliance.codec.canonical import canonical
from appliance.errors import NoteError
from appliance.policy.schema import Policy
from appliance.transparency.tree import leaf_hash

MAX_LINE_BYTES = 64 << 10


class WrongRecordError(ValueError):
    """A line that no appliance writes; the text says why, without any of its content."""


class _Names(WordSet):
    """A closed set whose words are not known here: any name in their form stands."""

    def accepts(self, value: object) -> bool:
        """Tell whether it could be one of its words."""
        return type(value) is str and self._WORD.fullmatch(value) is not None


@dataclass(frozen=True)
class Record:
    """One line of the log, without its line feed."""

    line: bytes
    fields: dict[str, Any]
    leaf: bytes

    @property
    def event(self) -> str:
        """Its event's name."""
        return str(self.fields["event"])

    @property
    def seq(self) -> int:
        """The number that it gives itself."""
        return int(self.fields["seq"])

    @property
    def prev(self) -> bytes | None:
        """The leaf hash of the record before it, as it says."""
        return None if self.fields["prev"] is None else bytes.fromhex(self.fields["prev"])


class Reader:
    """A reader of lines by the closed schema. With a policy, names must also be the policy's."""

    def __init__(self, policy: Policy | None = None) -> None:
        words = Vocabularies()
        for name, vocabulary in vars(words).items():
            if not vocabulary.words:
                setattr(words, name, _Names(vocabulary.source))
        if policy is not None:
            words.models, words.witnesses = WordSet("the policy's models"), WordSet("the policy's witnesses")
            words.models.admit(model.name for model in policy.models)
            words.witnesses.admit(witness.name for witness in policy.audit.witnesses)
        self._schemas = {version: schema(words, version) for version in CHAINED}

    def opened(self, record: Record, keys: Mapping[int, bytes]) -> dict[str, Any]:
        """Return the fields of a record, with the sealed ones if their period's key is given.
        Raises NoteError if they do not open, or hold something that no appliance writes."""
        if "sealed" not in record.fields or record.fields["period"] not in keys:
            return record.fields
        return self.opened_by(unsealing.key_of(keys[record.fields["period"]], record.fields), record)

    def opened_by(self, key: bytes, record: Record) -> dict[str, Any]:
        """Return the fields of a sealed record by its own key. NoteError as with `opened`."""
        found = {name: record.fields[name] for name in ENVELOPE_2}
        found |= unsealing.fields(key, record.fields)
        if form.fault(found, self._schemas) is not None or "sealed" in found:
            raise NoteError(f"record {record.seq}: its sealed fields are not in the schema")
        return found

    def read(self, line: bytes) -> Record:
        """Return a record from its line. Raises WrongRecordError."""
        if len(line) > MAX_LINE_BYTES:
            raise WrongRecordError("a line is too long")
        try:
            fields = strict.json_value(line, integers=True)
            spelled = isinstance(fields, dict) and canonical(fields) == line
        except (ValueError, RecursionError):
            spelled = False
        if not spelled:
            raise WrongRecordError("a line is not canonical JSON")
        if (wrong := form.fault(fields, self._schemas)) is not None:
            raise WrongRecordError(wrong)
        return Record(line, fields, leaf_hash(line))


def of_version_1(line: bytes) -> bool:
    """Whether a line says that it is a record of version 1, which no chain holds."""
    try:
        value = strict.json_value(line)
    except ValueError:
        return False
    return isinstance(value, dict) and type(value.get("v")) is int and value["v"] == 1


def lines(data: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines without their line feeds. A last line without one gets a mark that makes it
    wrong."""
    for line in data:
        yield line[:-1] if line.endswith(b"\n") else line + b"\0"
