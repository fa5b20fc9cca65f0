"""A saved model comes back bit for bit; a bad file is refused in one sentence; nothing half-written
stays."""

from __future__ import annotations

import numpy as np
import pytest

from edgegossip.layout import Layout, TensorSpec
from edgegossip.node.final_model import load_model, save_model
from edgegossip.types import DataError, HostError, UsageError

LAYOUT = Layout.of([TensorSpec("w", (2, 3)), TensorSpec("scalar", ()), TensorSpec("bn.mean", (2,), trainable=False)])


def test_round_trip(tmp_path) -> None:
    x = np.random.default_rng(0).standard_normal(LAYOUT.size).astype(np.float32)
    save_model(tmp_path / "deep" / "m.npz", LAYOUT.views(x), {})
    assert load_model(tmp_path / "deep" / "m.npz", LAYOUT).tobytes() == x.tobytes()
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["m.npz"]


def test_other_model_truncated_or_missing_file_is_refused(tmp_path) -> None:
    path = tmp_path / "m.npz"
    save_model(path, LAYOUT.views(np.zeros(LAYOUT.size, np.float32)), {})
    with pytest.raises(DataError, match="cannot read a model"):
        load_model(path, Layout.of([TensorSpec("w", (9,))]))
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError, match="cannot read a model"):
        load_model(path, LAYOUT)
    with pytest.raises(DataError, match="cannot read a model"):
        load_model(tmp_path / "none.npz", LAYOUT)


def test_unwritable_folder_is_a_host_error(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match="cannot save the model"):
        save_model(tmp_path / "file" / "m.npz", LAYOUT.views(np.zeros(LAYOUT.size, np.float32)), {})


def test_failure_leaves_the_old_model_and_no_temporary_file(tmp_path) -> None:
    path = tmp_path / "m.npz"
    save_model(path, LAYOUT.views(np.ones(LAYOUT.size, np.float32)), {})
    with pytest.raises(UsageError):
        save_model(path, {"w": np.array(["text"])}, {})
    assert load_model(path, LAYOUT).sum() == LAYOUT.size
    assert [p.name for p in tmp_path.iterdir()] == ["m.npz"]
