"""Exports made by hand in the documented formats of Nsight Systems and Nsight Compute: no GPU made them."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from controlplane.domain.errors import InputError
from controlplane.domain.profile import KernelTrace
from controlplane.files.measurements import nsight

KERNELS = """
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
  correlationId INTEGER, globalPid INTEGER,
  demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, gridX INTEGER, gridY INTEGER, gridZ INTEGER)"""
COPIES = """
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL,
  deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
  correlationId INTEGER, globalPid INTEGER,
  bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL)"""
US = 1000


def export(
    path: Path, kernels: list[tuple[int, int, int]], copies: list[tuple[int, int]] | None = None
) -> Path:
    """(start us, end us, context) of each kernel; (bytes, copyKind) of each copy."""
    with closing(sqlite3.connect(path)) as made, made:
        made.execute(KERNELS)
        rows = [(a * US, b * US, 0, c, 7, i, 1, 1, 1, 1, 1, 1) for i, (a, b, c) in enumerate(kernels)]
        made.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({','.join('?' * 12)})", rows)
        if copies is not None:
            made.execute(COPIES)
            rows9 = [(0, 1, 0, 1, 7, i, 1, size, kind) for i, (size, kind) in enumerate(copies)]
            made.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES ({','.join('?' * 9)})", rows9)
    return path


def test_kernels_gaps_and_copies_of_a_trace(tmp_path: Path) -> None:
    # Two executions of three kernels, 2 us between kernels, 500 us between executions; a third context's one.
    kernels = [(t + 10 * i, t + 10 * i + 8, 1) for t in (0, 528) for i in range(3)]
    path = export(
        tmp_path / "t.sqlite", [*kernels, (3, 4, 2)], [(4096, 1), (4096, 1), (80, 2), (80, 2), (9, 8)]
    )
    told = nsight.read_trace(path, executions=2, batch=4)
    assert told == KernelTrace(3.0, pytest.approx(4 * 0.002 / 6), 1024.0, 20.0)
    # Streams that overlap leave no gap.
    path = export(tmp_path / "overlap", [(0, 100, 1), (10, 20, 1), (50, 90, 1), (104, 110, 1)])
    assert nsight.read_trace(path, executions=1, batch=1).gap_ms == pytest.approx(0.004 / 4)


def test_files_that_are_no_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        nsight.read_trace(tmp_path / "absent", executions=1, batch=1)
    (tmp_path / "text").write_text("no database" * 100)
    with pytest.raises(InputError, match="nsys export --type sqlite"):
        nsight.read_trace(tmp_path / "text", executions=1, batch=1)
    with closing(sqlite3.connect(tmp_path / "empty")) as made:
        made.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    with pytest.raises(InputError, match="no such table: CUPTI_ACTIVITY_KIND_KERNEL"):
        nsight.read_trace(tmp_path / "empty", executions=1, batch=1)
    with pytest.raises(InputError, match="holds 1 kernels, which cannot be 2 executions"):
        nsight.read_trace(export(tmp_path / "few", [(0, 1, 1)]), executions=2, batch=1)


ROWS = """==PROF== Connected to process 12 (/opt/tritonserver/bin/tritonserver)
"ID","Process ID","Process Name","Kernel Name","Context","Stream","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","12","tritonserver","gemm","1","7","0","7.0","","gpu__time_duration.sum","us","3,000.00"
"0","12","tritonserver","gemm","1","7","0","7.0","","lts__t_sectors.avg.pct_of_peak_sustained_elapsed","%","40.00"
"1","12","tritonserver","relu","1","7","0","7.0","","gpu__time_duration.sum","ms","1.00"
"1","12","tritonserver","relu","1","7","0","7.0","","lts__t_sectors.avg.pct_of_peak_sustained_elapsed","%","20.00"
"2","12","tritonserver","odd","1","7","0","7.0","","lts__t_sectors.avg.pct_of_peak_sustained_elapsed","%","n/a"
"""  # noqa: E501
COLUMNS = """"ID","Kernel Name","gpu__time_duration.sum","lts__t_sectors.avg.pct_of_peak_sustained_elapsed"
"","","us","%"
"0","gemm","3,000","40.00"
"1","relu","1,000","20.00"
"""


@pytest.mark.parametrize("text", [ROWS, COLUMNS])
def test_the_cache_in_both_forms_of_the_csv(tmp_path: Path, text: str) -> None:
    (tmp_path / "ncu.csv").write_text(text)
    assert nsight.read_cache_percent(tmp_path / "ncu.csv") == pytest.approx(35.0)


@pytest.mark.parametrize(
    "text",
    ["", "nothing", COLUMNS.replace("lts__t_sectors", "sm__sectors"), "\n".join(COLUMNS.split("\n")[:1])],
)
def test_a_csv_without_the_figure(tmp_path: Path, text: str) -> None:
    (tmp_path / "ncu.csv").write_text(text)
    with pytest.raises(InputError, match="ncu --csv --page raw --metrics lts__t_sectors"):
        nsight.read_cache_percent(tmp_path / "ncu.csv")
