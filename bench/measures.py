"""Numbers out of records: one a record, and ratios to what was measured in the same round."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.records import Record

Value = Callable[[Record], float]


def milliseconds(record: Record) -> float:
    return 1000 * float(record.facts["seconds"]) / record.count


def cpu_milliseconds(record: Record) -> float:
    return 1000 * float(record.facts["cpu_s"]) / record.count


def flushes(record: Record) -> float:
    return float(record.facts["fsyncs"]) / record.count


def peak_mib(record: Record) -> float:
    return max(0.0, (float(record.facts["peak_kib"]) - float(record.facts["resident_kib"])) / 1024)


def database_bytes(record: Record) -> float:
    return float(record.facts["database_bytes"]) / record.count


def bytes_above_documents(record: Record) -> float:
    return float(record.facts["database_bytes"] - record.facts["payload_bytes"]) / record.count


def fact(name: str) -> Value:
    return lambda record: float(record.facts[name])


def times(records: Sequence[Record], base: Sequence[Record], value: Value = milliseconds) -> list[float]:
    """Each round's value over that of ``base`` in the same round."""
    of_round = {record.round: value(record) for record in base}
    return [value(record) / of_round[record.round] for record in records if of_round.get(record.round)]
