"""Rollouts of a step as a Parquet file: column by column from their parcels, no object made for a token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from toolwright.runtime.transport import SOURCES, RemoteTrajectory, TrajectoryRef, TrajectoryTable
from toolwright.trajectory import JSON_COLUMNS, Trajectory, parquet_schema, to_row, told_of, write_table


def write(path: Path, trajectories: Sequence[Trajectory]) -> None:
    """As `trajectory.save` would, of trajectories that mostly lie in parcels."""
    shipments: dict[int, TrajectoryRef] = {}
    places: dict[tuple[int, int], int] = {}
    tables, start = [], 0
    order: list[tuple[int, int]] = []
    mine: dict[int, dict[int, RemoteTrajectory]] = {}
    others: list[Trajectory] = []
    for t in trajectories:
        if isinstance(t, RemoteTrajectory):
            shipments[id(t.shipment)] = t.shipment
            mine.setdefault(id(t.shipment), {})[t.row] = t
            order.append((id(t.shipment), t.row))
        else:
            order.append((0, len(others)))
            others.append(t)
    for key, shipment in shipments.items():
        rows = mine[key]
        table = _of_parcel(shipment.parcel, rows)
        tables.append(table)
        places.update({(key, row): start + place for place, row in enumerate(sorted(rows))})
        start += len(rows)
    if others:
        tables.append(pa.Table.from_pylist([to_row(t) for t in others], schema=parquet_schema()))
        places.update({(0, place): start + place for place in range(len(others))})
    whole = pa.concat_tables(tables) if tables else parquet_schema().empty_table()
    wanted = [places[one] for one in order]
    write_table(path, whole if wanted == list(range(len(wanted))) else whole.take(wanted))


def _of_parcel(parcel: TrajectoryTable, rows: dict[int, RemoteTrajectory]) -> pa.Table:
    """The chosen rows, in the parcel's order, with what the driver has learned of them since."""
    facts = json.loads(parcel.facts.tobytes())
    counts = np.array([fact["segments"] for fact in facts["attempts"]], dtype=np.int32)
    sources, lengths, sizes = (parcel.segments[:, i] for i in range(3))
    text = _texts(parcel, sizes)
    first = np.concatenate(([0], np.cumsum(counts)))
    chosen = sorted(rows)
    segments = pa.ListArray.from_arrays(
        pa.array(first, pa.int32()), _segments(parcel, sources, lengths, text, facts["extras"])
    ).take(pa.array(chosen))
    prompt = SOURCES.index("prompt")
    columns: dict[str, list[Any]] = {}
    tasks: dict[int, dict[str, str]] = {}
    for row in chosen:
        t = rows[row]
        spoken = range(first[row], first[row + 1])
        told = _plain(t, "".join(text[i] for i in spoken if sources[i] != prompt), tasks)
        for name, value in told.items():
            columns.setdefault(name, []).append(value)
    schema = parquet_schema()
    arrays = [
        segments if field.name == "segments" else pa.array(columns[field.name], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays([a.cast(f.type) for a, f in zip(arrays, schema, strict=True)], schema=schema)


def _plain(t: RemoteTrajectory, response: str, tasks: dict[int, dict[str, str]]) -> dict[str, Any]:
    """Everything but the segments; what is the same for all attempts at a task is written once."""
    if id(t.task) not in tasks:
        values = {"prompt": t.task.prompt, "ground_truth": t.task.ground_truth}
        values["extra_info"] = t.task.extra_info
        tasks[id(t.task)] = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}
    own = {"reward_parts": t.reward_parts, "counts": t.counts, "timings": t.timings}
    told = {
        **told_of(t),
        "response": response,
        **tasks[id(t.task)],
        **{name: json.dumps(value, ensure_ascii=False) for name, value in own.items()},
    }
    assert set(JSON_COLUMNS) <= set(told)
    return told


def _segments(
    parcel: TrajectoryTable, sources: Any, lengths: Any, text: list[str], extras: dict[str, Any]
) -> Any:
    sampled = np.where(sources == SOURCES.index("policy"), lengths, 0)
    rewards: list[float | None] = [None] * len(lengths)
    anchors: list[str | None] = [None] * len(lengths)
    calls = ["[]"] * len(lengths)
    for place, (reward, anchor, called) in extras.items():
        rewards[int(place)], anchors[int(place)] = reward, anchor
        calls[int(place)] = json.dumps(called, ensure_ascii=False)
    names = np.array(SOURCES, dtype=object)[sources]
    columns = {
        "source": pa.array(names, pa.string()),
        "tokens": _lists(lengths, pa.array(parcel.tokens)),
        "log_probs": _lists(sampled, pa.array(parcel.log_probs.astype(np.float64))),
        "text": pa.array(text, pa.string()),
        "reward": pa.array(rewards, pa.float64()),
        "anchor": pa.array(anchors, pa.string()),
        "calls": pa.array(calls, pa.string()),
    }
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))


def _lists(lengths: Any, values: Any) -> Any:
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values)


def _texts(parcel: TrajectoryTable, sizes: Any) -> list[str]:
    ends, whole = np.cumsum(sizes), parcel.text.data
    starts = ends - sizes
    return [
        str(whole[start:end], "utf-8", "replace")
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
