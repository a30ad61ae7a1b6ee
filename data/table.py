"""Table columns, declared once: name, Arrow type, unit, meaning, and whether unknown is allowed.

Frames in memory are pandas with nullable extension types (``Int64``, ``Float64``, ``string``),
so that unknown is ``<NA>`` and never 0 or NaN-by-accident; on disk they are Parquet, with unit and
meaning as field metadata.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from .errors import FormatError, InputError

__all__ = ["Column", "Table"]

Kind = Literal["int32", "int64", "float64", "string", "category"]
_PANDAS: dict[str, Any] = {
    "int32": "Int32",
    "int64": "Int64",
    "float64": "Float64",
    "string": "string",
    "category": "string",
}


@dataclass(frozen=True)
class Column:
    """One column: ``unit`` is '' for counts and names; ``nullable`` means unknown is allowed."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    nullable: bool = False
    least: float | None = None
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A named set of columns, with checking, reading and writing."""

    name: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Column names, in order."""
        return tuple(column.name for column in self.columns)

    def frame(self, values: dict[str, Any] | pd.DataFrame) -> pd.DataFrame:
        """Build a checked frame; a nullable column that is absent becomes all unknown.

        Raises:
            FormatError: a missing or extra column, a wrong type, a value out of range.
        """
        source = values if isinstance(values, pd.DataFrame) else pd.DataFrame(values)
        extra = [str(name) for name in source.columns if name not in self.names]
        if extra:
            raise FormatError(f"{self.name}: unknown column {extra[0]!r}")
        built = {column.name: self._column(source, column) for column in self.columns}
        return pd.DataFrame(built).reset_index(drop=True)

    def _column(self, source: pd.DataFrame, column: Column) -> pd.Series[Any]:
        where = f"{self.name}.{column.name}"
        if column.name not in source.columns:
            if not column.nullable:
                raise FormatError(f"{where}: column is missing")
            unknown: pd.Series[Any] = pd.Series(
                pd.NA, index=source.index, dtype=_PANDAS[column.kind]
            )
            return unknown
        raw = source[column.name]
        try:
            series: pd.Series[Any] = raw.astype(_PANDAS[column.kind])
        except (TypeError, ValueError, OverflowError) as error:
            raise FormatError(f"{where}: expected {column.kind}: {error}") from error
        self._check_values(series, column, where)
        return series

    @staticmethod
    def _check_values(series: pd.Series[Any], column: Column, where: str) -> None:
        unknown = series.isna().to_numpy()
        if unknown.any() and not column.nullable:
            raise FormatError(f"{where}: row {int(unknown.argmax())} is unknown; it must be known")
        if column.kind == "float64":
            values = series.to_numpy(dtype=float, na_value=0.0)
            if not np.isfinite(values).all():
                row = int(np.argmin(np.isfinite(values)))
                raise FormatError(f"{where}: row {row} is not a finite number")
        if column.least is not None and len(series):
            low = (series < column.least).fillna(value=False).to_numpy(dtype=bool)
            if low.any():
                row = int(low.argmax())
                raise FormatError(
                    f"{where}: row {row} is {series.iloc[row]}, must be at least {column.least:g}"
                )
        if column.words:
            known = series.isin(column.words).to_numpy() | unknown
            if not known.all():
                row = int(known.argmin())
                raise FormatError(
                    f"{where}: row {row} is {series.iloc[row]!r}, expected one of "
                    + ", ".join(column.words)
                )

    def _schema(self) -> Any:
        import pyarrow as pa

        types = {
            "int32": pa.int32(),
            "int64": pa.int64(),
            "float64": pa.float64(),
            "string": pa.string(),
            "category": pa.dictionary(pa.int32(), pa.string()),
        }
        return pa.schema(
            [
                pa.field(
                    column.name,
                    types[column.kind],
                    nullable=column.nullable,
                    metadata={"unit": column.unit, "meaning": column.meaning},
                )
                for column in self.columns
            ],
            metadata={"clockwright-table": self.name},
        )

    def write(self, frame: pd.DataFrame, path: Path) -> None:
        """Check and write one Parquet file (the caller makes the write atomic)."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        checked = self.frame(frame)
        arrow = pa.Table.from_pandas(checked, schema=self._schema(), preserve_index=False)
        pq.write_table(arrow, path, compression="zstd")

    def read(self, path: Path) -> pd.DataFrame:
        """Read and check one Parquet file.

        Raises:
            InputError: the file is missing.
            FormatError: it is cut, not Parquet, or breaks the declaration.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns: dict[str, Any] = {}
        try:
            arrow = pq.read_table(path, schema=None, partitioning=None)
            for name in arrow.column_names:
                column = arrow.column(name)
                if pa.types.is_dictionary(column.type):
                    column = column.cast(pa.string())
                columns[name] = column.to_pandas(types_mapper=_extension_type)
        except FileNotFoundError:
            raise InputError(f"{path}: no such file; the trace folder is incomplete") from None
        except (pa.ArrowException, OSError, IndexError, UnicodeDecodeError) as error:
            # Damaged pages may come to light only when columns are unpacked.
            reason = str(error).partition("\n")[0]
            raise FormatError(f"{path}: not a whole Parquet file: {reason}") from error
        try:
            return self.frame(pd.DataFrame(columns))
        except FormatError as error:
            raise FormatError(f"{path}: {error}") from error


def _extension_type(arrow_type: Any) -> Any:
    import pyarrow as pa

    return {
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.float64(): pd.Float64Dtype(),
        pa.string(): pd.StringDtype(),
    }.get(arrow_type)
