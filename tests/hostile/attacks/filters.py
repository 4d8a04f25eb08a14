"""Compare filters on payloads with the same rules in plain Python."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from attacks.outcome import Outcome
from matryo.nesting import Nesting
from matryo.retrieve.store import Store

PROMISE = "A filter selects the payloads that match it and no others, whatever text and numbers they hold."
BOUNDED, SOAK = 300, 5000

MISSING = object()
COMPARE = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}


def kind(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return repr(value)
    return {int: "number", float: "number", str: "text"}.get(type(value), "other")


def equal(found: Any, wanted: Any) -> bool:
    return found is not MISSING and kind(found) == kind(wanted) and bool(found == wanted)


def reach(payload: dict[str, Any], key: str) -> Any:
    found: Any = payload
    for name in key.split("."):
        found = found.get(name, MISSING) if isinstance(found, dict) else MISSING
    return found


def holds(found: Any, name: str, wanted: Any) -> bool:
    if name in COMPARE:
        return found is not MISSING and kind(found) == kind(wanted) and bool(COMPARE[name](found, wanted))
    if name == "$exists":
        return (found is not MISSING) == wanted
    if name == "$contains":
        inside = isinstance(found, str) and isinstance(wanted, str) and wanted in found
        return inside or (isinstance(found, list) and any(equal(value, wanted) for value in found))
    among = any(equal(found, value) for value in (wanted if name in ("$in", "$nin") else [wanted]))
    return among if name in ("$eq", "$in") else not among


def matches(payload: dict[str, Any], where: dict[str, Any]) -> bool:
    """Whether ``payload`` matches ``where``."""
    for key, wanted in where.items():
        if key == "$and":
            right = all(matches(payload, inner) for inner in wanted)
        elif key == "$or":
            right = any(matches(payload, inner) for inner in wanted)
        elif key == "$not":
            right = not matches(payload, wanted)
        else:
            tests = wanted if isinstance(wanted, dict) else {"$eq": wanted}
            right = all(holds(reach(payload, key), name, value) for name, value in tests.items())
        if not right:
            return False
    return True


# Few different values, most of which differ only where something rounds, cuts or converts them.
LARGE = [2**53, 2**53 + 1, -(2**63), 2**63 - 1, 2**63, 2**63 + 1, -(2**63) - 1, 2**64 - 1, 2**64, 2**100, 1 - 2**1024]
FLOATS = [0.1, 1.0, -2.5, 1e300, float(2**53), float(2**63), -float(2**63), float(2**64), float(2**100), 5e-324]
NUMBERS = st.one_of(st.integers(-3, 3), st.sampled_from([*LARGE, *FLOATS]), st.integers(2**62, 2**66))
ODD = ["\U0001f600", "\0", "x", "x\0", "x\0y", "x\0z", "xy", "\\u0000", "x\\u0000y"]
WORDS = st.one_of(
    st.sampled_from(["", "a", "A", "é", "e\u0301", "1", "true", "null", "x'y", '"', "\\", "\n", "\uffff"]),
    st.sampled_from(ODD),
    st.text(),
)
SCALARS = st.one_of(NUMBERS, WORDS, st.booleans(), st.none())
NAMES = st.sampled_from(["a", "b", "é", "x y", "'", '"', "\\", "\0", "1", "a[0]", "#", "*"])
PAYLOADS = st.dictionaries(
    NAMES,
    st.one_of(SCALARS, st.lists(SCALARS, max_size=2), st.dictionaries(NAMES, SCALARS, max_size=3)),
    max_size=4,
)
KEYS = st.one_of(NAMES, st.builds("{}.{}".format, NAMES, NAMES))
TESTS = st.dictionaries(
    st.sampled_from(["$eq", "$ne"]), SCALARS, max_size=2
).flatmap(
    lambda some: st.one_of(
        st.just(some),
        st.dictionaries(st.sampled_from(["$in", "$nin"]), st.lists(SCALARS, max_size=4), min_size=1).map(some.__or__),
        st.dictionaries(st.sampled_from(list(COMPARE)), st.one_of(NUMBERS, WORDS), min_size=1).map(some.__or__),
        SCALARS.map(lambda part: {**some, "$contains": part}),
        st.booleans().map(lambda there: {**some, "$exists": there}),
    )
).filter(bool)  # fmt: skip
FILTERS = st.recursive(
    st.dictionaries(KEYS, st.one_of(SCALARS, TESTS), max_size=3),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"$and": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"$or": st.lists(inner, max_size=3)}),
        st.fixed_dictionaries({"$not": inner}),
    ),
    max_leaves=5,
)


def run(count: int, seed_: int, folder: Path) -> Outcome:
    """Compare about ``count`` filters, ten for each list of payloads."""
    outcome = Outcome(0)
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    with Store.create(folder / "index", Nesting([2])) as store:

        @seed(seed_)
        @settings(max_examples=-(-count // 10), deadline=None, database=None, suppress_health_check=quiet)
        @given(payload=st.lists(PAYLOADS, min_size=4, max_size=10), filters=st.lists(FILTERS, min_size=10, max_size=10))
        def compare(payload: list[dict[str, Any]], filters: list[dict[str, Any]]) -> None:
            ids = store.add(np.zeros((len(payload), 2)), payload=payload)
            try:
                for where in filters:
                    outcome.attempts += 1
                    right = [id for id, fields in zip(ids, payload, strict=True) if matches(fields, where)]
                    found = store.where(where).ids().tolist()
                    assert found == right, f"{where} selects {found} instead of {right} of {payload}"
            finally:
                store.delete(ids)

        try:
            compare()
        except BaseException as error:   # the smallest example
            outcome.failures.append(f"seed {seed_}: {type(error).__name__}: {error}")
    return outcome
