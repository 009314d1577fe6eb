"""Compiled functions are loaded before anybody needs them."""

from __future__ import annotations

from pathlib import Path

from ferry.kernels import folding, parts, table
from ferry.sidecar.rehearsal import rehearse


def test_a_rehearsal_leaves_nothing_but_what_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "0.table").write_text("of a process that was killed")
    rehearse(tmp_path / "r")
    assert not [*tmp_path.iterdir()]
    for compiled in (
        table.put,
        table.put_hinted,
        table.find,
        table.scan,
        parts.scatter,
        parts.same_groups,
        folding.merge_found,
    ):
        assert compiled.signatures
